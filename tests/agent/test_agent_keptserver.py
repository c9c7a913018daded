"""A server that is kept running: its budget, its deadlines, its last word. Processes are played, pipes are real."""

import asyncio
import os
import signal

import pytest

from headrace.agent.host import data_servers
from headrace.agent.host.data_servers import PAUSES, RESTARTS, RestartedServer
from headrace.runs import Cause, CauseKind


class Process:
    """What a kept server needs of a program that runs."""

    cause = Cause(CauseKind.PROGRAM_EXITED, signal=signal.SIGKILL)
    pid = -1  # of no process: it uses no CPU time

    def __init__(self, end):
        self.end = end

    def kill(self):
        asyncio.get_running_loop().call_soon(self.end)


class Scene:
    """A server whose process does what the test says."""

    def __init__(self, **options):
        self.pipes = []
        self.processes = []
        self.lines = []
        self.downs = []
        options = {"ready_within": 5.0, **options}
        self.kept = RestartedServer("server", self.begin, self.take, self.down, **options)

    def begin(self, status_fd, on_end):
        self.pipes.append(os.dup(status_fd))
        self.processes.append(Process(on_end))
        return self.processes[-1]

    def take(self, line):
        if line == b"nonsense":
            raise ValueError("no status")
        self.lines.append(line)
        if line == b"ready":
            self.kept.ready()

    def down(self, cause, gone):
        self.downs.append((str(cause), gone))

    def write(self, data):
        os.write(self.pipes[-1], data)

    def die(self):
        self.processes[-1].end()

    async def until(self, condition, seconds=5.0):
        deadline = asyncio.get_running_loop().time() + seconds
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, self.__dict__
            await asyncio.sleep(0.005)

    def close(self):
        self.kept.stop()
        for process in self.processes[-1:]:
            process.end()
        for pipe in self.pipes:
            os.close(pipe)


def scene(play, **options):
    async def run():
        made = Scene(**options)
        made.kept.start()
        try:
            await play(made)
        finally:
            made.close()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(data_servers, "PAUSES", tuple(pause / 50 for pause in PAUSES))


def test_a_server_that_dies_is_started_again_within_its_budget_then_given_up(logged):
    async def play(made):
        for starts in range(1, RESTARTS + 2):
            await made.until(lambda starts=starts: len(made.processes) == starts)
            made.write(b"ready\n")
            await made.until(lambda starts=starts: len(made.lines) == starts)
            made.die()
        await asyncio.sleep(0.1)
        assert made.kept.starts == len(made.processes) == RESTARTS + 1
        assert made.downs == [("killed by SIGKILL", False)] * RESTARTS + [("killed by SIGKILL", True)]
        assert "started 4 times and is given up" in logged()[-1]

    scene(play)


def test_one_that_served_long_enough_has_its_budget_back(monkeypatch):
    monkeypatch.setattr(data_servers, "FORGIVEN_AFTER", 0.0)

    async def play(made):
        for starts in range(1, 3 * RESTARTS):
            await made.until(lambda starts=starts: len(made.processes) == starts)
            made.write(b"ready\n")
            await made.until(lambda starts=starts: len(made.lines) == starts)
            made.die()
        assert not any(gone for _, gone in made.downs)

    scene(play)


def test_one_that_says_that_it_cannot_run_is_not_started_again():
    async def play(made):
        made.kept.refuse("has no library")
        made.die()
        await asyncio.sleep(0.1)
        assert made.downs == [("has no library", True)]
        assert made.kept.starts == 1

    scene(play)


def test_what_is_known_of_its_end_is_told_rather_than_the_signal():
    async def play(made):
        made.processes[0].cause = Cause(CauseKind.OUT_OF_MEMORY, "the machine has none left")
        made.die()
        assert made.downs == [("killed by the kernel for memory (OOM): the machine has none left", False)]

    scene(play)


def test_one_that_does_nothing_before_it_is_ready_is_killed():
    async def play(made):
        await made.until(lambda: made.downs)
        assert made.downs[0] == ("was not ready: it has used no CPU time for 0.05 s", False)

    scene(play, ready_within=0.05)


def test_one_that_falls_silent_is_killed_and_one_that_speaks_is_not():
    async def play(made):
        made.write(b"ready\n")
        await made.until(lambda: made.lines)
        for _ in range(12):
            made.write(b"alive\n")
            await asyncio.sleep(0.2)
        assert not made.downs
        await made.until(lambda: made.downs)
        assert made.downs[0] == ("was silent for 0.5 s", False)

    scene(play, silent_after=0.5)


def test_half_a_line_and_a_line_of_nonsense_do_no_harm(logged):
    async def play(made):
        made.write(b"nonsense\nrea")
        await made.until(logged)
        assert made.lines == []
        made.write(b"dy\n")
        await made.until(lambda: made.lines == [b"ready"])
        assert logged() == ["server: status line b'nonsense': no status"]

    scene(play)


def test_an_end_that_is_wanted_is_no_loss():
    async def play(made):
        made.kept.stop()
        made.die()
        await asyncio.sleep(0.1)
        assert made.downs == []
        assert made.kept.starts == 1

    scene(play)


def test_one_that_cannot_be_started_uses_its_budget_up():
    async def play(made):
        def broken(status_fd, on_end):
            raise FileNotFoundError(2, "No such file or directory")

        kept = RestartedServer("server", broken, made.take, made.down, 5.0)
        kept.start()
        await made.until(lambda: made.downs and made.downs[-1][1])
        assert made.downs[-1] == ("could not be started: No such file or directory", True)

    scene(play)


def test_one_that_cannot_be_started_again_because_there_are_no_descriptors_is_lost_too(monkeypatch):
    async def play(made):
        def none():
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(data_servers.os, "pipe", none)
        made.die()
        await made.until(lambda: made.downs and made.downs[-1][1])
        assert made.downs[-1] == ("could not be started: Too many open files", True)
        assert made.kept.running is None
        monkeypatch.undo()
        made.processes.clear()  # it has ended

    scene(play)
