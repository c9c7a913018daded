"""The order of a mixture: which source each plan position takes its row from, and which row, as a pure function.

An epoch is cut into windows of 64 positions. How many positions of a window belong to each source follows from the
weights (`Apportion`), which of them is drawn from (seed, epoch, position). Weights may change at a position, as the
mixture's schedule says (`WeightSchedule`).

A source gives its rows in an order of its own, as if it were alone: sequential, permuted, or by windows. When it is
used up it begins again, in another order. It begins every epoch anew, unless the user says how many rows an epoch has:
then it goes on where it was.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import PositionError
from headrace.feed.plan.orders.order import Window, permute
from headrace.feed.wire.messages import Mixing


class _Node(NamedTuple):
    weight: Fraction
    source: int  # of a leaf; -1 else
    left: _Node | None = None
    right: _Node | None = None


class Apportion:
    """How many of the first q samples of a mixture come from each source: whole numbers near the weights.

    The sources are the leaves of a binary tree. What a node has is divided between its two children, to the nearest
    whole number: the left one has floor(q * left / both + 1/2) of q samples. So the numbers add up to q, none ever
    becomes smaller when q grows, and they are found for any q at once. The arithmetic is exact.

    A source's number is off by at most 1/2 at the first level of the tree, and less than d / 2 at level d: under one
    sample for up to four sources. Of two trees, one balanced in its depth and one in its weights, the better one is
    taken; `error` is its bound.

    Args:
        weights: of the sources, not negative, not all 0.

    Attributes:
        error: how many samples a source's number may be off at most.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        # As the user wrote them: 0.7 is 7/10 and not the binary fraction next to it.
        leaves = [_Node(Fraction(repr(float(weight))), source) for source, weight in enumerate(weights)]
        self._sources = len(leaves)
        trees = [_halved(sorted(leaves, key=lambda leaf: (-leaf.weight, leaf.source))), _by_weight(leaves)]
        self.error, _, self._tree = min((_error(tree, Fraction(0)), at, tree) for at, tree in enumerate(trees))

    def counts(self, samples: int) -> list[int]:
        """Returns how many of the first `samples` come from each source."""
        counts = [0] * self._sources
        stack = [(self._tree, samples)]
        while stack:
            node, count = stack.pop()
            if node.left is None or node.right is None:
                counts[node.source] = count
            elif count:
                ratio = node.left.weight / node.weight if node.weight else Fraction(0)
                mine = (2 * count * ratio.numerator + ratio.denominator) // (2 * ratio.denominator)
                stack += [(node.left, mine), (node.right, count - mine)]
        return counts


def _both(left: _Node, right: _Node) -> _Node:
    return _Node(left.weight + right.weight, -1, left, right)


def _halved(leaves: Sequence[_Node]) -> _Node:
    if len(leaves) == 1:
        return leaves[0]
    half = (len(leaves) + 1) // 2
    return _both(_halved(leaves[:half]), _halved(leaves[half:]))


def _by_weight(leaves: Sequence[_Node]) -> _Node:
    """Joins the two lightest until one is left."""
    heap = [(leaf.weight, leaf.source, leaf) for leaf in leaves]
    heapq.heapify(heap)
    number = len(leaves)
    while len(heap) > 1:
        light, other = heapq.heappop(heap), heapq.heappop(heap)
        joined = _both(other[2], light[2])
        heapq.heappush(heap, (joined.weight, number, joined))
        number += 1
    return heap[0][2]


def _error(node: _Node, own: Fraction) -> float:
    """Returns the largest error of a leaf below a node whose own error is given."""
    if node.left is None or node.right is None or not node.weight:
        return float(own)
    errors = []
    for child in (node.left, node.right):
        share = child.weight / node.weight
        rounded = Fraction(1, 2) if 0 < share < 1 else Fraction(0)
        errors.append(_error(child, share * own + rounded))
    return max(errors)


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
        chosen = sources.astype(np.int64)
        number += np.take_along_axis(lower + np.array(self.taken) - (ends - own), chosen, axis=1)
        return chosen, number

    def counts(self, position: int) -> tuple[int, ...]:
        """Returns how many rows of each source were taken before a position, up to the end."""
        whole = position - self.begin
        whole -= whole % SLOTS if position < self.rows else 0
        counts = [before + more for before, more in zip(self.taken, self.apportion.counts(whole), strict=True)]
        rest = position - self.begin - whole
        if rest:
            sources, _ = self.sources(np.array([whole // SLOTS]))
            for source in sources[0, :rest].tolist():
                counts[source] += 1
        return tuple(counts)


class WeightSchedule:
    """A mixture's weights over time: which hold where, and how many rows of each source were taken by then.

    Where weights change, a `Segment` holds how many rows of each source were taken before, and begins new windows; what
    lies before it is as it was. All of it is a function of the mixture.

    Args:
        mixing: the mixture.
        seed: of the order.

    Attributes:
        mixing, seed: as above.
    """

    def __init__(self, mixing: Mixing, seed: int) -> None:
        self.mixing, self.seed = mixing, seed
        self._segments = [Segment(0, 0, mixing.weights, (0,) * len(mixing.names))]
        self._stretches: dict[int, list[Stretch]] = {}  # by epoch: a cache, which several threads may fill alike
        epoch = begin = 0  # of the latest segment's epoch: its number, and samples of the run before it
        for place, weights in mixing.schedule:
            rows = self.rows(epoch)
            if place >= begin + rows:
                later = self.rows(epoch + 1)  # of every epoch that follows, as no weights change in between
                passed = (place - begin - rows) // later
                epoch, begin = epoch + 1 + passed, begin + rows + passed * later
            taken = self._at(epoch, place - begin).counts(place - begin)
            self._segments.append(Segment(epoch, place - begin, weights, taken))
            self._stretches = {}

    def rows(self, epoch: int) -> int:
        """Returns the rows of an epoch. They follow from the weights that it begins with."""
        return self._rows(self._beginning(epoch).weights)

    def _rows(self, weights: tuple[float, ...]) -> int:
        return self.mixing.epoch_rows or rows_until(self.mixing, weights)

    def _beginning(self, epoch: int) -> Segment:
        """Returns the segment that an epoch begins with."""
        latest = next(segment for segment in reversed(self._segments) if segment[:2] <= (epoch, 0))
        if latest.epoch == epoch:
            return latest
        rows = self.mixing.epoch_rows
        if not rows:
            return Segment(epoch, 0, latest.weights, (0,) * len(latest.taken))
        own = self._stretch(latest, rows, rows)
        whole, passed = own.apportion.counts(rows), epoch - latest.epoch - 1
        taken = tuple(a + passed * b for a, b in zip(own.counts(rows), whole, strict=True))
        return Segment(epoch, 0, latest.weights, taken)

    def _stretch(self, segment: Segment, end: int, rows: int) -> Stretch:
        key = f"{self.seed}/{segment.epoch}/mixture".encode()
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
            recent = {number: earlier for number, earlier in self._stretches.items() if number == epoch - 1}
            self._stretches = recent | {epoch: stretches}
        return stretches

    def _at(self, epoch: int, position: int) -> Stretch:
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
        return WeightSchedule(msgspec.structs.replace(self.mixing, schedule=()), self.seed)

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
        sources = zip(self.mixing.names, weights, segment.taken, strict=True)
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


class MixedOrder(WeightSchedule):
    """See the module. It is an `Order`.

    Args:
        mixing: the mixture.
        seed: of the order.
        shuffle: of the sources' own orders: whether they are permuted, or the windows that they are permuted by.
    """

    def __init__(self, mixing: Mixing, seed: int, shuffle: bool | Window) -> None:
        super().__init__(mixing, seed)
        self._shuffle, self._offsets = shuffle, np.cumsum([0, *mixing.rows])

    def rows_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Order`. A row is counted through all sources, in their order."""
        rows = np.empty_like(positions)
        for stretch in self.stretches(epoch):
            here = (positions >= stretch.begin) & (positions < stretch.end)
            if here.any():
                inside = positions[here] - stretch.begin
                windows, place = np.unique(inside // SLOTS, return_inverse=True)
                sources, before = stretch.sources(windows)
                slots = inside % SLOTS
                rows[here] = self._own_rows(epoch, sources[place, slots], before[place, slots])
        return rows

    def _own_rows(self, epoch: int, sources: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = np.empty_like(sources)
        for source in np.unique(sources).tolist():
            here = sources == source
            rows[here] = self._offsets[source] + self._row(epoch, source, before[here])
        return rows

    def _row(self, epoch: int, source: int, before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows of one source, of which so many were taken before."""
        rows, name = self.mixing.rows[source], self.mixing.names[source]
        turns = before // rows
        inside = before - turns * rows
        if not self._shuffle:
            return inside
        key = f"{self.seed}/source/{name}" if self.mixing.epoch_rows else f"{self.seed}/{epoch}/source/{name}"
        if isinstance(self._shuffle, Window) and rows > self._shuffle.rows:
            shuffled = np.empty_like(inside)
            for turn in np.unique(turns).tolist():
                here = turns == turn
                shuffled[here] = self._shuffle.order(inside[here], rows, f"{key}/{turn}".encode())
            return shuffled
        return permute(inside, rows, key.encode(), turns.astype(np.uint64))

    def taken(self, epoch: int, position: int) -> tuple[int, ...]:
        """Returns how many rows of each source were taken before a place: in this epoch, or in all if they go on."""
        return self._at(epoch, position).counts(position)
