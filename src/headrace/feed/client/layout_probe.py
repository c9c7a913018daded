"""How rows are laid out, learned from a single row: before a batch can be requested from several workers, in slices.

The row is requested like any other, but only its layout (and digests) are sent, no data. One such request at a time.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from headrace.errors import WorkerError
from headrace.feed.client.assembly import Assembly
from headrace.feed.client.request import Request
from headrace.feed.client.scheduler import Schedule
from headrace.feed.client.shard_placement import ShardPlacement
from headrace.feed.client.work_units import Bundle, Slice
from headrace.feed.client.worker_pool import Worker
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.wire import messages
from headrace.feed.wire.remote_errors import remade, remote_error


class LayoutProbe:
    """See the module.

    Args:
        placement: who holds what.
        schedule, assembly: of the session.

    Attributes:
        request: the one that is under way.
    """

    def __init__(self, placement: ShardPlacement, schedule: Schedule, assembly: Assembly) -> None:
        self._placement = placement
        self._schedule = schedule
        self._assembly = assembly
        self._tried = WeakKeyDictionary[Bundle, set[int]]()  # a batch that is handed out needs no more rows
        self.request: Request | None = None

    def next_row(self) -> tuple[WorkerNumber, Slice] | None:
        """Returns which row to request, and from whom, when a layout is needed and can be had."""
        placement, workers = self._placement, self._schedule.workers
        if self.request is not None or not placement.active or self._schedule.stackable or placement.whole:
            return None
        for bundle in self._schedule.bundles.values():
            if bundle.slices or bundle.failed:
                continue
            tried = self._tried.setdefault(bundle, set())
            for row, key in enumerate(bundle.plan.keys):
                holders = [] if row in tried else placement.map.holders([key])
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
            self._schedule.stackable = self._assembly.stackable
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
