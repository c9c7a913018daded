"""Runs and grids that have ended, as a rule keeps or removes them: `headrace prune`, and the rule of the settings file.

A grid that has ended goes with its runs, as one, and all grids are one series, as the runs of a job are one. The runs
of any other grid stay, whatever the rule: what it does next hangs on them. So do runs that go on, and those that this
user has neither started nor fetched here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import msgspec

from headrace.errors import HeadraceError
from headrace.grid.read_grid import grid_lease, grid_names, grids_dir, has_controller, read_grid
from headrace.own_runs import started_here
from headrace.runs import list_runs
from headrace.runs.disk_use import Ended, remove_run
from headrace.runs.reader import Alive
from headrace.runs.store import job_name_of

GRIDS = ""  # the series of all grids: no job has that name


class GridJobs:
    """Which grid the runs of a job are of, as the journals say that are here now.

    Args:
        tell: gets a word on a grid that cannot be read: it is taken for that of every job whose name begins as its
            jobs' do.

    Attributes:
        ended: the grids that have ended, and when.
    """

    def __init__(self, tell: Callable[[str], object] = lambda _: None) -> None:
        self.ended: dict[str, float] = {}
        self._grids: dict[str, str] = {}  # by job name
        self._unread: list[str] = []
        for name in grid_names():
            try:
                record = read_grid(name)
            except HeadraceError as error:
                tell(f"grid {name} stays with its runs, as it cannot be read: {error.message}")
                self._unread.append(name)
                continue
            self._grids.update((attempt.job_name, name) for line in record.lines for attempt in line.attempts)
            if record.ended is not None and not has_controller(grids_dir() / name):
                self.ended[name] = record.ended

    def grid_of(self, job_name: str) -> str:
        """Returns the grid of a job; empty for none."""
        unread = (name for name in self._unread if job_name.startswith(f"{name}-"))
        return self._grids.get(job_name) or next(unread, "")


def list_ended(alive: Alive, tell: Callable[[str], object]) -> list[Ended]:
    """Returns the runs that have ended and are of no grid, and the grids that have ended.

    Args:
        alive: see `headrace.runs.Run`.
        tell: gets a word on what stays because it cannot be read.
    """
    jobs = GridJobs(tell)
    grids = {name: Ended(GRIDS, ended, (), name) for name, ended in jobs.ended.items()}
    alone = []
    for run in list_runs(alive=alive):
        job = job_name_of(run.id)
        grid = jobs.grid_of(job)
        if not started_here(run.paths.root) or (grid and grid not in grids):
            continue
        try:
            state, created = run.state(), run.header.created
        except (OSError, msgspec.DecodeError) as error:
            tell(f"{run.id} stays, as it cannot be read: {error}")
            grids.pop(grid, None)
            continue
        if not state.finished or run.paths.root.is_symlink():
            grids.pop(grid, None)
        elif grid:
            grids[grid] = grids[grid]._replace(runs=(*grids[grid].runs, run.paths))
        else:
            alone.append(Ended(job, created if state.ended is None else state.ended, (run.paths,)))
    return [*alone, *grids.values()]


def remove_ended(ended: Ended) -> None:
    """Removes the runs of an entry, and then its grid, which else would have runs that nobody finds.

    Raises:
        GridInUse: a process has taken the grid up.
        UsageError, OSError: see `remove_run`.
    """
    if not ended.grid:
        for paths in ended.runs:
            remove_run(paths)
        return
    folder = grids_dir() / ended.grid
    with grid_lease(folder):
        for paths in ended.runs:
            remove_run(paths)
        shutil.rmtree(folder)
