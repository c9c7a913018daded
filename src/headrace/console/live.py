"""Server-sent events: they tell a page that a run has something new; the page then requests what it shows.

An event's id says how far the files were read, so a page that comes back with its last id is told at once whether
anything has changed. A comment line every few seconds keeps the connection open. A connection is one task: it ends when
the page goes, when the server stops, or, for a run, after its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headrace.grid.grid_report import GridReport
from headrace.grid.read_grid import journal_path, read_grid
from headrace.grid.read_report import EndedRuns, list_grids, read_report

TICK = 0.5  # seconds between two looks at the files
HEARTBEAT = 10.0
FRESH = 2.0  # seconds after a write in which a journal is read at each look
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


class GridAnswers:
    """The methods read files: they run in threads."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._runs = EndedRuns()

    def grids(self, request: Request) -> object:
        """Answers with all grids, and those that cannot be read."""
        grids, unread = list_grids()
        return {"grids": grids, "unread": unread}

    def grid(self, request: Request) -> GridReport:
        """Answers with the report of a grid."""
        return self.report(request.path_params["grid"])

    def report(self, name: str) -> GridReport:
        """Returns the report of a grid."""
        return read_report(name, figures=self._runs.figures)

    async def live(self, request: Request) -> Response:
        """Answers with an event for each change of a grid's journal, to the end of the grid.

        Raises:
            UsageError: there is no such grid.
        """
        path = journal_path(request.path_params["grid"])
        await run_in_threadpool(read_grid, path.parent.name)
        return event_stream(news_of(path), request.headers.get("last-event-id", ""), self._stopping)


def news_of(path: Path) -> Callable[[], News]:
    """Returns what looks at the journal of a grid, and reads it when it may have changed."""
    news: dict[str, News] = {}

    def look() -> News:
        stamp, fresh = _stamp(path)
        if fresh or stamp not in news:
            record = read_grid(path.parent.name)
            states, ended = {state.value: count for state, count in record.counts.items()}, record.ended is not None
            news.clear()
            number = zlib.crc32(msgspec.json.encode((states, ended)))
            news[stamp] = News(f"{stamp}{number:08x}", states, last=ended)
        return news[stamp]

    return look


def _stamp(path: Path) -> tuple[str, bool]:
    """Returns what is another after each write, time and size of the journal and of its log; and whether one more write
    could leave it as it is: times are counted in ticks, and a log that begins anew keeps its size."""
    found: list[tuple[int, int]] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(FileNotFoundError):  # the log is there only while the journal is open
            status = file.stat()
            if status.st_size:  # whoever reads a journal that nobody writes makes an empty log, and removes it
                found.append((status.st_mtime_ns, status.st_size))
    fresh = any(0 <= time.time() - written / 1e9 < FRESH for written, _ in found)
    return f"{hash(tuple(found)) & 0xFFFFFFFF:08x}", fresh
