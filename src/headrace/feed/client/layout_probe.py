"""How rows are laid out, learned from a single row: before a batch can be asked of several sources, in parts.

The row is asked for like any other, but only its layout (and digests) are sent, no data. One such request at a time.
"""

from __future__ import annotations

from headrace.feed.client.assembly import Assembly
from headrace.feed.client.scheduler import Schedule
from headrace.feed.client.shard_placement import Sharding, detached
from headrace.feed.client.work_units import Bundle
from headrace.feed.client.worker_pool import Supply, Worker
from headrace.feed.wire import messages
from headrace.feed.wire.remote_errors import remade


class Prober:
    """See the module.

    Args:
        sharding: who holds what.
        schedule, assembly, supply: of the session.
        deadline: seconds after which an executor is taken for hung.
    """

    def __init__(
        self, sharding: Sharding, schedule: Schedule, assembly: Assembly, supply: Supply, deadline: float
    ) -> None:
        self._sharding = sharding
        self._schedule = schedule
        self._assembly = assembly
        self._supply = supply
        self._deadline = deadline
        self._tried: dict[Bundle, set[int]] = {}
        self._request, self._bundle, self._row = 0, Bundle(()), 0

    def asks(self, now: float) -> list[tuple[Worker, messages.Ask]]:
        """Returns what to ask for and of whom, when a layout is needed and can be had: at most one."""
        if self._request or not self._sharding.places or self._schedule.stackable or self._sharding.whole:
            return []
        sources = self._schedule.sources
        for bundle in self._schedule.bundles.values():
            if bundle.parts or bundle.failed:
                continue
            tried = self._tried.setdefault(bundle, set())
            for row, key in enumerate(bundle.plan.keys):
                holders = [] if row in tried else self._sharding.map.holders([key])
                able = [number for number in holders if number in sources and sources[number].has_room]
                worker = self._supply.worker(min(able)) if able else None
                if worker is not None:
                    return [(worker, self._ask(worker, bundle, row, now))]
        return []

    def _ask(self, worker: Worker, bundle: Bundle, row: int, now: float) -> messages.Ask:
        plan = bundle.plan
        self._request = self._schedule.asked(worker.number, detached(plan, 1), now)
        self._bundle, self._row = bundle, row
        keys = self._sharding.map.local(worker.number, [plan.keys[row]])
        return messages.Ask(
            self._request, self._sharding.pipeline, plan.epoch, plan.seed,
            (messages.Piece(plan.step, plan.position + row, 1, 0, 1, keys),), False, check=messages.SUM,
            deadline=self._deadline,
        )  # fmt: skip

    def running(self, request: int) -> bool:
        """Whether a request is for a layout."""
        return request == self._request != 0

    def lost(self, request: int) -> None:
        """The source is gone: the row is asked of another."""
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
            self._supply.note_lost(worker, message.reason)
            text = f"a worker ended while it made index {self._bundle.plan.keys[self._row]}: {message.reason}"
            self._failed(messages.RemoteError("headrace.errors:WorkerError", text, ""), worker)

    def _failed(self, error: messages.RemoteError, worker: Worker) -> None:
        tried = self._tried[self._bundle]
        tried.add(self._row)
        if len(tried) == self._bundle.rows:
            self._bundle.failures[0] = remade(error, f"raised on {worker.name}")
