"""What Slurm says of a job, read from its text formats, which are the same in Slurm 22.05, 24.11 and 26.05. Pure.

    squeue -h --states=all --user=UID -o QUEUE_FORMAT      all jobs of a user that Slurm still knows
    scontrol -o show job ID                                how one of them ended

Slurm forgets a job some minutes after its end (MinJobAge). JSON is not used: its shape differs between versions.

What the controller has forgotten the accounting may keep, where AccountingStorageType is ACCOUNTING. It may keep no
comments (AccountingStoreFlags): then a job is told from others by its user and its name.

    sacct -n -P -X -j ID -o ACCOUNTING_FORMAT      one line a component, of its last start

Of what Slurm's programs and daemons print when something is wrong, as few words are taken as tell a person why.
"""

from __future__ import annotations

import contextlib
import enum
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.runs import Cause, CauseKind, Status

QUEUE_FORMAT = "%i|%T|%r|%N|%S|%e|%k"
_FIELDS = QUEUE_FORMAT.count("|") + 1
_KEY = re.compile(r"(?:^| )([A-Z][A-Za-z:/]*)=")
_DURATION = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")
_NO_REASON = re.compile("^None$")
_DUE_TO = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ DUE TO (.+?) \*\*\*")
_KINDS = {"PREEMPTION": CauseKind.PREEMPTED}  # by the keyword of Slurm's daemon
_LAUNCH_FAILED = (0, 53)  # exit code and signal of a batch script whose output file could not be opened

WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
STANDING = frozenset({"SUSPENDED", "STOPPED"})  # its processes are stopped: nobody in it takes a signal
# What Slurm documents as a limit or a rule that the job itself breaks. Limits of all jobs of a user or an account end
# with other jobs, and PartitionNodeLimit may mean that nodes are down.
_NEVER = frozenset(
    {"AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS"}
    | {"PartitionConfig", "QOSNotAllowed"}
)
_NOT_YET = "BeginTime"
_NODE_LIMIT = "PartitionNodeLimit"
_TIME_LIMIT = "PartitionTimeLimit"
_LIMIT_OF_A_JOB = re.compile("(?:Assoc|QOS)Max[A-Za-z]*PerJob[A-Za-z]*|QOSMin[A-Za-z]*")
ENDED = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
})  # fmt: skip


class Phase(enum.Enum):
    """Where a job is."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDED = "ended"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True)
class Component:
    """A component of a job as squeue lists it; a plain job has one.

    Attributes:
        job_id: id of the whole job.
        offset: number of the component.
        state: e.g. ``RUNNING``.
        reason: why it waits, e.g. ``Resources``; empty without one.
        nodes: e.g. ``data[1-2]``; empty while it waits.
        end: when it ended or will end at the latest, seconds since the epoch; 0 when that is not known.
        comment: what the user wrote there; that of component 0 names the run.
        start: when it started or is expected to, seconds since the epoch; 0 when that is not known.
    """

    job_id: int
    offset: int
    state: str
    reason: str
    nodes: str
    end: float = 0.0
    comment: str = ""
    start: float = 0.0


@dataclass(frozen=True)
class EndedComponent:
    """A component of a job that has ended, as scontrol shows it.

    Attributes:
        offset: number of the component.
        state: e.g. ``NODE_FAIL``.
        reason: e.g. ``NonZeroExitCode``.
        exit_code, signal: of the batch script.
        failed_node: the node that failed; empty in Slurm before 24.11.
        nodes: where it ran; empty if it never did.
        timed_out: it has run as long as it may.
        preempted: another job takes its nodes, or has taken them.
        restarts: how often it was queued again.
        comment: as for `Component`.
    """

    offset: int
    state: str
    reason: str
    exit_code: int
    signal: int
    failed_node: str
    nodes: str
    timed_out: bool = False
    preempted: bool = False
    restarts: int = 0
    comment: str = ""


@dataclass(frozen=True)
class Termination:
    """Why Slurm ends a job that still runs.

    Attributes:
        cause: why.
        may_return: Slurm has queued the job again, or may be asked to.
        known: Slurm says why; else it may say so later, when a component has ended.
    """

    cause: Cause
    may_return: bool
    known: bool = True


def parse_queue(text: str) -> tuple[Component, ...]:
    """Reads what squeue printed in QUEUE_FORMAT. Jobs that are no components of a job are components 0."""
    found = []
    for line in text.splitlines():
        fields = line.strip().split("|", _FIELDS - 1)  # a comment may hold anything
        number, _, offset = fields[0].partition("+")
        if len(fields) == _FIELDS and number.isdigit():  # an element of an array is none of ours
            state, reason, nodes = fields[1], _NO_REASON.sub("", fields[2]), fields[3]
            start, end = _time(fields[4]), _time(fields[5])
            found.append(Component(int(number), int(offset or 0), state, reason, nodes, end, fields[6], start))
    return tuple(sorted(found, key=lambda each: (each.job_id, each.offset)))


def _time(text: str) -> float:
    with contextlib.suppress(ValueError):  # N/A, Unknown
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    return 0.0


def comment_of(run_id: str) -> str:
    """Returns the comment of a run's Slurm job, which tells it from every other job."""
    return f"headrace:{run_id}"


def job_of_run(run_id: str, queue: Iterable[Component]) -> int | None:
    """Returns the job that a run has in the queue; None when it has none there."""
    return next((each.job_id for each in queue if each.comment == comment_of(run_id)), None)


def phase_of(job_id: int, queue: Iterable[Component]) -> Phase:
    """Returns where a job is. One that lost a component goes on while another one runs."""
    states = [each.state for each in queue if each.job_id == job_id]
    if not states:
        return Phase.FORGOTTEN
    if all(state in ENDED for state in states):
        return Phase.ENDED
    if any(state in WAITING for state in states):
        return Phase.WAITING
    return Phase.SUSPENDED if any(state in STANDING for state in states) else Phase.RUNNING


def why_waiting(job_id: int, queue: Iterable[Component]) -> str:
    """Returns why a job waits, in Slurm's words, e.g. ``Priority`` or ``Resources``; empty without a reason.

    Of one that is not to begin yet, because it was queued again a moment ago, also until when.
    """
    waiting = [each for each in queue if each.job_id == job_id and each.state in WAITING]
    reasons = ", ".join(dict.fromkeys(each.reason for each in waiting if each.reason))
    begin = {each.reason: each.start for each in waiting}.get(_NOT_YET, 0.0)
    return reasons + (time.strftime(", not before %Y-%m-%d %H:%M:%S UTC", time.gmtime(begin)) if begin else "")


def starts_never(job_id: int, queue: Iterable[Component]) -> str:
    """Returns a sentence when Slurm will not start a job unless it is changed; empty when waiting may help."""
    codes = {each.reason for each in queue if each.job_id == job_id and each.state in WAITING}
    if _TIME_LIMIT in codes:
        return (
            "Slurm will not start this job as it is: its partition allows less time; "
            "stop it, and set stopping_condition.max_run"
        )
    if any(code in _NEVER or _LIMIT_OF_A_JOB.fullmatch(code) for code in codes):
        return "Slurm will not start this job as it is: stop it, and change what it asks for"
    if _NODE_LIMIT in codes:
        return "Slurm will not start this job as it is, unless it only waits for nodes that are down"
    return ""


def parse_jobs(text: str) -> tuple[EndedComponent, ...]:
    """Reads what ``scontrol -o show job`` printed: one line a component."""
    found = []
    for line in text.splitlines():
        values = values_of(line)
        if "JobState" not in values:
            continue
        code, _, number = values.get("ExitCode", "0:0").partition(":")
        found.append(
            EndedComponent(
                offset=int(values.get("HetJobOffset", "0")),
                state=values["JobState"],
                reason=values.get("Reason", ""),
                exit_code=int(code),
                signal=int(number or 0),
                failed_node=_text(values.get("FailedNode", "")),
                nodes=_text(values.get("NodeList", "")),
                timed_out=seconds_of(values.get("RunTime", ""))
                >= (seconds_of(values.get("TimeLimit", "")) or math.inf),
                preempted=values["JobState"] == "PREEMPTED" or values.get("PreemptTime", "None") != "None",
                restarts=int(values.get("Restarts", "0")),
                comment=values.get("Comment", ""),
            )
        )
    return tuple(sorted(found, key=lambda each: each.offset))


def values_of(line: str) -> dict[str, str]:
    """Reads a line of ``scontrol -o``: ``Key=value`` and blanks between them; a value may hold blanks too."""
    keys = list(_KEY.finditer(line))
    ends = [*(key.start() for key in keys[1:]), len(line)]
    return {key[1]: line[key.end() : end].strip() for key, end in zip(keys, ends, strict=True)}


def seconds_of(duration: str) -> int:
    """Returns the seconds of a duration of Slurm; 0 for none, such as ``UNLIMITED``.

    >>> seconds_of("1-02:03:04")
    93784
    """
    found = _DURATION.fullmatch(duration)
    if found is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _text(value: str) -> str:
    return "" if value == "(null)" else value


def end_without_word(
    job_id: int, ended: Sequence[EndedComponent], folder: str, asked_to_stop: bool = False
) -> tuple[Status, Cause]:
    """Returns how a run ended whose lead could not say it.

    Args:
        job_id: its Slurm job.
        ended: how its components ended; empty when Slurm knows nothing of them any more.
        folder: the run's folder.
        asked_to_stop: a person has asked to stop the run.
    """
    if not ended:
        words = f"Slurm knows nothing of job {job_id} any more, and the run has no end"
        return Status.FAILED, Cause(CauseKind.ENGINE_FAILED, words, infrastructure=True)
    first = next((each for each in ended if each.state not in ("COMPLETED", "CANCELLED")), ended[0])
    job = f"Slurm job {job_id}"
    if (first.exit_code, first.signal) == _LAUNCH_FAILED:
        words = f"{job} could not start on {first.nodes}: {folder} is not on a file system that the nodes share"
        return Status.FAILED, Cause(CauseKind.INSTANCE_NOT_STARTED, words)
    if first.state == "CANCELLED" and not first.nodes:
        return Status.STOPPED, Cause(CauseKind.STOPPED, f"{job} was cancelled while it waited")
    if first.state == "CANCELLED" and asked_to_stop:
        return Status.STOPPED, Cause(CauseKind.STOPPED, "stopped by the user")
    if first.state in ("TIMEOUT", "DEADLINE"):
        return Status.STOPPED, Cause(CauseKind.MAX_RUN, f"{job} reached its time limit")
    if first.state == "OUT_OF_MEMORY":
        return Status.FAILED, _out_of_memory(job_id)
    kind = CauseKind.PREEMPTED if first.preempted else CauseKind.ENGINE_FAILED
    return Status.FAILED, Cause(kind, f"{job} {_how(first)}", infrastructure=True)


def said_by_slurm(log: str) -> str:
    """Returns why Slurm ended a job last, as its daemon has written into the job's output, e.g. ``PREEMPTION``.

    Of a job that was queued again Slurm has no other sign. Empty when it says nothing.
    """
    found = _DUE_TO.findall(log)
    return found[-1] if found else ""


def why_queued_again(job_id: int, said: str) -> Cause:
    """Returns why Slurm has queued a job again, given what `said_by_slurm` returned."""
    kind = _KINDS.get(said, CauseKind.ENGINE_FAILED)
    words = f" ({said.lower()})" if said else ""
    return Cause(kind, f"Slurm job {job_id} was ended and queued again{words}", infrastructure=True)


def why_terminated(job_id: int, ended: Sequence[EndedComponent], restarts: int = 0, said: str = "") -> Termination:
    """Returns why Slurm ends a job that still runs: its lead got SIGTERM, which no person sends it.

    Args:
        job_id: the job.
        ended: its components, as Slurm shows them now; empty when it shows none.
        restarts: how often the job had been queued again when its lead began.
        said: see `said_by_slurm`.
    """
    over = [each for each in ended if each.state in ENDED]
    first = next((each for each in over if each.state != "CANCELLED"), over[0] if over else None)
    # While its processes end, a job is COMPLETING in every format, whatever it was ended by.
    if any(each.timed_out or each.state in ("TIMEOUT", "DEADLINE") for each in ended):
        return Termination(Cause(CauseKind.MAX_RUN, f"Slurm job {job_id} reached its time limit"), False)
    if any(each.restarts > restarts for each in ended):
        return Termination(why_queued_again(job_id, said), True)
    if any(each.preempted for each in ended):
        return Termination(Cause(CauseKind.PREEMPTED, f"Slurm job {job_id} was preempted", infrastructure=True), True)
    if first is not None and first.state == "OUT_OF_MEMORY":
        return Termination(_out_of_memory(job_id), False)
    how = "was ended by Slurm: cancelled (scancel) or preempted, or a node failed" if first is None else _how(first)
    cause = Cause(CauseKind.ENGINE_FAILED, f"Slurm job {job_id} {how}", infrastructure=True)
    return Termination(cause, False, known=first is not None)


def _out_of_memory(job_id: int) -> Cause:
    return Cause(CauseKind.OUT_OF_MEMORY, f"Slurm job {job_id} used more memory than it had asked for")


def _how(component: EndedComponent) -> str:
    node = component.failed_node or component.nodes
    words = {
        "CANCELLED": "was cancelled (scancel)",
        "PREEMPTED": "was preempted",
        "NODE_FAIL": f"lost a node: {node}",
        "BOOT_FAIL": f"could not boot {node}",
        "REVOKED": "was revoked",
    }
    otherwise = f"ended as {component.state} (exit code {component.exit_code}, signal {component.signal})"
    return words.get(component.state, otherwise)


ACCOUNTING = "accounting_storage/slurmdbd"
ACCOUNTING_FORMAT = "JobID,State,ExitCode,NodeList,UID,JobName,Comment"
_ACCOUNTED = ACCOUNTING_FORMAT.count(",") + 1
_NO_NODES = "None assigned"


@dataclass(frozen=True)
class JobOfRun:
    """By what the job of a run is known in the accounting.

    Attributes:
        run_id: the run.
        uid: of the user who submitted it.
        name: the job's name.
    """

    run_id: str
    uid: int
    name: str


def parse_accounting(text: str, job: JobOfRun) -> tuple[EndedComponent, ...]:
    """Reads what sacct printed in ACCOUNTING_FORMAT. Returns the components that have ended; none if the job is not
    the run's."""
    found = []
    for line in text.splitlines():
        fields = line.split("|", _ACCOUNTED - 1)  # a comment may hold anything
        if len(fields) != _ACCOUNTED:
            continue
        number, state, exit_code, nodes, uid, name, comment = fields
        if (comment or comment_of(job.run_id), uid, name) != (comment_of(job.run_id), str(job.uid), job.name):
            continue
        state = state.partition(" ")[0]  # CANCELLED by 1000
        if state not in ENDED:  # it was never told the end
            continue
        code, _, signal = exit_code.partition(":")
        found.append(
            EndedComponent(
                offset=int(number.partition("+")[2] or 0),
                state=state,
                reason="",
                exit_code=int(code),
                signal=int(signal or 0),
                failed_node="",
                nodes="" if nodes == _NO_NODES else nodes,
                preempted=state == "PREEMPTED",
                comment=comment,
            )
        )
    return tuple(sorted(found, key=lambda each: each.offset))


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
_NO_LAUNCH = re.compile(r"srun: error: tasks? \S+ launch failed: ")
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
    return any(_NO_LAUNCH.match(line) for line in srun)


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
