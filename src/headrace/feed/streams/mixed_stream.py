"""Mixtures of which a source has no count: `feed.mix` of streams, packed documents, datasets of the user's.

Lane l of L takes lane l of L of every source. Which of them gives output k of a lane is a pure function of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.errors import PipelineError
from headrace.feed.batch.plain_values import digest_of
from headrace.feed.streams.packing import Packable
from headrace.feed.streams.steps import BEGINNING, Lane, LeftOut, Restart, Stepped, Steps, StepsLane, outputs_of

SOURCE = b"lane source"
_END = object()


class OpenedSource(NamedTuple):
    """The lane of a source in one pass over it, and what sets the generators for its output of a number."""

    lane: Lane
    seed: Callable[[int], None]

    def next(self, number: int) -> Any:
        """Returns the output of a number, which comes next; `_END` behind the last one."""
        if not self.lane.seeds_itself:
            self.seed(number)
        return next(self.lane, _END)


OpenSource = Callable[[int, Restart], OpenedSource]


class _Kept(NamedTuple):
    """Where a source is: passes over it before, outputs taken in this one, and a `Restart` that lies before."""

    passes: int
    taken: int
    place: Any
    made: int


class _Source:
    """A source in this lane.

    Args:
        name: of it.
        opened: opens its lane, in the pass of a number, at a place.
        kept: where it is.

    Attributes:
        name: as above.
        passes, taken: see `_Kept`.
    """

    def __init__(self, name: str, opened: OpenSource, kept: _Kept) -> None:
        self.name, self._opened = name, opened
        self.passes, self.taken = kept.passes, kept.taken
        self._start = Restart(kept.place, kept.made)
        self._source: OpenedSource | None = None
        if kept.taken:
            self._open()

    def _open(self) -> OpenedSource:
        self._source = source = self._opened(self.passes, self._start)
        for number in range(self._start.made, self.taken):  # they were consumed before
            source.next(number)
        return source

    @property
    def lane(self) -> Lane:
        """It is open."""
        assert self._source is not None, "its turn has come"
        return self._source.lane

    def next(self) -> Any:
        """Returns the next output, `_END` behind the last one of this pass."""
        source = self._source or self._open()
        output = source.next(self.taken)
        self.taken += output is not _END
        return output

    def again(self) -> None:
        """Begins the next pass."""
        self.passes, self.taken = self.passes + 1, 0
        self._start, self._source = BEGINNING, None

    def kept(self) -> _Kept | None:
        """Returns where it is; None if it cannot be opened there."""
        restart = self._source.lane.restart if self._source is not None else self._start
        lost = restart.place is None and self.taken
        return None if lost else _Kept(self.passes, self.taken, restart.place, restart.made)


class MixedLane(Lane):
    """A lane of a mixture of streams: each output comes of the source whose turn it is.

    Each source is opened as a lane of its own, with seeds of its own, and before each of its outputs the generators are
    set from the number of that output. So what a source gives does not depend on the other sources, or on where the
    lane was opened. A lane can be opened again at any output, if its sources can be opened: at the place of each, with
    the number of outputs that were taken of it.

    Args:
        names: of the sources that have a weight, by number.
        turns: returns the sources whose turns a window's outputs are, by the window's number.
        slots: outputs of a window.
        opened: opens the lane of a source, by its number.
        start: a `restart` of this lane.
        repeats: whether a source that is used up begins again until all were used up; else the lane ends with it.
    """

    seeds_itself = True

    def __init__(
        self,
        names: Mapping[int, str],
        turns: Callable[[int], list[int]],
        slots: int,
        opened: Callable[[int], OpenSource],
        start: Restart,
        *,
        repeats: bool,
    ) -> None:
        self._turns, self._slots, self._repeats = turns, slots, repeats
        self._made = start.made
        kept = [_Kept(*place) for place in start.place] if start.place else [_Kept(0, 0, None, 0)] * len(names)
        self._sources = {
            number: _Source(name, opened(number), place)
            for (number, name), place in zip(names.items(), kept, strict=True)
        }
        self._window, self._due = -1, list[int]()

    def __next__(self) -> Any:
        window, slot = divmod(self._made, self._slots)
        if window != self._window:
            self._window, self._due = window, self._turns(window)
        source = self._sources[self._due[slot]]
        output = source.next()
        while output is _END:
            self._used_up(source)
            output = source.next()
        self._made += 1
        self.source, self.tokens, self.padding = source.name, source.lane.tokens, source.lane.padding
        return output

    def _used_up(self, source: _Source) -> None:
        """Begins a source again. Raises StopIteration at the lane's end."""
        if not self._repeats:
            raise StopIteration
        gave = source.taken
        source.again()
        if all(other.passes for other in self._sources.values()):
            raise StopIteration
        if not gave:
            raise PipelineError(
                f'the source {source.name!r} gives nothing in a lane, so until="all" cannot repeat it there',
                hint="take fewer lanes (num_shards=), leave the source out (weight 0), or end with the first source "
                'that is used up (until="first")',
            )

    @property
    def restart(self) -> Restart:  # type: ignore[override]
        """Behind the latest output, or at the beginning if a source cannot be opened where it is."""
        kept = [source.kept() for source in self._sources.values()]
        if not self._made or None in kept:
            return BEGINNING
        return Restart([tuple(place) for place in kept if place is not None], self._made)


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
        return [digest_of([parts, self.mixing.identity], b"mixed stream")]

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
