"""Faults at seeded random instants: who is hit, with what, when, and when the next may come.

Every fault waits for a random time, hits a process that is picked at random, and is followed by more than a window of
further batches before the next one: that is the proof of progress, and it keeps two deaths of workers from meeting over
one slice, which is an error by design. Stopped processes go on after a random time; a killed feed server is started
again on its port. No more than one whole host is away at a time.
"""

from __future__ import annotations

import collections
import random
import signal
import time
from collections.abc import Callable, Sequence

import psutil
from feed_servers import Server, wait_until
from training import Training

WINDOW = 12  # more steps than the loader has under way with PREFETCH and some executors
WIDE_WINDOW = 250  # the same without a limit: at most eight bundles, none longer than an epoch of 30 steps
PREFETCH = {"prefetch_factor": 2}
KILLS_A_MINUTE = 15  # below the budget of restarts


class Chaos:
    """See the module.

    Args:
        seed: of all choices.
        trainer: whose batches count, and whose processes are hit.
        hosts: its feed servers; none when its workers are local.
        window: steps between two faults.
    """

    def __init__(self, seed: int, trainer: Training, hosts: Sequence[Server] = (), window: int = WINDOW) -> None:
        self._window = window
        self._chance = random.Random(seed)
        self._trainer = trainer
        self._hosts = list(hosts)
        self._kills: collections.deque[float] = collections.deque()
        self.done: collections.Counter[str] = collections.Counter()
        self.faults: dict[str, Callable[[], None]] = {
            "kill executor": self._kill_executor,
            "stop executor": self._stop_executor,
            "stop one executor, kill another": self._stop_and_kill,
        }
        if self._hosts:
            self.faults |= {
                "kill receiver": self._kill_receiver,
                "stop receiver": self._stop_receiver,
                "kill host": self._kill_host,
                "stop host": self._stop_host,
            }

    def run(self, faults: int) -> None:
        """Makes a number of faults, each kind as often as the others, in random order."""
        names = [name for _ in range(faults) for name in self.faults][:faults]
        self._chance.shuffle(names)
        self._trainer.wait_steps(1)
        for name in names:
            self._pause(0.02, 0.4)
            print(f"{time.monotonic():.2f} after {self._trainer.steps} steps: {name}")
            self.faults[name]()
            self._trainer.wait_steps(self._window)
            self.done[name] += 1

    def _pause(self, least: float, most: float) -> None:
        time.sleep(self._chance.uniform(least, most))  # the random instant itself

    # Executors

    def _executors(self) -> list[psutil.Process]:
        if not self._hosts:
            return self._trainer.local_executors()
        return [executor for host in self._hosts for executor in host.executors()]

    def _pick(self, count: int = 1) -> list[psutil.Process]:
        wait_until(lambda: len(self._executors()) >= count, "there are executors to hit")
        return self._chance.sample(self._executors(), count)

    def kill(self, executor: psutil.Process) -> None:
        """Kills an executor; none while as many were killed in a minute as the loader may replace."""
        now = time.monotonic()
        while self._kills and self._kills[0] < now - 60:
            self._kills.popleft()
        if len(self._kills) < KILLS_A_MINUTE:
            self._kills.append(now)
            _signal(executor, signal.SIGKILL)

    def _kill_executor(self) -> None:
        self.kill(*self._pick())

    def _stop_executor(self) -> None:
        self._stop(*self._pick(), most=1.5)

    def _stop_and_kill(self) -> None:
        stopped, killed = self._pick(2)
        _signal(stopped, signal.SIGSTOP)
        self.kill(killed)
        self._pause(0.1, 1.0)
        _signal(stopped, signal.SIGCONT)

    def _stop(self, process: psutil.Process, most: float) -> None:
        _signal(process, signal.SIGSTOP)
        self._pause(0.1, most)
        _signal(process, signal.SIGCONT)

    # The receiver and whole hosts

    def _receiver(self) -> psutil.Process:
        wait_until(lambda: self._trainer.receivers(), "the trainer has a receiver")
        return self._trainer.receivers()[0]

    def _kill_receiver(self) -> None:
        _signal(self._receiver(), signal.SIGKILL)

    def _stop_receiver(self) -> None:
        self._stop(self._receiver(), most=2.0)

    def _kill_host(self) -> None:
        host = self._chance.choice(self._hosts)
        host.kill()
        self._pause(0.0, 1.0)
        host.start()
        host.wait_ready()

    def _stop_host(self) -> None:
        """Stops the server alone, or its executors too, for a time that may be longer than it is waited for."""
        host = self._chance.choice(self._hosts)
        stopped = [psutil.Process(host.process.pid)]
        if self._chance.random() < 0.5:
            stopped += host.executors()
        for process in stopped:
            _signal(process, signal.SIGSTOP)
        self._pause(0.1, 6.0)
        for process in stopped:
            _signal(process, signal.SIGCONT)


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return  # it has ended by itself meanwhile: an executor of a server that was hit
