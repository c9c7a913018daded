"""What is under way: bundles of batches, the slices that they are made in, requests for slices, and who makes them.

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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headrace.feed.identifiers import NO_SLAB, RequestNumber, SlabNumber, WorkerNumber
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.wire import messages
from headrace.feed.worker.executor_rules import DEPTH

if TYPE_CHECKING:
    from headrace.feed.client.verifier import Check
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
    """

    plans: tuple[BatchPlan, ...]
    slices: list[Slice] = field(default_factory=list)
    slab: SlabNumber = NO_SLAB
    spare: list[SlabNumber] = field(default_factory=list)
    failures: dict[int, Exception] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)

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
    worker: WorkerNumber
    slice: Slice
    purpose: Purpose
    asked: float
    expected: float
    check: Check | None = None
    slab: SlabNumber = NO_SLAB
    message: messages.SliceRequest = field(init=False, repr=False)
    taken_back: float | None = None
    unwanted: bool = False


@dataclass(eq=False)
class WorkerLoad:
    """What the schedule knows of one worker: a local executor, or a host's feed server.

    Attributes:
        name: for messages.
        executors: how many slices it makes at a time.
        shared: whether it works on the trainer's own host and takes CPU time from it.
        numerics: how it computes; what is made is compared among equal ones.
        seconds_per_row: measured, of one executor; 0 until it has answered.
        outstanding: requests whose answers it owes, in the order asked; changed by `owe` and `answered` only.
        outstanding_rows: rows that it has been asked for.
        since: when it was last idle, or answered: what it works on has taken that long at most.
        lead: seconds of work that each of its executors should have, because it is asked for nothing meanwhile.
        made: rows that it has made.
    """

    name: str
    executors: int
    shared: bool = False
    numerics: bytes = b""
    seconds_per_row: float = 0.0
    outstanding: dict[RequestNumber, Request] = field(default_factory=dict)
    outstanding_rows: int = 0
    since: float = 0.0
    lead: float = 0.0
    made: int = 0

    def owe(self, request: Request) -> None:
        """It has been asked."""
        self.outstanding[request.number] = request
        self.outstanding_rows += request.slice.rows

    def answered(self, number: RequestNumber) -> Request | None:
        """It has answered. Returns the request; None when it does not owe that answer (any more)."""
        request = self.outstanding.pop(number, None)
        self.outstanding_rows -= request.slice.rows if request is not None else 0
        return request

    @property
    def expected(self) -> float:
        """Seconds of each executor that its outstanding rows will take; 0 until it has answered."""
        return self.outstanding_rows * self.seconds_per_row / self.executors

    @property
    def has_room(self) -> bool:
        """Whether it should be asked for more."""
        return len(self.outstanding) < DEPTH * self.executors or 0.0 < self.expected < self.lead
