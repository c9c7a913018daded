"""What a mixture of sources is made of, as workers tell it to the trainer, who may not have the data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    weights: tuple[float, ...]
    until: Until = "first"
    epoch_rows: int = 0

    def shares(self, weights: tuple[float, ...] | None = None) -> dict[str, float]:
        """Returns weights, by default its own, that sum up to 1, by name."""
        given = self.weights if weights is None else weights
        return {name: weight / sum(given) for name, weight in zip(self.names, given, strict=True)}

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
