"""A job with its launch plan and its channels, each worked out once: what `plan` and `check` of an engine return.

A plan is made before there is a run; `in_run` puts the run's id and folders into it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import msgspec

from headrace.instance.channels.stage_orders import ChannelOrder
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.paths import DEFAULT_BASE
from headrace.job import Job
from headrace.job.rules.engine_rules import Unused
from headrace.runs import RunPaths


def in_run(plan: LaunchPlan, paths: RunPaths) -> LaunchPlan:
    """Returns the plan with the id and the folders of a run in place of those that it has.

    A host whose tree is /opt/ml has a file system of its own, and keeps it. Any other tree is in the run's directory.
    """
    hosts = tuple(
        msgspec.structs.replace(
            host,
            base_dir=DEFAULT_BASE if host.base_dir == DEFAULT_BASE else str(paths.host(host.name)),
            record_dir=str(paths.root),
        )
        for host in plan.hosts
    )
    return msgspec.structs.replace(plan, run_id=paths.id, hosts=hosts)


P = TypeVar("P", bound="EngineJob")


@dataclass(frozen=True)
class EngineJob:
    """A job for an engine of headrace, which adds what its hosts may use (`limits`).

    Attributes:
        job: the job.
        plan: its launch plan. Until `in_run` its paths and run id stand for a run that does not exist.
        orders: all its channels.
    """

    ENGINE: ClassVar[str]

    job: Job
    plan: LaunchPlan
    orders: tuple[ChannelOrder, ...]

    @property
    def python(self) -> str:
        """The interpreter of the programs of groups whose plan names none."""
        return "python"

    def pod_of(self, group: str) -> str:
        """Returns what the pod of a host of a group asks for, in words; empty where hosts are no pods."""
        return ""

    def doubts(self) -> tuple[str, ...]:
        """Returns what the platform, where it answers from here, would not do as the job asks, in sentences."""
        return ()

    @property
    def without_effect(self) -> tuple[Unused, ...]:
        """What of the job is accepted and has no effect in the engine."""
        return self.job.without_effect(self.ENGINE)

    def in_run(self: P, paths: RunPaths) -> P:
        """Returns the same for a run that exists now."""
        return replace(self, plan=in_run(self.plan, paths))


def range_sentences(plan: LaunchPlan) -> tuple[str, ...]:
    """Returns how many data hosts there are, where they come and go, in a sentence."""
    reach = plan.feed_range
    return (
        ()
        if reach is None
        else (f"{reach.least} to {reach.most} of the {len(reach.hosts)} data hosts are there, as needed",)
    )


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
