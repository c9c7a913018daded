"""What Slurm's programs and its daemons print when something is wrong, in as few words as tell a person why. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_PROGRAM = re.compile(r"^(?:(?:sbatch|squeue|scontrol|scancel|sacct|slurm_\w+)(?:: (?:error|fatal)| error)?: )+")
_NOT_CONFIGURED = "Could not establish a configuration source"
_NO_ANSWER = ("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted")
# Slurm may have got the message, and the answer was lost.
_LOST_ANSWER = (
    *("Socket timed out", "Zero Bytes were transmitted", "Message receive failure", "Message send failure"),
    *("(receive failure)", "(send failure)", "(shutdown failure)", "Unexpected message received"),
)
_BUSY = "temporarily unable to accept job"  # MaxJobCount jobs are there; sbatch tries again and again
_SUBMISSION = "Batch job submission failed: "
_BY_NODE = re.compile(r"^slurmstepd(?:-\S+)?: (?:error|fatal): (?!\*\*\* )(.+)")  # ***: a step that was ended
_BY_SRUN = re.compile(
    r"^srun: (?:error|fatal): (?!\S+: tasks? )(.+)"
    r"|^srun: ((?:unrecognized|invalid|ambiguous|unknown) option.*|option .*)"
)
_LAUNCH_FAILED = re.compile(r"srun: error: tasks? \S+ launch failed: ")
_NO_PYTHON = "Fatal Python error: "
_OTHER_HOME = re.compile(r"\s*PYTHONHOME = '")  # in what Python says of its paths then; without one: (not set)
NOT_CONFIGURED = "this machine is not configured for Slurm (no slurm.conf, SLURM_CONF is not set)"


def reasons(printed: str) -> list[str]:
    """Returns the lines of an error output, each without the name of the program that printed it.

    >>> reasons("sbatch: error: invalid partition specified: gpus")
    ['invalid partition specified: gpus']
    """
    return [_PROGRAM.sub("", line.strip()) for line in printed.splitlines() if line.strip()]


def is_not_configured(printed: str) -> bool:
    """Tells whether a program of Slurm says that it finds no configuration of a cluster."""
    return _NOT_CONFIGURED in printed


def is_no_answer(printed: str) -> bool:
    """Tells whether a program of Slurm says that the controller does not answer."""
    return any(words in printed for words in _NO_ANSWER)


def may_have_come(printed: str) -> bool:
    """Tells whether a program of Slurm says that the controller may have got its message, though no answer came."""
    return any(words in printed for words in _LOST_ANSWER)


def is_busy(printed: str) -> bool:
    """Tells whether sbatch says that Slurm takes no more jobs now."""
    return _BUSY in printed


def is_too_long(refused: str) -> bool:
    """Tells whether sbatch refuses a job for the time that it asks for."""
    return "time limit" in refused


def refusal(printed: str) -> str:
    """Returns why sbatch did not take a job.

    >>> refusal("sbatch: error: invalid partition: gpus\\nsbatch: error: Batch job submission failed: Invalid name")
    'invalid partition: gpus: Invalid name'
    """
    lines = [line.removeprefix(_SUBMISSION) for line in reasons(printed)]
    return ": ".join(dict.fromkeys(lines))


def is_launch_failed(srun: Sequence[str]) -> bool:
    """Tells whether srun says that a node did not start its task. It waits for the tasks of the others all the same."""
    return any(_LAUNCH_FAILED.match(line) for line in srun)


def why_no_agents(by_node: Mapping[str, Sequence[str]], srun: Sequence[str]) -> str:
    """Returns the line that tells best why a step ended: of Slurm on a node, else of srun, else the last of a node.

    Args:
        by_node: what was printed on each node before an agent wrote its own log, by the node's name.
        srun: what srun printed.
    """
    for node, lines in by_node.items():
        for line in lines:
            if found := _BY_NODE.match(line):
                return f"{node}: {found[1]}"
    for node, lines in by_node.items():
        for line in lines:
            if line.startswith(_NO_PYTHON):  # the last lines of such a Python tell nothing
                home = next((each.strip() for each in lines if _OTHER_HOME.match(each)), "")
                return f"{node}: {line}" + (f" ({home})" if home else "")
    for line in srun:
        if found := _BY_SRUN.match(line):
            return found[1] or found[2]
    last = [f"{node}: {line}" for node, lines in by_node.items() for line in lines[-1:]]
    return next(iter([*last, *srun[-1:]]), "it said nothing")
