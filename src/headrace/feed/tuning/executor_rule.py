"""How many executors a loader should have: figures go in, a number and what it is based on come out. No clock, no I/O.

There is one stage whose cost is measured, so the number is computed first and verified then:

* wanted = ceil(1.15 * seconds of work a batch / seconds of the trainer's own a step), by medians over two seconds;
* the number is set to that, at most four times the number before; where the trainer still waits, one more is tried;
* more are kept only if the stall fell by 2 points or the throughput rose by 3 %, over two windows. Otherwise the number
  is what it was before, and the level that failed is held off: for 15 s, and twice as long each time it fails again.
  Of a jump that failed, half is tried next;
* none is added where the host is saturated: its cores are busy, and a slice takes 1.3 times as long as it would if it
  never had to wait for one;
* when more than one has been idle for 30 s, some go: down to what is wanted, and at most half of the idle ones at a
  time. They come back if the trainer waits for that;
* what the machine has is never passed: cores (more where a slice mostly waits for a disk or a network), memory of the
  control group or the machine, a budget. When memory becomes scarce, executors go at once.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, SupportsIndex

from headrace.control_group import usable_cores
from headrace.feed_metrics import Because

HEADROOM = 1.15
WINDOW_SECONDS = 2.0
SETTLE_SECONDS = 1.0  # after a change, in which batches of before are still handed over
STALL = 0.02  # share of the time that a trainer may wait
LESS_STALL, MORE_RATE, WORSE_RATE = 0.02, 1.03, 0.85
GROWTH = 4  # times as many, at most, in one change
HOST_STALL, LINK_BUSY = 0.01, 0.8  # below and above, no host is added
CONTENDED = 1.3  # times as long as without waits for a core
SATURATED = 0.95  # share of the cores that are busy
MOST_A_CORE = 8  # executors that mostly wait
IDLE_SECONDS = 30.0
HOLD_SECONDS, MOST_HOLD_SECONDS = 15.0, 960.0
OTHER_LOAD = 1.5  # so many times as much, or as little, and what was learned of other numbers does not hold any more
KEPT_FREE, SCARCE = 0.10, 0.05  # shares of the memory: left when executors are added, and with less some must go


@dataclass(frozen=True)
class Host:
    """What the machine has. Sizes in bytes.

    Attributes:
        cores: that may be used.
        busy: share of them that is in use, 0 to 1.
        executor_bytes: proportional set size of one executor; 0 while it is not known.
        free: memory that the control group, or the machine, has left.
        memory: all that it may use; 0 when it is not known.
        slabs: memory of the batches on their way.
        trainer: cores that this process uses.
    """

    cores: int
    busy: float = 0.0
    executor_bytes: int = 0
    free: int = 0
    memory: int = 0
    slabs: int = 0
    trainer: float = 0.0


@dataclass(frozen=True)
class Sample:
    """What was measured in about half a second: at least one step, and one slice.

    Attributes:
        now: its end, monotonic seconds.
        executors: those that serve.
        steps: that ended.
        step: seconds of them, waits included: the time that counts. A pause of the training is in no step.
        wait: seconds of them in which `next()` waited for a batch that was not there.
        work: executor seconds that a batch takes.
        cpu: CPU seconds that a batch takes.
        delayed: seconds of `work` in which the executor could have run and had no core.
        produced: executor seconds of the slices that ended.
        host: see `Host`.
    """

    now: float
    executors: int
    steps: int
    step: float
    wait: float
    work: float
    cpu: float
    delayed: float
    produced: float
    host: Host


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
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"feed.Auto: {name} must be an integer of at least 1, got {value!r}")

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


class _Load(NamedTuple):
    """A window: the stall as a share, steps a second, and medians: seconds a step and batch, idle executors."""

    stall: float
    rate: float
    own: float
    work: float
    cpu: float
    delayed: float
    idle: float
    busy: float
    trainer: float

    @property
    def needed(self) -> float:
        """Executors that would be busy all the time if the trainer never waited."""
        return self.work / max(self.own, 1e-6)

    @property
    def saturated(self) -> bool:
        return self.busy > SATURATED and self.work > CONTENDED * (self.work - self.delayed)

    def differs(self, other: _Load) -> bool:
        """Whether a batch costs other CPU time, or the trainer another time, than before."""
        return _times(self.cpu, other.cpu) > OTHER_LOAD or _times(self.own, other.own) > OTHER_LOAD


class _Trial(NamedTuple):
    """A change that is not kept yet: how many there were before, and how that was."""

    before: int
    load: _Load


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
        self._samples: collections.deque[Sample] = collections.deque()
        self._settled: float | None = None  # since when the number is what it should be
        self._trial: _Trial | None = None
        self._usual: _Load | None = None  # the load for which the holds were learned
        self._unusual = 0.0  # seconds for which it has been another one
        self._idle = 0.0  # seconds for which more than one executor was idle
        self._holds: dict[int, tuple[float, float]] = {}  # of a level: until when, and how long that was

    def take(self, sample: Sample) -> Choice:
        """Returns how many executors there should be now that this was measured."""
        executors = self.choice.executors
        allowed = self._room(sample)
        if executors > allowed.executors:
            self._fail(executors, sample.now)
            self._change(allowed, None)
            return self.choice
        if sample.executors != executors:  # some start, or were killed: what all of them did before still counts
            self._settled, self._idle = None, 0.0
            return self.choice
        if self._settled is None:
            self._settled = sample.now + SETTLE_SECONDS
        if sample.now - sample.step < self._settled:
            return self.choice
        self._samples.append(sample)
        covered = sum(each.step for each in self._samples)
        if covered < WINDOW_SECONDS:
            return self.choice
        load = _load(self._samples)
        if self._trial is not None:
            over = covered >= 2 * WINDOW_SECONDS
            if over or (executors > self._trial.before and load.rate < WORSE_RATE * self._trial.load.rate):
                self._end_trial(self._trial, load, sample.now)
            return self.choice
        while covered - self._samples[0].step >= WINDOW_SECONDS:
            covered -= self._samples.popleft().step
        self._judge(load, sample)
        return self.choice

    def _judge(self, load: _Load, sample: Sample) -> None:
        """Nothing is on trial: decides whether another number is to be tried."""
        self._learn(load, sample.step)
        executors, wanted = self.choice.executors, math.ceil(HEADROOM * load.needed)
        if load.stall >= STALL:
            self._idle = 0.0
            self._grow(load, wanted, sample)
            return
        if self.choice.because not in (Because.MEMORY, Because.BUDGET, Because.IDLE):
            self.choice = Choice(executors, Because.ENOUGH)
        self._idle = self._idle + sample.step if load.idle > 1 and wanted < executors else 0.0
        if self._idle >= IDLE_SECONDS:
            fewer = max(wanted, executors - math.ceil(load.idle / 2), 1)
            if not self._held(fewer, sample.now):
                self._change(Choice(fewer, Because.IDLE), load)

    def _learn(self, load: _Load, seconds: float) -> None:
        """What failed under another load may do good under this one, if it lasts."""
        self._usual = self._usual or load
        self._unusual = self._unusual + seconds if load.differs(self._usual) else 0.0
        if self._unusual >= 2 * WINDOW_SECONDS:
            self._holds.clear()
            self._usual, self._unusual = load, 0.0

    def _grow(self, load: _Load, wanted: int, sample: Sample) -> None:
        executors, allowed = self.choice.executors, self._room(sample, load)
        if executors >= allowed.executors:
            self.choice = Choice(executors, allowed.because, allowed.figures)
            return
        if load.saturated:
            self.choice = Choice(executors, Because.SATURATED, _users(load, sample.host.cores))
            return
        more = min(max(wanted, executors + 1), GROWTH * executors, allowed.executors)
        while more > executors and self._held(more, sample.now):
            more = executors + (more - executors) // 2
        if more == executors:
            self.choice = Choice(executors, Because.HELD_OFF)
        else:
            self._change(Choice(more, Because.STALLED), load)

    def _end_trial(self, trial: _Trial, load: _Load, now: float) -> None:
        executors, before = self.choice.executors, trial.before
        self._usual = load
        if executors > before:
            better = trial.load.stall - load.stall >= LESS_STALL or load.rate >= MORE_RATE * trial.load.rate
            if better:
                self._fail(before, now)  # so few were not enough
                self._holds.pop(executors, None)
                self._change(Choice(executors, Because.HELPED), None)
                return
            self._fail(executors, now)
            self._change(Choice(before, Because.NO_HELP), None)
            return
        if load.stall - trial.load.stall >= LESS_STALL:  # a lower rate without it is the trainer's own
            self._fail(executors, now)
            self._change(Choice(before, Because.NEEDED), None)
        else:
            self._change(Choice(executors, Because.IDLE), None)

    def _change(self, choice: Choice, on_trial: _Load | None) -> None:
        trial = None if on_trial is None else _Trial(self.choice.executors, on_trial)
        same = choice.executors == self.choice.executors
        self.choice, self._trial = choice, trial
        self._samples.clear()
        self._idle = 0.0
        self._settled = -math.inf if same and trial is None else None  # nothing has to settle

    def _fail(self, level: int, now: float) -> None:
        """A number did no good: it is not tried again for a while."""
        _, length = self._holds.get(level, (0.0, HOLD_SECONDS / 2))
        length = min(MOST_HOLD_SECONDS, 2 * length)
        self._holds[level] = (now + length, length)

    def _held(self, level: int, now: float) -> bool:
        return now < self._holds.get(level, (0.0, 0.0))[0]

    def _room(self, sample: Sample, load: _Load | None = None) -> Choice:
        """Returns how many there may be, and what allows no more; without a load, how many there may stay."""
        host, limits, now = sample.host, self._limits, self.choice.executors
        cores = f"{host.cores} cores"
        most = [Choice(MOST_A_CORE * host.cores, Because.CORES, cores)]
        if limits.at_most is not None:
            most.append(Choice(limits.at_most, Because.AT_MOST, f"at_most={limits.at_most}"))
        if load is not None:
            alone = load.work - load.delayed
            waits = alone / load.cpu if 0 < CONTENDED * load.cpu < alone else 1.0
            most.append(Choice(int(host.cores * waits), Because.CORES, cores))
        size = host.executor_bytes
        left = f"a worker takes {size >> 20} MiB, {host.free >> 20} of {host.memory >> 20} MiB are free"
        if size and limits.memory is not None:
            most.append(Choice((limits.memory - host.slabs) // size, Because.BUDGET, f"memory={limits.memory}"))
        if size and host.memory:
            most.append(Choice(int((1 - SCARCE) * host.memory - host.slabs) // size, Because.MEMORY, left))
            if load is not None:
                more = max(0, int(host.free - KEPT_FREE * host.memory)) // size
                most.append(Choice(now + more, Because.MEMORY, left))
            elif host.free < SCARCE * host.memory:
                over = math.ceil((KEPT_FREE * host.memory - host.free) / size)
                most.append(Choice(now - over, Because.MEMORY, left))
        least = min(most, key=lambda choice: choice.executors)
        return least._replace(executors=max(1, least.executors))


def _users(load: _Load, cores: int) -> str:
    """Returns who has the cores."""
    workers, used = load.cpu * load.rate, load.busy * cores
    others = max(0.0, used - load.trainer - workers)
    return (
        f"{used:.1f} of {cores} cores are in use: {load.trainer:.1f} by the training process, {workers:.1f} by its "
        f"workers, {others:.1f} by other programs"
    )


def _load(samples: Sequence[Sample]) -> _Load:
    step, wait = sum(each.step for each in samples), sum(each.wait for each in samples)
    steps = sum(each.steps for each in samples)
    return _Load(
        stall=wait / step if step else 0.0,
        rate=steps / step if step else 0.0,
        own=statistics.median((each.step - each.wait) / each.steps for each in samples),
        work=statistics.median(each.work for each in samples),
        cpu=statistics.median(each.cpu for each in samples),
        delayed=statistics.median(each.delayed for each in samples),
        idle=samples[-1].executors - (sum(each.produced for each in samples) / step if step else 0.0),
        busy=statistics.median(each.host.busy for each in samples),
        trainer=statistics.median(each.host.trainer for each in samples),
    )


def _times(one: float, other: float) -> float:
    """How many times the larger is the smaller one; times below a millisecond are taken for one."""
    low, high = sorted((max(one, 1e-3), max(other, 1e-3)))
    return high / low


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
    if not isinstance(num_workers, (SupportsIndex, Auto)):
        raise ValueError(f'num_workers must be an integer, "auto" or a feed.Auto, got {num_workers!r}')
    return (num_workers.most, num_workers) if isinstance(num_workers, Auto) else (num_workers, None)
