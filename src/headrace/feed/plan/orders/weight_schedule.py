"""A mixture's weights over time: which of them hold where, and how many rows of each source were taken by then.

An epoch is cut into windows of 64 positions. How many positions of a window belong to each source follows from the
weights (`apportion`), which of them is drawn from (seed, epoch, position).

Weights may change at a position, as the mixture's schedule says. Such a `Segment` holds how many rows of each source
were taken before, and begins new windows; what lies before it is as it was. All of it is a function of the mixture.

A source begins every epoch anew, unless the user says how many rows an epoch has: then it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import PositionError
from headrace.feed.plan.orders.apportion import Apportion
from headrace.feed.plan.orders.permutation import permute
from headrace.feed.wire.messages import Mixing

SLOTS = 64  # of a window; a power of 4, which costs the permutation the least


class Segment(NamedTuple):
    """Weights that hold from a place on.

    Attributes:
        epoch, position: the place.
        weights: of the sources, in their order; none in a state where nothing was taken by them yet.
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


class WeightSchedule:
    """See the module.

    Args:
        mixing: the mixture.
        seed: of the order.
    """

    def __init__(self, mixing: Mixing, seed: int) -> None:
        self._mixing, self._seed = mixing, seed
        self._segments = [Segment(0, 0, mixing.weights, (0,) * len(mixing.names))]
        self._stretches: dict[int, list[Stretch]] = {}  # by epoch: a cache, which several threads may fill alike
        epoch = begin = 0  # of the latest segment's epoch: its number, and samples of the run before it
        for place, weights in mixing.schedule:
            rows = self.rows(epoch)
            if place >= begin + rows:
                later = self.rows(epoch + 1)  # of every epoch that follows, as no weights change in between
                passed = (place - begin - rows) // later
                epoch, begin = epoch + 1 + passed, begin + rows + passed * later
            taken = self.at(epoch, place - begin).counts(place - begin)
            self._segments.append(Segment(epoch, place - begin, weights, taken))
            self._stretches = {}

    def rows(self, epoch: int) -> int:
        """Returns the rows of an epoch. They follow from the weights that it begins with."""
        return self._rows(self._beginning(epoch).weights)

    def _rows(self, weights: tuple[float, ...]) -> int:
        return self._mixing.epoch_rows or rows_until(self._mixing, weights)

    def _beginning(self, epoch: int) -> Segment:
        """Returns the segment that an epoch begins with."""
        latest = next(segment for segment in reversed(self._segments) if segment[:2] <= (epoch, 0))
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
        return Stretch(segment.position, end, rows, Apportion(segment.weights), segment.taken, key)

    def _begun(self, epoch: int, end: int) -> list[Segment]:
        """Returns the segment that an epoch begins with, and those in it that begin before a position."""
        inside = [segment for segment in self._segments if segment.epoch == epoch and 0 < segment.position < end]
        return [self._beginning(epoch), *inside]

    def stretches(self, epoch: int) -> list[Stretch]:
        """Returns the stretches of an epoch, in order."""
        stretches = self._stretches.get(epoch)
        if stretches is None:
            rows = self.rows(epoch)
            segments = self._begun(epoch, rows)
            ends = [*(segment.position for segment in segments[1:]), rows]
            stretches = [self._stretch(segment, end, rows) for segment, end in zip(segments, ends, strict=True)]
            recent = {number: known for number, known in self._stretches.items() if number == epoch - 1}
            self._stretches = recent | {epoch: stretches}
        return stretches

    def at(self, epoch: int, position: int) -> Stretch:
        """Returns the stretch of a place."""
        return next(stretch for stretch in reversed(self.stretches(epoch)) if stretch.begin <= position)

    def weights(self, epoch: int, position: int) -> tuple[float, ...]:
        """Returns the weights at a place."""
        return self._begun(epoch, position + 1)[-1].weights

    def state(self, epoch: int, end: int) -> list[Segment]:
        """Returns what the rows before a position of an epoch follow from; nothing where weights have not changed."""
        decided = self._decided(epoch, end)
        return [] if decided == self._constant()._decided(epoch, end) else decided

    def _decided(self, epoch: int, end: int) -> list[Segment]:
        beginning, *later = self._begun(epoch, end)
        return [beginning if end else beginning._replace(weights=()), *later[-1:]]

    def _constant(self) -> WeightSchedule:
        return WeightSchedule(msgspec.structs.replace(self._mixing, schedule=()), self._seed)

    def require_fits(self, saved: Sequence[Segment], epoch: int, end: int) -> None:
        """Compares with what `state` returned, for a run that goes on. Weights that hold from `end` on may differ.

        Raises:
            PositionError: names the first weights that are others, and where they hold.
        """
        begun = self._begun(epoch, end)
        mine = {segment[:2]: segment for segment in [*self._segments, *begun]}
        theirs = {segment[:2]: segment for segment in saved or self._constant()._decided(epoch, end)}
        for place in sorted({*theirs, begun[-1][:2]}):
            own, other = mine.get(place), theirs.get(place)
            if own is not None and other is not None and not other.weights:
                own = own._replace(weights=())
            if own != other:
                raise PositionError(
                    f"the state was saved with {self._text(other)} from position {place[1]} of epoch {place[0]} on, "
                    f"the loader has {self._text(own)}",
                    hint="give feed.mix the weights of the saved run as far as it had come: weights=[(0, {...}), "
                    "(samples, {...})]; those that follow may be others",
                )

    def _text(self, segment: Segment | None) -> str:
        if segment is None:
            return "no change of weights"
        weights = [f"={weight:g}" for weight in segment.weights] or [""] * len(segment.taken)
        sources = zip(self._mixing.names, weights, segment.taken, strict=True)
        return "the sources " + " ".join(f"{name}{weight} (behind {taken} rows)" for name, weight, taken in sources)


def endless(weights: Sequence[float], key: bytes) -> Stretch:
    """Returns a stretch that has no end: what has no count is mixed by it.

    Args:
        weights: of the sources, in their order.
        key: decides which places of a window belong to each source.
    """
    end = 1 << 62  # whole windows
    return Stretch(0, end, end, Apportion(weights), (0,) * len(weights), key)


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
