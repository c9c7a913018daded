"""The variables of mpirun, of its daemons and of the ranks. Pure.

A rank has the variables of its own host, as a plain script there has, and over them those that mpirun gave it: its
place in the world (OMPI_COMM_WORLD_RANK, ...), what its library needs, and what was forwarded with ``-x``. mpirun's
part is what differs between the variables that mpirun, or its daemon, was started with and those that reach the rank.
Variables that identify the host are never forwarded; on SageMaker every rank has the SM_CURRENT_HOST of the first host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.agent.host.host_python import path_here

_OF_THE_HOST = ("SM_", "SAGEMAKER_", "HEADRACE_", "TRAINING_JOB_")
_OF_THE_PROCESS = ("CURRENT_HOST", "PWD", "OLDPWD", "SHLVL", "_", "VIRTUAL_ENV", "PYTHONUSERBASE")

# Open MPI looks at the machine through hwloc, whose part for displays (Debian: libhwloc-plugins) takes whatever listens
# on ports 6000 to 6009 of the host for an X server and waits for its answer for ever. Data services use these ports.
_NO_DISPLAYS = {"HWLOC_COMPONENTS": "-gl"}

# Inside a job of Slurm, mpirun would start its daemons with srun and take the allocation for its hosts. Agents start
# the daemons, and the job names the hosts. The second pair is for PRRTE, Open MPI 5's launcher.
_NO_SLURM = {
    "OMPI_MCA_plm": "rsh",
    "OMPI_MCA_ras": "^slurm",
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_ras": "^slurm",
}


def launcher_variables(host: Mapping[str, str], *, scratch: str, programs: str) -> dict[str, str]:
    """Returns the variables of mpirun and of its daemons.

    Args:
        host: those that a program of the host has.
        scratch: directory for the host's temporary files; empty if there is none that is removed with the host.
        programs: directory that is searched first for mpirun and its daemons; empty for PATH alone.
    """
    variables = _NO_DISPLAYS | _NO_SLURM | dict(host)
    if scratch:
        variables["TMPDIR"] = scratch
    if programs:
        variables["PATH"] = os.pathsep.join(filter(None, [programs, host.get("PATH")]))
    return variables


def rank_of(seen: Mapping[str, str]) -> tuple[int, int]:
    """Returns (global rank, rank on its host) of a process that mpirun started.

    Raises:
        ValueError: mpirun did not start it.
    """
    try:
        return int(seen["OMPI_COMM_WORLD_RANK"]), int(seen["OMPI_COMM_WORLD_LOCAL_RANK"])
    except KeyError as error:
        raise ValueError(f"{error} is not set: this process was not started by mpirun") from None


def rank_variables(host: Mapping[str, str], launcher: Mapping[str, str], seen: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a rank.

    Args:
        host: those that a program of the host has.
        launcher: those that mpirun or its daemon got on this host.
        seen: those that reached what it started.
    """
    variables = {name: value for name, value in seen.items() if launcher.get(name) != value and not _of_host(name)}
    if "PATH" in variables and "VIRTUAL_ENV" in host:
        variables["PATH"] = path_here(variables["PATH"], host["VIRTUAL_ENV"])
    return {**host, **variables}


def _of_host(name: str) -> bool:
    return name in _OF_THE_PROCESS or name.startswith(_OF_THE_HOST)


def machine_variables(scratch: str, crowded: bool) -> dict[str, str]:
    """Returns the settings of a rank's MPI library that its machine asks for, unless they are set already.

    Args:
        scratch: directory for the host's temporary files; empty if the host has a machine of its own.
        crowded: whether the machine has fewer CPUs than ranks.
    """
    variables = dict(_NO_DISPLAYS)
    if scratch:
        # Ranks that share memory make files whose names hold that of the machine, which hosts may have in common.
        for name in ("OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"):
            variables[name] = scratch
    if crowded:  # a rank that waits would otherwise keep a CPU from the rank that it waits for
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return variables


def horovod_variables(seen: Mapping[str, str], host: str, place: int, hosts: int) -> dict[str, str]:
    """Returns what Horovod's own launcher sets for a rank.

    Args:
        seen: the rank's variables from mpirun.
        host: name of its host.
        place: which of the world's hosts that is, from 0.
        hosts: how many there are.
    """
    return {
        "HOROVOD_CONTROLLER": "mpi",
        "HOROVOD_CPU_OPERATIONS": "mpi",
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_RANK": seen["OMPI_COMM_WORLD_RANK"],
        "HOROVOD_SIZE": seen["OMPI_COMM_WORLD_SIZE"],
        "HOROVOD_LOCAL_RANK": seen["OMPI_COMM_WORLD_LOCAL_RANK"],
        "HOROVOD_LOCAL_SIZE": seen["OMPI_COMM_WORLD_LOCAL_SIZE"],
        "HOROVOD_CROSS_RANK": str(place),
        "HOROVOD_CROSS_SIZE": str(hosts),
    }
