"""What peers can set, and the best of it: the fastest in the last sweep that is kept in bench/results."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).resolve().parents[1] / "results"
PATTERN = "shards-sweep-*.csv"
OURS = "headrace"


class Settings(NamedTuple):
    """Workers, batches of each that are on their way, and threads that read in a worker (Grain alone has these)."""

    workers: int = 2
    prefetch: int = 4
    threads: int = 2


DEFAULT = Settings()
SWEPT = (
    DEFAULT,
    DEFAULT._replace(workers=1),
    DEFAULT._replace(workers=3),
    DEFAULT._replace(workers=4),
    DEFAULT._replace(prefetch=2),
    DEFAULT._replace(prefetch=16),
)
THREADS = (DEFAULT._replace(threads=1), DEFAULT._replace(threads=8))


def swept(contender: str) -> tuple[Settings, ...]:
    """Returns the settings at which a sweep runs a contender; headrace runs as it comes."""
    if contender.startswith(OURS):
        return (DEFAULT,)
    return SWEPT + THREADS if contender.startswith("grain") else SWEPT


def fastest(runs: Iterable[dict[str, str]]) -> dict[tuple[str, str], Settings]:
    """Returns the settings with the highest median of samples a second, by row and contender."""
    rates: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        of = rates.setdefault((run["row"], run["contender"]), {})
        of.setdefault(run["settings"], []).append(float(run["samples"]) / float(run["seconds"]))
    return {
        key: Settings(**json.loads(max(of, key=lambda each: statistics.median(of[each])))) for key, of in rates.items()
    }


def best(folder: Path = RESULTS) -> dict[tuple[str, str], Settings]:
    """Returns the best settings by row and contender; of each the last sweep in the folder counts."""
    found: dict[tuple[str, str], Settings] = {}
    for sweep in sorted(folder.glob(PATTERN)):
        with sweep.open() as file:
            found |= fastest(csv.DictReader(file))
    return found
