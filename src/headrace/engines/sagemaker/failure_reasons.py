"""How a training job ended, as the service tells it, in headrace's terms. Pure.

A FailureReason begins with a word of the service and a colon: ``CapacityError: Unable to provision ...``. That word is
its type; what follows is for people.
"""

from __future__ import annotations

import re

from headrace.aws_errors import AwsFault, fault_of
from headrace.engines.sagemaker.service_calls import Answer
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


def refused(why: str) -> Cause:
    """Returns why a run has failed that the service refused for the last time, in these words."""
    return Cause(CauseKind.INSTANCE_NOT_STARTED, why, infrastructure=True)


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
