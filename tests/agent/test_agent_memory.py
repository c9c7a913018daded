"""Which SIGKILL was the kernel's for memory: from a counter that the test moves, on a clock that the test moves."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headrace.agent.host.oom_kills import RECENT, MemoryKills
from headrace.processes.oom import FD_VARIABLE, OomCounter
from headrace.runs import Cause, CauseKind

LIMIT = 3 << 29
KERNEL = Cause(CauseKind.OUT_OF_MEMORY, "the instance's limit is 1.5 GiB", signal=signal.SIGKILL)
OTHERS = Cause(CauseKind.PROGRAM_EXITED, signal=signal.SIGKILL)
EXITED = Cause(CauseKind.PROGRAM_EXITED, exit_code=1)


class Host:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.now = 100.0
        self.set(0)
        self.counter = OomCounter(os.open(file, os.O_RDONLY))
        self.kills = MemoryKills(LIMIT, self.counter, lambda: self.now)

    def set(self, kills: int) -> None:
        self.file.write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path / "memory.oom_control")
    yield host
    host.counter.close()


def test_a_sigkill_after_a_rise_is_the_kernels_and_is_taken_once(host, logged) -> None:
    host.set(1)
    assert host.kills.of_program(None, signal.SIGKILL) == KERNEL
    assert host.kills.of_program(None, signal.SIGKILL) == OTHERS
    assert logged() == ["the kernel has killed 1 processes of this instance for memory (OOM)"]


def test_without_a_rise_nothing_is_said(host) -> None:
    assert host.kills.of_program(None, signal.SIGKILL) == OTHERS
    assert host.kills.of_program(1, None) == EXITED


def test_several_ranks_are_killed_at_once(host) -> None:
    host.set(2)
    assert [host.kills.of_program(None, signal.SIGKILL) for _ in range(3)] == [KERNEL, KERNEL, OTHERS]


def test_a_kill_that_is_long_ago_does_not_explain_another_sigkill(host) -> None:
    host.set(1)
    assert host.kills.of_program(0, None) == Cause(
        CauseKind.PROGRAM_EXITED, exit_code=0
    )  # looked at, and not explained with
    host.now += RECENT + 1
    assert host.kills.of_program(None, signal.SIGKILL) == OTHERS


def test_a_program_that_fails_after_its_child_was_killed_says_so_once(host) -> None:
    host.set(2)
    cause = host.kills.of_program(1, None)
    assert (cause.kind, cause.exit_code) == (CauseKind.CHILD_OUT_OF_MEMORY, 1)
    said = str(cause)
    assert said.startswith("exited with code 1, after the kernel had killed 2 of its processes for memory (OOM)")
    assert "(1.5 GiB)" in said
    assert host.kills.of_program(1, None) == EXITED


def test_a_lost_data_worker_process_was_killed_for_memory_only_by_sigkill_after_a_rise(host) -> None:
    assert host.kills.of_executor(None, signal.SIGKILL) == OTHERS
    host.set(1)
    assert host.kills.of_executor(1, None) == EXITED
    assert host.kills.of_executor(None, signal.SIGKILL) == KERNEL
    assert host.kills.of_executor(None, signal.SIGKILL) == OTHERS


def test_a_counter_that_cannot_be_read_is_noted_once_and_nothing_is_guessed(tmp_path, logged) -> None:
    (tmp_path / "other").write_text("nothing\n")
    counter = OomCounter(os.open(tmp_path / "other", os.O_RDONLY))
    kills = MemoryKills(LIMIT, counter)
    assert [kills.of_program(None, signal.SIGKILL) for _ in range(2)] == [OTHERS, OTHERS]
    assert len(logged()) == 1
    assert "cannot be read" in logged()[0]
    counter.close()


def test_kills_of_an_earlier_attempt_do_not_count(host) -> None:
    host.set(3)
    again = MemoryKills(LIMIT, host.counter, lambda: host.now)
    assert again.of_program(None, signal.SIGKILL) == OTHERS
    host.set(4)
    assert again.of_program(None, signal.SIGKILL) == KERNEL


def test_without_a_counter_nothing_is_said(monkeypatch) -> None:
    monkeypatch.delenv(FD_VARIABLE, raising=False)
    assert MemoryKills(0).of_program(None, signal.SIGKILL) == OTHERS


def test_a_kill_is_news_for_a_while_however_often_somebody_looks(host) -> None:
    assert not host.kills.look()
    host.set(1)
    assert host.kills.look()
    host.now += RECENT
    assert host.kills.look(), "whoever reaps the process looks after the one that looks every second"
    host.now += 0.1
    assert not host.kills.look()
