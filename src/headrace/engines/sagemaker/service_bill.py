"""What the service bills for a training job that has ended, as DescribeTrainingJob tells it. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime

from headrace.engines.sagemaker.service_calls import Answer
from headrace.runs.events import AttemptBilled
from headrace.sagemaker_parameters import HOMOGENEOUS


def bill_of(answer: Answer, number: int, region: str) -> AttemptBilled | None:
    """Returns what the service bills for an attempt; None when it does not tell, although instances ran.

    Args:
        answer: what DescribeTrainingJob says of its job, which has ended.
        number: of the attempt, from 1.
        region: where it was.
    """
    seconds = [answer.get(name) for name in ("TrainingTimeInSeconds", "BillableTimeInSeconds")]
    if answer.get("TrainingStartTime") is None and seconds == [None, None]:
        seconds = [0, 0]  # no instance has started
    training, billable = seconds
    if not isinstance(training, int) or not isinstance(billable, int):
        return None
    ended = _moment(answer.get("TrainingEndTime"))
    return AttemptBilled(
        t=max(time.time(), ended or 0.0),  # behind all that the instances have recorded, whatever the clock here says
        name=str(answer["TrainingJobName"]),
        number=number,
        region=region,
        groups=_groups(answer.get("ResourceConfig")),
        training_seconds=training,
        billable_seconds=billable,
        started=_moment(answer.get("TrainingStartTime")),
        ended=ended,
    )


def _groups(resources: object) -> dict[str, tuple[str, int]]:
    if not isinstance(resources, Mapping):
        return {}
    groups = resources.get("InstanceGroups")
    if groups:
        return {
            str(each["InstanceGroupName"]): (str(each["InstanceType"]), int(each["InstanceCount"])) for each in groups
        }
    kind = resources.get("SelectedInstanceType") or resources.get("InstanceType")
    count = resources.get("SelectedInstanceCount") or resources.get("InstanceCount")
    return {HOMOGENEOUS: (str(kind), int(count))} if kind and count else {}


def _moment(when: object) -> float | None:
    return when.timestamp() if isinstance(when, datetime) else None
