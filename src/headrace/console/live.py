"""Server-sent events: a page hears that a run has something new, and asks for what it shows.

An event's id is how far the files were read, so a page that was away and comes back with its last id hears at once
whether anything has changed. A comment line every few seconds keeps the connection, and finds out that it is gone.
A connection is one task: it ends when the page goes, when the server stops, or, for a run, after its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

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


class EventStream(Response):
    """One connection.

    Args:
        look: returns the news of now; it runs in a thread and may read files.
        known: the id that the page has seen last; empty for none.
        stopping: whether the server is about to end.
    """

    def __init__(self, look: Callable[[], News], known: str, stopping: Callable[[], bool]) -> None:
        super().__init__()
        self._look = look
        self._known = known
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers until the page goes."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _write(send, f"retry: {RETRY_MS}\n\n")
        gone = asyncio.create_task(_gone(receive))
        try:
            await self._speak(send, gone)
        finally:
            gone.cancel()
        if not gone.done() or gone.cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _speak(self, send: Send, gone: asyncio.Task[None]) -> None:
        known, silent = self._known, 0.0
        while not gone.done() and not self._stopping():
            news = await run_in_threadpool(self._look)
            if news.id != known:
                known, silent = news.id, 0.0
                data = msgspec.json.encode(news.data).decode()
                kind = "end" if news.last else "change"
                await _write(send, f"id: {news.id}\nevent: {kind}\ndata: {data}\n\n")
            elif news.last:
                await _write(send, f"id: {news.id}\nevent: end\ndata: {{}}\n\n")
            if news.last:
                return
            if silent >= HEARTBEAT:
                silent = 0.0
                await _write(send, ": still here\n\n")
            await asyncio.wait({gone}, timeout=TICK)  # a page that goes is noticed at once
            silent += TICK


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
