"""How rows are laid out, learned from a single row: before a batch can be asked of several workers, in slices.

The row is asked for like any other, but only its layout (and digests) are sent, no data. One such request at a time.
"""

from __future__ import annotations

from headrace.feed.client.assembly import Assembly
from headrace.feed.client.scheduler import Schedule
from headrace.feed.client.shard_placement import ShardPlacement, detached
from headrace.feed.client.work_units import Bundle
from headrace.feed.client.worker_pool import Worker, WorkerPool
from headrace.feed.wire import messages
from headrace.feed.wire.remote_errors import remade


class LayoutProbe:
    """See the module.

    Args:
        placement: who holds what.
        schedule, assembly, worker_pool: of the session.
        deadline: seconds after which an executor is taken for hung.
    """

    def __init__(
        self,
        placement: ShardPlacement,
        schedule: Schedule,
        assembly: Assembly,
        worker_pool: WorkerPool,
        deadline: float,
    ) -> None:
        self._placement = placement
        self._schedule = schedule
        self._assembly = assembly
        self._worker_pool = worker_pool
        self._deadline = deadline
        self._tried: dict[Bundle, set[int]] = {}
        self._request, self._bundle, self._row = 0, Bundle(()), 0

    def next_request(self, now: float) -> list[tuple[Worker, messages.SliceRequest]]:
        """Returns what to ask for and of whom, when a layout is needed and can be had: at most one."""
        if self._request or not self._placement.active or self._schedule.stackable or self._placement.whole:
            return []
        workers = self._schedule.workers
        for bundle in self._schedule.bundles.values():
            if bundle.slices or bundle.failed:
                continue
            tried = self._tried.setdefault(bundle, set())
            for row, key in enumerate(bundle.plan.keys):
                holders = [] if row in tried else self._placement.map.holders([key])
                able = [number for number in holders if number in workers and workers[number].has_room]
                worker = self._worker_pool.worker(min(able)) if able else None
                if worker is not None:
                    return [(worker, self._ask(worker, bundle, row, now))]
        return []

    def _ask(self, worker: Worker, bundle: Bundle, row: int, now: float) -> messages.SliceRequest:
        plan = bundle.plan
        self._request = self._schedule.asked(worker.number, detached(plan, 1), now)
        self._bundle, self._row = bundle, row
        keys = self._placement.map.local(worker.number, [plan.keys[row]])
        return messages.SliceRequest(
            self._request, self._placement.pipeline, plan.epoch, plan.seed,
            (messages.BatchRows(plan.step, plan.position + row, 1, 0, 1, keys),), False, check=messages.SUM,
            deadline=self._deadline,
        )  # fmt: skip

    def running(self, request: int) -> bool:
        """Whether a request is for a layout."""
        return request == self._request != 0

    def lost(self, request: int) -> None:
        """The worker is gone: the row is asked of another."""
        if self.running(request):
            self._request = 0

    def answered(self, worker: Worker, message: messages.Message, now: float) -> None:
        """The answer has come. A row that raises tells nothing: another is asked for; if all do, the batch fails."""
        self._schedule.answered(worker.number, self._request, now)
        self._request = 0
        if isinstance(message, messages.Done) and message.layout:
            self._assembly.learn(message.layout)
            self._schedule.stackable = self._assembly.stackable
            self._tried.clear()
        elif isinstance(message, messages.Unstackable):
            self._schedule.make_whole(self._bundle)
        elif isinstance(message, messages.Done) and message.failures:
            self._failed(message.failures[0].error, worker)
        elif isinstance(message, messages.Failed):
            self._failed(message.error, worker)
        elif isinstance(message, messages.Lost):
            self._worker_pool.note_lost(worker, message.reason)
            text = f"a worker ended while it made index {self._bundle.plan.keys[self._row]}: {message.reason}"
            self._failed(messages.RemoteError("headrace.errors:WorkerError", text, ""), worker)

    def _failed(self, error: messages.RemoteError, worker: Worker) -> None:
        tried = self._tried[self._bundle]
        tried.add(self._row)
        if len(tried) == self._bundle.rows:
            self._bundle.failures[0] = remade(error, f"raised on {worker.name}")
