"""Slurm's programs (sbatch, squeue, scontrol, scancel, sacct), each with a time limit and the error that it printed."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from headrace.engines.slurm.partition_rules import Partition, is_loopback, parse_partitions
from headrace.engines.slurm.slurm_state import (
    ACCOUNTING,
    ACCOUNTING_FORMAT,
    NOT_CONFIGURED,
    QUEUE_FORMAT,
    Component,
    EndedComponent,
    JobOfRun,
    is_busy,
    is_no_answer,
    is_not_configured,
    is_too_long,
    may_have_come,
    parse_accounting,
    parse_jobs,
    parse_queue,
    reasons,
    refusal,
    values_of,
)
from headrace.errors import EngineRefused, EngineUnreachable
from headrace.exit_status import exit_text, split_status

SECONDS = 60.0  # for one answer of the controller
UNKNOWN_JOB = "Invalid job id"  # Slurm has no other sign that it knows a job no more
# Variables that stand over what Slurm's programs are asked for: another cluster, other options of a job, other formats.
_OVERRIDING = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SACCT_")
_WHERE_SLURM_IS = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")
_JOB = re.compile(r"\d+(;\S+)?")
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")

_log = logging.getLogger(__name__)
_named: ContextVar[str] = ContextVar("_named", default="")


class SlurmUnreachable(EngineUnreachable):
    """One of Slurm's programs failed, or speaks of another cluster or user."""


class SubmissionUnknown(SlurmUnreachable):
    """sbatch did not say whether Slurm has taken the job: it may have.

    Args:
        why: what sbatch did or said.
        refused: Slurm had refused the job so far: one that is not in the queue is none.
    """

    def __init__(self, why: str, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


@contextmanager
def asking(name: str) -> Iterator[None]:
    """Has what follows ask a cluster.

    Args:
        name: as ``--clusters`` takes it; empty for the cluster of this machine.
    """
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def asked() -> str:
    """Returns which cluster is asked, as `asking` was told."""
    return _named.get()


def check_programs() -> None:
    """Checks that Slurm's programs are there. Raises EngineRefused."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise EngineRefused(
            f"not found: {', '.join(missing)}", hint="start the job on a machine from which jobs are submitted to Slurm"
        )
    named = [name for name in CLUSTERS if os.environ.get(name)]
    if named:
        words = ", ".join(f"{name} is {os.environ[name]}" for name in named)
        hint = "unset it, and name the cluster in the job: engines.slurm.cluster"
        raise EngineRefused(f"{words}, and headrace asks the cluster that the job names, or this machine's own", hint)


def submit(script: Path, *arguments: str) -> int:
    """Submits a batch script. Returns the job's id.

    Args:
        script: its file.
        arguments: of the script.

    Raises:
        EngineRefused: Slurm refuses the job.
        SubmissionUnknown: it may have taken it.
        SlurmUnreachable: sbatch did not reach Slurm.
    """
    dropped = sorted(name for name in os.environ if name.startswith("SBATCH_") and name not in CLUSTERS)
    if dropped:
        _log.warning("%s not passed on to sbatch: what a job asks for stands in engines.slurm", ", ".join(dropped))
    try:
        done = _run(["sbatch", "--parsable", str(script), *arguments], SECONDS)
    except SlurmUnreachable as error:
        if not isinstance(error.__cause__, subprocess.TimeoutExpired):
            raise
        partial = error.__cause__.stderr or b""
        words = refusal(partial.decode(errors="replace") if isinstance(partial, bytes) else partial)
        raise SubmissionUnknown(f"{error.message}: {words}" if words else error.message, is_busy(words)) from error
    said = done.stderr.strip()
    if done.returncode < 0 or may_have_come(said):
        raise SubmissionUnknown(f"sbatch {exit_text(*split_status(done.returncode))}: {refusal(said)}")
    if done.returncode and not (is_not_configured(said) or is_no_answer(said)):
        words = refusal(said) or f"exit code {done.returncode}"
        hint = "engines.slurm (and its groups) hold partition, gres, constraint; `sinfo` lists what there is"
        if is_too_long(words):
            hint = "its time is max_run, time_margin and stop_grace together; `sinfo -o '%P %l'` lists the limits"
        raise EngineRefused(f"sbatch refused the job: {words}", hint)
    # `job`, or `job;cluster` where a cluster was named; a site's own sbatch may print more
    numbers = [line for line in _printed(done).splitlines() if _JOB.fullmatch(line.strip())]
    if len(numbers) != 1:
        raise SubmissionUnknown(f"sbatch printed no job id: {done.stdout.strip()[:200]!r}")
    return int(numbers[0].strip().partition(";")[0])


def queue() -> tuple[Component, ...]:
    """Returns this user's jobs that Slurm still knows, the ended ones too. Raises SlurmUnreachable."""
    return parse_queue(_answer(["squeue", "-h", "--states=all", f"--user={os.getuid()}", "-o", QUEUE_FORMAT]))


def show(job_id: int, seconds: float = SECONDS) -> tuple[EndedComponent, ...]:
    """Returns how the components of a job ended; empty when Slurm says that it knows no such job.

    Args:
        job_id: the job.
        seconds: at most so long.

    Raises:
        SlurmUnreachable: it does not answer.
    """
    return parse_jobs(_shown(job_id, seconds, "-o"))


def accounted(job_id: int, job: JobOfRun) -> tuple[EndedComponent, ...]:
    """Returns how the components of a job ended that the controller has forgotten, as the accounting knows it.

    Empty when the cluster has no accounting, this machine has no sacct, or the end was not told to the accounting.

    Raises:
        SlurmUnreachable: the accounting does not answer.
    """
    if shutil.which("sacct") is None or setting("AccountingStorageType") != ACCOUNTING:
        return ()
    return parse_accounting(_answer(["sacct", "-n", "-P", "-X", "-j", str(job_id), "-o", ACCOUNTING_FORMAT]), job)


def describe(job_id: int) -> str:
    """Returns all that Slurm says of a job, for people; empty when it says that it knows no such job.

    Raises:
        SlurmUnreachable: it does not answer.
    """
    return _shown(job_id, SECONDS)


def cancel(job_id: int, waiting: bool = False) -> None:
    """Cancels a job, or only one that has not begun. Raises SlurmUnreachable."""
    _answer(["scancel", *(["--state=PENDING"] if waiting else []), str(job_id)])


def cancel_component(job_id: int, offset: int) -> None:
    """Gives the nodes of one component of a job back, while the others go on. Raises SlurmUnreachable."""
    _answer(["scancel", f"{job_id}+{offset}"])


def requeue(job_id: int) -> None:
    """Queues a job again; what it runs is ended. Raises SlurmUnreachable, also when the job may not be queued again."""
    _answer(["scontrol", "requeue", str(job_id)])


def forbid_requeue(job_id: int) -> None:
    """Has Slurm not queue a job again, whatever happens. Raises SlurmUnreachable."""
    _answer(["scontrol", "update", f"JobId={job_id}", "Requeue=0"])


def signal_lead(job_id: int, name: str) -> None:
    """Signals the batch script of a job, and no other process of it. Raises SlurmUnreachable."""
    _answer(["scancel", "--batch", f"--signal={name}", str(job_id)])


def host_names(node_list: str) -> tuple[str, ...]:
    """Returns the nodes of a list such as ``data[1-2]``. Raises SlurmUnreachable."""
    return tuple(_answer(["scontrol", "show", "hostnames", node_list]).split())


def node_addresses(nodes: Sequence[str]) -> dict[str, str]:
    """Returns the address or the name of each node at which Slurm reaches it. Raises SlurmUnreachable."""
    return {name: each["NodeAddr"] for name, each in _nodes(nodes).items() if "NodeAddr" in each}


def nodes_down(nodes: Sequence[str]) -> tuple[str, ...]:
    """Returns those of the nodes that do not answer Slurm or are out of use. Raises SlurmUnreachable."""
    states = {name: each.get("State", "") for name, each in _nodes(nodes).items()}
    return tuple(name for name in nodes if any(word in states.get(name, "") for word in ("DOWN", "FAIL", "*")))


def _nodes(nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    lines = _answer(["scontrol", "-o", "show", "node", ",".join(nodes)]).splitlines()
    return {each["NodeName"]: each for each in map(values_of, lines) if "NodeName" in each}


def cluster() -> str:
    """Returns the name of the cluster that answers here. Raises SlurmUnreachable."""
    return setting("ClusterName")


def partitions() -> tuple[Partition, ...]:
    """Returns the partitions of the cluster, hidden ones too. Raises SlurmUnreachable."""
    return parse_partitions(_answer(["scontrol", "-o", "--all", "show", "partition"]))


def loopback_nodes() -> tuple[str, ...]:
    """Returns the nodes whose address in slurm.conf only they themselves reach. Raises SlurmUnreachable."""
    named = [values_of(line) for line in _answer(["scontrol", "-o", "--all", "show", "node"]).splitlines()]
    return tuple(each["NodeName"] for each in named if is_loopback(each.get("NodeAddr", "")))


def version() -> str:
    """Returns the version of Slurm, once its controller has answered. Raises SlurmUnreachable."""
    queue()
    return _answer(["sbatch", "--version"]).strip()


def setting(name: str) -> str:
    """Returns a setting of the cluster, as ``scontrol show config`` has it; empty when it is not there."""
    pairs = (line.partition("=") for line in _answer(["scontrol", "show", "config"]).splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def _shown(job_id: int, seconds: float, *options: str) -> str:
    done = _run(["scontrol", *options, "show", "job", str(job_id)], seconds)
    return "" if done.returncode and UNKNOWN_JOB in done.stderr else _printed(done)


def _answer(command: Sequence[str]) -> str:
    return _printed(_run(command, SECONDS))


def _run(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    if _named.get():
        command = [command[0], f"--clusters={_named.get()}", *command[1:]]
    here = {
        name: value for name, value in os.environ.items() if name in _WHERE_SLURM_IS or not name.startswith(_OVERRIDING)
    }
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env=here,
            start_new_session=True,  # Ctrl-C in a terminal is for headrace: sbatch may have submitted the job already
        )
    except OSError as error:
        raise SlurmUnreachable(f"{command[0]} cannot be started: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmUnreachable(f"{command[0]} did not answer within {seconds:g} s") from error


def _printed(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        if is_not_configured(done.stderr):
            raise SlurmUnreachable(NOT_CONFIGURED, hint="use a login node of the cluster")
        said = "; ".join(reasons(done.stderr)) or f"exit code {done.returncode}"
        raise SlurmUnreachable(f"Slurm does not answer: {said}" if is_no_answer(said) else f"{done.args[0]}: {said}")
    return done.stdout
