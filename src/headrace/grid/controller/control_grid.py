"""Takes a grid, so that no other process controls it, and makes its controller; tells before that what the grid's file
says now against what its journal has."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from headrace import engines
from headrace.errors import JobInvalid, Problem, UsageError
from headrace.grid.controller.grid_controller import GridController, Told
from headrace.grid.controller.line_jobs import LineJobs
from headrace.grid.data_places import MeasuredPlaces, measure_places
from headrace.grid.grid_record import ControllerProcess, CopyRecord, GridRecord, LineRecord
from headrace.grid.journal import Instant, Journal, nothing_happens
from headrace.grid.load_grid import Grid, load_grid
from headrace.grid.plan_grid import GridPlan, check_budget, copy_record, plan_grid
from headrace.grid.read_grid import grid_lease, journal_path, require_own


@dataclass(frozen=True)
class GridChanges:
    """See the module.

    Attributes:
        added: lines that are new.
        gone: lines that the file has no more; what has begun of them goes on, the rest is not started.
        moved: lines that have not run and go elsewhere, or to another engine.
        job: the job is another, or what is another in a region: lines that have not run get it.
        file: the grid was started from this other file; empty when it is the same.
        budget: USD before and now, when they are not the same; None for no budget.
        deadline: seconds after the first start before and now, when they are not the same; None for no deadline.
    """

    added: tuple[LineRecord, ...] = ()
    gone: tuple[LineRecord, ...] = ()
    moved: tuple[LineRecord, ...] = ()
    job: bool = False
    file: str = ""
    budget: tuple[float | None, float | None] | None = None
    deadline: tuple[float | None, float | None] | None = None

    def __bool__(self) -> bool:
        return self != GridChanges()


def grid_record(jobs: LineJobs, plan: GridPlan, path: str, now: float) -> GridRecord:
    """Returns the grid as a journal begins with it.

    Args:
        jobs: of its lines.
        plan: where they run.
        path: of the grid's file.
        now: seconds since the epoch.
    """
    file = jobs.file
    return GridRecord(
        name=plan.name,
        file=path,
        digest=plan.digest,
        job_digest=jobs.digest,
        created=now,
        lines=plan.lines,
        copies=tuple(map(copy_record, plan.copies)),
        budget=None if file.budget is None else file.budget.usd,
        deadline=None if file.deadline is None else now + file.deadline,
    )


def changes_between(known: GridRecord, wanted: GridRecord) -> GridChanges:
    """Returns what is another in a grid's file since its journal was written.

    Args:
        known: as the journal has it.
        wanted: as `grid_record` returns it now.
    """
    before = {line.key: line for line in known.lines}
    now = {line.key for line in wanted.lines}
    both = [(before[line.key], line) for line in wanted.lines if line.key in before and before[line.key].in_file]
    return GridChanges(
        added=tuple(line for line in wanted.lines if line.key not in before or not before[line.key].in_file),
        gone=tuple(line for line in known.lines if line.in_file and line.key not in now),
        moved=tuple(
            line for old, line in both if not old.attempts and (old.region, old.engine) != (line.region, line.engine)
        ),
        file="" if os.path.realpath(known.file) == os.path.realpath(wanted.file) else known.file,
        budget=_pair(known.budget, wanted.budget),
        deadline=_pair(_seconds(known), _seconds(wanted)),
        job=known.job_digest != wanted.job_digest,
    )


def _pair(before: float | None, now: float | None) -> tuple[float | None, float | None] | None:
    return None if before == now else (before, now)


def _seconds(grid: GridRecord) -> float | None:
    return None if grid.deadline is None else round(grid.deadline - grid.created, 3)


class GridUnchanged(UsageError):
    """Somebody did not want a grid to go on with what its file says now. Nothing was started."""


def _silent(*_: object) -> None:
    pass


@contextlib.contextmanager
def controlling(
    file: str | os.PathLike[str],
    *,
    confirm: Callable[[GridChanges, GridRecord], bool],
    look: Callable[[Grid, GridPlan], object] = _silent,
    measure: bool = False,
    again: bool = False,
    told: Told = _silent,
    told_copy: Callable[[CopyRecord], object] = _silent,
    instant: Instant = nothing_happens,
) -> Iterator[GridController]:
    """Reads a grid's file, takes the grid, writes into its journal what is to be done, and yields its controller.

    Args:
        file: the grid's file.
        confirm: is asked whether to go on when the file says something else than the journal.
        look: is given the grid and its plan before anything is taken or written, and may refuse them.
        measure: data of unknown size are listed in S3 first, so that they can be copied.
        again: lines that are over run again too.
        told, told_copy, instant: see `GridController`.

    Raises:
        JobInvalid: what is wrong in the file, its job, its lines, or with their engines.
        UsageError: another process controls it; a file or database that is not there; nobody confirmed the changes.
        StorageError: the journal cannot be written.
    """
    grid = load_grid(file)
    measured = measure_places(grid) if measure else MeasuredPlaces()
    plan = plan_grid(grid, measured.sizes)
    check_budget(grid, plan)
    look(grid, plan)
    measured.check()
    jobs = LineJobs(grid)
    wanted = grid_record(jobs, plan, str(Path(file).absolute()), time.time())
    path = journal_path(plan.name)
    first = not path.exists()
    if not first:
        require_own(path)
    if first:  # before its journal is made: of a grid that cannot start nothing is left
        check_first_of_each(grid, jobs, wanted)
    with (
        grid_lease(path.parent),
        contextlib.closing(Journal(path, create=True, instant=instant)) as journal,
    ):
        known = journal.read()
        if known is None:
            if not first:
                check_first_of_each(grid, jobs, wanted)
            journal.begin(wanted)
        else:
            seconds = grid.file.deadline
            deadline = None if seconds is None else known.created + seconds
            wanted = msgspec.structs.replace(wanted, created=known.created, deadline=deadline)
            changes = changes_between(known, wanted)
            if changes:
                if not confirm(changes, known):
                    hint = "--yes goes on with them; another `name` makes another grid"
                    raise GridUnchanged("the changes were not confirmed: nothing was started", hint)
                check_first_of_each(grid, jobs, wanted)
                journal.revise(wanted)
        if again:
            journal.retry((line.key for line in wanted.lines), also_completed=True)
        journal.take(_this_process())
        made = GridController(journal, jobs, plan, told=told, told_copy=told_copy, instant=instant)
        with contextlib.closing(made) as controller:
            yield controller


@contextlib.contextmanager
def stopping(name: str, told: Told = _silent) -> Iterator[GridController]:
    """Takes a grid that no process controls, and yields a controller that stops it. Its file is not needed.

    Raises:
        UsageError: there is no such grid, or another process controls it.
        StorageError: the journal cannot be written.
    """
    path = journal_path(name)
    with contextlib.closing(Journal(path)) as journal, grid_lease(path.parent):
        journal.ask_stop(time.time())
        journal.take(_this_process())
        made = GridController(journal, None, None, told=told, told_copy=_silent)
        with contextlib.closing(made) as controller:
            yield controller


def check_first_of_each(grid: Grid, jobs: LineJobs, wanted: GridRecord) -> None:
    """Plans the first job of each engine and region, so that what all have in common is told before anything starts.

    Raises:
        JobInvalid: at the place of the first line.
    """
    seen: set[tuple[str, str]] = set()
    problems: list[Problem] = []
    for line in wanted.lines:
        if line.state.over or (line.engine, line.region) in seen:
            continue
        seen.add((line.engine, line.region))
        try:
            engines.plan(jobs.job(line.key, line.job_name, line.region, line.engine, {}), line.engine)
        except JobInvalid as error:
            problems += (replace(problem, file=line.place, line=0) for problem in error.problems)
        except UsageError as error:
            problems.append(Problem(line.engine, error.message, line.region, line.place, hint=error.hint))
    if problems:
        raise JobInvalid(tuple(problems))


def _this_process() -> ControllerProcess:
    return ControllerProcess(os.getpid(), socket.gethostname(), time.time())
