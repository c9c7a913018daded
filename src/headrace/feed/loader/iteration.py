"""One pass over a loader: what `iter(loader)` returns.

As with torch's iterators, an error of the user's dataset ends its batch, not the pass: `next()` may be called again
and gives the batch that follows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import INTERRUPTIONS
from headrace.feed.batch.pytree import bytes_of
from headrace.feed.client.session import check_owner
from headrace.feed.loader.supply import Supply
from headrace.feed.metrics.step_meter import StepMeter
from headrace.feed.plan.bookmark import Bookmark
from headrace.feed.plan.pass_progress import Place, Progress


class Iteration(Iterator[Any]):
    """One pass over a loader.

    Args:
        begin: plans the pass. Returns where its batches come from, and its progress.
        bookmark: of the loader; told how far the pass is.
        meter: measures the pass.
        prepare: applied to every batch.
        length: number of batches, if it can be known.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Supply, Progress]],
        bookmark: Bookmark,
        meter: StepMeter,
        prepare: Callable[[Any], Any] | None,
        length: Callable[[], int],
    ) -> None:
        self._begin: Callable[[], tuple[Supply, Progress]] | None = begin
        self._batches, self._progress = begin()
        self._bookmark = bookmark
        self._meter = meter
        self._prepare = prepare
        self._length = length
        self._ended = False
        self._peeked: tuple[tuple[Any, int] | None, Place] | None = None
        self._owner = os.getpid()
        meter.begin()

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        check_owner(self._owner)
        if self._begin is not None:
            self._settle(self._begin)
        self._meter.waiting()
        try:
            if self._meter.counts_queue:
                self._meter.queued(self._batches.queued())
            item = self._fetch()
        except INTERRUPTIONS:
            self._end(complete=False)
            raise  # others are the user's own: the pass goes on; one of the feed has closed the session and says so
        if item is None:
            self._end(complete=True)
            self._meter.ended()
            raise StopIteration
        batch = item[0] if self._prepare is None else self._prepare(item[0])
        size = self._batches.size
        self._meter.got(item[1], bytes_of(batch) if size is None else size, self._progress.epoch)
        return batch

    def peek(self) -> Any:
        """Returns the first batch, None if there is none. It is not taken: the pass has not begun by that."""
        before = self._progress.place
        item = self._batches.fetch()
        self._peeked = item, self._progress.place
        self._progress.move(before)
        return None if item is None else item[0]

    def _fetch(self) -> tuple[Any, int] | None:
        if self._peeked is None:
            return self._batches.fetch()
        (item, place), self._peeked = self._peeked, None
        self._progress.move(place)
        return item

    def _settle(self, begin: Callable[[], tuple[Supply, Progress]]) -> None:
        """The first batch is asked for: this settles which epoch it is."""
        if self._progress.stepped_back:
            self._batches.end(complete=False)
            self._batches, self._progress = begin()
            self._peeked = None
        self._begin, self._progress.begun = None, True

    def _end(self, *, complete: bool) -> None:
        self._ended, self._peeked = True, None
        if complete:
            self._bookmark.complete(self._progress)
        else:
            self._bookmark.broken_off(self._progress)
        self._batches.end(complete=complete)

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self._end(complete=False)
