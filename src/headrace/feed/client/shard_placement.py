"""The client's side of sharded data: it gathers what the workers hold, and places slices where their samples are.

Every worker must have declared what it holds before the first plan is made: without one of them, the missing data are
not known. Then a batch is cut into the longest ranges of rows that the same workers hold, and one of them is asked for
each range. When a worker is gone or comes back, what is not under way is cut again. When no worker holds some rows any
more, the client waits as long as for a lost host; then the run ends with an error that names the rows.

A batch that cannot be written row by row (a collate function, samples that do not stack) must be made by a worker that
holds all of it. How rows are laid out must be known before they can be asked of several workers: see `LayoutProbe`.

Data without a count are not cut by rows: each lane is read from what one worker holds, see `lane_homes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from headrace.errors import PipelineError, WorkerError, WorkersLost
from headrace.feed.client.assembly import Assembly
from headrace.feed.client.lane_homes import Holdings
from headrace.feed.client.scheduler import TARGET_SECONDS, Everywhere, Schedule
from headrace.feed.client.work_units import Bundle, Request, Slice
from headrace.feed.client.worker_pool import RECOVER_SECONDS, REFUSED_HINT, START_SECONDS, Worker, WorkerPool
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.plan.shard_map import ShardMap, data_digest
from headrace.feed.wire import messages
from headrace.feed.wire.messages import Mixing
from headrace.feed.wire.remote_errors import remade, remote_error

_CHECK_CHANNEL = "hosts that declare no shards must hold the same data; check the channel on that host"
_LANES_NEED_ALL = (
    "a part of these data declares no shards (a function, an IterableDataset, feed.hf), so any host may read any of "
    "their lanes: every host needs all of the data (FullyReplicated). Shards may be spread over the hosts for .filter, "
    ".flat_map and .pack of feed.tar, feed.jsonl, feed.parquet and feed.arrow, and for mixtures of these alone"
)


class DataUnion:
    """The data of a pass, as far as its workers have announced what they hold.

    Args:
        worker_pool: knows whom is waited for.
        opening: the pipeline, as it is opened on every worker.
        warn: called with what the user should know.

    Attributes:
        map: who holds what.
        holdings: who can read which lane.
        length: of the dataset, over all workers, -1 without a count; None until it is known.
        data: digest of the data, see `plan.shard_map` and `Holdings`; empty while, or if, it is not known.
        mixing: what the data are a mixture of, over all workers; None until it is known.
        begun: whether a worker has declared shards, so that all must.
        whole: whether batches are always made whole.
    """

    def __init__(self, worker_pool: WorkerPool, opening: messages.Open, warn: Callable[[str], None]) -> None:
        self.map = ShardMap()
        self.holdings = Holdings(opening.lanes)
        self.begun = False
        self.length: int | None = None
        self.data = ""
        self.mixing: Mixing | None = None
        self._worker_pool = worker_pool
        self._opening = opening
        self._warn = warn
        self.whole = False
        self._since = 0.0
        self._apart = False  # workers hold different data, once it is known what they hold
        self._orphaned: float | None = None

    # Gathering

    def opened(self, worker: Worker, message: messages.Opened, now: float) -> bool:
        """A worker has opened the pipeline.

        Args:
            worker: who.
            message: its answer.
            now: monotonic seconds.

        Returns:
            Whether it can be used.

        Raises:
            PipelineError: their data differ: the length, whether they declare shards, or the size of a replica.
        """
        self._mixed(worker, message.mixing)
        if bool(message.shards) != self.begun and (self.length is not None or self.begun):
            has, others = ("", "not ") if message.shards else ("not ", "")
            raise PipelineError(
                f"on {worker.name} the dataset does {has}declare shards, elsewhere it does {others}declare them",
                hint="all workers must run the same code; whether there is __shards__ must not depend on the host",
            )
        if not message.shards:
            if self.length not in (None, message.length):
                raise PipelineError(
                    f"the dataset has {message.length} samples on {worker.name} and {self.length} elsewhere",
                    hint="all workers must see the same data; check the channel on that host",
                )
            data = data_digest([("", message.length)], message.digests)
            if self.data and data != self.data:
                raise PipelineError(
                    f"the data on {worker.name} are others than elsewhere",
                    hint=_LANES_NEED_ALL if self._opening.lanes else _CHECK_CHANNEL,
                )
            self.length, self.data = message.length, data
            return True
        if not self.begun:
            self.begun, self._since, self.whole = True, now, message.whole
            self._worker_pool.all_needed = True
        if self._opening.lanes:
            return self._opened_lanes(worker, message)
        before = len(self.map.unknown)
        self.map.add(worker.number, worker.name, message.shards, message.digests)
        if len(self.map.unknown) > before:
            self._warn(
                f"{worker.name} came late and holds shards that are not in this run, as {self.map.unknown[before]!r}: "
                "they are not loaded"
            )
        if self.map.fixed and not self._apart and not self.map.uniform:
            self.map.remove(worker.number)
            reason = f"{worker.name} does not hold the shards any more that it held before"
            self._worker_pool.refuse(worker, reason)
            self._warn(f"{reason}; it is not used")
            return False
        return True

    def _opened_lanes(self, worker: Worker, message: messages.Opened) -> bool:
        digest = message.digests[0] if message.digests else ""
        if self.holdings.add(worker.number, worker.name, message.shards, digest):
            self.map.add(worker.number, worker.name, message.shards)
            return True
        reason = f"{worker.name} came late and does not hold the same data as any host that the run began with"
        self._worker_pool.refuse(worker, reason)
        self._warn(f"{reason}: it is not used")
        return False

    def _mixed(self, worker: Worker, told: Mixing | None) -> None:
        """Compares what the data are a mixture of, but for the rows, which hosts may hold different ones of."""
        opened_before = self.length is not None or self.begun
        alike = [each and msgspec.structs.replace(each, rows=()) for each in (told, self.mixing)]
        if opened_before and alike[0] != alike[1]:
            raise PipelineError(
                f"on {worker.name} the data are a mixture of {told or 'nothing'}, elsewhere of "
                f"{self.mixing or 'nothing'}",
                hint="all workers must run the same code",
            )
        self.mixing = self.mixing or told

    def settle(self, now: float) -> Everywhere | None:
        """Makes the union once all workers have announced their shards.

        Returns:
            How rows are placed from now on, when it was made just now.

        Raises:
            WorkersLost: one does not come in time.
            PipelineError: data without a count cannot be read from what the workers hold.
        """
        if not self.begun or self.map.fixed:
            return None
        absent = self._worker_pool.absent()
        refused = self._worker_pool.refused(now).intersection(absent)
        if refused:
            raise WorkersLost(
                f"{', '.join(sorted(refused))} cannot be asked what it holds: {self._worker_pool.describe()}",
                hint=REFUSED_HINT,
            )
        if absent:
            starting = self._worker_pool.starting()
            if starting.intersection(absent):
                self._since = now
            if now - self._since > START_SECONDS:
                raise WorkersLost(
                    f"{', '.join(absent)} did not open the pipeline within {START_SECONDS:.0f} s, so nobody knows "
                    f"what it holds: {self._worker_pool.describe()}",
                    hint="start that host again, or leave it out of the list of workers",
                )
            return None
        self.map.fix()
        if self.mixing is not None and self.mixing.rows:
            rows = self.map.rows_of(self.mixing.names)
            self.mixing = msgspec.structs.replace(self.mixing, rows=rows)
        if self._opening.lanes:
            self.holdings.deal()
            self.length, self.data = -1, self.holdings.digest
            self._apart = self._worker_pool.all_needed = self.holdings.apart
            return Everywhere()
        self.length, self.data = self.map.length, self.map.digest
        self._apart = self._worker_pool.all_needed = not self.map.uniform
        return RowPlacement(self.map, whole=self.whole) if self._apart else Everywhere()

    @property
    def gathering(self) -> bool:
        """Whether workers are waited for that have not announced what they hold."""
        return self.begun and not self.map.fixed

    def comparison(self) -> messages.Open | None:
        """Returns what lets a feed server compare the union with that of other ranks; None without ranks."""
        if not self.map.fixed or not self._opening.plan:
            return None
        loader, plan = f"{self._opening.loader} (shards)", self.data if self._opening.lanes else self.map.fingerprint()
        return msgspec.structs.replace(self._opening, loader=loader, plan=plan)

    def gone(self, worker: WorkerNumber) -> None:
        """A worker is gone."""
        self.map.remove(worker)
        self.holdings.remove(worker)

    def refused(self, worker: WorkerNumber) -> None:
        """A worker that has announced its shards is not used."""
        self.map.remove(worker)
        self.holdings.refuse(worker)

    def judge(self, bundles: Iterable[Bundle], now: float) -> None:
        """Raises WorkersLost when rows, or a lane, have had no holder for longer than a lost host is waited for."""
        if not self._apart or not any(self._is_orphaned(bundle) for bundle in bundles if not bundle.failed):
            self._orphaned = None
            return
        self._orphaned = now if self._orphaned is None else self._orphaned
        if now - self._orphaned > RECOVER_SECONDS:
            raise WorkersLost(
                f"data are lost: {self.map.describe_lost()}; {self._worker_pool.describe()}",
                hint="start that host again and resume, or give the channel to more than one host",
            )

    def _is_orphaned(self, bundle: Bundle) -> bool:
        draw = bundle.plan.draw
        if draw is not None:
            return not bundle.complete and self.holdings.lost(draw.cursor.lane)
        return any(slice_.holders is not None and not slice_.holders and not slice_.done for slice_ in bundle.slices)


class RowPlacement(Everywhere):
    """Workers hold different rows.

    Args:
        shards: who holds what.
        whole: whether batches are always made whole.
    """

    bundles = False

    def __init__(self, shards: ShardMap, *, whole: bool) -> None:
        self._map, self._whole = shards, whole
        self.needs_layout = not whole

    def cut(self, bundle: Bundle, cost: float, *, stackable: bool) -> None:
        """See Everywhere: the longest ranges of rows that the same workers hold."""
        try:
            if self._whole:
                bundle.slices = [Slice(bundle, 0, bundle.rows, whole=True)]
                self.place_whole(bundle)
                return
            ranges = self._map.row_ranges(bundle.plan.keys)
        except PipelineError as error:
            bundle.failures[0] = error
            return
        if len(ranges) == 1 or stackable:
            most = max(1, int(TARGET_SECONDS / cost)) if cost and stackable else max(1, bundle.rows)
            bundle.slices = self._slices(bundle, 0, bundle.rows, most)

    def _slices(self, bundle: Bundle, first: int, last: int, most: int, deaths: int = 0) -> list[Slice]:
        slices = []
        for rows in self._map.row_ranges(bundle.plan.keys[first:last]):
            begin, end = first + rows.first, first + rows.last
            for row in range(begin, end, most) if end > begin else (begin,):
                stop = min(row + most, end)
                slices.append(Slice(bundle, row, stop, whole=False, deaths=deaths, holders=rows.holders))
        return slices

    def place_whole(self, bundle: Bundle) -> None:
        """Finds the workers that hold all of a batch that is made whole. If there can be none, the batch fails."""
        keys = [key for row, key in enumerate(bundle.plan.keys) if row not in bundle.left_out]
        [slice_] = bundle.slices
        slice_.holders = self._map.holders(keys)
        if not slice_.holders and all(rows.holders for rows in self._map.row_ranges(keys)):
            bundle.failures[0] = PipelineError(
                f"no host holds all samples of batch {bundle.plan.step} (indices {keys[:8]}...), and it cannot be put "
                "together of rows: it has a collate function, samples that do not stack, or samples that are skipped",
                hint="let the samples stack and leave out collate_fn (pad in the dataset, say), or give every host all "
                "data: FullyReplicated",
            )

    def recut(self, bundle: Bundle) -> None:
        """See Everywhere."""
        waiting = [slice_ for slice_ in bundle.slices if not slice_.done and not slice_.requests]
        if waiting and waiting[0].whole:
            self.place_whole(bundle)
        elif waiting:
            slices = [slice_ for slice_ in bundle.slices if slice_.done or slice_.requests]
            for slice_ in waiting:
                slices += self._slices(bundle, slice_.first, slice_.last, max(1, slice_.rows), slice_.deaths)
            bundle.slices = sorted(slices, key=lambda slice_: slice_.first)

    def makers(self, worker: Worker, workers: Mapping[WorkerNumber, Worker]) -> Mapping[WorkerNumber, Worker]:
        """See Everywhere: none but itself, as rows have other numbers elsewhere."""
        return {worker.number: worker} if worker.number in workers else {}

    def holders(self, key: object) -> Collection[WorkerNumber]:
        """See Everywhere."""
        return self._map.holders([key])

    def local(self, worker: Worker, keys: Sequence[Any]) -> Sequence[Any]:
        """See Everywhere."""
        return self._map.local(worker.number, keys)


class LayoutProbe:
    """How rows are laid out, learned from a single row before a batch can be requested from several workers, in slices.

    The row is requested like any other, but only its layout (and digests) are sent, no data. One request at a time.

    Args:
        schedule, assembly: of the session.

    Attributes:
        request: the one that is under way.
    """

    def __init__(self, schedule: Schedule, assembly: Assembly) -> None:
        self._schedule = schedule
        self._assembly = assembly
        self._tried = WeakKeyDictionary[Bundle, set[int]]()  # a batch that is handed out needs no more rows
        self.request: Request | None = None

    def next_row(self) -> tuple[WorkerNumber, Slice] | None:
        """Returns which row to request, and from whom, when a layout is needed and can be had."""
        placement, workers = self._schedule.placement, self._schedule.workers
        if self.request is not None or not placement.needs_layout or self._schedule.stackable:
            return None
        for bundle in self._schedule.bundles.values():
            if bundle.slices or bundle.failed:
                continue
            tried = self._tried.setdefault(bundle, set())
            for row, key in enumerate(bundle.plan.keys):
                holders = () if row in tried else placement.holders(key)
                able = [number for number in holders if number in workers and workers[number].has_room]
                if able:
                    return min(able), Slice(bundle, row, row + 1, whole=False)
        return None

    def answered(self, worker: Worker, row: Slice, answer: messages.Answer | None) -> None:
        """The request has ended; `answer` is None when its worker is gone.

        A row that raises tells nothing: another one is requested. If all of them raise, the batch fails.
        """
        self.request = None
        if isinstance(answer, messages.Done) and answer.layout:
            self._assembly.learn(answer.layout)
            self._schedule.stackable = True
            self._tried.clear()
        elif isinstance(answer, messages.Unstackable):
            self._schedule.make_whole(row.bundle)
        elif isinstance(answer, messages.Done) and answer.failures:
            self._failed(row, answer.failures[0].error, worker)
        elif isinstance(answer, messages.Failed):
            self._failed(row, answer.error, worker)
        elif isinstance(answer, messages.Lost):
            text = f"a worker ended while it made index {row.bundle.plan.keys[row.first]}: {answer.reason}"
            self._failed(row, remote_error(WorkerError(text)), worker)

    def _failed(self, row: Slice, error: messages.RemoteError, worker: Worker) -> None:
        tried = self._tried[row.bundle]
        tried.add(row.first)
        if len(tried) == row.bundle.rows:
            row.bundle.failures[0] = remade(error, f"raised on {worker.name}")
