"""What a grid's file says now against what its journal has: shown before a run goes on with it. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import msgspec

from headrace.grid.controller.line_jobs import LineJobs
from headrace.grid.journal.grid_record import CopyRecord, CopyState, GridRecord, LineRecord, LineState
from headrace.grid.placement.place_line import Candidate, Copy, Refusal
from headrace.grid.plan_grid import GridPlan, PlannedLine


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
        lines=tuple(_line(each, jobs.engine_of(each.line)) for each in plan.lines),
        copies=tuple(copy_record(copy.copy, copy.region) for copy in plan.copies),
        budget=None if file.budget is None else file.budget.usd,
        deadline=None if file.deadline is None else now + file.deadline,
    )


def _line(planned: PlannedLine, engine: str) -> LineRecord:
    line, chosen = planned.line, planned.placed.chosen
    nowhere = chosen is None
    record = LineRecord(
        index=line.index,
        key=line.key,
        place=line.place,
        fields=dict(line.fields),
        job_name=planned.job_name,
        engine=engine,
        region="",
        planned_cost=None,
        planned_seconds=None,
        state=LineState.UNPLACED if nowhere else LineState.WAITING,
        reason=_nowhere(planned) if nowhere else "",
    )
    if chosen is None:
        return record
    return msgspec.structs.replace(
        record,
        region=chosen.region,
        planned_cost=chosen.run_cost,
        planned_seconds=chosen.seconds,
        waits_for=tuple((copy.place, chosen.region) for copy in chosen.copies),
    )


def _nowhere(planned: PlannedLine) -> str:
    unknown = any(each.refusal is Refusal.SIZE_UNKNOWN for other in planned.placed.others for each in other.refused)
    measure = "; --measure lists data of unknown size" if unknown else ""
    return f"no region is left: `headrace grid plan --why` shows what is against each{measure}"


def copy_record(copy: Copy, region: str) -> CopyRecord:
    """Returns a copy as a journal begins with it."""
    return CopyRecord(copy.place, copy.source, region, "", CopyState.WAITING, copy.cost)


def candidates_of(planned: PlannedLine) -> tuple[Candidate, ...]:
    """Returns the regions in which a line may run, the first choice first."""
    chosen = planned.placed.chosen
    return () if chosen is None else (chosen, *(each for each in planned.placed.others if not each.refused))


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
