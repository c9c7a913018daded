"""The settings that the peers run at: the best of the last sweep that is kept in bench/results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from bench.feed.records import Record, read

RESULTS = Path(__file__).resolve().parents[1] / "results"
PATTERN = "feed-sweep-*.csv"
# Before any sweep.
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
        sweep: CSV of a sweep; None for `DEFAULTS`.
    """

    def __init__(self, sweep: Path | None) -> None:
        self.source = sweep.name if sweep else "defaults"
        self._records = read(sweep) if sweep else []

    @classmethod
    def latest(cls) -> Settings:
        """Returns those of the last sweep."""
        return cls(max(RESULTS.glob(PATTERN), default=None))

    def of(self, contender: str, row: str, workers: int = 1) -> dict[str, Any]:
        """Returns the best settings of a contender for a row, at the row's workers: the highest median rate."""
        rates: dict[str, list[float]] = {}
        for record in self._records:
            if (record.contender, record.row, record.variant) == (
                contender,
                row,
                variant_of(workers),
            ) and not record.error:
                rates.setdefault(self._swept(contender, record), []).append(record.rate)
        if not rates:
            return dict(DEFAULTS[contender])
        best = max(rates, key=lambda settings: statistics.median(rates[settings]))
        return dict(json.loads(best))

    @staticmethod
    def _swept(contender: str, record: Record) -> str:
        """Returns only what the sweep chooses; the row decides the number of workers."""
        told = json.loads(record.settings)
        return json.dumps({name: told[name] for name in DEFAULTS[contender]})
