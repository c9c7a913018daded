"""Paths of the machine that a job names in its channels and hyperparameters."""

from __future__ import annotations

import os
from collections.abc import Iterator

from headrace.instance.launch_plan import LaunchPlan
from headrace.job import Job


def named_paths(job: Job, plan: LaunchPlan) -> Iterator[str]:
    """Yields them, for hosts with a /tmp of their own, which must see those below /tmp. Some are no paths.

    Args:
        job: the job.
        plan: its launch plan.
    """
    for group in plan.groups:
        yield from (str(channel.local_path(job.base_path)) for channel in job.channels_of(group.name).values())
    for value in map(str, job.hyperparameters.values()):
        yield from value.split(os.pathsep)
