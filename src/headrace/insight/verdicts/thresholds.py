"""The verdicts, where one ends and the next begins, and what to do about each."""

from __future__ import annotations

from enum import Enum

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
