"""How a training job ended and what it has cost, as the service tells it, in headrace's terms. Pure.

A FailureReason begins with a word of the service and a colon: ``CapacityError: Unable to provision ...``. That word is
its type; what follows is for people.

The leader stops a job whose budget is used up, also when nobody looks at it. Whoever looks stops it some seconds later,
when the leader has not: it was killed, or hangs. The service bills all instances of a job from the start of its
training to its end.
"""

from __future__ import annotations

import math
import re
from datetime import datetime

from headrace.aws_errors import AwsFault, fault_of
from headrace.engines.sagemaker.boto_service import Answer
from headrace.instance.launch_plan import Budget, LaunchPlan
from headrace.runs import Cause, CauseKind, Status

_WORD = re.compile(r"([A-Z][A-Za-z]+)(?::\s*|$)")
_EXIT = re.compile(r"exit code:? ([0-9]{1,3})\b")
_SIGNALS = 128  # a shell's exit code of a program that a signal has killed is this and its number
_STATUSES = {"Completed": Status.COMPLETED, "Failed": Status.FAILED, "Stopped": Status.STOPPED}


def reason_word(failure_reason: str) -> str:
    """Returns the word of the service with which a FailureReason begins; empty when it begins with another text.

    >>> reason_word("CapacityError: Unable to provision requested ML compute capacity.")
    'CapacityError'
    """
    match = _WORD.match(failure_reason)
    return match[1] if match else ""


def word_of(answer: Answer) -> str:
    """Returns the service's word for why a job failed; empty when it gives none."""
    return reason_word(str(answer.get("FailureReason") or ""))


def end_of_job(answer: Answer, asked: Cause | None = None) -> tuple[Status, Cause | None] | None:
    """Returns how a job ended and why; None while it goes on.

    Args:
        answer: what DescribeTrainingJob says.
        asked: why headrace has asked the service to stop it; None when it has not.
    """
    status = _STATUSES.get(str(answer.get("TrainingJobStatus")))
    if status is None:
        return None
    if status is Status.COMPLETED:
        return status, None
    return status, _stopped(answer, asked) if status is Status.STOPPED else _failed(
        str(answer.get("FailureReason") or "")
    )


def _stopped(answer: Answer, asked: Cause | None) -> Cause:
    part = str(answer.get("SecondaryStatus"))
    if part == "MaxRuntimeExceeded":
        return Cause(CauseKind.MAX_RUN, "the job ran longer than max_run")
    if part == "MaxWaitTimeExceeded":
        ran = answer.get("TrainingStartTime") is not None
        kind = CauseKind.PREEMPTED if ran else CauseKind.INSTANCE_NOT_STARTED
        return Cause(kind, "there was no spare capacity within max_wait", infrastructure=True)
    if part == "Interrupted":
        return Cause(CauseKind.PREEMPTED, "the instances were taken back", infrastructure=True)
    return asked or Cause(CauseKind.STOPPED, "stopped at the service, by StopTrainingJob, and not by headrace")


def _failed(failure_reason: str) -> Cause:
    word, detail = reason_word(failure_reason), failure_reason or "SageMaker gives no reason"
    fault = fault_of(word)
    if fault in (AwsFault.CAPACITY, AwsFault.LIMIT):
        return Cause(CauseKind.INSTANCE_NOT_STARTED, detail, infrastructure=True)
    if fault is AwsFault.INTERNAL:
        return Cause(CauseKind.ENGINE_FAILED, detail, infrastructure=True)
    if word == "ClientError":  # an image, a channel or a permission: what surrounds the program
        return Cause(CauseKind.HELPER_FAILED, detail)
    if word == "AlgorithmError":
        found = _EXIT.search(failure_reason)
        code = int(found[1]) if found else None
        if code is not None and code > _SIGNALS:
            return Cause(CauseKind.PROGRAM_EXITED, detail, signal=code - _SIGNALS)
        return Cause(CauseKind.UNKNOWN if code is None else CauseKind.PROGRAM_EXITED, detail, exit_code=code)
    return Cause(CauseKind.ENGINE_FAILED, detail)


LEADER_FIRST = 10.0
"""Seconds beyond the budget in which the leader stops the job."""


def cost_of(plan: LaunchPlan, answer: Answer) -> float:
    """Returns what a job that has ended has cost by the prices of its budget; 0 without one.

    Args:
        plan: its launch plan.
        answer: what the service says of it.
    """
    billed = answer.get("BillableTimeInSeconds")
    return _per_second(plan) * float(billed) if isinstance(billed, (int, float)) else 0.0


def over_budget(plan: LaunchPlan, answer: Answer, now: float) -> Cause | None:
    """Returns why a job that goes on is to be stopped: its budget is used up, and its leader had time to stop it.

    Args:
        plan: its launch plan, whose budget knows what earlier attempts have cost.
        answer: what the service says of it.
        now: seconds since the epoch.
    """
    started = answer.get("TrainingStartTime")
    if plan.budget is None or not isinstance(started, datetime):
        return None
    seconds, per_second = max(0.0, now - started.timestamp()), _per_second(plan)
    if plan.budget.before + per_second * (seconds - LEADER_FIRST) < plan.budget.max_cost:
        return None
    return used_up(plan.budget, plan.budget.before + per_second * seconds)


def used_up(budget: Budget, cost: float) -> Cause:
    """Returns the cause of a run that has cost as much as it may."""
    return Cause(CauseKind.BUDGET, budget.words(cost))


def _per_second(plan: LaunchPlan) -> float:
    """Returns what a second of all instances costs; 0 without a budget."""
    budget = plan.budget
    return (
        0.0 if budget is None else math.fsum(budget.per_second[group.name] * len(group.hosts) for group in plan.groups)
    )
