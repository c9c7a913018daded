"""The number of executors, chosen by simulated loads: where it ends, how soon, and what it never passes."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from headrace.feed.tuning.executor_rule import PAUSE_SECONDS, Auto, Because, Choice, ExecutorRule, Host, Window
from headrace.feed.tuning.loader_tuner import WINDOW_SECONDS

GB = 1 << 30


@dataclass(frozen=True)
class Load:
    """A pipeline and a trainer on a machine.

    Attributes:
        own: seconds a step of the trainer's own.
        cpu: CPU seconds that a batch takes.
        sleep: seconds that a batch waits for a disk or a network.
        cores: of the machine.
        others: cores that other work takes.
        burst: the trainer takes several batches at once and then computes for long; seconds between, 0 for never.
        size: bytes of an executor.
        memory: of the machine, 0 for not known.
    """

    own: float
    cpu: float
    sleep: float = 0.0
    cores: int = 16
    others: float = 0.0
    burst: float = 0.0
    size: int = 0
    memory: int = 0

    def share(self, executors: int) -> float:
        """How much of a core each executor gets of what it wants."""
        wants = executors * self.cpu / (self.cpu + self.sleep)
        return min(1.0, max(self.cores - self.others, self.cores * wants / (wants + self.others)) / wants)

    def work(self, executors: int) -> float:
        """Wall seconds that a batch takes one of them."""
        return self.sleep + self.cpu / self.share(executors)

    def delayed(self, executors: int) -> float:
        return self.cpu / self.share(executors) - self.cpu

    def rate(self, executors: int) -> float:
        """Batches a second."""
        return min(1 / self.own, executors / self.work(executors))

    def best(self) -> float:
        return max(self.rate(executors) for executors in range(1, 8 * self.cores + 1))


class Machine:
    """Runs a load under the rule: half-second samples, with noise, added up as the tuner does it; executors come and go
    after a moment."""

    def __init__(self, load: Load, limits: Auto | None = None, noise: float = 0.03, starts: float = 1.0) -> None:
        self.load = load
        self.rule = ExecutorRule(limits or Auto())
        self.executors = 1
        self.now = 0.0
        self.largest = 1
        self.history: list[tuple[float, Choice]] = [(0.0, self.rule.choice)]
        self._chance = random.Random(7)
        self._noise, self._starts = noise, starts
        self._changed = 0.0
        self._window: Window | None = None

    def run(self, seconds: float, each: Callable[[float], None] = lambda now: None) -> Machine:
        until = self.now + seconds
        while self.now < until:
            each(self.now)
            self._step()
        return self

    def _noisy(self, value: float) -> float:
        return value * (1 + self._noise * (2 * self._chance.random() - 1))

    def _step(self) -> None:
        load, executors = self.load, self.executors
        work, rate = self._noisy(load.work(executors)), self._noisy(load.rate(executors))
        span = max(0.5, 1 / rate)
        if load.burst:  # in turn: a second in which the trainer takes all it can get, and a long computation
            span = load.burst
            steps = max(1, round(span * rate))
            wait = min(0.1 * span, span * max(0.0, 1 - load.own * rate))
        else:
            steps = max(1, round(span * rate))
            wait = max(0.0, steps / rate - steps * load.own)
        step = steps / rate
        self.now += span
        used = executors * load.size
        host = Host(load.cores, load.size, max(0, load.memory - used), load.memory, 0, trainer=0.25)
        cpu, delayed = steps * self._noisy(load.cpu), steps * load.delayed(executors)
        sample = Window(executors, steps, step, wait, steps, 0, steps, steps * work, cpu, delayed)
        before = choice = self.rule.choice
        self._window = sample if self._window is None else self._window.plus(sample)
        if self._window.step >= WINDOW_SECONDS:
            choice, self._window = self.rule.take(self._window, host, self.now), None
        if choice != before:
            self.history.append((self.now, choice))
        if choice.executors != before.executors:
            self._changed = self.now
        self.largest = max(self.largest, choice.executors)
        if choice.executors < self.executors or self.now - self._changed >= self._starts:
            self.executors = choice.executors

    def changes(self, since: float = 0.0) -> list[int]:
        """The numbers that there were, one after the other."""
        numbers = [choice.executors for now, choice in self.history if now >= since]
        return [number for place, number in enumerate(numbers) if not place or number != numbers[place - 1]]


CONSTANT = {
    "one is enough": Load(own=0.1, cpu=0.02),
    "three are needed": Load(own=0.1, cpu=0.25),
    "nine are needed": Load(own=0.05, cpu=0.4),
    "the trainer does nothing": Load(own=0.0005, cpu=0.05, cores=8),
    "it waits for a disk": Load(own=0.02, cpu=0.01, sleep=0.2, cores=4),
    "it sleeps, on two cores": Load(own=0.0001, cpu=0.002, sleep=0.1, cores=2),
    "long batches": Load(own=2.0, cpu=7.0),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_a_constant_load_gets_what_the_best_number_would_give_within_thirty_seconds_and_keeps_it(name: str) -> None:
    load = CONSTANT[name]
    machine = Machine(load).run(30 if name != "long batches" else 60)
    assert load.rate(machine.rule.choice.executors) >= 0.95 * load.best(), machine.history
    machine.run(600)
    assert load.rate(machine.rule.choice.executors) >= 0.95 * load.best(), machine.history
    numbers = machine.changes(since=60.0)
    assert len(numbers) <= 14, numbers  # trials above it, with ever longer pauses


def test_the_first_change_is_a_jump_to_what_is_wanted() -> None:
    machine = Machine(Load(own=0.1, cpu=0.25), noise=0.0).run(10)
    assert machine.changes()[:2] == [1, math.ceil(1.15 * 2.5)]
    assert [choice.because for _, choice in machine.history][:2] == [Because.STARTED, Because.STALLED]


def test_a_jump_is_fourfold_at_most() -> None:
    machine = Machine(Load(own=0.001, cpu=0.1, cores=64), noise=0.0).run(40)
    numbers = machine.changes()
    assert numbers[:3] == [1, 4, 16]


def test_a_load_that_grows_gets_more_and_one_that_shrinks_gives_them_back() -> None:
    machine = Machine(Load(own=0.1, cpu=0.08)).run(30)
    assert machine.rule.choice.executors == 1
    machine.load = Load(own=0.1, cpu=0.6)
    machine.run(30)
    assert 6 <= machine.rule.choice.executors <= 8
    machine.load = Load(own=0.1, cpu=0.08)
    machine.run(240)
    assert machine.rule.choice.executors <= 2
    assert Because.IDLE in [choice.because for _, choice in machine.history]
    assert machine.load.rate(machine.rule.choice.executors) >= 0.95 * machine.load.best()


def test_more_that_do_no_good_go_again_and_are_tried_less_and_less_often() -> None:
    class Locked(Load):
        """Its workers wait for one another, so that a second one adds nothing."""

        def rate(self, executors: int) -> float:
            return min(1 / self.own, 1 / self.cpu)

    machine = Machine(Locked(own=0.05, cpu=0.2, sleep=0.3)).run(900)
    assert machine.rule.choice.executors == 1 or machine.history[-1][1].because is Because.STALLED
    tries = [now for now, choice in machine.history if choice.because is Because.STALLED]
    assert 3 <= len(tries) <= 40
    early, late = sum(now < 300 for now in tries), sum(now >= 600 for now in tries)
    assert late < early
    assert {Because.NO_HELP, Because.HELD_OFF} <= {choice.because for _, choice in machine.history}


def test_what_failed_is_tried_less_and_less_often_for_a_trainer_that_does_nothing_too() -> None:
    class Locked(Load):
        def rate(self, executors: int) -> float:
            return min(1 / self.own, 1 / self.cpu)

    machine = Machine(Locked(own=0.0005, cpu=0.2, sleep=0.3, cores=4)).run(900)  # 1000 needed, 32 allowed
    tries = [now for now, choice in machine.history if choice.because is Because.STALLED]
    assert sum(now >= 600 for now in tries) < sum(now < 300 for now in tries) <= 12, tries


def test_of_a_jump_that_failed_half_is_tried_next() -> None:
    class Worse(Load):
        """More than three get into each other's way."""

        def rate(self, executors: int) -> float:
            return min(1 / self.own, (executors if executors <= 3 else 0.5) / self.work(executors))

    machine = Machine(Worse(own=0.02, cpu=0.1), noise=0.0).run(60)
    assert machine.changes()[:4] == [1, 4, 1, 2]
    assert machine.load.rate(machine.rule.choice.executors) >= 2 / 0.1


def test_a_saturated_host_gets_no_more() -> None:
    machine = Machine(Load(own=0.02, cpu=0.1, cores=4, others=40)).run(300)
    assert machine.changes() == [1]
    choice = machine.rule.choice
    assert choice.because is Because.SATURATED
    text = choice.because.describe(choice.figures)
    assert re.search(r"busy .*\(of 4 cores the training process uses 0\.\d, its workers 0\.\d\)", text), text


BUSY = Load(own=0.0005, cpu=0.05, cores=8, size=64 << 20)


@pytest.mark.parametrize(
    ("load", "limits", "because", "executors", "figures"),
    [
        (BUSY, Auto(), Because.CORES, 8, "workers a core: 1.0 keep it busy; cores: 8; num_workers=N"),
        (BUSY, Auto(at_most=3), Because.AT_MOST, 3, "at_most=3"),
        (BUSY, Auto(memory=200 << 20), Because.BUDGET, 3, "memory=209715200"),
        (replace(BUSY, memory=400 << 20), Auto(), Because.MEMORY, 5, "of 400 MiB"),  # a tenth of it stays free
        (Load(own=0.02, cpu=0.4, size=2 * GB, memory=16 * GB), Auto(), Because.MEMORY, 7, "of 16384 MiB"),
    ],
)
def test_a_limit_is_reached_and_never_passed_and_is_in_words_with_its_figures(
    load: Load, limits: Auto, because: Because, executors: int, figures: str
) -> None:
    machine = Machine(load, limits).run(300)
    choice = machine.rule.choice
    assert (machine.largest, choice.executors, choice.because) == (executors, executors, because)
    assert figures in because.describe(choice.figures)


def test_cores_do_not_bound_what_waits() -> None:
    choice = Machine(Load(own=0.001, cpu=0.002, sleep=0.1, cores=4)).run(60).rule.choice
    assert choice.executors == 32
    assert choice.figures.startswith("workers a core: 8 at most; cores: 4; num_workers=N"), choice


def test_executors_go_at_once_when_memory_becomes_scarce_and_come_back_slowly() -> None:
    machine = Machine(Load(own=0.05, cpu=0.4, size=GB, memory=16 * GB)).run(40)
    assert machine.rule.choice.executors >= 8
    before, grown = machine.rule.choice.executors, 15.5 * GB / machine.rule.choice.executors
    machine.load = replace(machine.load, size=int(grown))
    machine.run(2 * WINDOW_SECONDS)
    assert machine.rule.choice[:2] == (before - 1, Because.MEMORY)
    machine.run(300)
    assert max(machine.changes(since=machine.now - 300)) == before - 1
    assert machine.rule.choice.executors * grown <= 0.95 * 16 * GB


def test_a_pause_of_the_training_is_no_reason_to_let_executors_go() -> None:
    machine = Machine(Load(own=0.1, cpu=0.5)).run(40)
    before = machine.changes()
    for _ in range(20):  # validations of a minute, between some steps of training
        machine.now += 60.0
        machine.run(2.0)
    assert machine.changes() == before


def test_bursts_are_met_without_swinging() -> None:
    machine = Machine(Load(own=0.1, cpu=0.3, burst=1.5)).run(600)
    assert 3 <= machine.rule.choice.executors <= 16
    assert len(machine.changes(since=60.0)) <= 24


def test_nothing_is_judged_while_executors_start_or_were_killed() -> None:
    rule = ExecutorRule(Auto())
    host = Host(16)

    def window(executors: int) -> Window:
        return Window(executors, 20, 2.0, 1.6, 20, 0, 20, work=20 * 0.4, cpu=20 * 0.4)

    now = 0.0
    while rule.choice.executors == 1:
        now += 2.0
        rule.take(window(1), host, now)
    wanted = rule.choice
    for number in range(100):  # half of them are there, or one is killed again and again
        now += 2.0
        assert rule.take(window(0 if number % 3 else wanted.executors - 1), host, now) == wanted


def test_a_noisy_machine_does_not_make_it_swing() -> None:
    for load in (CONSTANT["three are needed"], CONSTANT["nine are needed"]):
        machine = Machine(load, noise=0.15).run(600)
        assert load.rate(machine.rule.choice.executors) >= 0.9 * load.best()
        late = machine.changes(since=300.0)
        assert len(late) <= 14, machine.history


def test_a_level_that_failed_is_free_again_when_the_load_is_another_one() -> None:
    class Locked(Load):
        def rate(self, executors: int) -> float:
            return min(1 / self.own, 1 / self.cpu)

    machine = Machine(Locked(own=0.05, cpu=0.2)).run(600)
    machine.load = Load(own=0.05, cpu=0.4)
    machine.run(PAUSE_SECONDS + 20)
    assert machine.load.rate(machine.rule.choice.executors) >= 0.9 * machine.load.best()


def test_those_who_help_less_and_less_are_added_as_long_as_the_trainer_gains() -> None:
    class Shared(Load):
        """Four times as many are twice as quick."""

        def rate(self, executors: int) -> float:
            return min(1 / self.own, executors**0.5 / self.work(executors))

    machine = Machine(Shared(own=0.02, cpu=0.1, cores=32)).run(180)
    assert machine.load.rate(machine.rule.choice.executors) >= 0.95 * machine.load.best(), machine.history


@pytest.mark.parametrize(
    ("step", "wait", "gain"),
    [(0.1, 0.05, 0.0), (0.1, 0.03, 0.2), (0.08, 0.05, 0.2), (0.1, 0.08, 0.0), (0.15, 0.05, 0.0), (0.15, 0.08, -0.3)],
    ids=["the same", "waits less", "is quicker", "waits more", "computes longer", "waits and takes more"],
)
def test_a_change_is_judged_by_what_the_trainer_waits_and_takes_for_a_step(
    step: float, wait: float, gain: float
) -> None:
    before, after = (Window(4, n, n * a, n * b) for n, a, b in ((20, 0.1, 0.05), (30, step, wait)))
    assert after.gain(before) == pytest.approx(gain)


def test_those_who_went_come_back_when_the_trainer_waits_for_them_and_go_less_and_less_often() -> None:
    rule, now, back = ExecutorRule(Auto()), 0.0, []
    rule.choice = Choice(4, Because.HELPED)
    while now < 900:
        now += 2.0
        executors = rule.choice.executors
        wait = 0.0 if executors >= 4 else 0.2  # one is busy in the mean, and four in bursts
        choice = rule.take(Window(executors, 20, 2.0 + wait, wait, 20, 0, 20, work=2.0, cpu=2.0), Host(16), now)
        if choice.because is Because.NEEDED and choice.executors != executors:
            assert executors in (2, 3)
            assert choice.executors == 4
            back.append(now)
    early, late = sum(when < 300 for when in back), sum(when >= 600 for when in back)
    assert 2 * late < early, back


def test_with_less_than_a_tenth_of_the_memory_free_none_comes_and_with_half_of_that_none_goes() -> None:
    for free, executors in ((0.3, 4), (0.07, 1), (0.2, 2)):
        rule = ExecutorRule(Auto())
        for number in range(1, 4):
            host = Host(16, executor_bytes=10 * GB, free=int(free * 100 * GB), memory=100 * GB)
            choice = rule.take(Window(1, 20, 2.0, 1.8, 20, 0, 20, work=2.0, cpu=2.0), host, 2.0 * number)
        assert choice.executors == min(executors, 3), free
    rule.choice = Choice(5, Because.STALLED)
    assert rule.take(Window(5), Host(16, 10 * GB, free=7 * GB, memory=100 * GB), 20.0).executors == 5
    assert rule.take(Window(5), Host(16, 10 * GB, free=4 * GB, memory=100 * GB), 22.0)[:2] == (4, Because.MEMORY)
