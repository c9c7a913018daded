"""What `plan` and `check` return and `start` uses: a job, its launch plan and its channels, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engines.local.checks import missing_mpirun
from headrace.engines.local.limits.assign import Machine
from headrace.engines.local.limits.cgroups import Places
from headrace.engines.local.limits.explain import explain_limits
from headrace.engines.planning.engine_job import EngineJob, range_sentences


@dataclass(frozen=True)
class CheckedJob(EngineJob):
    """A job for this machine.

    Attributes:
        machine: what this machine has for it.
        places: where control groups can be made for it.
    """

    ENGINE = "local"

    machine: Machine
    places: Places

    @property
    def limits(self) -> tuple[str, ...]:
        """What its instances may use of this machine, what cannot be limited here, and what it lacks, in sentences."""
        limits = explain_limits(self.job, self.machine, self.places) + missing_mpirun(self.job, self.plan)
        return (*limits, *range_sentences(self.plan))

    @property
    def isolated(self) -> bool:
        """Whether every host has a file system of its own."""
        return self.plan.isolation.own_files
