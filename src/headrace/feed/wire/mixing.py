"""What a mixture of sources is made of, as workers tell it to the trainer, who may not have the data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

Until = Literal["first", "all"]
_TOLD = 160


class Mixing(msgspec.Struct, frozen=True, array_like=True):
    """See the module.

    Attributes:
        names: of the sources, in the order of their rows.
        rows: of each, at least 1.
        weights: of each, not negative; only their ratios count.
        until: what ends an epoch: the first source that is used up, or the last.
        epoch_rows: rows of an epoch, if the user says how many; 0 else.
        schedule: weights that hold later: after how many samples of the run, and what they are then.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    weights: tuple[float, ...]
    until: Until = "first"
    epoch_rows: int = 0
    schedule: tuple[tuple[int, tuple[float, ...]], ...] = ()

    @property
    def identity(self) -> list[object]:
        """All of it, for digests: without a schedule, what it was before there were any."""
        *fields, schedule = msgspec.structs.astuple(self)
        return [*fields, schedule] if schedule else fields

    def shares(self, weights: tuple[float, ...] | None = None) -> dict[str, float]:
        """Returns weights, by default its own, that sum up to 1, by name."""
        given = self.weights if weights is None else weights
        return {name: weight / sum(given) for name, weight in zip(self.names, given, strict=True)}

    def weighted(self, weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]]) -> Mixing:
        """Returns the mixture with weights, or with a schedule of them.

        Raises:
            ValueError: neither, a place that is no number of samples or not behind the one before, or see `ordered`.
        """
        steps = [(0, weights)] if isinstance(weights, Mapping) else weights
        pairs = isinstance(steps, Sequence) and all(isinstance(step, Sequence) and len(step) == 2 for step in steps)
        if not pairs or not steps or not all(isinstance(step[1], Mapping) for step in steps):
            raise ValueError(
                f"weights are a dict with a number for each of {', '.join(self.names)}, or a list of such dicts, each "
                f"behind the samples after which it holds: [(0, {{...}}), (100_000, {{...}})]; got {weights!r}"
            )
        before = -1
        for place, _ in steps:
            if isinstance(place, bool) or not isinstance(place, int) or place <= before or (before < 0 and place):
                raise ValueError(
                    f"weights hold from numbers of samples on that begin with 0 and grow, got {place!r} behind "
                    f"{'nothing' if before < 0 else before}"
                )
            before = place
        (_, first), *later = [(place, self.ordered(named)) for place, named in steps]
        return msgspec.structs.replace(self, weights=first, schedule=tuple(later))

    def ordered(self, weights: Mapping[str, float]) -> tuple[float, ...]:
        """Returns weights in the order of the sources.

        Raises:
            ValueError: a name is missing or unknown, a weight is negative or no number, or all are 0.
        """
        for name in weights:
            if name not in self.names:
                raise ValueError(f"weights name {name!r}, and the sources are {', '.join(map(repr, self.names))}")
        for name in self.names:
            if name not in weights:
                raise ValueError(f"weights have none for {name!r}; 0 leaves a source out")
        found = tuple(_weight(name, weights[name]) for name in self.names)
        if not sum(found):
            raise ValueError("all weights are 0: at least one source must have more")
        return found

    def __str__(self) -> str:
        told = " ".join(f"{name}={weight:g}" for name, weight in zip(self.names, self.weights, strict=True))
        ends = f"rows={self.epoch_rows}" if self.epoch_rows else f"until={self.until}"
        return f"{told} {ends}"

    @property
    def name(self) -> str:
        """A short text that differs when names, weights, or what ends an epoch differ."""
        told = str(self)
        exact = [*map(repr, self.weights)]
        if len(told) <= _TOLD and exact == [repr(float(f"{weight:g}")) for weight in self.weights]:
            return told
        digest = hashlib.blake2b(msgspec.msgpack.encode([self.names, exact, self.until]), digest_size=8).hexdigest()
        return f"{told[:_TOLD]} {digest}"


def _weight(name: str, weight: float) -> float:
    number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not number or not 0 <= weight < float("inf"):
        raise ValueError(f"the weight of {name!r} must be a number of at least 0, got {weight!r}")
    return float(weight)
