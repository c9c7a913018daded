"""How a mixture's weights are over time: which of them hold where, and how many rows of each source were taken by then.

An epoch is cut into windows of 64 positions. How many positions of a window belong to each source follows from the
weights (`apportion`), which of them is drawn from (seed, epoch, position).

Weights may change at a position. Such a `Segment` holds how many rows of each source were taken before, and begins new
windows; what lies before it is as it was. The last weights stand in later epochs too.

A source begins every epoch anew, unless the user says how many rows an epoch has: then it goes on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import PositionError
from headrace.feed.plan.orders.apportion import Apportion
from headrace.feed.plan.orders.permutation import permute
from headrace.feed.wire.mixing import Mixing

SLOTS = 64  # of a window; a power of 4, which costs the permutation the least


class Segment(NamedTuple):
    """Weights that hold from a place on.

    Attributes:
        epoch, position: the place.
        weights: of the sources, in their order.
        taken: rows of each source that were taken before: in this epoch, or in all where sources go on.
    """

    epoch: int
    position: int
    weights: tuple[float, ...]
    taken: tuple[int, ...]


@dataclass(frozen=True)
class Stretch:
    """The part of an epoch that a segment holds for: positions begin..end-1.

    Its windows go on to `rows`, the epoch's end, as if no other weights followed: those at `end` may not cut a window
    short whose beginning was given out.
    """

    begin: int
    end: int
    rows: int
    apportion: Apportion
    taken: tuple[int, ...]
    key: bytes
    tag: str

    def sources(self, windows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the source of every slot of some windows, and how many rows of it were taken before that slot.

        Args:
            windows: their numbers in the stretch, ascending, int64.

        Returns:
            Two int64 arrays of (windows, SLOTS); behind the epoch's end they hold nothing of use.
        """
        sources = np.zeros((len(windows), SLOTS), np.int64)
        before = np.zeros((len(windows), SLOTS), np.int64)
        rest = (self.rows - self.begin) % SLOTS
        short = windows == (self.rows - self.begin) // SLOTS  # the last one, if it is not whole
        for size, some in ((SLOTS, ~short), (rest, short)):
            if some.any():
                sources[some, :size], before[some, :size] = self._drawn(windows[some], size)
        return sources, before

    def _drawn(self, windows: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns what `sources` does, of windows of one size."""
        begins = windows * SLOTS
        edges = np.unique(np.concatenate([begins, begins + size]))
        counts = np.array([self.apportion.counts(edge) for edge in edges.tolist()], np.int64)
        lower = counts[np.searchsorted(edges, begins)]
        own = counts[np.searchsorted(edges, begins + size)] - lower  # rows of each source in each window
        ends = np.cumsum(own, axis=1)
        slots: NDArray[np.int64] = np.broadcast_to(np.arange(size, dtype=np.int64), (len(windows), size))
        tweaks = np.broadcast_to((begins + self.begin)[:, None], slots.shape).astype(np.uint64)
        drawn = permute(slots, size, self.key, tweaks)
        sources = np.zeros(slots.shape, np.int16)
        for end in range(own.shape[1] - 1):
            sources += drawn >= ends[:, end, None]
        ranked = np.argsort(sources, axis=1, kind="stable")
        number = np.empty(slots.shape, np.int64)
        np.put_along_axis(number, ranked, slots, axis=1)  # the place of each slot among those sorted by source
        found = sources.astype(np.int64)
        number += np.take_along_axis(lower + np.array(self.taken) - (ends - own), found, axis=1)
        return found, number

    def counts(self, position: int) -> tuple[int, ...]:
        """Returns how many rows of each source were taken before a position, up to the end."""
        whole = position - self.begin
        whole -= whole % SLOTS if position < self.rows else 0
        found = [one + more for one, more in zip(self.taken, self.apportion.counts(whole), strict=True)]
        rest = position - self.begin - whole
        if rest:
            sources, _ = self.sources(np.array([whole // SLOTS]))
            for source in sources[0, :rest].tolist():
                found[source] += 1
        return tuple(found)


class WeightHistory:
    """See the module. It never changes: `changed` returns another one.

    Args:
        mixing: the mixture.
        seed: of the order.
        segments: weights that were set, as `state` returned them; none for the mixture's own.
    """

    def __init__(self, mixing: Mixing, seed: int, segments: Sequence[Segment] = ()) -> None:
        none = (0,) * len(mixing.names)
        self._mixing, self._seed = mixing, seed
        self._segments = tuple(segments) or (Segment(0, 0, mixing.weights, none),)
        self._stretches: dict[int, list[Stretch]] = {}  # by epoch: a cache, which several threads may fill alike

    def rows(self, epoch: int) -> int:
        """Returns the rows of an epoch. They follow from the weights that it begins with."""
        return self._rows(self._beginning(epoch).weights)

    def _rows(self, weights: tuple[float, ...]) -> int:
        return self._mixing.epoch_rows or rows_until(self._mixing, weights)

    def _beginning(self, epoch: int) -> Segment:
        """Returns the segment that an epoch begins with. Raises PositionError if it is not known any more."""
        latest = next((each for each in reversed(self._segments) if each[:2] <= (epoch, 0)), None)
        if latest is None:
            raise PositionError(
                f"the weights of epoch {epoch} are not known: the state that was loaded begins with epoch "
                f"{self._segments[0].epoch}",
                hint="load the state of an earlier time, or none",
            )
        if latest.epoch == epoch:
            return latest
        rows = self._mixing.epoch_rows
        if not rows:
            return Segment(epoch, 0, latest.weights, (0,) * len(latest.taken))
        own = self._stretch(latest, rows, rows)
        whole, passed = own.apportion.counts(rows), epoch - latest.epoch - 1
        taken = tuple(a + passed * b for a, b in zip(own.counts(rows), whole, strict=True))
        return Segment(epoch, 0, latest.weights, taken)

    def _stretch(self, segment: Segment, end: int, rows: int) -> Stretch:
        key = f"{self._seed}/{segment.epoch}/mixture".encode()
        known = [each for each in self._segments if each[:2] <= segment[:2]]
        told = msgspec.msgpack.encode([self._mixing, known])
        tag = hashlib.blake2b(told, digest_size=8, person=b"weights").hexdigest()
        return Stretch(segment.position, end, rows, Apportion(segment.weights), segment.taken, key, tag)

    def stretches(self, epoch: int) -> list[Stretch]:
        """Returns the stretches of an epoch, in order."""
        found = self._stretches.get(epoch)
        if found is None:
            inside = [each for each in self._segments if each.epoch == epoch and each.position]
            begin = self._beginning(epoch)
            rows = self._rows(begin.weights)
            ends = [*(each.position for each in inside), rows]
            found = [self._stretch(each, end, rows) for each, end in zip([begin, *inside], ends, strict=True)]
            recent = {each: known for each, known in self._stretches.items() if each == epoch - 1}
            self._stretches = recent | {epoch: found}
        return found

    def at(self, epoch: int, position: int) -> Stretch:
        """Returns the stretch of a place."""
        found = self.stretches(epoch)
        return next((each for each in reversed(found) if each.begin <= position), found[0])

    def weights(self, epoch: int, position: int) -> tuple[float, ...]:
        """Returns the weights at a place."""
        latest = [each for each in self._segments if each[:2] <= (epoch, position)]
        return (latest or self._segments)[-1].weights

    def changed(self, epoch: int, position: int, weights: tuple[float, ...]) -> WeightHistory:
        """Returns what follows when weights are set from a place on. Those that were set behind it stay."""
        place = (epoch, position)
        kept = [each for each in self._segments if each[:2] < place]
        later = [(each[:2], each.weights) for each in self._segments if each[:2] > place]
        for at, new in [(place, weights), *later]:
            taken = self._segments[0].taken  # it takes the place of the very first one
            if kept:
                before = WeightHistory(self._mixing, self._seed, kept)
                taken = before.at(*at).counts(at[1])
            kept.append(Segment(*at, new, taken))
        return WeightHistory(self._mixing, self._seed, kept)

    def state(self, epoch: int, position: int, kept: int) -> list[Segment]:
        """Returns the weights that were set, as far as somebody needs them who goes on from a place.

        Args:
            epoch, position: the place.
            kept: positions at the epoch's beginning that are needed too.
        """
        if len(self._segments) == 1 and self._segments[0].weights == self._mixing.weights:
            return []
        later = [each for each in self._segments if each[:2] > (epoch, 0)]
        at = max((each[:2] for each in later if each[:2] <= (epoch, position)), default=(epoch, 0))
        return [self._beginning(epoch), *(each for each in later if each.position < kept or each[:2] >= at)]


def endless(weights: Sequence[float], key: bytes) -> Stretch:
    """Returns a stretch that has no end: what has no count is mixed by it.

    Args:
        weights: of the sources, in their order.
        key: decides which places of a window belong to each source.
    """
    end = 1 << 62  # whole windows
    return Stretch(0, end, end, Apportion(weights), (0,) * len(weights), key, "")


def rows_until(mixing: Mixing, weights: tuple[float, ...]) -> int:
    """Returns the rows of an epoch that ends with the first source that is used up, or with the last one.

    Sources of weight 0 do not count.
    """
    apportion = Apportion(weights)
    live = [source for source, weight in enumerate(weights) if weight]

    def fits(samples: int) -> bool:
        counts = apportion.counts(samples)
        if mixing.until == "first":
            return all(counts[source] <= mixing.rows[source] for source in live)
        return any(counts[source] < mixing.rows[source] for source in live)

    low, high = 0, 1  # the largest that fits; with "all" one more is the first that holds every row
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if mixing.until == "first" else high
