"""A session is one client of the feed at work: it keeps the window of batches, waits for them and hands them over.

Everything happens inside `wait_for` and `take`, in the caller's thread: there is no thread that could starve or leak.
While the trainer computes, workers and receiver go on by themselves, as far as they were asked: for as much as they can
make in the longest time that the trainer was away lately, within the window of batches. `take` asks for it before the
trainer gets its batch. What goes wrong in that is raised by the next `wait_for`: the batch that was taken is not lost.
"""

from __future__ import annotations

import collections
import logging
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import FeedError, ProtocolError, WorkersLost
from headrace.feed.client.assembly import Assembly, Delivery
from headrace.feed.client.exchange import Exchange
from headrace.feed.client.policy import BatchSkipped, Policy, SessionStats, Skipped
from headrace.feed.client.scheduler import BUNDLE_BATCHES
from headrace.feed.client.work_units import Bundle
from headrace.feed.client.worker_pool import PATIENCE, WorkerPool
from headrace.feed.descriptors import explained
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.wire import messages
from headrace.feed.wire.messages import Mixing

_log = logging.getLogger(__name__)

WARN_SECONDS = 10.0  # without any worker, after which the user is warned
WINDOW = 8  # bundles on their way, at least
LATELY = 64  # bundles
FIRST_SECONDS = 1.0  # that a trainer is taken to be away before that is known
PUMP_SECONDS = 0.002  # while a bundle of small batches is handed over, workers are looked after that often


def check_owner(owner: int) -> None:
    """Raises FeedError if this process is a fork of the one whose pass it is."""
    if owner != os.getpid():
        raise FeedError(
            f"this pass over the loader belongs to process {owner}, of which this one is a fork",
            hint="make a pass of its own in each process: iter(loader)",
        )


class Session:
    """See the module.

    Args:
        worker_pool: makes and keeps the workers.
        opening: the pipeline, as it is opened on every worker.
        policy: how it works.
        stats: counters to add to.
        warn: called with what the user should know, and the kind of warning.
        tune: called with the session at every step, between two exchanges: nothing is half done then. It may change
            how many workers there are and how far is asked ahead.

    Attributes:
        ahead: batches that may be on their way even where the window is full.
        blocked: seconds in which a batch was waited for that was not there.
        worker_pool: the workers.
    """

    def __init__(
        self,
        worker_pool: WorkerPool,
        opening: messages.Open,
        policy: Policy,
        stats: SessionStats,
        warn: Callable[[str, type[Warning]], None],
        tune: Callable[[Session], None] | None = None,
    ) -> None:
        self._owner = os.getpid()
        self.worker_pool = worker_pool
        self._assembly = Assembly(policy.memory, policy.pinning)
        self.taken_bytes = 0  # of the tensors and arrays of the batch that was taken last
        self._exchange = Exchange(worker_pool, opening, self._assembly, policy, stats, warn)
        self._exchange.opened = self._fill
        self._schedule = self._exchange.schedule
        self._prefetch = policy.prefetch
        self._stall_timeout = policy.stall_timeout
        self._warn, self._warned = warn, False
        now = self._now = worker_pool.now
        self._plans: Iterator[BatchPlan] = iter(())
        self._units: Callable[[int], int] = _one_each
        self._peeked: BatchPlan | None = None  # taken from the plans, but not pushed yet
        self._open: tuple[Bundle, Iterator[Delivery | Exception]] | None = None  # the bundle that is handed over
        self._handed = 0  # batches of it that were
        self._unraised: Exception | None = None  # what went wrong when batches were asked for behind one that was taken
        self._tune = tune
        self.ahead = 0
        self.blocked = 0.0
        self._asked = now()  # when workers were last asked
        self._away = 0.0  # the longest time without that since a bundle was handed over, and before that
        self._aways = collections.deque([FIRST_SECONDS], maxlen=LATELY)
        self.stats = stats
        self.closed = False

    # The caller's side

    def begin(self, plans: Iterator[BatchPlan], units: Callable[[int], int] | None = None) -> None:
        """Starts on a new sequence of batches; what was under way is forgotten.

        Args:
            plans: the sequence.
            units: returns how many plans so many of the trainer's batches are made of; None where it is one each.
        """
        self._schedule.clear()
        self._assembly.forget_all()
        self._exchange.abandon()
        self._open, self._peeked, self._unraised = None, None, None
        self._plans, self._units = plans, units or _one_each
        self._asked, self._away = self._now(), 0.0
        try:
            with explained():
                self._exchange.greet(self._now())  # workers start while a sampler makes its order
                self._fill()
                self._exchange.ask_slices()  # of workers that have stayed
        except BaseException:
            self.close()
            raise

    @property
    def length(self) -> int | None:
        """Length of the dataset, None until a worker has opened the pipeline."""
        return self._exchange.union.length

    @property
    def data(self) -> str:
        """Digest of the data that the workers hold; empty while, or if, it is not known."""
        return self._exchange.union.data

    @property
    def mixing(self) -> Mixing | None:
        """What the workers' data are a mixture of; None until it is known."""
        return self._exchange.union.mixing

    @property
    def queued(self) -> int:
        """Batches of the trainer that are ready to be taken."""
        return self._ready_plans() // self._units(1)

    def _ready_plans(self) -> int:
        ready = sum(len(bundle.plans) for bundle in self._schedule.bundles.values() if bundle.complete)
        return ready + (len(self._open[0].plans) - self._handed if self._open is not None else 0)

    @property
    def slab_bytes(self) -> int:
        """Bytes of the slabs."""
        return self._assembly.ledger.total_bytes

    @property
    def serving(self) -> list[int]:
        """Returns the executors of each worker that is asked: a local one, or a host."""
        return [worker.executors for worker in self._schedule.workers.values()]

    @property
    def receiver_cpu_seconds(self) -> float:
        """CPU time of the receiver, while the session is open; afterwards `stats` has it."""
        return 0.0 if self.closed else self.worker_pool.receiver_cpu()

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the session's, whose connections are not its own."""
        return self._owner != os.getpid()

    def wait_for_length(self, timeout: float | None) -> int:
        """Returns the dataset's length, once a worker has opened the pipeline. Raises as `wait_for`."""
        check_owner(self._owner)
        self._pump(lambda: self.length is not None, timeout, "the dataset's length")
        assert self.length is not None
        return self.length

    def wait_for(self, epoch: int, step: int, timeout: float | None, window: int = 1) -> bool:
        """Waits until a batch is there. Returns False beyond the plan's end.

        Args:
            epoch, step: the first batch that was not taken.
            timeout: seconds; None or 0 for the session's own limit.
            window: so many batches from there on are waited for: until any of them is there (`first_ready`).

        Raises:
            WorkersLost: no worker is left that can serve.
            PipelineError, or the user's own exception type: the pipeline cannot be opened.
            FeedError: the pass has ended, or belongs to the process that this one is a fork of.
            RuntimeError: `timeout` seconds have passed. The session goes on; after any other error it is closed.
        """
        check_owner(self._owner)
        if self._unraised is not None:
            error, self._unraised = self._unraised, None
            raise error
        if self.closed:
            raise FeedError("this pass over the loader has ended: an error ended it, or the loader was closed")
        if self._open is not None:
            if self._now() - self._asked > PUMP_SECONDS:
                self._step_or_close(0.0)
            return True
        self._fill()
        if (epoch, step) not in self._schedule.bundles:
            return False
        what = f"batch {step} of epoch {epoch}"
        self._pump(lambda: self.first_ready(epoch, step, window) is not None, timeout, what)
        return True

    def ready(self, epoch: int, step: int, window: int = 1) -> bool:
        """Returns whether `wait_for` would return, or raise, at once. Raises as it does."""
        if self.closed or self._open is not None or self._unraised is not None or self.inherited:
            return True
        self._fill()
        if (epoch, step) not in self._schedule.bundles:
            return True
        self._step_or_close(0.0)
        return self.first_ready(epoch, step, window) is not None

    def count_ready(self) -> int:
        """Looks what has come, and returns how many plans are ready. Raises as `wait_for`."""
        check_owner(self._owner)
        self._step_or_close(0.0)
        return self._ready_plans()

    def first_ready(self, epoch: int, step: int, window: int = 1) -> int | None:
        """Returns the number of the first batch that is there (or has failed), of `window` batches from a step on.

        Batches that travel together are there together: the step's own, and others that end inside the window.
        """
        if self._open is not None:
            return self._open[0].plans[self._handed].step
        if window == 1:
            head = self._schedule.bundles[epoch, step]  # it may have been replaced by bundles of single batches
            return step if head.complete or head.failed else None
        for (of, first), bundle in self._schedule.bundles.items():
            if of != epoch or (first != step and bundle.plans[-1].step >= step + window):
                return None
            if bundle.complete or bundle.failed:
                return first
        return None

    def take(self, epoch: int, step: int) -> tuple[Any, int] | None:
        """Returns the batch (or the sample, without batching) that was waited for, and its number of rows.

        Returns:
            None for a batch all of whose rows were skipped.

        Raises:
            WorkerError, or the user's own exception type: the dataset or collate function raised.
        """
        if self._open is None:
            bundle = self._schedule.pop(epoch, step)
            self._open, self._handed = (bundle, self._assembly.hand_over(bundle)), 0
        bundle, deliveries = self._open
        try:
            delivery = next(deliveries)
        except ProtocolError:
            self.close()
            raise
        plan = bundle.plans[self._handed]
        self._handed += 1
        if self._handed == len(bundle.plans):
            self._open = None
            self._ask_ahead()
        for row, reason in sorted(bundle.left_out.items()):
            self.stats.skipped.append(Skipped(plan.epoch, plan.step, plan.keys[row], reason))
        if isinstance(delivery, BatchSkipped):
            return None
        if isinstance(delivery, Exception):
            raise delivery
        self.taken_bytes = delivery.size
        self.stats.bytes_copied += delivery.size if delivery.copied else 0
        return delivery.data, plan.rows - len(bundle.left_out)

    def close(self) -> None:
        """Ends the session's links and processes and gives up its slabs."""
        if not self.closed:
            self.stats.receiver_cpu_seconds += self.worker_pool.receiver_cpu()
            self.closed = True
            self._open = None
            self.worker_pool.close()
            self._assembly.ledger.close()

    # The window

    def _ask_ahead(self) -> None:
        self._aways.append(self._away)
        self._away = 0.0
        self._schedule.unattended(math.inf if self._prefetch else max(self._aways))
        try:
            self._fill()
        except Exception as error:  # noqa: BLE001 - the sampler's: raised by the next `wait_for`
            self._unraised = error
        try:
            with explained():
                self._exchange.ask_slices()
        except Exception as error:  # noqa: BLE001 - raised by the next `wait_for`
            self._unraised = error
            self.close()
        self._asked = self._now()

    def _fill(self) -> None:
        """Takes plans while fewer batches are on their way than there should be."""
        schedule, prefetch, executors = self._schedule, self._prefetch, max(1, self._schedule.executors)
        limit, window = self._units((prefetch or 0) * executors), max(WINDOW, 2 * executors, self._units(2))
        while True:
            batches, most = schedule.batches, BUNDLE_BATCHES
            full = batches >= limit if prefetch else len(schedule.bundles) >= window
            if full and batches >= self._units(self.ahead):
                return
            if prefetch:
                most = max(1, min(prefetch // 2, limit - batches))
            if not (plans := self._next_plans(most)):
                return
            schedule.push(plans)

    def _next_plans(self, most: int) -> list[BatchPlan]:
        """Takes the next plans, as many as should travel together: of one epoch."""
        first = self._peeked or next(self._plans, None)
        self._peeked = None
        if first is None:
            return []
        size = self._assembly.batch_bytes(first.rows)
        count = self._schedule.bundle_size(first.rows, size, self._assembly.bundle_limit)
        plans, alike = [first], (first.epoch, first.rows)
        while first.draw is None and len(plans) < min(count, most):
            self._peeked = next(self._plans, None)
            if self._peeked is None or (self._peeked.epoch, self._peeked.rows) != alike:
                break
            plans.append(self._peeked)
            self._peeked = None
        return plans

    # The pump

    def _pump(self, finished: Callable[[], bool], timeout: float | None, what: str) -> None:
        asked = begun = self._now()
        deadline = begun + timeout if timeout else None
        replays = self._exchange.replays
        if finished():
            self._step_or_close(0.0)  # workers are looked after all the same
            return
        while not finished():
            now = self._now()
            if self._exchange.replays != replays:  # a lane is being replayed: slow, and alive
                begun, replays = now, self._exchange.replays
            if deadline is not None and now >= deadline:
                raise RuntimeError(
                    f"DataLoader timed out after {timeout} seconds waiting for {what}: {self._awaited()}"
                )
            if now - begun > self._stall_timeout:
                awaited = self._awaited()
                self.close()
                raise WorkersLost(
                    f"{what} did not come within {self._stall_timeout:.0f} s: {awaited}",
                    hint=self._advice(),
                )
            if now - begun > WARN_SECONDS and not self._warned and not self._schedule.workers:
                self._warned = True
                self._warn(f"still waiting for workers: {self.worker_pool.describe()}", UserWarning)
            pause = min(PATIENCE, deadline - now) if deadline is not None else PATIENCE
            self._step_or_close(max(0.0, pause))
        self.blocked += self._now() - asked

    def _step_or_close(self, pause: float) -> None:
        self._away = max(self._away, self._now() - self._asked)
        try:
            with explained():
                self._exchange.step(pause)
            if self._tune is not None:
                self._tune(self)
        except BaseException:  # whatever interrupted it (a Ctrl-C too), what is under way is not known any more
            self.close()
            raise
        self._asked = self._now()

    def _advice(self) -> str:
        if not self._schedule.workers and self.worker_pool.absent():
            return "start the hosts that are missing, or take them out of workers="
        if not self._schedule.workers and not self.worker_pool.served:
            return "to open the dataset may take that long: raise stall_timeout; or a worker hangs: see its log"
        return "a sample may take that long: raise stall_timeout; or a worker hangs: see its log"

    def _awaited(self) -> str:
        head = self._schedule.head
        if head is not None:
            for slice_ in head.slices:
                if slice_.requests:
                    keys = [key for plan in head.plans for key in plan.keys][slice_.first : slice_.last][:8]
                    who = ", ".join(request.worker.name for request in slice_.requests)
                    return f"waited for {who}, indices {keys}"
        return self.worker_pool.describe()


def _one_each(batches: int) -> int:
    return batches
