"""Who makes what, and when: the client's side of the feed, as a state machine without I/O.

The shell (`session`) pushes batches in plan order, tells which sources there are and what they answered, and asks
what to send next. Time, sockets, slabs and processes are not known here.

Invariants:
* a batch is complete when every row has been made once; a second answer for a row is dropped;
* batches are handed out in plan order;
* a part whose worker was lost is asked again elsewhere; a part over which `MAX_DEATHS` executors died is not, it fails;
* the first batch in line is asked for before any other.

Placement: the earliest part goes to the source that is expected to finish it first, by its measured seconds per row and
what it already has to do. The workers of the trainer's own host are asked when the other hosts have all they can take,
because they take CPU time from the trainer. A source that is more than `SLOW` times slower than the best (a niced
worker beside a busy trainer) gets the latest part instead, one at a time: its help is welcome, and nobody waits for it
until the whole window has passed.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from headrace.feed.plan import BatchPlan

MAX_DEATHS = 2
SLOW = 2.0
TARGET_SECONDS = 0.1  # worth of one part
DEPTH = 2  # parts outstanding an executor
_SMOOTHING = 0.2


@dataclass(eq=False)
class Part:
    """Rows first..last-1 of a batch."""

    batch: Batch
    first: int
    last: int
    whole: bool
    request: int = 0
    source: int = 0
    done: bool = False
    deaths: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last - self.first


@dataclass(eq=False)
class Batch:
    """One batch on its way. `parts` is empty until it is first asked for."""

    plan: BatchPlan
    parts: list[Part] = field(default_factory=list)
    slab: int = 0
    failure: Exception | None = None

    @property
    def complete(self) -> bool:
        """Whether every row is there."""
        return bool(self.parts) and all(part.done for part in self.parts)


@dataclass(eq=False)
class Source:
    """One place that makes parts: a local executor, or a host's feed server.

    Attributes:
        name: for messages.
        executors: how many parts it makes at a time.
        shared: whether it works on the trainer's own host and takes CPU time from it.
        seconds_per_row: measured, of one executor; 0 until it has answered.
        outstanding: request number to part.
    """

    name: str
    executors: int
    shared: bool = False
    seconds_per_row: float = 0.0
    outstanding: dict[int, Part] = field(default_factory=dict)

    @property
    def outstanding_rows(self) -> int:
        """Rows that it has been asked for."""
        return sum(part.rows for part in self.outstanding.values())


class Schedule:
    """See the module. Sources and requests are numbers that the shell and this class share."""

    def __init__(self) -> None:
        self.sources: dict[int, Source] = {}
        self.batches: dict[tuple[int, int], Batch] = {}
        self.stackable = False  # rows may be asked for one by one: the layout is known
        self._requests = 0
        self._cpu_per_row = 0.0

    # Batches

    def push(self, plan: BatchPlan) -> None:
        """Adds the next batch in plan order."""
        self.batches[plan.epoch, plan.step] = Batch(plan)

    def pop(self, epoch: int, step: int) -> Batch:
        """Takes a complete batch out."""
        return self.batches.pop((epoch, step))

    def clear(self) -> list[int]:
        """Forgets all batches. Returns the requests that are under way; their answers will be stale."""
        self.batches.clear()
        return [request for source in self.sources.values() for request in source.outstanding]

    # Sources

    def add_source(self, number: int, name: str, executors: int, *, shared: bool = False) -> None:
        """A source is ready to be asked."""
        self.sources[number] = Source(name, max(1, executors), shared)

    def remove_source(self, number: int) -> list[Part]:
        """A source is gone. Returns the parts that it owed; they will be asked for elsewhere."""
        source = self.sources.pop(number, None)
        owed = list(source.outstanding.values()) if source is not None else []
        for part in owed:
            part.request = part.source = 0
        return owed

    @property
    def executors(self) -> int:
        """Executors of all sources."""
        return sum(source.executors for source in self.sources.values())

    # Asking

    def next_part(self) -> tuple[int, Part] | None:
        """Returns the next (source, part) to ask for, or None when nothing should be asked now."""
        if not self.sources:
            return None
        waiting = self._waiting_part(latest=False)
        if waiting is None:
            return None
        finish = {number: self._finish(source, waiting.rows) for number, source in self.sources.items()}
        near = SLOW * min(finish.values())
        for shared in (False, True):
            quick = [
                number
                for number, source in self.sources.items()
                if source.shared is shared and self._has_room(source) and finish[number] <= near
            ]
            if quick:
                return min(quick, key=lambda number: (finish[number], len(self.sources[number].outstanding))), waiting
        idle = [number for number, source in self.sources.items() if not source.outstanding]
        if idle:
            last = self._waiting_part(latest=True)
            return (min(idle, key=lambda number: finish[number]), last) if last is not None else None
        return None

    def _waiting_part(self, *, latest: bool) -> Part | None:
        batches = reversed(self.batches.values()) if latest else iter(self.batches.values())
        for batch in batches:
            if batch.failure is not None:
                continue
            if not batch.parts:
                self._cut(batch)
            parts = reversed(batch.parts) if latest else iter(batch.parts)
            for part in parts:
                if not part.done and not part.request:
                    return part
        return None

    def _cut(self, batch: Batch) -> None:
        rows = batch.plan.rows
        if not self.stackable or not batch.plan.batched or self._cpu_per_row * rows <= TARGET_SECONDS * 1.5:
            batch.parts = [Part(batch, 0, rows, whole=False)]
            return
        count = min(rows, math.ceil(self._cpu_per_row * rows / TARGET_SECONDS))
        edges = [rows * k // count for k in range(count + 1)]
        batch.parts = [
            Part(batch, first, last, whole=False) for first, last in itertools.pairwise(edges) if last > first
        ]

    @staticmethod
    def _has_room(source: Source) -> bool:
        return len(source.outstanding) < DEPTH * source.executors

    def _finish(self, source: Source, rows: int) -> float:
        """Seconds until the source would have made `rows` more rows."""
        pace = source.seconds_per_row or min(
            (other.seconds_per_row for other in self.sources.values() if other.seconds_per_row), default=1.0
        )
        return pace * (source.outstanding_rows / source.executors + rows)

    def asked(self, number: int, part: Part) -> int:
        """Notes that a part was sent to a source. Returns the request number."""
        self._requests += 1
        part.request, part.source = self._requests, number
        self.sources[number].outstanding[self._requests] = part
        return self._requests

    # Answers

    def answered(self, number: int, request: int) -> Part | None:
        """Takes a request off a source's list. Returns its part; None when it is stale."""
        source = self.sources.get(number)
        part = source.outstanding.pop(request, None) if source is not None else None
        if part is None:
            return None
        part.request = part.source = 0
        current = self.batches.get((part.batch.plan.epoch, part.batch.plan.step))
        return part if current is part.batch and any(part is own for own in part.batch.parts) else None

    def done(self, number: int, part: Part, seconds: float, cpu: float) -> None:
        """A part's rows are there."""
        part.done = True
        source = self.sources[number]
        rows = max(1, part.rows)
        source.seconds_per_row = _smooth(source.seconds_per_row, seconds / rows)
        self._cpu_per_row = _smooth(self._cpu_per_row, cpu / rows)

    def died(self, part: Part) -> bool:
        """An executor died over a part. Returns whether it may be asked for again."""
        part.deaths += 1
        return part.deaths < MAX_DEATHS

    def make_whole(self, batch: Batch) -> None:
        """The batch's samples do not stack row by row: it will be asked for whole."""
        deaths = max((part.deaths for part in batch.parts), default=0)
        batch.parts = [Part(batch, 0, batch.plan.rows, whole=True, deaths=deaths)]

    def start_over(self, batch: Batch) -> None:
        """Forgets the rows that were made: their slab may still be written to by a lost worker."""
        for part in batch.parts:
            part.done = False
            if part.request:
                self.sources[part.source].outstanding[part.request] = Part(batch, part.first, part.last, part.whole)
                part.request = part.source = 0


def _smooth(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
