"""How much the proof does: a short slice in `make test`, the long run in `make soak`.

HEADRACE_SOAK=1 makes it long, SOAK_MINUTES bounds the whole long run (20 by default), and HEADRACE_SEED repeats a run:
every random choice of a test comes from the one seed that it prints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

SOAK = os.environ.get("HEADRACE_SOAK") == "1"
SOAK_SECONDS = 60.0 * float(os.environ.get("SOAK_MINUTES", "20"))


def number(short: int, long: int) -> int:
    """Returns how often something is done; `long` is for a long run of 20 minutes, and grows and shrinks with it."""
    return max(short, round(long * SOAK_SECONDS / 1200)) if SOAK else short


def repeat(share: float, times: int = 1) -> Iterator[int]:
    """Counts rounds: `times` in a short run, in a long run until its share of the time is over, at least as many.

    Args:
        share: part of the long run's time, 0 to 1.
        times: rounds of a short run.
    """
    end = time.monotonic() + share * SOAK_SECONDS
    count = 0
    while count < times or (SOAK and time.monotonic() < end):
        yield count
        count += 1
