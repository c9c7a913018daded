"""What a grid's file says now against what its journal has: shown before a run goes on with it. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from headrace.grid.controller.line_jobs import LineJobs
from headrace.grid.journal.grid_record import GridRecord, LineRecord
from headrace.grid.plan_grid import GridPlan, copy_record


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
        limits = self.budget is not None or self.deadline is not None
        return bool(self.added or self.gone or self.moved or self.job or self.file or limits)


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
    found = GridChanges(
        added=tuple(line for line in wanted.lines if line.key not in before or not before[line.key].in_file),
        gone=tuple(line for line in known.lines if line.in_file and line.key not in now),
        moved=tuple(
            line for old, line in both if not old.attempts and (old.region, old.engine) != (line.region, line.engine)
        ),
        file="" if os.path.realpath(known.file) == os.path.realpath(wanted.file) else known.file,
        budget=_pair(known.budget, wanted.budget),
        deadline=_pair(_seconds(known), _seconds(wanted)),
    )
    return replace(found, job=known.job_digest != wanted.job_digest)


def _pair(before: float | None, now: float | None) -> tuple[float | None, float | None] | None:
    return None if before == now else (before, now)


def _seconds(grid: GridRecord) -> float | None:
    return None if grid.deadline is None else round(grid.deadline - grid.created, 3)
