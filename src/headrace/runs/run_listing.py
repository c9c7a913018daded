"""One run in a list: `headrace ps` and the first page of `headrace ui`. Pure, but for reading the plan."""

from __future__ import annotations

import msgspec

from headrace.own_runs import started_here
from headrace.runs.reader import Run
from headrace.runs.run_paths import RunPaths
from headrace.runs.state import RunState
from headrace.runs.store import RunHeader, read_plan


class GroupLine(msgspec.Struct, frozen=True):
    """One instance group of a plan: its name, its instance type and its hosts."""

    name: str
    instance_type: str = ""
    hosts: tuple[str, ...] = ()


class RunLine(msgspec.Struct, frozen=True):
    """One run in a list.

    Attributes:
        run_id, job_name, engine: which one.
        status, secondary_status: SageMaker's.
        attempt: from 1.
        hosts: how many instances it has; 0 before they run.
        created: seconds since the epoch.
        seconds: from there to its end, or to now, or to the newest part of a copy that is not complete.
        exit_code: None while it goes on.
        cause: why it did not succeed, in words.
        degraded: the data service lost workers or servers while the job went on.
        groups: its instance groups, as planned; empty when there is no readable plan.
        silent_seconds: for how long a copy that is not complete has had nothing new; None of every other run.
        bytes: what its directory takes on disk; None where nobody has looked.
        foreign: this user has not started, or fetched, it here: it is only read.
        serves: the run for which this one is the service's side, on an endpoint of this machine; empty for all others.
    """

    run_id: str
    job_name: str
    engine: str
    status: str
    secondary_status: str
    attempt: int
    hosts: int
    created: float
    seconds: float
    exit_code: int | None
    cause: str
    degraded: bool = False
    groups: tuple[GroupLine, ...] = ()
    silent_seconds: float | None = None
    bytes: int | None = None
    foreign: bool = False
    serves: str = ""


class _Plan(msgspec.Struct, frozen=True):
    groups: tuple[GroupLine, ...] = ()


def planned_groups(paths: RunPaths) -> tuple[GroupLine, ...]:
    """Returns the instance groups of a run's plan, in the job file's order; none when the plan cannot be read."""
    try:
        return read_plan(paths, _Plan).groups
    except (OSError, msgspec.DecodeError):  # the run is listed without its plan
        return ()


def run_line(run: Run, now: float) -> RunLine:
    """Returns the line of a run. Raises OSError or msgspec.DecodeError when its header cannot be read."""
    silent, foreign = run.silent_seconds(now), not started_here(run.paths.root)
    return line_of(run.id, run.header, run.state(), planned_groups(run.paths), run.present(now), silent, foreign)


def line_of(
    run_id: str,
    header: RunHeader,
    state: RunState,
    groups: tuple[GroupLine, ...],
    now: float,
    silent_seconds: float | None,
    foreign: bool,
) -> RunLine:
    """Returns the line of a run, from values alone."""
    return RunLine(
        run_id=run_id,
        job_name=header.job_name,
        engine=header.engine,
        status=state.status.value,
        secondary_status=state.secondary_status.value,
        attempt=state.attempt,
        hosts=len(state.hosts),
        created=header.created,
        seconds=round(max(0.0, (state.ended if state.ended is not None else now) - header.created), 3),
        exit_code=state.exit_code,
        cause=str(state.cause or ""),
        degraded=state.degraded,
        groups=groups,
        silent_seconds=silent_seconds,
        foreign=foreign,
    )
