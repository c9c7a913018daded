"""How many executors a loader should have: figures go in, a number and what it is based on come out. No clock, no I/O.

There is one stage whose cost is measured, so the number is computed first and verified then, a window at a time:

* needed = seconds of work a batch / seconds of the trainer's own a step; wanted is that and a margin;
* where the trainer waits, wanted is tried, one more at least and four times as many at most. In the window behind the
  change the trainer must wait, or take, a fiftieth of a step less for each batch, else the number is what it was
  before, and half of the jump is tried next;
* what has been too many for a while goes, down to what is wanted. It comes back if the trainer waits for that;
* what failed is not tried again for a while, twice as long each time, until the load is another one;
* none is added while executors wait for a core much of their time, or above what the machine has: cores (more where a
  slice mostly waits for a disk or a network), memory of the control group or the machine, a budget. When memory becomes
  scarce, executors go at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.control_group import usable_cores
from headrace.feed.identifiers import positive, whole
from headrace.feed_metrics import Because

HEADROOM = 1.15  # a batch takes now more, now less: so many times as many as the means say
STALL = 0.02  # share of its time that a trainer may wait, and by which more must help: about the noise of a window
GROWTH = 4  # times as many, at most, in one change: the first windows know little
PAUSE_SECONDS = 30.0  # too many for so long before some go, and until what failed is tried again: bursts and hiccups
CONTENDED = 1.3  # times as long as without waits for a core: where work goes on and on, others get less by more of it
OTHER_LOAD = 1.5  # so many times as many needed, or as few, and what failed may do good: above what noise does
HOST_STALL, LINK_BUSY = 0.01, 0.8  # below and above, no host is added
MOST_A_CORE = 8  # executors that mostly wait, as the documentation promises
KEPT_FREE = 0.1  # share of the memory, as it promises; where half of that is left, some must go


@dataclass(frozen=True)
class Host:
    """What the machine has. Sizes in bytes.

    Attributes:
        cores: that may be used.
        executor_bytes: proportional set size of one executor; 0 while it is not known.
        free: memory that the control group, or the machine, has left.
        memory: all that it may use; 0 when it is not known.
        slabs: memory of the batches on their way.
        trainer: cores that this process uses.
    """

    cores: int
    executor_bytes: int = 0
    free: int = 0
    memory: int = 0
    slabs: int = 0
    trainer: float = 0.0


class Window(NamedTuple):
    """Sums of a training loop, and of what its executors made, over a while.

    Attributes:
        executors: those that served all the time; 0 if their number has changed.
        steps, samples, bytes: of the steps that ended.
        step: seconds of these, waits included: the time that counts. A pause of the training is in no step.
        wait: seconds of them in which `next()` waited for a batch that was not there.
        rows: that the executors made.
        work: executor seconds that these took.
        cpu: CPU seconds, likewise.
        delayed: seconds of `work` in which the executor could have run and had no core.
    """

    executors: int = 0
    steps: float = 0.0
    step: float = 0.0
    wait: float = 0.0
    samples: float = 0.0
    bytes: float = 0.0
    rows: float = 0.0
    work: float = 0.0
    cpu: float = 0.0
    delayed: float = 0.0

    def plus(self, other: Window, times: int = 1) -> Window:
        """Returns the sums of both together, or with -1 their difference."""
        executors = self.executors if self.executors == other.executors else 0
        return Window(executors, *(one + times * more for one, more in zip(self[1:], other[1:], strict=True)))

    @property
    def needed(self) -> float:
        """Executors that would be busy all the time if the trainer never waited."""
        batches = self.rows * self.steps / self.samples if self.samples else self.steps  # that the executors made
        return self.work / batches / max((self.step - self.wait) / self.steps, 1e-6)

    @property
    def stall(self) -> float:
        """Share of its time that the trainer waits."""
        return min(1.0, self.wait / self.step)

    @property
    def a_core(self) -> float:
        """Executors that keep a core busy: more than one where they wait for a disk or a network."""
        return max(1.0, (self.work - self.delayed) / self.cpu) if self.cpu else 1.0

    def gain(self, before: Window) -> float:
        """Returns how much less the trainer waits for a batch than before, or takes for a step, in steps of before."""
        waits = before.wait / before.steps - self.wait / self.steps
        steps = before.step / before.steps - self.step / self.steps
        return max(waits, steps) * before.steps / before.step


@dataclass(frozen=True)
class Auto:
    """``num_workers="auto"``, with limits.

    Attributes:
        at_most: workers; None for what the machine can use.
        memory: bytes that the workers and the batches on their way may take together; None for what the control group,
            or the machine, has.

    Raises:
        ValueError: a limit that is not positive.
    """

    at_most: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("at_most", self.at_most), ("memory", self.memory)):
            if value is not None:
                object.__setattr__(self, name, positive(f"feed.Auto: {name}", value))

    @property
    def most(self) -> int:
        """Workers that there will ever be, as `get_worker_info().num_workers` says in them."""
        most = MOST_A_CORE * usable_cores()
        return most if self.at_most is None else min(most, self.at_most)


class Choice(NamedTuple):
    """How many executors there should be, what that is based on, and the figures behind it, for people."""

    executors: int
    because: Because
    figures: str = ""


@dataclass
class _Failed:
    """A number that failed: it is not tried again until some monotonic time, and after the next failure for longer."""

    level: int = 0
    until: float = 0.0
    pause: float = PAUSE_SECONDS

    def add(self, level: int, now: float) -> None:
        self.level, self.until, self.pause = level, now + self.pause, 2 * self.pause


class ExecutorRule:
    """See the module.

    Args:
        limits: what the user allows.

    Attributes:
        choice: the latest.
    """

    def __init__(self, limits: Auto) -> None:
        self.choice = Choice(1, Because.STARTED)
        self._limits = limits
        self._settled = False  # a window has passed since the number is what it should be
        self._trial: tuple[int, Window] | None = None  # how many there were before, and how that was
        self._surplus = 0.0  # seconds for which there have been too many
        self._too_few, self._too_many, self._needed = _Failed(), _Failed(), 0.0  # and the load for which they failed

    def take(self, window: Window, host: Host, now: float) -> Choice:
        """Returns how many executors there should be.

        Args:
            window: what was measured since the last call.
            host: what the machine has.
            now: monotonic seconds.
        """
        executors, allowed = self.choice.executors, self._allowed(host, MOST_A_CORE)
        settled, self._settled = self._settled, window.executors in (0, executors)
        if allowed.executors < executors:
            self._too_many.add(executors, now)
            return self._change(allowed)
        if not settled or window.executors != executors:  # some start, or were killed
            return self.choice
        because, needed = Because.ENOUGH, min(window.needed, allowed.executors)  # how many more says nothing
        if self._trial is not None:
            (before, earlier), self._trial = self._trial, None
            grown, gain = executors > before, window.gain(earlier)
            if gain < STALL if grown else gain <= -STALL:
                (self._too_many if grown else self._too_few).add(executors, now)
                self._needed = min(earlier.needed, allowed.executors)
                return self._change(Choice(before, Because.NO_HELP if grown else Because.NEEDED))
            if grown:
                self._too_few.add(before, now)
            because, self._needed = Because.HELPED if grown else Because.IDLE, needed
        elif not self._needed / OTHER_LOAD < needed < (self._needed or math.inf) * OTHER_LOAD:
            self._too_few, self._too_many, self._needed = _Failed(), _Failed(), 0.0
        wanted = math.ceil(HEADROOM * window.needed)
        if window.stall >= STALL:
            return self._grow(window, wanted, host, now)
        self.choice = Choice(executors, because)
        self._surplus = self._surplus + window.step if executors - window.needed > 1 and wanted < executors else 0.0
        fewer = max(wanted, self._too_few.level + 1 if now < self._too_few.until else 1)
        if self._surplus >= PAUSE_SECONDS and fewer < executors:
            self._change(Choice(fewer, Because.IDLE), window)
        return self.choice

    def _grow(self, window: Window, wanted: int, host: Host, now: float) -> Choice:
        executors, allowed = self.choice.executors, self._allowed(host, window.a_core)
        self._surplus = 0.0
        more = min(max(wanted, math.ceil(HEADROOM * executors)), GROWTH * executors, allowed.executors)
        if now < self._too_many.until and more >= self._too_many.level:
            more = (executors + self._too_many.level) // 2
        if executors >= allowed.executors:
            self.choice = allowed._replace(executors=executors)
        elif window.work > CONTENDED * (window.work - window.delayed):
            workers = window.cpu / window.step
            figures = f"of {host.cores} cores the training process uses {host.trainer:.1f}, its workers {workers:.1f}"
            self.choice = Choice(executors, Because.SATURATED, figures)
        elif more <= executors:
            self.choice = Choice(executors, Because.HELD_OFF)
        else:
            self._change(Choice(more, Because.STALLED), window)
        return self.choice

    def _change(self, choice: Choice, on_trial: Window | None = None) -> Choice:
        self._trial = (self.choice.executors, on_trial) if on_trial is not None else None
        self.choice, self._settled, self._surplus = choice, False, 0.0
        return choice

    def _allowed(self, host: Host, a_core: float) -> Choice:
        """Returns how many there may be, and what allows no more.

        Args:
            host: what the machine has.
            a_core: how many keep a core busy.
        """
        limits, size, now = self._limits, host.executor_bytes, self.choice.executors
        busy = f"{MOST_A_CORE} at most" if a_core >= MOST_A_CORE else f"{a_core:.1f} keep it busy"
        cores = f"workers a core: {busy}; cores: {host.cores}; num_workers=N starts as many as you say"
        most = [Choice(int(host.cores * min(a_core, MOST_A_CORE)), Because.CORES, cores)]
        if limits.at_most is not None:
            most.append(Choice(limits.at_most, Because.AT_MOST, f"at_most={limits.at_most}"))
        if size and limits.memory is not None:
            most.append(Choice((limits.memory - host.slabs) // size, Because.BUDGET, f"memory={limits.memory}"))
        if size and host.memory:
            more = math.floor((host.free - KEPT_FREE * host.memory) / size)
            if host.free >= KEPT_FREE * host.memory / 2:
                more = max(0, more)
            left = f"a worker takes {size >> 20} MiB, {host.free >> 20} of {host.memory >> 20} MiB are free"
            most.append(Choice(now + more, Because.MEMORY, left))
        least = min(most, key=lambda choice: choice.executors)
        return least._replace(executors=max(1, least.executors))


def desired_hosts(needed: float, executors: float, hosts: int, stall: float, link: float) -> int:
    """Returns how many hosts of data workers a job's trainers could use, at least 1.

    That is ceil(1.15 * executors that the ranks would keep busy / executors of a host), at most four times what there
    is. There are no more where the ranks hardly wait, or where a link is busy nearly all the time: another host would
    not help.

    Args:
        needed: executors that the ranks would keep busy if they never waited, all ranks together.
        executors: of a host.
        hosts: that serve now.
        stall: share of their time that the ranks wait.
        link: share of the time that the busiest connection was sending.
    """
    wanted = math.ceil(HEADROOM * needed / max(1.0, executors))
    if wanted > hosts and (stall < HOST_STALL or link > LINK_BUSY):
        return max(1, hosts)
    return max(1, min(wanted, GROWTH * max(1, hosts)))


def asked_workers(num_workers: int | Auto | Literal["auto"]) -> tuple[int, Auto | None]:
    """Returns the number of local workers, the most of them where it is tuned; and the limits then, None for a number.

    Raises:
        ValueError: a text other than ``"auto"``, or something that is no number.
    """
    if isinstance(num_workers, str) and num_workers == "auto":
        num_workers = Auto()
    if isinstance(num_workers, Auto):
        return num_workers.most, num_workers
    try:
        return whole("num_workers", num_workers), None
    except TypeError:
        raise ValueError(f'num_workers must be an integer, "auto" or a feed.Auto, got {num_workers!r}') from None
