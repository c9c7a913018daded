"""The settings that the peers run at: the best of the last sweeps that are kept in bench/results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.feed.records import Record, read

RESULTS = Path(__file__).resolve().parents[1] / "results"
PATTERN = "feed-sweep-*.csv"
# What is swept, and the values before any sweep.
DEFAULTS: dict[str, dict[str, Any]] = {
    "torch": {"prefetch_factor": 2, "persistent_workers": True},
    "grpc stream": {"queue": False},
    "tf.data service": {"max_outstanding_requests": 8},
    "Ray Data": {"prefetch_batches": 2},
}


def variant_of(workers: int) -> str:
    """Returns the variant of a sweep's records with that many workers."""
    return f"workers={workers}"


class Settings:
    """Best settings by contender and row.

    Args:
        sweeps: CSV files of sweeps, oldest first; of each row and contender the last sweep counts.
    """

    def __init__(self, sweeps: Sequence[Path]) -> None:
        self.sources = [sweep.name for sweep in sweeps]
        self._records: dict[tuple[str, str], list[Record]] = {}
        for sweep in sweeps:
            found: dict[tuple[str, str], list[Record]] = {}
            for record in read(sweep):
                found.setdefault((record.contender, record.row), []).append(record)
            self._records |= found

    @classmethod
    def latest(cls) -> Settings:
        """Returns those of the sweeps in bench/results."""
        return cls(sorted(RESULTS.glob(PATTERN)))

    def of(self, contender: str, row: str, workers: int = 1) -> dict[str, Any]:
        """Returns the best settings of a contender for a row, at the row's workers: the highest median rate."""
        rates: dict[str, list[float]] = {}
        for record in self._records.get((contender, row), ()):
            if record.variant == variant_of(workers) and not record.error:
                rates.setdefault(record.settings, []).append(record.rate)
        if not rates:
            return dict(DEFAULTS[contender])
        return dict(json.loads(max(rates, key=lambda settings: statistics.median(rates[settings]))))
