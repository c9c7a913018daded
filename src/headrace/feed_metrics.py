"""The metrics of loaders and of data workers: the feed writes these records, and `headrace.runs` reads them.

They stand apart because neither may import the other: the feed works without any run, a run without the feed. One
JSON object a line, about one line a second, summed at the source. Times and counts are of that second, in the units
that the fields name. Fields with a default came later than the others, or do not apply to every loader: a record
without them says that they were not measured.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Because(str, Enum):
    """What a number of executors is based on. The text says it in words, for people."""

    text: str

    def __new__(cls, value: str, text: str) -> Because:
        """Returns a member that is equal to its name in records."""
        member = str.__new__(cls, value)
        member._value_, member.text = value, text
        return member

    STARTED = "started", "nothing has been measured yet"
    ENOUGH = "enough", "the trainer hardly waits"
    STALLED = "stalled", "the trainer waited, so more are being tried"
    HELPED = "helped", "more were tried, and the trainer waits less or runs faster"
    NO_HELP = "no_help", "more were tried in vain, and are gone again"
    HELD_OFF = "held_off", "the trainer waits, but more were tried in vain a while ago"
    IDLE = "idle", "some had nothing to do, and are gone"
    NEEDED = "needed", "some were removed, the trainer waited, and they are back"
    CORES = "cores", "the trainer waits, and there are as many as the cores can run"
    SATURATED = "saturated", "the trainer waits, but the cores are busy with other work"
    MEMORY = "memory", "the control group, or the machine, has no memory for more"
    BUDGET = "budget", "the memory that feed.Auto allows is used up"
    AT_MOST = "at_most", "there are as many as feed.Auto allows"

    def describe(self, figures: str) -> str:
        """Returns the text, and the figures behind it if there are any."""
        return f"{self.text} ({figures})" if figures else self.text


class LoaderSecond(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="metric", tag="loader"):
    """What one loader delivered in about one second.

    A step lasts from one `next()` call to the following one of the same epoch; the last step of an epoch ends when
    the loop asks for a batch that does not come, or a framework says that it is done. Nothing between epochs is
    counted, nor what a framework's validation takes. Copies run beside the computation, one batch ahead, so that
    wait + h2d + compute may be more than step; what is less than step is the loop's own, in Python.

    Attributes:
        t: end of the window's last step, seconds since the epoch, UTC.
        loader: name of the loader, e.g. ``train``.
        epoch: number of the epoch.
        steps: steps that ended in this window.
        samples: rows of these steps' batches.
        wait: seconds in `next()`, of these steps; with ``num_workers=0`` the batch is made there.
        step: seconds that these steps lasted, `wait` included.
        step_min, step_max: shortest and longest of these steps, seconds.
        bytes: payload bytes of these steps' batches.
        h2d: seconds that headrace's copies of these steps' batches to a CUDA device took, by events on their stream;
            None where it does not copy. A copy of the user's own is part of `compute`.
        compute: seconds of the device's time, from where a batch was handed over to the end of the work that was
            submitted until the following `next()`, by CUDA events on the current stream; None without CUDA, or when a
            step of these could not be measured. Then what is left of `step` after `wait` and `h2d` is the compute time.
        queue: batches that were ready when `next()` was called, mean over those of these steps that counted it (at
            most 100 a second); None for a foreign loader.
        needed: executors that this rank would keep busy if it never waited, by what a batch takes them and what the
            rank's own step takes; None without workers, and before it is known.
        link: share of the time that the links of these hosts were busy, as their servers told.
        desired_workers: hosts of data workers that would do for all ranks, if they are like this one; None for a loader
            with workers of its own.
    """

    t: float
    loader: str
    epoch: int
    steps: int
    samples: int
    wait: float
    step: float
    step_min: float
    step_max: float
    bytes: int
    h2d: float | None = None
    compute: float | None = None
    queue: float | None = None
    needed: float | None = None
    desired_workers: int | None = None
    link: float | None = None


class WorkerSecond(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="worker"):
    """What the data workers of one feed server, or of one rank's loader, did in about one second.

    The time of an executor is spent in three ways, so produce + blocked + idle = executors * seconds.

    In the feed the loader asks, and for no more than its window holds. So an executor is seldom blocked, and idle as
    soon as every batch that may be asked for is ready: idle (or blocked) executors while the ranks hardly wait say
    that the trainer is the slower one. Idle executors while the ranks wait say that the asks come late: the way there
    and back, or the rank's own Python, is slow.

    Attributes:
        t: end of the window, seconds since the epoch, UTC.
        seconds: its length.
        loader: the rank's loader whose local workers these are; empty for a feed server.
        executors: worker processes.
        produce: executor seconds spent on making samples.
        blocked: executor seconds without a slice while results of this server waited for the network to take them, or
            slices for memory to put their results in; each such result or slice counts for one executor. What the
            kernel has taken (its buffer holds some MB a connection) waits no more here, but counts in `sending`. Of a
            rank's own workers: while the user holds so many batches that there is no memory for further ones.
        idle: all other executor seconds: without a request. Between the passes over a loader its workers are idle too.
        cpu: CPU seconds (user + system) of the executors in this window.
            Of one that ended in this window nothing is seen.
        slices, samples, bytes: what was made: answers, rows, payload bytes. Rows that were made twice, because they
            were late or to compare them, count twice.
        sent: bytes that left through TCP, headings included; 0 for local workers, and for clients on the same host.
        sending: seconds in which the busiest of these connections had bytes on their way that the receiver had room
            for (TCP_INFO: busy_time - rwnd_limited), at most `seconds`.
        because: what the number of executors is based on, where the loader chooses it (``num_workers="auto"``).
        because_figures: what was measured then, for people.
    """

    t: float
    seconds: float
    loader: str = ""
    executors: int
    produce: float
    blocked: float
    idle: float
    cpu: float
    slices: int
    samples: int
    bytes: int
    sent: int = 0
    sending: float = 0.0
    because: Because | None = None
    because_figures: str = ""


class ValueSecond(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="metric", tag="value"):
    """A figure that the job's metric definitions found in a program's log, or that it gave to `headrace.log`, summed up
    over about one second.

    Attributes:
        t: end of the window, seconds since the epoch, UTC.
        name: of the metric.
        stream: the program that printed it: a rank's number.
        count: how many there were.
        last, low, high, total: the last, least and greatest of them, and their sum.
        step: of the training, of the last of them; None where nobody said.
    """

    t: float
    name: str
    stream: str
    count: int
    last: float
    low: float
    high: float
    total: float
    step: int | None = None


class ValueNotFinite(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="metric", tag="not_finite"
):
    """Values of one metric that were no finite numbers and that no finite one followed in about one second.

    Attributes:
        t, name, stream, step: as in `ValueSecond`.
        count: how many there were.
        last: text of the last one, e.g. ``nan``.
    """

    t: float
    name: str
    stream: str
    count: int
    last: str
    step: int | None = None
