"""What processes hold: their proportional share of anonymous and shared memory, without mapped files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import psutil

COUNTED = ("Pss_Anon:", "Pss_Shmem:")


class Held(NamedTuple):
    """Megabytes (10^6 bytes) of the trainer, and of the processes below it together."""

    trainer: float
    workers: float


def _megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(COUNTED)) / 1e6


def held() -> Held:
    """Returns what this process and those below it hold now."""
    mine, workers = psutil.Process(), 0.0
    for process in mine.children(recursive=True):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends now
            workers += _megabytes(process.pid)
    return Held(_megabytes(mine.pid), workers)
