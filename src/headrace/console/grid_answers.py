"""What is behind the addresses of grids.

/api/grids                    headrace grid list
/api/grids/GRID               headrace grid report GRID
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from headrace.console.live import News, event_stream
from headrace.grid.journal.journal_file import journal_path
from headrace.grid.journal.read_grid import read_grid
from headrace.grid.report.grid_report import GridReport
from headrace.grid.report.read_report import EndedRuns, list_grids, read_report


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
        news: dict[str, News] = {}

        def look() -> News:
            stamp = _stamp(path)
            if stamp not in news:
                record = read_grid(path.parent.name)
                states = {state.value: count for state, count in record.counts.items()}
                news.clear()
                news[stamp] = News(stamp, states, last=record.ended is not None)
            return news[stamp]

        return event_stream(look, request.headers.get("last-event-id", ""), self._stopping)


def _stamp(path: Path) -> str:
    """Returns what is another after each write: time and size of the journal and of its log."""
    found: list[tuple[int, int]] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(FileNotFoundError):  # the log is there only while the journal is open
            status = file.stat()
            found.append((status.st_mtime_ns, status.st_size))
    return f"{hash(tuple(found)) & 0xFFFFFFFF:08x}"
