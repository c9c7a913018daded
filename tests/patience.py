"""How long something may take that is promised in seconds, on a machine that does other work too.

Tests run side by side, on few cores, beside whatever else the machine does. A promise in seconds holds for a machine
with a core to spare; with n programs that want each core, everything may take n times as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def crowd() -> float:
    """Returns how many programs want each core now, or wanted it in the last minute; at least 1."""
    words = Path("/proc/loadavg").read_text().split()
    wanting = max(float(words[0]), float(words[3].partition("/")[0]))
    return max(1.0, wanting / (os.cpu_count() or 1))


def allowed(seconds: float) -> float:
    """Returns how long what takes so many seconds on a quiet machine may take now."""
    return seconds * crowd()


def until(condition: Callable[[], object], seconds: float = 20.0, what: str = "") -> object:
    """Waits until a condition holds and returns its value. A tenth of the time at most goes into asking."""
    began = time.monotonic()
    while True:
        asked = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        assert now - began < allowed(seconds), f"did not come within {seconds:g} s: {what or condition}"
        time.sleep(min(0.2, max(0.02, 9 * (now - asked))))
