"""What `plan` and `check` return and `start` uses: a job, its launch plan and its channels, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.engines.local.checks import missing_mpirun
from headrace.engines.local.limits.assign import Machine
from headrace.engines.local.limits.cgroups import Places
from headrace.engines.local.limits.explain import explain_limits
from headrace.engines.local.plan_hosts import in_run
from headrace.instance.channels.stage_orders import ChannelOrder
from headrace.instance.launch_plan import LaunchPlan
from headrace.job import Job
from headrace.job.rules.unsupported import Unused
from headrace.runs import RunPaths


@dataclass(frozen=True)
class CheckedJob:
    """A job for this machine.

    Attributes:
        job: the job.
        plan: its launch plan. Until `in_run` its paths and run id stand for a run that does not exist.
        orders: all its channels.
        machine: what this machine has for it.
        places: where control groups can be made for it.
    """

    job: Job
    plan: LaunchPlan
    orders: tuple[ChannelOrder, ...]
    machine: Machine
    places: Places

    @property
    def limits(self) -> tuple[str, ...]:
        """What its instances may use of this machine, what cannot be limited here, and what it lacks, in sentences."""
        return explain_limits(self.job, self.machine, self.places) + missing_mpirun(self.job, self.plan)

    @property
    def without_effect(self) -> tuple[Unused, ...]:
        """What of the job is accepted and has no effect on this machine."""
        return self.job.without_effect("local")

    @property
    def isolated(self) -> bool:
        """Whether every host has a file system of its own."""
        return self.plan.isolation.own_files

    def in_run(self, paths: RunPaths) -> CheckedJob:
        """Returns the same for a run that exists now."""
        return replace(self, plan=in_run(self.plan, paths))
