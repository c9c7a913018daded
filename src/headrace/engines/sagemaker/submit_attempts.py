"""Submits a job again while the service has no instances for it, as `engines.sagemaker.retry` says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from headrace.engines.sagemaker.capacity_retry import next_attempt
from headrace.engines.sagemaker.failure_reasons import reason_word
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob
from headrace.engines.sagemaker.service_calls import Answer, ServiceRefused

_log = logging.getLogger(__name__)


class FollowUp(NamedTuple):
    """What is submitted after a job that the service has failed.

    Attributes:
        planned: the next attempt.
        delay: seconds to wait after the failure.
    """

    planned: SageMakerJob
    delay: float


def submit_until_accepted(
    planned: SageMakerJob,
    submit: Callable[[SageMakerJob], object],
    sleep: Callable[[float], object] = time.sleep,
) -> SageMakerJob:
    """Submits a job, and again while the service refuses it for a reason that `retry` names.

    Args:
        planned: the attempt to begin with.
        submit: submits an attempt; raises ServiceRefused.
        sleep: waits for so many seconds.

    Returns:
        The attempt that the service has accepted.

    Raises:
        ServiceRefused: for another reason, or for the last time.
    """
    while True:
        try:
            submit(planned)
            return planned
        except ServiceRefused as error:
            following = next_attempt(planned.asked.sagemaker.retry, planned.attempt, error.code, planned.first_region)
            if following is None:
                raise
            _log.warning("%s; it is submitted again%s", error.message, _when(following.delay))
            sleep(following.delay)
            planned = planned.at(following.attempt)


def follow_up(planned: SageMakerJob, answer: Answer) -> FollowUp | None:
    """Returns what is submitted after a job has ended; None when that was its end.

    Args:
        planned: the attempt that has ended.
        answer: what the service says of it.
    """
    if answer.get("TrainingJobStatus") != "Failed":
        return None
    word = reason_word(str(answer.get("FailureReason") or ""))
    following = next_attempt(planned.asked.sagemaker.retry, planned.attempt, word, planned.first_region)
    return None if following is None else FollowUp(planned.at(following.attempt), following.delay)


def _when(delay: float) -> str:
    return f" in {delay:g} s" if delay else ""
