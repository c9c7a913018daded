"""What `plan` and `check` of the Slurm engine return: a job, its launch plan and its channels.

Until Slurm has given the job its nodes, a host's address is its name, and a group whose data workers are `auto` has one
on every host. The lead puts the nodes' addresses and CPUs in their place (see `allocation`).

The batch script follows from the job, its launch plan and where things lie.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.child_python import UTF8, module_command
from headrace.engines.planning.engine_job import EngineJob, range_sentences
from headrace.engines.remote_job import remote_plan
from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.allocation import components
from headrace.engines.slurm.handover import HOST_SCRIPT
from headrace.engines.slurm.partition_rules import doubts
from headrace.engines.slurm.slurm_commands import SlurmUnreachable
from headrace.engines.slurm.slurm_state import comment_of
from headrace.errors import EngineRefused
from headrace.instance.channels.stage_orders import ChannelOrder
from headrace.instance.launch_plan import BY_NODE, NO_ISOLATION, SHARED_NETWORK, Isolation, LaunchPlan
from headrace.instance.lifeline import PACKAGE_ENTRY
from headrace.job import Job
from headrace.runs import RunPaths

LEAD = "headrace.engines.slurm.lead"
SCRIPT = "job.sbatch"
SIGNAL_MARGIN = 60  # Slurm looks at its time limits once a minute
LONGEST_WARNING = 65535  # what sbatch takes
WHY_ISOLATED = {
    BY_NODE: "on each node the best that works there",
    SHARED_NETWORK: "engines.slurm.isolation says so",
    NO_ISOLATION: "engines.slurm.isolation says so",
}
"""What a plan tells before the nodes are known."""


@dataclass(frozen=True)
class Places:
    """Where things lie on the file system that all nodes share.

    Attributes:
        run: the run's folder.
        run_id: the run's id.
        python: the interpreter that runs the lead.
        package: folder in which the package headrace lies.
    """

    run: str
    run_id: str
    python: str
    package: str


def batch_script(job: Job, plan: LaunchPlan, places: Places, longest: int = 0) -> str:
    """Returns the script that sbatch gets.

    Args:
        job: the job.
        plan: its launch plan.
        places: of this run.
        longest: seconds that its partitions allow; 0 when there is no limit, or it is not known.

    Raises:
        EngineRefused: a line break in a path or an option.
    """
    log = f"{places.run}/engine/slurm.log".replace("%", "%%")
    warning = min(LONGEST_WARNING, math.ceil(plan.stop_grace) + SIGNAL_MARGIN)
    requeue = "--requeue" if plan.retry.attempts else "--no-requeue"
    lines = [
        "#!/bin/bash",
        _sbatch(f"--job-name={plan.job_name}"),
        _sbatch(f"--output={log}", "--open-mode=append"),
        _sbatch("--export=NIL", f"--comment={comment_of(places.run_id)}", f"--signal=B:USR2@{warning}"),
    ]
    for number, group in enumerate(components(plan)):
        lines += ["#SBATCH hetjob"] if number else []
        lines.append(_sbatch(f"--nodes={len(group.hosts)}", "--ntasks-per-node=1", "--no-kill", requeue))
        lines += _asked(job, plan, group.name, longest)
    lines.append("trap '' USR1 USR2 INT  # until the lead takes them")
    return "\n".join([*lines, *_become_lead(places), ""])


def host_script(job: Job, plan: LaunchPlan, places: Places, host: str, longest: int = 0) -> str:
    """Returns the script of a data host that comes and goes; its argument is the number of the attempt.

    Args:
        job, plan, places, longest: see `batch_script`, which also says what is raised.
        host: name of the host.
    """
    group = plan.host(host).group
    log = f"{places.run}/engine/agent-{host}.log".replace("%", "%%")
    lines = (
        "#!/bin/bash",
        _sbatch(f"--job-name={plan.job_name}-{host}", f"--output={log}", "--open-mode=append", "--export=NIL"),
        _sbatch("--nodes=1", "--ntasks-per-node=1", "--no-requeue"),
        *_asked(job, plan, group, longest),
        *_become_lead(places, group, host),
    )
    return "\n".join([*lines, ""])


def _become_lead(places: Places, *own_node: str) -> Iterator[str]:
    """Yields the end of a script: `lead` takes its place, on a node of its own with the number of the attempt."""
    yield f"export PYTHONPATH={shlex.quote(places.package)} {PACKAGE_ENTRY}={shlex.quote(places.package)}"
    words = module_command(LEAD, places.run, *own_node, options=UTF8, python=places.python)
    yield f"exec {shlex.join(words)}" + (' "$1"' if own_node else "")


def _asked(job: Job, plan: LaunchPlan, group: str, longest: int) -> Iterator[str]:
    """Yields what the nodes of a group are asked for with."""
    nodes = job.slurm.nodes_of(group)
    yield _sbatch(
        f"--time={_minutes(job, plan, longest)}", *(("--exclusive", "--mem=0") if job.slurm.exclusive else ())
    )
    for name in ("partition", "constraint", "gres", "account", "qos"):
        if value := getattr(nodes, name):
            yield _sbatch(f"--{name}={value}")
    yield from map(_sbatch, nodes.options)


def _minutes(job: Job, plan: LaunchPlan, longest: int) -> int:
    """The time limit: the job's own ends first, and is followed by a stop in order.

    Where a partition allows `max_run`, but not all that is asked for beyond it, its limit is asked for: Slurm's warning
    then stops the job in order.
    """
    wanted = math.ceil((plan.max_run + job.slurm.time_margin + plan.stop_grace + SIGNAL_MARGIN) / 60)
    return longest // 60 if plan.max_run <= longest < wanted * 60 else wanted


def _sbatch(*options: str) -> str:
    for option in options:
        if not {"\n", "\r"}.isdisjoint(option):
            what = f"a line break cannot stand in an option of sbatch: {option!r}"
            raise EngineRefused(what, "rename the folder (HEADRACE_HOME), or correct the option")
    return " ".join(["#SBATCH", *map(_quoted, options)])


def _quoted(option: str) -> str:
    """Quotes the value of an option, where it must be; sbatch reads quotes as a shell does."""
    name, equals, value = option.partition("=")
    if equals:
        return f"{name}={shlex.quote(value)}"
    name, blank, value = option.partition(" ")  # -x node7
    return f"{name} {shlex.quote(value.strip())}" if blank else option


PACKAGE = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True)
class SlurmJob(EngineJob):
    """A job for a Slurm cluster."""

    ENGINE = "slurm"

    @property
    def limits(self) -> tuple[str, ...]:
        """What its nodes are asked for with, in sentences."""
        found = []
        for group in self.job.groups:
            nodes = self.job.slurm.nodes_of(group.instance_group_name)
            words = [
                f"{key} {value}"
                for key, value in nodes.model_dump(exclude={"options", "step_options"}).items()
                if value
            ]
            words += [*nodes.options, *nodes.step_options, *(["exclusive"] if self.job.slurm.exclusive else [])]
            count = group.instance_count
            text = f"{group.instance_group_name}: {count} Slurm node{'' if count == 1 else 's'}"
            found.append(", ".join([text, *words]))
        return (*found, *range_sentences(self.plan))

    def doubts(self) -> tuple[str, ...]:
        """See `EngineJob`: what the partitions do not allow, and nodes that do not reach each other."""
        with slurm_commands.asking(self.job.slurm.cluster or ""):
            try:
                partitions, alone = slurm_commands.partitions(), slurm_commands.loopback_nodes()
            except SlurmUnreachable:  # not a machine that submits jobs: nothing can be known
                return ()
        found = [
            sentence
            for group in self.job.groups
            for sentence in doubts(
                group.instance_group_name,
                group.instance_count or 0,
                self.job.slurm.nodes_of(group.instance_group_name),
                self.plan.max_run,
                partitions,
            )
        ]
        if alone and len(self.plan.hosts) > 1:
            found.append(
                f"NodeAddr of {', '.join(alone)} in slurm.conf is a loopback address, at which no other node reaches it"
            )
        return tuple(found)

    def scripts(self, paths: RunPaths, python: str, longest: int = 0) -> dict[str, str]:
        """Returns the batch script, by `SCRIPT`, and those of hosts that come and go, by their names.

        Args:
            paths: the run's directory.
            python: the interpreter that runs the lead.
            longest: see `batch_script`.
        """
        places = Places(str(paths.root), paths.id, python, PACKAGE)
        hosts = [host.name for host in self.plan.hosts if self.plan.comes_and_goes(host.name)]
        own = {HOST_SCRIPT.format(host): host_script(self.job, self.plan, places, host, longest) for host in hosts}
        return {SCRIPT: batch_script(self.job, self.plan, places, longest), **own}


def plan_slurm_job(job: Job, orders: tuple[ChannelOrder, ...], paths: RunPaths, python: str) -> SlurmJob:
    """Returns the job with its launch plan. Pure.

    Args:
        job: the job; the rules of this engine hold for it.
        orders: all its channels.
        paths: the run's directory; it need not exist.
        python: interpreter of the user's programs.
    """
    plan, level = remote_plan(job, paths, python, with_range=True, options=job.slurm), job.slurm.isolation
    plan = msgspec.structs.replace(plan, isolation=Isolation(level, WHY_ISOLATED[level]))
    return SlurmJob(job, plan, orders)
