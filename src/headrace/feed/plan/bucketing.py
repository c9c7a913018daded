"""The buckets of a loader over time: which order they have now, and how much of the batches is padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.plan.orders.length_buckets import BucketedOrder, Buckets, lengths_digest
from headrace.feed.plan.orders.mixed_order import MixedOrder
from headrace.feed.plan.orders.order import RowOrder
from headrace.feed.plan.state_dict import Position


class Bucketing:
    """See the module.

    Args:
        buckets: as the user asks for them.
        known: returns the lengths that the index knows.

    Attributes:
        buckets: as given.
        digest: of the lengths; empty while they are not known.
    """

    def __init__(self, buckets: Buckets, known: Callable[[], NDArray[Any]]) -> None:
        self.buckets, self._known = buckets, known
        self._lengths: NDArray[Any] | None = buckets.lengths
        self.digest = lengths_digest(self._lengths)
        self._order: BucketedOrder | None = None
        self._resumed: tuple[int, int] | None = None
        self._planned: dict[tuple[int, int], tuple[int, int]] = {}  # length and padding of batches, by epoch and step
        self._sums = (0, 0)

    def order(self, inner: MixedOrder | RowOrder, rows: int, batch: int, seed: int, *, shuffled: bool) -> BucketedOrder:
        """Returns the order of the buckets.

        Args:
            inner: the order that they are made of.
            rows: of the dataset.
            batch: rows of a global batch.
            seed: of the order.
            shuffled: whether batches are.

        Raises:
            ValueError: there are not as many lengths as rows.
            PipelineError: the lengths are not known.
        """
        if self._lengths is None:
            self._lengths = self._known()
            self.digest = lengths_digest(self._lengths)
        if len(self._lengths) != rows:
            raise ValueError(f"buckets have {len(self._lengths)} lengths, and the dataset has {rows} rows")
        if self._order is None or self._order.made_of != (inner, batch):
            size = inner.rows if isinstance(inner, MixedOrder) else lambda _: rows
            self._order = BucketedOrder(
                inner, self._lengths, seed, batch, self.buckets.batches, size, shuffled=shuffled, resumed=self._resumed
            )
        return self._order

    def resume(self, loaded: Position | None) -> None:
        """A position was loaded; the batches of its epoch may have had other sizes when it began."""
        self._order, self._planned = None, {}
        self._resumed = (loaded.epoch, loaded.bucket_rows) if loaded is not None and loaded.bucket_rows else None

    def place(self, epoch: int, position: int, batch: int) -> tuple[int, int]:
        """Returns the rows of the global batches that an epoch is bucketed by, and where a position's window begins."""
        if self._order is None:
            return self._resumed[1] if self._resumed is not None and self._resumed[0] == epoch else batch, position
        return self._order.batch_of(epoch), self._order.begin_of(epoch, position)

    def planned(self, plan: BatchPlan) -> None:
        """A batch was planned."""
        if self._order is not None and plan.keys:
            self._planned[plan.epoch, plan.step] = self._order.padding(plan.keys)

    def padding(self, epoch: int, step: int) -> tuple[int, int]:
        """Returns the length, and the padding, of all batches that the trainer was given before a step.

        It changes nothing, as other threads ask for it too.

        Args:
            epoch, step: of the latest pass.
        """
        given = [each for place, each in list(self._planned.items()) if place < (epoch, step)]
        length, missing = self._sums
        return length + sum(each[0] for each in given), missing + sum(each[1] for each in given)

    def add_up(self, epoch: int, step: int) -> None:
        """Adds up what the trainer was given before a step, and forgets the batches. In the trainer's thread."""
        sums = self.padding(epoch, step)
        self._planned = {place: each for place, each in self._planned.items() if place >= (epoch, step)}
        self._sums = sums

    def broken_off(self, epoch: int, step: int) -> None:
        """A pass has ended before a step; what was planned of its epoch behind that will not be given."""
        self.add_up(epoch, step)
        self._planned = {place: each for place, each in self._planned.items() if place[0] != epoch}
