"""The batch script of a job. Pure: it follows from the job, its launch plan and where things lie."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.child_python import module_command
from headrace.engines.slurm.components import components
from headrace.engines.slurm.slurm_state import comment_of
from headrace.errors import EngineRefused
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import PACKAGE_ENTRY
from headrace.job import Job
from headrace.job.model.engine_options import SlurmNodes
from headrace.processes.spawn import UTF8

LEAD = "headrace.engines.slurm.lead"
OWN_NODE = "headrace.engines.slurm.own_node"
SIGNAL_MARGIN = 60  # Slurm looks at its time limits once a minute
LONGEST_WARNING = 65535  # what sbatch takes


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
    return "\n".join([*_lines(job, plan, places, longest), ""])


def host_script(job: Job, plan: LaunchPlan, places: Places, host: str, longest: int = 0) -> str:
    """Returns the script of a data host that comes and goes; its argument is the number of the attempt.

    Args:
        job, plan, places, longest: see `batch_script`, which also says what is raised.
        host: name of the host.
    """
    group = plan.host(host).group
    log = f"{places.run}/engine/agent-{host}.log".replace("%", "%%")
    words = module_command(OWN_NODE, places.run, group, host, options=UTF8, python=places.python)
    lines = (
        "#!/bin/bash",
        _sbatch(f"--job-name={plan.job_name}-{host}", f"--output={log}", "--open-mode=append", "--export=NIL"),
        _sbatch("--nodes=1", "--ntasks-per-node=1", "--no-requeue"),
        _sbatch(f"--time={_minutes(job, plan, longest)}", *(("--exclusive", "--mem=0") if job.slurm.exclusive else ())),
        *map(_sbatch, _asked(job.slurm.nodes_of(group))),
        _package(places),
        f'exec {shlex.join(words)} "$1"',
    )
    return "\n".join([*lines, ""])


def _package(places: Places) -> str:
    return f"export PYTHONPATH={shlex.quote(places.package)} {PACKAGE_ENTRY}={shlex.quote(places.package)}"


def _lines(job: Job, plan: LaunchPlan, places: Places, longest: int) -> Iterator[str]:
    log = f"{places.run}/engine/slurm.log".replace("%", "%%")
    warning = min(LONGEST_WARNING, math.ceil(plan.stop_grace) + SIGNAL_MARGIN)
    requeue = "--requeue" if plan.retry.attempts else "--no-requeue"
    yield "#!/bin/bash"
    yield _sbatch(f"--job-name={plan.job_name}")
    yield _sbatch(f"--output={log}", "--open-mode=append")
    yield _sbatch("--export=NIL", f"--comment={comment_of(places.run_id)}", f"--signal=B:USR2@{warning}")
    for number, group in enumerate(components(plan)):
        if number:
            yield "#SBATCH hetjob"
        yield _sbatch(f"--nodes={len(group.hosts)}", "--ntasks-per-node=1", "--no-kill", requeue)
        yield _sbatch(
            f"--time={_minutes(job, plan, longest)}", *(("--exclusive", "--mem=0") if job.slurm.exclusive else ())
        )
        yield from map(_sbatch, _asked(job.slurm.nodes_of(group.name)))
    yield "trap '' USR1 USR2 INT  # until the lead takes them"
    yield _package(places)
    yield f"exec {shlex.join(module_command(LEAD, places.run, options=UTF8, python=places.python))}"


def _asked(nodes: SlurmNodes) -> Iterator[str]:
    for name in ("partition", "constraint", "gres", "account", "qos"):
        value = getattr(nodes, name)
        if value:
            yield f"--{name}={value}"
    yield from nodes.options


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
