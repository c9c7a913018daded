"""The number of executors, chosen by simulated loads: where it ends, how soon, and what it never passes."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from headrace.feed.tuning.executor_rule import HOLD_SECONDS, Auto, Because, Choice, ExecutorRule, Host, Sample

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
    """Runs a load under the rule: half-second samples, with noise; executors come and go after a moment."""

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
        produced = steps * work
        busy = min(1.0, (load.others + executors * load.cpu / (load.cpu + load.sleep)) / load.cores)
        used = executors * load.size
        host = Host(load.cores, busy, load.size, max(0, load.memory - used), load.memory, 0, trainer=0.25)
        sample = Sample(
            self.now, executors, steps, step, wait, work, self._noisy(load.cpu), load.delayed(executors), produced, host
        )
        before = self.rule.choice
        choice = self.rule.take(sample)
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
    assert re.search(
        r"busy .*\(4\.0 of 4 cores .* 0\.\d by the training .*, 0\.\d by its workers, 3\.\d by other", text
    ), text


BUSY = Load(own=0.0005, cpu=0.05, cores=8, size=64 << 20)


@pytest.mark.parametrize(
    ("load", "limits", "because", "executors", "figures"),
    [
        (BUSY, Auto(), Because.CORES, 8, "8 cores"),
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
    assert Machine(Load(own=0.001, cpu=0.002, sleep=0.1, cores=4)).run(60).rule.choice.executors == 32


def test_executors_go_at_once_when_memory_becomes_scarce_and_come_back_slowly() -> None:
    machine = Machine(Load(own=0.05, cpu=0.4, size=GB, memory=16 * GB)).run(40)
    assert machine.rule.choice.executors >= 8
    machine.load = replace(machine.load, size=2 * GB)
    machine.run(1.0)
    assert machine.rule.choice.executors <= 7
    assert machine.rule.choice.because is Because.MEMORY
    machine.run(300)
    assert machine.largest * GB <= 16 * GB
    assert machine.rule.choice.executors * 2 * GB <= 0.95 * 16 * GB


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

    def sample(now: float, executors: int) -> Sample:
        return Sample(now, executors, 5, 0.5, 0.4, 0.4, 0.4, 0.0, 0.5 * executors, host)

    now = 0.0
    while rule.choice.executors == 1:
        now += 0.5
        rule.take(sample(now, 1))
    wanted = rule.choice
    for _ in range(100):  # half of them are there, or one is killed again and again
        now += 0.5
        assert rule.take(sample(now, wanted.executors - 1)) == wanted


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
    machine.run(HOLD_SECONDS * 2 + 20)
    assert machine.load.rate(machine.rule.choice.executors) >= 0.9 * machine.load.best()
