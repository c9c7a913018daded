"""What a verdict rests on: the waits of ranks and data workers, how busy devices looked, how long nothing moved; where
one verdict ends and the next begins, and what to do about each.

The functions take these values out of a run's records; `headrace.insight.verdict` judges them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum

import msgspec

from headrace.insight.figures.columns import Columns
from headrace.insight.figures.figure import Figure, Window
from headrace.insight.figures.host_usage import GroupReport
from headrace.insight.figures.loaders import Ranks, WorkersReport
from headrace.runs import Cause, CauseKind, Program, Status, Stream

NOT_BOUND = 5.0
"""% of the step time: below this a job is not input-bound. TensorFlow Profiler's lower band, which users know."""

NOT_BOUND_SHARE = NOT_BOUND / 100
"""The same as a part of the step time, 0 to 1."""

HIGHLY_BOUND = 20.0
"""% of the step time: from here on a job is highly input-bound. TensorFlow Profiler's upper band."""

SKEW_GAP = 5.0
"""Points by which one rank must wait more than the others: the width of the band in which those do not wait."""

STRAGGLER = 1.2
"""One rank's compute time / the median of the others': the loss that counts as high for waits counts as high here."""

LINK_BUSY = 50.0
"""% of the time in which a feed server's connections were sending: a link idle for most of the time limits nothing."""

SPARE = 20.0
"""% of executor time without work or without room: a fifth to spare outlasts the step-to-step noise of a supply."""

CROWDED = 80.0
"""% of a host's own cores: from here on less than a fifth (see SPARE) of them was free, and threads that make
batches may have shared a core with the ranks."""

RESTING = 10.0
"""% of a core a rank: ranks that compute and have to share their cores get more, unless ten programs a core compete.
Below this they wait: for a device, a lock or a clock."""

LONG_WARM_UP = 5.0
"""Seconds of steps, and % of all steps' time: a record that is left out as warm-up lasts about one second, and what it
leaves out is told when it is several times as long and no small part of the run."""

GPU_LOW = 70.0
"""% GPU use below which a GPU is under-used: SageMaker Debugger's LowGPUUtilization."""

GPU_BUSY = CPU_BUSY = 90.0
"""% use from which a GPU or a CPU counts as saturated: SageMaker Debugger's CPUBottleneck."""

OTHERS = 10.0
"""% of a host's cores that programs have which are none of the run's, from which, with all these cores busy, its times
are not those of the job alone."""

STALL_SECONDS = 60.0
"""Seconds without a step below which nothing is called a standstill: saving a checkpoint takes as long."""

STALL_STEPS = 10.0
"""Steps (the longest so far) that must have had time to end before a job is called stalled."""

WORTH = 1.10
"""A gain (time before / time after) below this is within the noise of a short run, and of a trial."""

LEAST_RECORDS = 3
"""Records (of about one second) after the warm-up below which waits are no measurement."""


def band_of(wait: float) -> str:
    """Returns TensorFlow Profiler's band of a data wait in %: ``not``, ``moderately`` or ``highly`` input-bound."""
    if wait < NOT_BOUND:
        return "not"
    return "moderately" if wait < HIGHLY_BOUND else "highly"


def crowd_text(others: float, own: float, cores: str, whose: str) -> str:
    """Returns that programs which are none of a job's had a good part of its cores while all of these were busy; empty
    where they had not.

    Args:
        others, own: % of the cores that they had, and that the job had.
        cores, whose: these cores, and the job, in words.
    """
    if others < OTHERS or others + own < CPU_BUSY:
        return ""
    busy = "the machine was busy with something else: other programs had"
    return f"{busy} {others:.0f} % of {cores}, {whose} {own:.0f} %"


class VerdictName(str, Enum):
    """The verdicts."""

    INPUT_BOUND = "input-bound"
    NETWORK_BOUND = "network-bound"
    COMPUTE_BOUND = "compute-bound"
    BALANCED = "balanced"
    SKEWED = "skewed"
    STALLED = "stalled"
    UNKNOWN = "unknown"


NEXT: dict[VerdictName, str] = {
    VerdictName.INPUT_BOUND: "make batches faster: more data workers or data hosts; `headrace advise` says how many",
    VerdictName.NETWORK_BOUND: (
        "send fewer bytes (uint8 instead of float32, augment on the trainer) or use instances with a faster network; "
        "more data workers do not help"
    ),
    VerdictName.COMPUTE_BOUND: "do not add CPU hosts: make the step faster, or use fewer or cheaper data hosts",
    VerdictName.BALANCED: "nothing to gain from data workers alone: a faster step would need more of them",
    VerdictName.SKEWED: "look at that rank's host, shard and data: the others are waiting for it",
    VerdictName.STALLED: (
        "look at the quietest program's log and stack; `completion: {stall_after: 600}` ends such a job by itself"
    ),
    VerdictName.UNKNOWN: "wrap the training loader in headrace.track, or use headrace.feed.DataLoader; run longer",
}
"""What to do about each verdict."""

NEXT_IDLE = (
    "ask for batches earlier (raise prefetch_factor), or give the trainers' hosts CPU time to take them in: the data "
    "workers have time to spare, and more of them would have, too"
)
"""What to do where the ranks wait, and neither the data workers nor a link are busy for half of the time."""

NEXT_NOT_STARTED = "`headrace status RUN` says what it waits for, or why it has ended"
"""What to do about a run none of whose programs has started."""

NEXT_UNUSED = (
    "read through the data workers (headrace.feed.DataLoader, or tf.data.service), or leave their hosts away: a loader "
    "of another library makes its batches beside the ranks"
)
"""What to do where a job has data workers and its loader makes the batches without them."""

NEXT_MISSING = (
    "find out in its log why that server of tf.data.service was lost: TensorFlow's client ends no epoch without it"
)
"""What to do about a run that waited for a server of tf.data.service until it was ended."""

NEXT_CROWDED = (
    "run it again while nothing else runs there; of this run only CPU times (CPU per 1,000 samples) tell what the job "
    "costs"
)
"""What to do about a run whose cores were used by other programs too."""

NEXT_APART = (
    "make batches apart from the ranks, with headrace.feed.DataLoader or tf.data.service (`data_service`), or train "
    "for some steps on one batch that is kept (`headrace doctor` does that for PyTorch): if steps get shorter, making "
    "batches was the limit"
)
"""What to do when it is unknown whether the ranks compute or share their cores with the making of batches."""


class Supply(msgspec.Struct, frozen=True):
    """What the data workers did in the window, % of their executors' time.

    Attributes:
        produce: made samples.
        blocked: had work, but no room for the result.
        idle: had no work.
        link: % of the time in which their connections were sending; None for workers on the trainer's own host.
    """

    produce: float
    blocked: float
    idle: float
    link: float | None = None

    @property
    def spare(self) -> float:
        """% of executor time that was not needed."""
        return self.blocked + self.idle


class Beside(msgspec.Struct, frozen=True):
    """Batches are made on the ranks' own hosts, by a loader that does not report what that costs.

    Attributes:
        cpu: use of its own cores of the busiest of these hosts, %; None if that of one of them was not measured.
        host: ``group/host``: that host; or the one that was not measured, or that was short of cores.
        short: it was: see `short_of_cores`.
        resting: the ranks of all these hosts compute on CPUs and used next to none of them: see `resting`.
    """

    cpu: float | None
    host: str = ""
    short: bool = False
    resting: bool = False

    @property
    def spare(self) -> bool:
        """Whether the cores had clearly time to spare, so that making batches took none from the ranks."""
        return self.cpu is not None and self.cpu < CROWDED and not self.short


class Usage(msgspec.Struct, frozen=True):
    """How busy devices looked; used only where no waits are known.

    Attributes:
        gpu: mean use of the GPUs, %; None without one.
        cpu: use of the busiest group's own cores, %; None if unknown.
        cpu_of: that group.
    """

    gpu: float | None
    cpu: float | None
    cpu_of: str = ""


class Silence(msgspec.Struct, frozen=True):
    """How long no step has ended, of a run that goes on or that was ended because it stood still.

    Attributes:
        seconds: since the last step; None if no step was ever seen.
        longest_step: seconds.
        cause: why the run was ended as stalled, empty if it was not.
        missing: ``group/host[stream]`` of the server of tf.data.service that it waited for; empty without one.
        rank: the quietest rank.
    """

    seconds: float | None
    longest_step: float = 0.0
    cause: str = ""
    rank: str = ""
    missing: str = ""


class VerdictInputs(msgspec.Struct, frozen=True):
    """All that a verdict rests on.

    Attributes:
        ranks: rows of the main loader, by rank, warm-up excluded; one with a step at least.
        supply: what its data workers did, all together; None if unknown.
        usage: how busy GPUs and CPUs were.
        silence: None for a run that has ended by itself.
        window: where all this was measured.
        beside: batches are made beside the ranks, at an unknown cost; None if they are not.
        servers: tf.data.service had servers, whose CPU time was measured.
        not_started: why no program has started, in words; empty when one has.
    """

    ranks: Ranks = {}
    supply: Supply | None = None
    usage: Usage | None = None
    silence: Silence | None = None
    window: Window | None = None
    beside: Beside | None = None
    servers: bool = False
    not_started: str = ""


def supply_of(workers: Sequence[WorkersReport], loader: str) -> Supply | None:
    """Returns what the data workers of a loader did, each group by its executors; None when they told nothing.

    Args:
        workers: the data workers of every group.
        loader: name of the loader whose local workers count; feed servers always do.
    """
    told = [one for one in workers if one.loader in ("", loader) and one.produce.value is not None]
    if not told:
        return None
    produce, blocked, idle = (
        _mean([(one.executors, getattr(one, name)) for one in told]) or 0.0 for name in ("produce", "blocked", "idle")
    )
    return Supply(produce, blocked, idle, _mean([(one.executors, one.link) for one in told]))


def made_beside(loader: str, ranks: Ranks, columns: Columns, window: Window | None) -> bool:
    """Returns whether a loader makes its batches on the ranks' own hosts and does not tell what that costs.

    headrace's loader counts its queue, its data workers what they made, and a server of tf.data.service its pipelines;
    of these, those that run on a host that trains are niced: the ranks keep their cores. Any other loader works in
    threads or processes of the ranks.

    Args:
        loader: its name.
        ranks: its rows.
        columns: the metrics of the run.
        window: the training window; None if there is none.
    """
    if window is None or any(len(rank.measured("queue")) for rank in ranks.values()):
        return False
    workers, servers = columns.tables("worker").items(), columns.tables("service").items()
    made = any(rows.after(window)["samples"].any() for key, rows in workers if key.name in ("", loader))
    # Where TensorFlow does not tell how many pipelines there are (NaN) there may be some.
    return not made and not any(rows.after(window)["tasks"].any() for key, rows in servers if key.name == "worker")


def beside_of(ranks: Ranks, groups: Sequence[GroupReport]) -> Beside:
    """Returns how busy the hosts are on which a loader makes its batches beside the ranks.

    Args:
        ranks: its rows.
        groups: every group with its hosts.
    """
    hosts = {f"{host.group}/{host.host}": host for group in groups for host in group.by_host}
    found = []
    for name, count in sorted(Counter(f"{stream.group}/{stream.host}" for stream in ranks).items()):
        host = hosts.get(name)
        if host is None or host.cpu.value is None or host.cores is None:
            return Beside(None, name)
        used = host.cpu.value / 100 * host.cores
        gpus = bool(host.gpus)
        rests = resting(used, host.cores, count, gpus=gpus)
        found.append(Beside(host.cpu.value, name, short_of_cores(used, host.cores, count, gpus=gpus), rests))
    worst = max(found, key=lambda one: (one.short, one.cpu or 0.0), default=Beside(None))
    return msgspec.structs.replace(worst, resting=bool(found) and all(one.resting for one in found))


def crowded(groups: Sequence[GroupReport]) -> str:
    """Returns which host had its cores full and a good part of them lost to programs that are none of the run's: that
    which lost most, in words; empty if none had.

    Args:
        groups: every group with its hosts.
    """
    lost = {
        f"{host.group}/{host.host}": (host.others.value, host.cpu.value)
        for group in groups
        for host in group.by_host
        if host.others.value is not None and host.cpu.value is not None
    }
    words = ((shares, crowd_text(*shares, f"the cores of {name}", "its own")) for name, shares in lost.items())
    return max((found for found in words if found[1]), key=lambda found: found[0], default=("", ""))[1]


def short_of_cores(used: float, cores: int, ranks: int, *, gpus: bool) -> bool:
    """Returns whether ranks that compute on CPUs did not have a core each for most of the time.

    Then other programs had the cores, and low use of a host's cores does not mean that they were free.

    Args:
        used: CPU seconds a second of all processes of a host.
        cores: of the host.
        ranks: on the host; none of them waits.
        gpus: the host has GPUs: ranks may wait for these and need no core meanwhile.
    """
    return not gpus and RESTING <= 100 * used / min(ranks, cores) < CROWDED


def resting(used: float, cores: int, ranks: int, *, gpus: bool) -> bool:
    """Returns whether ranks neither compute on their host's CPUs nor would, if they were left more of them.

    A program that computes on shared cores is given its part of them; one that uses next to nothing has no use for it.
    The arguments are those of `short_of_cores`.
    """
    return not gpus and 100 * used / min(ranks, cores) < RESTING


def _mean(figures: Sequence[tuple[int, Figure]]) -> float | None:
    """Returns the mean of the figures that have a value, weighted; None when none has."""
    known = [(max(1, weight), figure.value) for weight, figure in figures if figure.value is not None]
    return sum(weight * value for weight, value in known) / sum(weight for weight, _ in known) if known else None


def silence_of(
    status: Status,
    cause: Cause | None,
    programs: Sequence[Program],
    columns: Columns,
    now: float,
) -> Silence | None:
    """Returns how long a run has been without a step; None for one that has ended by itself or that nears its end.

    Args:
        status, cause: of the run.
        programs: those of the completion groups.
        columns: the metrics of the run: a step of any loader is a sign of life.
        now: seconds since the epoch; the end of a run that has ended.
    """
    last: dict[Stream, float] = {}
    longest = 0.0
    for key, rows in columns.tables("loader").items():
        last[key.stream] = max(last.get(key.stream, 0.0), rows["t"][-1].item())
        longest = max(longest, rows["step_max"].max().item())
    seconds = max(0.0, now - max(last.values())) if last else None
    if cause is not None and cause.kind is CauseKind.STALLED:
        return Silence(seconds, longest, cause.reason, rank=cause.place)
    if cause is not None and cause.then is not None and cause.then.kind is CauseKind.STALLED:
        return Silence(seconds, longest, cause.reason, missing=cause.place)
    if status is not Status.IN_PROGRESS or not any(program.ended is None for program in programs):
        return None
    return Silence(seconds, longest, rank=str(min(last, key=lambda stream: last[stream])) if last else "")
