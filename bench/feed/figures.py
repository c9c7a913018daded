"""From records to figures: medians and spreads of ratios within a round, beside the target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.feed.records import Record

# What a user could take instead; raw sockets and memcpy are limits.
PEERS = ("torch", "grpc stream", "tf.data service", "Ray Data")
Measure = Callable[[Record], float]


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        row: the row.
        name: what is measured.
        values: one a round.
        unit: empty for a ratio.
        target: None when it is only reported.
        better: whether the target is a least or a most.
        note: an error, or what else to know.
        against: the contender that ours is compared with.
    """

    row: str
    name: str
    values: tuple[float, ...]
    unit: str = ""
    target: float | None = None
    better: Literal["more", "less"] = "more"
    note: str = ""
    against: str = ""

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """``yes``, ``no``, or nothing without a target."""
        if self.target is None:
            return ""
        if not self.values:
            return "no"
        met = self.median >= self.target if self.better == "more" else self.median <= self.target
        return "yes" if met else "no"

    @property
    def lost(self) -> bool:
        """Whether the target is missed, or a peer is better."""
        if self.verdict or self.against not in PEERS or not self.values:
            return self.verdict == "no"
        return self.median < 1 if self.better == "more" else self.median > 1

    def cells(self) -> list[str]:
        """Returns the cells of its line."""
        sign = "≥" if self.better == "more" else "≤"
        target = "" if self.target is None else f"{sign} {_number(self.target)}{self.unit or 'x'}"
        if not self.values:
            return [self.row, self.name, self.note or "not measured", "", target, self.verdict]
        unit = self.unit or "x"
        spread = f"{_number(min(self.values))} .. {_number(max(self.values))}"
        name = f"{self.name} ({self.note})" if self.note else self.name
        return [self.row, name, f"{_number(self.median)}{unit}", spread, target, self.verdict]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Records:
    """The records of a row, by variant and contender."""

    def __init__(self, row: str, records: Sequence[Record]) -> None:
        self.row = row
        self._records = [record for record in records if record.row == row]

    def variants(self) -> list[str]:
        """Returns the variants, in the order measured."""
        return list(dict.fromkeys(record.variant for record in self._records))

    def contenders(self) -> list[str]:
        """Returns the contenders, in the order measured."""
        return list(dict.fromkeys(record.contender for record in self._records))

    def of(self, contender: str, variant: str = "") -> dict[int, Record]:
        """Returns the good records of a contender, by repeat."""
        return {
            record.repeat: record
            for record in self._records
            if record.contender == contender and record.variant == variant and not record.error
        }

    def error(self, contender: str, variant: str) -> str:
        """Returns why a contender failed, or nothing."""
        texts = [record.error for record in self._records if (record.contender, record.variant) == (contender, variant)]
        return next((f"{contender} failed: {text}" for text in texts if text), "")

    def ratio(
        self,
        name: str,
        ours: str,
        peer: str,
        measure: Measure,
        *,
        variant: str = "",
        peer_variant: str | None = None,
        target: float | None = None,
        better: Literal["more", "less"] = "more",
    ) -> Figure:
        """Returns ours over the peer's, within each round."""
        other = variant if peer_variant is None else peer_variant
        mine, theirs = self.of(ours, variant), self.of(peer, other)
        values = tuple(measure(mine[repeat]) / measure(theirs[repeat]) for repeat in mine if repeat in theirs)
        note = self.error(ours, variant) or self.error(peer, other)
        return Figure(self.row, name, values, "", target, better, note, peer if peer != ours else "")

    def value(
        self,
        name: str,
        contender: str,
        measure: Measure,
        unit: str,
        *,
        variant: str = "",
        target: float | None = None,
        better: Literal["more", "less"] = "more",
    ) -> Figure:
        """Returns a contender's own figure."""
        values = tuple(measure(record) for record in self.of(contender, variant).values())
        return Figure(self.row, name, values, unit, target, better, self.error(contender, variant))


def rate(record: Record) -> float:
    """Batches a second."""
    return record.rate


def gigabytes_per_second(record: Record) -> float:
    """GB/s of payload."""
    return record.gigabytes / record.seconds


def markdown(figures: Sequence[Figure]) -> str:
    """Returns a table."""
    lines = ["| row | measure | median | min .. max | target | met |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in figure.cells()) + " |" for figure in figures]
    return "\n".join(lines)


def beside_torch(records: Records, target: float) -> list[Figure]:
    """Returns the lines of a row of headrace and torch.

    Args:
        records: of the row.
        target: of headrace's throughput, in torch's.
    """
    return [
        records.ratio("headrace / torch, throughput", "headrace", "torch", rate, target=target),
        records.value("headrace", "headrace", rate, " batches/s"),
        records.value("torch", "torch", rate, " batches/s"),
        records.ratio(
            "headrace / torch, CPU of all processes", "headrace", "torch", lambda r: r.cpu_per_gb, better="less"
        ),
    ]
