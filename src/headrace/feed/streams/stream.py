"""Streams: what `.filter` and `.flat_map` make of a source. They have no count, so they are read in lanes.

Lane l of L takes the rows whose places in the epoch's order lie in [n * l / L, n * (l + 1) / L). So a stream can be
shuffled like its source, or mixed like a mixture, and a lane can be opened at any row: no row before is read.
`LaneRows.restart` says where.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from headrace.errors import PipelineError, interruptions
from headrace.feed.batch.plain_values import digest_of
from headrace.feed.streams.packing import Packable
from headrace.feed.streams.steps import (
    BEGINNING,
    Lane,
    LeftOut,
    Restart,
    Stepped,
    Steps,
    gives_many,
    left_out,
    outputs_of,
)

if TYPE_CHECKING:
    from headrace.feed.sources.source import Source

_BLOCK = 1024  # places whose rows are found at a time


class Order(NamedTuple):
    """The order of an epoch.

    Attributes:
        places: how many there are; of a mixture perhaps more or fewer than rows.
        rows: returns the rows at some places; None for the source's own order.
    """

    places: int
    rows: Callable[[range], list[int]] | None = None


class Stream(Packable, Stepped):
    """Rows of a source, and what is made of them. It is made by `Source.filter` and `Source.flat_map`.

    Args:
        source: where the rows come from.
        steps: what is done with each, in order.
    """

    def __init__(self, source: Source, steps: Steps = ()) -> None:
        self._source, self.steps = source, steps

    def _documents(self) -> Stream:
        return self

    def _only(self, keys: Collection[str]) -> Stream:
        """Returns the same over some of the shards."""
        return Stream(self._source._only(keys), self.steps)

    def batch(self, rows: int) -> NoReturn:
        """Raises PipelineError: there are no consecutive rows any more; `Source.batch` has them."""
        raise PipelineError(
            f"batch({rows!r}) joins the rows of a source, and what .filter or .flat_map leave are none",
            hint="put .batch before them, or leave it to the loader's batch_size",
        )

    @property
    def rows(self) -> int:
        """Rows of the source."""
        return len(self._source)

    @property
    def mixing(self) -> Any:
        """What the source is a mixture of (`headrace.feed.wire.messages`); None for no mixture."""
        return getattr(self._source, "mixing", None)

    @property
    def __shards__(self) -> Callable[[], list[tuple[str, int]]]:
        """The source's, if hosts may hold different ones; see `headrace.feed.plan.shard_map`."""
        if not self._source.declared:
            raise AttributeError("__shards__")
        return lambda: list(self._source.counts)

    @property
    def shard_digests(self) -> list[str]:
        """Digest of the source's shards, their names and rows at least, and of what a mixture decides."""
        digests = self._source.shard_digests
        if not digests or not all(digests):
            digests = []
        mixed = [self.mixing.identity] if self.mixing else []
        return [digest_of([self._source.counts, digests, *mixed], b"stream")]

    def __iter__(self) -> Iterator[Any]:
        return self.lane(0, 1, Order(self.rows))

    def lane(
        self,
        number: int,
        lanes: int,
        order: Order,
        start: Restart = BEGINNING,
        skipped: LeftOut | None = None,
    ) -> LaneRows:
        """Opens a lane.

        Args:
            number, lanes: which one, of how many.
            order: of the epoch.
            start: a `restart` of this lane: its place is the number of rows that were taken.
            skipped: takes rows that raise, and why, which are left out then; None to raise.
        """
        begin, end = order.places * number // lanes, order.places * (number + 1) // lanes
        return LaneRows(self._source, self.steps, range(begin, end), order, start, skipped)


class LaneRows(Lane):
    """A lane of a stream that is open.

    Attributes:
        restart: where it can be opened again: rows that were taken, and outputs that came of them. It lies before
            the row that the latest output came of, as long as more may come of that row, and before the rows between it
            and the output before: they may draw random numbers.
    """

    def __init__(
        self,
        source: Source,
        steps: Steps,
        places: range,
        order: Order,
        start: Restart,
        skipped: LeftOut | None = None,
    ) -> None:
        self._steps: Steps = (("map", source.__getitem__), *steps)
        self._places, self._order = places, order.rows
        self.restart = Restart(start.place or 0, start.made)
        self._taken, self._made = self.restart
        self._many, self._skipped = gives_many(steps), skipped
        self._outputs: Iterator[Any] = iter(())
        self._block, self._rows = range(0), list[int]()

    def __next__(self) -> Any:
        while True:
            try:
                for output in self._outputs:
                    self._made += 1
                    if not self._many:
                        self.restart = Restart(self._taken, self._made)
                    return output
            except interruptions():
                raise
            except BaseException as error:
                if not left_out(self._skipped, self._row(self._places[self._taken - 1]), error):
                    raise
                self._outputs = iter(())
            if self._made != self.restart.made:
                self.restart = Restart(self._taken, self._made)
            if self._taken >= len(self._places):
                raise StopIteration
            self._outputs = outputs_of(self._steps, self._row(self._places[self._taken]))
            self._taken += 1

    def _row(self, place: int) -> int:
        if self._order is None:
            return place
        if place not in self._block:
            self._block = range(place, min(place + _BLOCK, self._places.stop))
            self._rows = self._order(self._block)
        return self._rows[place - self._block.start]
