"""Wall time, and CPU seconds of a process and everything below it, from one moment to another."""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

import psutil


class Moment(NamedTuple):
    """What was used until now: seconds of the wall clock, and CPU seconds."""

    seconds: float
    cpu: float


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def now() -> Moment:
    """Returns what this process, the processes below it, and those of them that ended used so far."""
    cpu, mine = 0.0, psutil.Process()
    for process in [mine, *mine.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends now; its parent has its seconds
            cpu += _used(process)
    return Moment(time.perf_counter(), cpu)
