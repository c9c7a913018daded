"""One pass over a loader: what `iter(loader)` returns.

As with torch's iterators, an error of the user's dataset ends its batch, not the pass: `next()` may be called again
and gives the batch that follows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from headrace.errors import INTERRUPTIONS
from headrace.feed.batch.pytree import bytes_of
from headrace.feed.client.policy import Skipped
from headrace.feed.client.session import Session, check_owner
from headrace.feed.metrics.step_meter import StepMeter
from headrace.feed.pipelines.fetch import Built, RowFailed, SampleAddresses, make_whole
from headrace.feed.pipelines.seeds import preserved_generators
from headrace.feed.plan.bookmark import Bookmark
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.pass_progress import Place, Progress
from headrace.feed.wire.remote_errors import in_short, remote_error


class Batches(Protocol):
    """Where the batches of one pass come from.

    Attributes:
        size: bytes of the tensors and arrays of the batch that was fetched last; None if nobody has counted them.
    """

    size: int | None

    def fetch(self) -> tuple[Any, int] | None:
        """Returns the next batch and its number of rows, None at the end."""

    def ready(self) -> bool:
        """Says whether `fetch` would return or raise without a wait."""

    def queued(self) -> int:
        """Returns how many batches are there."""

    def end(self, *, complete: bool) -> None:
        """The pass is over; `complete` if it was not broken off. May be called twice."""


class InlineBatches:
    """Batches that are loaded in this process.

    Args:
        built: the pipeline.
        plans: the epoch's batches; may go on with those of later epochs.
        progress: of the pass; kept here.
        skipped: where samples that raise are listed, which are then left out of their batches; None to raise.
    """

    size: int | None = None

    def __init__(
        self, built: Built, plans: Iterator[BatchPlan], progress: Progress, skipped: list[Skipped] | None = None
    ) -> None:
        self._built = built
        self._plans = plans
        self._progress = progress
        self._skipped = skipped

    def fetch(self) -> tuple[Any, int] | None:
        """Loads the next batch."""
        while True:
            plan = next(self._plans, None)
            if plan is None or plan.epoch != self._progress.epoch:
                return None
            with preserved_generators():
                made = self._make(plan)
            self._progress.took(plan.step)
            if isinstance(made, tuple):
                return made
            if isinstance(made, StopIteration):  # it would end the user's loop as if the epoch were over
                raise RuntimeError("the dataset raised StopIteration") from made
            if made is not None:
                raise made

    def _make(self, plan: BatchPlan) -> tuple[Any, int] | BaseException | None:
        """Returns the batch and its rows, the user's exception, or None when every row was left out."""
        rows: Sequence[int] = range(plan.rows)
        left_out: dict[int, str] = {}
        made: tuple[Any, int] | BaseException | None = None
        while made is None and len(left_out) < max(1, plan.rows):
            keys = [plan.keys[row] for row in rows] if left_out else plan.keys
            addresses = SampleAddresses(plan.epoch, plan.seed, plan.position, rows, keys)
            try:
                made = make_whole(self._built, addresses), len(rows)
            except RowFailed as failed:
                error, row = failed.__cause__, failed.row
                assert error is not None
                if self._skipped is None or not rows:
                    made = error
                else:
                    left_out |= dict.fromkeys([row] if row >= 0 else rows, in_short(remote_error(error)))
                    rows = [row for row in rows if row not in left_out]
        if self._skipped is not None:
            self._skipped += [
                Skipped(plan.epoch, plan.step, plan.keys[row], reason) for row, reason in sorted(left_out.items())
            ]
        return made

    def ready(self) -> bool:
        """Returns False: without workers a batch is made when it is asked for, never before."""
        return False

    def queued(self) -> int:
        """None is made before it is asked for."""
        return 0

    def end(self, *, complete: bool) -> None:
        """Nothing is held."""


class ServedBatches:
    """Batches that a session's workers make.

    Args:
        session: ours until the end of the pass.
        progress: of the pass; kept here.
        end_step: number of the step after the epoch's last; None when the session's plan ends with it.
        window: batches from the first that is still to come, of which the first that is there is taken.
        timeout: seconds to wait for a batch; None for the session's own limit.
        give_back: called with the session at the end, and whether the pass was completed.
    """

    size: int | None = None

    def __init__(
        self,
        session: Session,
        progress: Progress,
        end_step: int | None,
        window: int,
        timeout: float | None,
        give_back: Callable[[Session, bool], None],
    ) -> None:
        self._session: Session | None = session
        self._progress = progress
        self._end_step = end_step
        self._window = window
        self._timeout = timeout
        self._give_back = give_back

    def fetch(self) -> tuple[Any, int] | None:
        """Waits for the next batch."""
        session, progress = self._session, self._progress
        while session is not None and progress.step != self._end_step:
            if not session.wait_for(progress.epoch, progress.step, self._timeout, self._window):
                return None
            step = session.first_ready(progress.epoch, progress.step, self._window)
            assert step is not None, "it was waited for"
            try:
                taken = session.take(progress.epoch, step)
            except Exception:
                progress.took(step)
                raise
            except KeyboardInterrupt:
                session.close()  # in the middle of a hand-over: what it holds is not known any more
                raise
            progress.took(step)
            self.size = session.taken_bytes
            if taken is not None:  # else every row of the batch was skipped
                return taken
        return None

    def ready(self) -> bool:
        """Asks the session. (Behind a batch that was skipped as a whole there is a wait all the same.)"""
        session, progress = self._session, self._progress
        if session is None or progress.step == self._end_step:
            return True
        return session.ready(progress.epoch, progress.step, self._window)

    def queued(self) -> int:
        """Asks the session."""
        session = self._session
        return 0 if session is None or session.closed else session.count_ready()

    def end(self, *, complete: bool) -> None:
        """Gives the session back."""
        session, self._session = self._session, None
        if session is not None:
            self._give_back(session, complete)


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
        begin: Callable[[], tuple[Batches, Progress]],
        bookmark: Bookmark,
        meter: StepMeter,
        prepare: Callable[[Any], Any] | None,
        length: Callable[[], int],
    ) -> None:
        self._begin: Callable[[], tuple[Batches, Progress]] | None = begin
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

    def _settle(self, begin: Callable[[], tuple[Batches, Progress]]) -> None:
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
