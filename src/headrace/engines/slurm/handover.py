"""What the submitting machine leaves in the run's folder for the lead, and for whoever looks at the run later.

engine/ticket.json        the Slurm job, by which the run is found again, and where and as whom Slurm is asked for it
engine/host_order.json    how the lead starts the agents (`headrace.engines.host_order`)
engine/placement.json     the nodes of the latest attempt; the lead's alone, which may begin before sbatch has returned
engine/environment.json   the variables of the user who submitted the job, mode 0600, until no attempt will need them
engine/stop.json          that a person has asked to stop the run: its signal may come before the lead can take it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from headrace.engines.ticket import Ticket
from headrace.instance.launch_plan import LaunchPlan
from headrace.private_folders import write_atomically
from headrace.runs import RunPaths

T = TypeVar("T")

NOT_KNOWN = 0  # no job of Slurm has this id
ENVIRONMENT, STOP = "environment.json", "stop.json"
PLACEMENT = "placement.json"
HOST_SCRIPT = "{}.sbatch"  # below the run's engine directory: of a host that comes and goes
# What belongs to the machine or the terminal from which a job is submitted.
_OF_THERE = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SSH_", "XDG_", "DBUS_")
_OF_THERE_NAMES = {"DISPLAY", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "TERM", "TMPDIR", "WINDOWID", "_"}


class SlurmTicket(Ticket, frozen=True):
    """The Slurm job of a run.

    Attributes:
        job_id: its id; that of component 0. NOT_KNOWN until sbatch has told it.
        cluster: the cluster's ClusterName: job ids of another one mean other jobs.
        uid: of the user who submitted it.
        named: how the cluster is asked for, where it is not that of the submitting machine; else empty.
    """

    job_id: int
    cluster: str
    uid: int
    named: str = ""


class Placement(msgspec.Struct, frozen=True):
    """Where the latest attempt runs.

    Attributes:
        job_id: the Slurm job.
        nodes: in the order of the hosts' tasks; the lead is on the first one. Empty before the first attempt.
        restarts: how often Slurm had queued the job again before that attempt.
    """

    job_id: int = NOT_KNOWN
    nodes: tuple[str, ...] = ()
    restarts: int = 0


class StopRequest(msgspec.Struct, frozen=True):
    """A person has asked to stop the run.

    Attributes:
        now: without time to save.
    """

    now: bool


def write_placement(paths: RunPaths, placement: Placement) -> None:
    """Writes where an attempt runs."""
    write_atomically(paths.engine / PLACEMENT, msgspec.json.encode(placement))


def read_placement(paths: RunPaths) -> Placement:
    """Reads what `write_placement` wrote. Raises OSError, msgspec.DecodeError."""
    return _read(paths, PLACEMENT, Placement) or Placement()


def write_variables(paths: RunPaths, variables: Mapping[str, str]) -> None:
    """Writes the variables of the user who submits the job, for its hosts."""
    kept = {name: value for name, value in variables.items() if not _is_of_there(name)}
    write_atomically(paths.engine / ENVIRONMENT, msgspec.json.encode(kept), mode=0o600)


def read_variables(paths: RunPaths) -> dict[str, str]:
    """Reads the user's variables; none when they are not kept any more. Raises OSError, msgspec.DecodeError."""
    return _read(paths, ENVIRONMENT, dict[str, str]) or {}


def forget_variables(paths: RunPaths) -> None:
    """Removes the user's variables, secrets among them, when no attempt will need them any more."""
    (paths.engine / ENVIRONMENT).unlink(missing_ok=True)


def write_stop_request(paths: RunPaths, request: StopRequest) -> None:
    """Writes that a person has asked to stop the run."""
    write_atomically(paths.engine / STOP, msgspec.json.encode(request))


def read_stop_request(paths: RunPaths) -> StopRequest | None:
    """Reads what `write_stop_request` wrote; None when nobody has asked."""
    return _read(paths, STOP, StopRequest)


def _read(paths: RunPaths, name: str, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode((paths.engine / name).read_bytes(), type=kind)
    except FileNotFoundError:
        return None


def _is_of_there(name: str) -> bool:
    return name.startswith(_OF_THERE) or name in _OF_THERE_NAMES


def restarts(variables: Mapping[str, str]) -> int:
    """Returns how often Slurm has queued a job again, from the variables of its batch script."""
    return int(variables.get("SLURM_RESTART_COUNT", "0"))


def scratch_key(plan: LaunchPlan, host: str) -> str:
    """Returns by what the folder of a host's temporary files is known: several nodes may be one machine."""
    return f"{plan.run_id}/{host}"
