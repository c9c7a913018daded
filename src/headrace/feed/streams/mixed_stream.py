"""Mixtures of which a source has no count: `feed.mix` of streams, packed documents, datasets of the user's.

Lane l of L takes lane l of L of every source. Which of them gives output k of a lane is a pure function of the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec

from headrace.feed.streams.mixed_lane import MixedLane, OpenSource
from headrace.feed.streams.open_lane import Lane, Restart
from headrace.feed.streams.packing import Packable
from headrace.feed.streams.steps import LeftOut, Stepped, Steps, StepsLane, outputs_of

MIXED = b"lane mixed"


def keys_of(name: str, keys: Collection[str]) -> set[str]:
    """Returns the keys of a source's shards, as the source has them, of those of a mixture."""
    return {key[len(name) + 1 :] for key in keys if key.startswith(f"{name}/")}


class MixedStream(Packable, Stepped):
    """See the module. It is made by `feed.mix`.

    Args:
        parts: the sources, in the order of `mixing`: datasets without a count.
        mixing: names and weights of the sources, and what ends a lane (`headrace.feed.wire.messages`).
        steps: what is done with each output, in order.

    Attributes:
        parts, mixing, steps: as given.
    """

    def __init__(self, parts: Sequence[Any], mixing: Any, steps: Steps = ()) -> None:
        self.parts, self.mixing, self.steps = tuple(parts), mixing, steps

    def _documents(self) -> MixedStream:
        return self

    @property
    def __shards__(self) -> Callable[[], list[tuple[str, int]]]:
        """Those of all sources, each behind its source's name, if hosts may hold different ones of every source."""
        if not all(isinstance(part, Stepped) for part in self.parts):
            raise AttributeError("__shards__")
        asked = [part.__shards__ for part in self.parts]
        named = list(zip(self.mixing.names, asked, strict=True))
        return lambda: [(f"{name}/{key}", rows) for name, ask in named for key, rows in ask()]

    @property
    def shard_digests(self) -> list[str]:
        """Digest of the sources' shards, where they have one, and of how they are mixed."""
        parts = [list(getattr(part, "shard_digests", ())) for part in self.parts]
        told = msgspec.msgpack.encode([parts, self.mixing.identity])
        return [hashlib.blake2b(told, digest_size=8, person=b"mixed stream").hexdigest()]

    def _only(self, keys: Collection[str]) -> MixedStream:
        names = self.mixing.names
        parts = [part._only(keys_of(name, keys)) for name, part in zip(names, self.parts, strict=True)]
        return MixedStream(parts, self.mixing, self.steps)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over what there is, one source after the other; which comes when is the loader's business."""
        for part in self.parts:
            for value in part if hasattr(part, "__iter__") else part():
                yield from outputs_of(self.steps, value)

    def lane(
        self,
        turns: Callable[[int], list[int]],
        slots: int,
        opened: Callable[[int], OpenSource],
        start: Restart,
        seed: Callable[[bytes, int], None],
        skipped: LeftOut | None = None,
    ) -> Lane:
        """Opens a lane.

        Args:
            turns: returns the sources whose turns a window's outputs are, by the window's number.
            slots: outputs of a window.
            opened: opens the lane of a source, by its number.
            start: a `restart` of this lane.
            seed: sets the generators for what the steps are given, by its number.
            skipped: takes numbers of outputs that the steps raise over, and why, which are left out then.
        """
        mixing = self.mixing
        names = {number: mixing.names[number] for number, weight in enumerate(mixing.weights) if weight}

        def mixed(start: Restart) -> Lane:
            return MixedLane(names, turns, slots, opened, start, repeats=mixing.until == "all")

        if not self.steps:
            return mixed(start)
        return StepsLane(self.steps, mixed, start, lambda number: seed(MIXED, number), skipped)
