"""What is under way: bundles of batches, the slices that they are made in, and requests for slices.

Records, which `scheduler` keeps and the others read. A request is that one worker is asked once for one slice. The rows
of an unwanted request are not needed any more, but its answer is still outstanding: until it comes, or the worker is
gone, the worker may write to the slab that the request names. What follows from an answer is decided in `exchange`.

A request has one of five purposes:
* ``rows``: the slice, for its batch;
* ``hedge``: the same, a second time, because the first worker is late; the first answer counts;
* ``moved``: the same, elsewhere, because it was taken back from the first worker, which does not give it back;
* ``check``: a slice that was made, again on another executor, to compare digests; no data come;
* ``layout``: one row of a batch, to learn how rows are laid out; no data come.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headrace.feed.identifiers import NO_SLAB, RequestNumber, SlabNumber, WorkerNumber
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.wire import messages

if TYPE_CHECKING:
    from headrace.feed.client.verifier import Check
    from headrace.feed.client.worker_pool import Worker
    from headrace.feed.plan.lane_pass import LaneDraw


@dataclass(eq=False)
class Slice:
    """Rows first..last-1 of a bundle's only batch, or all of its batches.

    Attributes:
        whole: batches are made with the collate function, not row by row.
        requests: those for its rows that are needed and not answered.
        slab: where its rows lie, once it is done.
        deaths: executors that ended over it.
        holders: the workers that hold its samples, when they hold different data; None for all.
    """

    bundle: Bundle
    first: int
    last: int
    whole: bool
    requests: list[Request] = field(default_factory=list)
    done: bool = False
    slab: SlabNumber = NO_SLAB
    deaths: int = 0
    holders: frozenset[WorkerNumber] | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last - self.first

    @property
    def draw(self) -> LaneDraw | None:
        """What is asked of a lane, if it is one's."""
        return self.bundle.plan.draw

    @property
    def placed(self) -> bool:
        """Whether not every worker may be asked for it."""
        return self.holders is not None or self.draw is not None


@dataclass(eq=False)
class Bundle:
    """Consecutive batches on their way together, of one epoch and equally many rows; usually one.

    Attributes:
        plans: the batches.
        slices: what is asked for; empty until it is first asked for.
        slab: where the slices are to be written, 0 for not known yet.
        spare: slabs of slices that were requested twice.
        failures: why batches cannot be had, by their place in `plans`.
        left_out: rows that are skipped, of a single batch, and why.
        singly: whether the rows of a single batch were asked for alone, or nearly, to find those that end workers.
    """

    plans: tuple[BatchPlan, ...]
    slices: list[Slice] = field(default_factory=list)
    slab: SlabNumber = NO_SLAB
    spare: list[SlabNumber] = field(default_factory=list)
    failures: dict[int, Exception] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)
    singly: bool = False

    @property
    def plan(self) -> BatchPlan:
        """The first batch."""
        return self.plans[0]

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return len(self.plans) * self.plan.rows

    @property
    def complete(self) -> bool:
        """Whether every row is there."""
        return bool(self.slices) and all(slice_.done for slice_ in self.slices)

    @property
    def failed(self) -> bool:
        """Whether none of its batches can be had."""
        return len(self.failures) == len(self.plans)

    def split(self, first: int, last: int, count: int, holders: frozenset[WorkerNumber] | None = None) -> None:
        """Cuts rows first..last-1 of its batch into `count` slices."""
        rows = last - first
        count = min(rows, count)
        edges = [first + rows * k // count for k in range(count + 1)]
        self.slices += [Slice(self, a, b, whole=False, holders=holders) for a, b in itertools.pairwise(edges) if b > a]


Purpose = Literal["rows", "hedge", "moved", "check", "layout"]


@dataclass(eq=False, slots=True)
class Request:
    """See the module.

    Attributes:
        number: its own; the answer repeats it.
        worker: who is asked.
        slice: for what.
        purpose: see the module.
        asked: when, monotonic seconds.
        expected: how long it was expected to take from then, seconds.
        check: what is compared, if that is its purpose.
        slab: where the rows are to be written; `NO_SLAB` when that is not known, or no data come.
        message: as it was sent.
        taken_back: when it was cancelled although its rows are needed, to be asked for elsewhere; None if it was not.
        unwanted: whether the rows are not needed any more.
    """

    number: RequestNumber
    worker: Worker
    slice: Slice
    purpose: Purpose
    asked: float
    expected: float
    check: Check | None = None
    slab: SlabNumber = NO_SLAB
    message: messages.SliceRequest = field(init=False, repr=False)
    taken_back: float | None = None
    unwanted: bool = False
