"""What became of the run of an attempt: read from its record."""

from __future__ import annotations

import time

import msgspec

from headrace.grid.controller.start_attempt import never_started
from headrace.grid.journal.grid_record import AttemptRecord, AttemptState
from headrace.insight.cost.cost_report import cost_report
from headrace.runs import Cause, CauseKind, Run, Status


def ended_attempt(attempt: AttemptRecord, run: Run) -> AttemptRecord | None:
    """Returns an attempt with its end; None while its run goes on.

    Raises:
        OSError, msgspec.DecodeError: its record cannot be read.
    """
    state = run.state()
    if not state.finished:
        return None
    cause = state.cause
    if never_started(run):
        cause = Cause(CauseKind.CALLER_DIED, "its process died before anything was started", infrastructure=True)
    cost, seconds = cost_so_far(run, attempt.region)
    return msgspec.structs.replace(
        attempt,
        state=AttemptState.ENDED,
        run_id=run.id,
        started=attempt.started or time.time(),
        ended=state.ended or time.time(),
        status=Status.FAILED if state.status is Status.IN_PROGRESS else state.status,
        cause=cause,
        cost=cost,
        billable_seconds=seconds,
    )


def failed_attempt(attempt: AttemptRecord, cause: Cause, now: float) -> AttemptRecord:
    """Returns an attempt that got no run, with its end."""
    return msgspec.structs.replace(
        attempt, state=AttemptState.ENDED, ended=now, status=Status.FAILED, cause=cause, cost=0.0, billable_seconds=0.0
    )


def cost_so_far(run: Run, region: str) -> tuple[float | None, float | None]:
    """Returns what a run has cost in USD, and the seconds of all its hosts; None for what is not known.

    Raises:
        OSError, msgspec.DecodeError: its record cannot be read.
    """
    report = cost_report(run, region=region or None, by_work=False)
    seconds = [host.seconds.value for host in report.hosts if host.seconds.value is not None]
    return report.total.value, sum(seconds) if seconds else None
