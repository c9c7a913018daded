"""The page's addresses: five pages and their parts (`headrace.console.page_parts`), files, and the JSON behind them.

Each JSON answer is the document that a command prints with ``--output json``:

    /api/runs                     headrace ps --all
    /api/runs/RUN/status          headrace status RUN
    /api/runs/RUN/report          headrace report RUN
    /api/runs/RUN/timeline        headrace timeline RUN
    /api/runs/RUN/metrics         headrace metrics RUN        ?start, end (seconds since the epoch), points
    /api/runs/RUN/logs            the lines of headrace logs RUN, a page of them
                                  ?group, host, stream, text, limit, and one of t (with back), after, before
    /api/compare?run=A&run=B      headrace compare A B
    /api/grids, /api/grids/GRID   see `GridAnswers`
    /api/unreadable               directories among the runs whose header cannot be read

Of a run whose header cannot be read, status and report are ``{"run_id", "error", "hint", "damage"}``: what is wrong
with it is the answer.

/api/live, /api/runs/RUN/live and /api/grids/GRID/live are server-sent events. An error is
``{"error": ..., "hint": ...}``.

Server-sent events tell a page that a run has something new; the page then requests what it shows.

An event's id says how far the files were read, so a page that comes back with its last id is told at once whether
anything has changed. A comment line every few seconds keeps the connection open. A connection is one task: it ends when
the page goes, when the server stops, or, for a run, after its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from headrace import insight
from headrace.console.guard import Guard
from headrace.console.page_parts import Pages, count, number, stretch
from headrace.errors import HeadraceError, RunNotFound, UsageError
from headrace.grid.grid_report import GridReport
from headrace.grid.read_grid import journal_path, read_grid
from headrace.grid.read_report import EndedRuns, list_grids, read_report
from headrace.insight.figures.run_files import why_unread
from headrace.insight.run_cache import RunCache, RunIndex
from headrace.runs import Selector
from headrace.runs.describe import RunLine, describe
from headrace.runs.log_pages import Cursor, LogPage, LogQuery, page_at, page_from

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


T = TypeVar("T")

STATIC = Path(__file__).parent / "static"
_NO_CACHE = {"cache-control": "no-cache"}  # the files may be newer after an update; they have an ETag
_PARTLY = "its timeline, metrics and logs may still be readable; see /api/unreadable"
_cursors = msgspec.json.Decoder(Cursor)


class _Files(StaticFiles):
    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]  # handed through
        response.headers.update(_NO_CACHE)
        return response


def make_app(
    library: RunCache, token: str, port: int, stopping: Callable[[], bool] = lambda: False, once: str = ""
) -> ASGIApp:
    """Returns the page as an ASGI application.

    Args:
        library: the runs.
        token: what every request needs.
        port: where it will listen.
        stopping: whether the server is about to end.
        once: a token for one request, see `Guard`.
    """
    api = _Api(library, stopping)
    grids = GridAnswers(stopping)
    pages = Pages(library, grids.report)
    shown: dict[str, Callable[[Request], str]] = {
        "/": pages.runs,
        "/runs/{run}": pages.run,
        "/compare": pages.compare,
        "/grids": pages.grids,
        "/grids/{grid}": pages.grid,
        "/parts/runs": pages.run_rows,
        "/parts/runs/{run}/row": pages.run_row,
        "/parts/runs/{run}/life": pages.life,
        "/parts/runs/{run}/report": pages.report,
        "/parts/runs/{run}/charts": pages.charts,
        "/parts/curves": pages.curves,
        "/parts/compare": pages.compared,
        "/parts/grids": pages.grid_list,
        "/parts/grids/{grid}": pages.grid_parts,
    }
    answers: dict[str, Callable[[Request], object]] = {
        "/api/runs": api.runs,
        "/api/unreadable": api.unreadable,
        "/api/compare": api.compare,
        "/api/runs/{run}/status": api.status,
        "/api/runs/{run}/report": api.report,
        "/api/runs/{run}/timeline": api.timeline,
        "/api/runs/{run}/metrics": api.metrics,
        "/api/runs/{run}/logs": api.logs,
        "/api/grids": grids.grids,
        "/api/grids/{grid}": grids.grid,
    }
    routes = [
        *(Route(path, functools.partial(_answer, answer, HTMLResponse)) for path, answer in shown.items()),
        *(Route(path, functools.partial(_answer, answer, _json)) for path, answer in answers.items()),
        Route("/api/live", api.live),
        Route("/api/runs/{run}/live", functools.partial(_or_error, api.live_run)),
        Route("/api/grids/{grid}/live", functools.partial(_or_error, grids.live)),
        Mount("/static", _Files(directory=STATIC)),
    ]
    return Guard(Starlette(routes=routes), token, port, once)


async def _or_error(answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    """Answers with events, or with what is wrong."""
    try:
        return await answer(request)
    except HeadraceError as error:
        return _json(_error(error.message, error.hint), 404)


async def _answer(answer: Callable[[Request], T], written: Callable[[T], Response], request: Request) -> Response:
    """Answers with what a function returns; it is called in a thread, because it reads files."""
    try:
        return written(await run_in_threadpool(answer, request))
    except HeadraceError as error:
        return _json(_error(error.message, error.hint), 404 if isinstance(error, RunNotFound) else 422)
    except (OSError, msgspec.DecodeError) as error:
        return _json(_error(f"the run cannot be read: {why_unread(error)}", _PARTLY), 422)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value, enc_hook=dict), status, media_type="application/json")


def _error(message: str, hint: str) -> object:
    return {"error": message, "hint": hint}


def _or_damage(index: RunIndex, make: Callable[[], object]) -> object:
    """Returns a document or, when a file of the run cannot be read, which one and why."""
    try:
        return make()
    except (OSError, msgspec.DecodeError) as error:
        said = f"the run cannot be read: {index.paths.header.name}: {why_unread(error)}"
        return {"run_id": index.paths.id, "error": said, "hint": _PARTLY, "damage": index.damage()}


class _Api:
    """What is behind the addresses. The methods read files: they run in threads."""

    def __init__(self, library: RunCache, stopping: Callable[[], bool]) -> None:
        self._library = library
        self._stopping = stopping

    def runs(self, request: Request) -> object:
        return self._library.lines(time.time())

    def unreadable(self, request: Request) -> object:
        return self._library.unreadable()

    def status(self, request: Request) -> object:
        index = self._index(request)
        return _or_damage(index, lambda: describe(index.run))

    def report(self, request: Request) -> object:
        index = self._index(request)
        return _or_damage(index, index.report)

    def timeline(self, request: Request) -> object:
        return self._index(request).timeline(time.time())

    def metrics(self, request: Request) -> object:
        return self._index(request, metrics=True).metrics(*stretch(request))

    def logs(self, request: Request) -> LogPage:
        asked = request.query_params
        selector = Selector(*(asked.get(name) or None for name in ("group", "host", "stream")))
        query = LogQuery(selector, asked.get("text", ""), count(request, "limit") or 300)
        paths = self._index(request).paths
        for name in ("after", "before"):
            if name in asked:
                return page_from(paths, query, _cursor(asked[name]), forwards=name == "after")
        return page_at(paths, query, number(request, "t"), count(request, "back") or 0)

    def compare(self, request: Request) -> object:
        return insight.compare([self._library.open(name).report() for name in request.query_params.getlist("run")])

    async def live(self, request: Request) -> Response:
        last: list[tuple[object, News]] = []

        def look() -> News:
            lines = self._library.lines(time.time())
            if not last or last[0][0] is not lines:
                last[:] = [(lines, news_of_runs(lines))]
            return last[0][1]

        def news_of_runs(lines: list[RunLine]) -> News:
            state = [(line.run_id, line.secondary_status, line.degraded, line.attempt) for line in lines]
            going = sum(1 for line in lines if line.exit_code is None)
            return News(f"{hash(tuple(state)) & 0xFFFFFFFF:08x}", {"runs": len(lines), "going": going})

        return event_stream(look, _last_id(request), self._stopping)

    async def live_run(self, request: Request) -> Response:
        index = await run_in_threadpool(self._index, request, True)

        def look() -> News:
            version = index.version()
            return News(str(version), version._asdict(), last=version.finished)

        return event_stream(look, _last_id(request), self._stopping)

    def _index(self, request: Request, metrics: bool = False) -> RunIndex:
        return self._library.open(request.path_params["run"], metrics)


def _last_id(request: Request) -> str:
    return request.headers.get("last-event-id", "")


def _cursor(text: str) -> Cursor:
    try:
        return _cursors.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{text[:80]!r} is not a place in the logs: {error}", hint="take it from another page"
        ) from None
