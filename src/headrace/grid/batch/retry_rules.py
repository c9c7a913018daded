"""How a child of AWS Batch exits, and after which exits Batch starts it again. Pure.

A child exits as its line ended. Batch starts it again only where that says nothing about the line: its machine was
lost, it was killed, or AWS did not answer. The next attempt adopts the training job that is there.
"""

from __future__ import annotations

TRY_AGAIN = 75
"""Exit code of a child that could not reach AWS: EX_TEMPFAIL of sysexits.h. Its line goes on, or has not begun."""
STOPPED = 130
"""Exit code of a child that was asked to end: 128 and SIGINT."""
KILLED = 137
"""Exit code of a container that got SIGKILL: also when it used more memory than it has."""

EXITS = {
    0: "the line's job completed",
    1: "the line's job failed",
    2: "the line cannot start: its job, its role or the bundle is wrong",
    4: "the line's job was stopped because its budget was used up",
    TRY_AGAIN: "AWS could not be asked: Batch tries again",
    STOPPED: "the line's job was stopped",
}
"""Exit codes of `headrace grid step`, in words."""

LOST_HOST = "Host EC2*"
"""How Batch's `statusReason` begins after the loss of an instance: ``Host EC2 (instance i-...) terminated.``"""


def retry_strategy(attempts: int) -> dict[str, object]:
    """Returns `retryStrategy` of a job. The first rule that fits counts, and the last one fits always.

    Args:
        attempts: how often Batch starts a child at most.
    """
    rules = [
        {"onStatusReason": LOST_HOST, "action": "RETRY"},
        {"onExitCode": str(TRY_AGAIN), "action": "RETRY"},
        {"onExitCode": str(KILLED), "action": "RETRY"},
        {"onReason": "*", "action": "EXIT"},
    ]
    return {"attempts": attempts, "evaluateOnExit": rules}
