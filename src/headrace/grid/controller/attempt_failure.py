"""Why an attempt failed, and what follows: pure functions of types, never of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.errors import EngineRefused, EngineUnreachable, HeadraceError, StorageError, StorageUnreachable
from headrace.grid.journal.grid_record import AttemptRecord, LineRecord
from headrace.grid.run_rules import LONGEST_DELAY, Retry, RetryCause
from headrace.runs import Cause, CauseKind

_CAPACITY = frozenset(
    {"CapacityError", "InsufficientCapacityError", "ResourceLimitExceeded", "ResourceLimitExceededException"}
)
_INTERNAL = frozenset({"InternalServerError", "InternalFailure", "ServiceUnavailable", "ServiceUnavailableException"})
_INFRASTRUCTURE = frozenset(
    {CauseKind.ENGINE_FAILED, CauseKind.COORDINATOR_LOST, CauseKind.NETWORK_LOST, CauseKind.CALLER_DIED}
)
_MOVES = frozenset({RetryCause.CAPACITY, RetryCause.SPOT})
"""After these another region may do better."""


class NextTry(NamedTuple):
    """What follows a failed attempt.

    Attributes:
        region: where the next one runs.
        not_before: seconds since the epoch.
    """

    region: str
    not_before: float


def failure_of_run(cause: Cause | None) -> RetryCause | None:
    """Returns why a run failed; None when another attempt would not help, because the user's program failed."""
    if cause is None:
        return None
    if cause.kind is CauseKind.PREEMPTED:
        return RetryCause.SPOT
    if cause.kind is CauseKind.INSTANCE_NOT_STARTED and cause.infrastructure:
        return RetryCause.CAPACITY
    if cause.infrastructure or cause.kind in _INFRASTRUCTURE:
        return RetryCause.INTERNAL
    return None


def failure_of_start(error: Exception) -> RetryCause | None:
    """Returns why an attempt could not be started; None when another attempt would not help."""
    if any(isinstance(each, EngineUnreachable | StorageUnreachable) for each in (error, error.__cause__)):
        return RetryCause.THROTTLED
    if isinstance(error, EngineRefused) and error.code in _CAPACITY:
        return RetryCause.CAPACITY
    if isinstance(error, EngineRefused) and error.code in _INTERNAL:
        return RetryCause.INTERNAL
    return RetryCause.INTERNAL if isinstance(error, StorageError | OSError) else None


def cause_of_start(error: Exception) -> Cause:
    """Returns why an attempt failed that could not be started, as its record has it."""
    failure = failure_of_start(error)
    kind = CauseKind.INSTANCE_NOT_STARTED if failure is RetryCause.CAPACITY else CauseKind.ENGINE_FAILED
    words = error.message if isinstance(error, HeadraceError) else str(error)
    return Cause(kind, words, infrastructure=failure is not None)


def lost_at_start(attempt: AttemptRecord) -> bool:
    """Tells whether nothing of an attempt was started because its controller died: it does not count."""
    cause = attempt.cause
    return cause is not None and cause.kind is CauseKind.CALLER_DIED and not attempt.billable_seconds


def next_try(
    line: LineRecord, failure: RetryCause | None, rules: Retry, regions: Sequence[str], now: float
) -> NextTry | None:
    """Returns what follows a failed attempt of a line; None when nothing does.

    Args:
        line: with the attempt that has failed, the last one, and all before it.
        failure: why it failed.
        rules: of the grid.
        regions: in which the plan lets the line run, the first choice first.
        now: seconds since the epoch.
    """
    counted = sum(not lost_at_start(each) for each in line.attempts)
    if failure is None or failure.value not in rules.on or counted > rules.attempts + line.extra_attempts:
        return None
    here = line.attempts[-1].region
    if failure in _MOVES and rules.elsewhere and len(regions) > 1 and here in regions:
        rounds, place = divmod(max(0, counted - 1) + 1, len(regions))
        following = regions[(regions.index(here) + 1) % len(regions)]
        return NextTry(following, now if place else now + _pause(rules.delay, rounds))
    return NextTry(here, now + _pause(rules.delay, max(1, counted)))


def _pause(delay: float, times: int) -> float:
    return min(LONGEST_DELAY, delay * float(2 ** min(times - 1, 30)))
