"""Server-sent events: they tell a page that a run has something new; the page then requests what it shows.

An event's id says how far the files were read, so a page that comes back with its last id is told at once whether
anything has changed. A comment line every few seconds keeps the connection open. A connection is one task: it ends when
the page goes, when the server stops, or, for a run, after its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

TICK = 0.5  # seconds between two looks at the files
HEARTBEAT = 10.0
RETRY_MS = 2000


@dataclass(frozen=True)
class News:
    """What there is to say.

    Attributes:
        id: changes when it changes.
        data: one JSON document.
        last: nothing more will come.
    """

    id: str
    data: object
    last: bool = False


def event_stream(look: Callable[[], News], known: str, stopping: Callable[[], bool]) -> StreamingResponse:
    """Returns the answer of one connection. It ends when the page is gone.

    Args:
        look: returns the news of now; it runs in a thread and may read files.
        known: the id that the page has seen last; empty for none.
        stopping: whether the server is about to end.
    """
    events = _events(look, known, stopping)
    return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _events(look: Callable[[], News], known: str, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    silent = 0.0
    while not stopping():
        news = await run_in_threadpool(look)
        if news.id != known or news.last:
            data = msgspec.json.encode(news.data if news.id != known else {}).decode()
            yield f"id: {news.id}\nevent: {'end' if news.last else 'change'}\ndata: {data}\n\n"
            known, silent = news.id, 0.0
        if news.last:
            return
        if silent >= HEARTBEAT:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(TICK)
        silent += TICK
