"""How long a process has been stopped, as somebody sees who looks now and then."""

import os
import signal
import subprocess

import pytest
from stage import until

from headrace.processes.process_table import look
from headrace.processes.stopped_time import PAUSE, StoppedTime


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def turn(process: subprocess.Popen, number: signal.Signals) -> None:
    os.kill(process.pid, number)
    until(lambda: (look(process.pid).state == "T") is (number == signal.SIGSTOP))


def watch(stopped_time: StoppedTime, clock: list[float], seconds: float) -> float:
    for _ in range(round(seconds)):
        clock[0] += 1.0
        stopped_time.seconds()
    return stopped_time.seconds()


def test_only_stopped_time_without_a_break_counts(sleeper) -> None:
    clock = [100.0]
    stopped_time = StoppedTime(sleeper.pid, lambda: clock[0])
    assert watch(stopped_time, clock, 5) == 0
    turn(sleeper, signal.SIGSTOP)
    assert watch(stopped_time, clock, 1) == 0  # it is not known since when
    assert watch(stopped_time, clock, 4) == 4
    turn(sleeper, signal.SIGCONT)
    assert watch(stopped_time, clock, 3) == 0
    turn(sleeper, signal.SIGSTOP)
    assert watch(stopped_time, clock, 3) == 2


def test_who_looks_stood_still_too(sleeper) -> None:
    clock = [100.0]
    stopped_time = StoppedTime(sleeper.pid, lambda: clock[0])
    turn(sleeper, signal.SIGSTOP)
    assert watch(stopped_time, clock, 4) == 3
    clock[0] += PAUSE + 0.1
    assert stopped_time.seconds() == 0
    assert watch(stopped_time, clock, 2) == 2


def test_a_process_that_is_gone_does_not_count(sleeper) -> None:
    clock = [100.0]
    stopped_time = StoppedTime(sleeper.pid, lambda: clock[0])
    turn(sleeper, signal.SIGSTOP)
    sleeper.kill()
    sleeper.wait()
    assert watch(stopped_time, clock, 9) == 0
