"""What the signals to a supervisor order. Each engine says that: on a platform not every signal is a person's wish."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

from headrace.instance.lifeline import StopJob
from headrace.runs import CauseKind

StopOrders = Mapping[int, Callable[[bool], StopJob]]
"""By signal: what it orders; it is told whether the job was asked to stop before."""


def by_user(again: bool) -> StopJob:
    """Returns a person's wish to stop the job; the second one is to stop it at once."""
    return StopJob(CauseKind.STOPPED.value, "stopped by the user", failed=False, grace=0.0 if again else None)


def taken_back(again: bool) -> StopJob:
    """Returns what an interruption of spot instances is: the programs get their time to save, and the job goes on."""
    words = "the instances were taken back, as spot instances are"
    return StopJob(CauseKind.PREEMPTED.value, words, failed=True, grace=None, infrastructure=True)


OF_A_PERSON: StopOrders = {signal.SIGTERM: by_user, signal.SIGINT: by_user}

INTERRUPTION = signal.SIGUSR1
OF_THIS_MACHINE: StopOrders = {**OF_A_PERSON, INTERRUPTION: taken_back}
"""The same, and the signal by which this machine plays an interruption."""
