"""What a session exchanges with its workers: sends the requests of `scheduler`, takes the answers.

The clock is given, and the network is behind `WorkerPool.exchange`, so that a simulator can drive this very code.
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace.errors import PipelineError, ProtocolError, WorkerError
from headrace.feed.batch import pytree
from headrace.feed.batch.plain_values import is_broken
from headrace.feed.client.assembly import Assembly
from headrace.feed.client.policy import BatchSkipped, Policy, PurityWarning, SessionStats
from headrace.feed.client.scheduler import MAX_DEATHS, MAX_ENDING, Everywhere, Schedule
from headrace.feed.client.shard_placement import DataUnion, LayoutProbe
from headrace.feed.client.verifier import Check, Verifier
from headrace.feed.client.work_units import Bundle, Request, Slice
from headrace.feed.client.worker_pool import Arrival, Worker, WorkerPool, WorkerState
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.pipelines.purity import differences, kind_of
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import Link
from headrace.feed.wire.frames import Frame
from headrace.feed.wire.remote_errors import in_short, remade

_PLAIN = {int, str, float, bool, bytes, type(None)}  # keys that a message holds as they are
_INTS = (-(2**63), 2**64)


def batch_rows(slice_: Slice, placement: Everywhere, worker: Worker) -> tuple[messages.BatchRows, ...]:
    """Returns what is requested for a slice of a worker, which may have other names for its samples."""
    bundle = slice_.bundle
    if len(bundle.plans) > 1:
        return tuple(_batch_rows(plan, 0, plan.rows, plan.keys, ()) for plan in bundle.plans)
    plan, left_out = bundle.plan, bundle.left_out if slice_.whole else ()
    keys = plan.keys[slice_.first : slice_.last]
    if left_out:
        keys = [key for row, key in enumerate(keys, slice_.first) if row not in left_out]
    return (_batch_rows(plan, slice_.first, slice_.last, placement.local(worker, keys), left_out),)


def _batch_rows(
    plan: BatchPlan, first: int, last: int, keys: Sequence[Any], left_out: Collection[int]
) -> messages.BatchRows:
    keys = list(keys)
    if _plain(keys):
        return messages.BatchRows(plan.step, plan.position, plan.rows, first, last, keys, left_out=tuple(left_out))
    try:
        node, leaves, size = pytree.describe(keys, "indices")
    except PipelineError as error:
        raise PipelineError(
            f"an index that the sampler gave cannot be sent to a worker: {error.message}",
            hint="give numbers, strings, bytes, None, enums, tuples, lists or dicts of them, arrays or tensors as "
            "indices, and let the dataset make of them what it needs; or load without workers (num_workers=0)",
        ) from error
    packed = pytree.packed(leaves, size)
    return messages.BatchRows(plan.step, plan.position, plan.rows, first, last, node, True, packed, tuple(left_out))


def _plain(keys: list[object]) -> bool:
    """Whether a message can hold the keys as they are."""
    kinds = set(map(type, keys))
    if str in kinds and any(type(key) is str and is_broken(key) for key in keys):
        return False
    if int in kinds and len(kinds) > 1:
        return kinds <= _PLAIN and all(_plain([key]) for key in keys)
    return kinds <= _PLAIN and (int not in kinds or (min(keys) >= _INTS[0] and max(keys) < _INTS[1]))  # type: ignore[type-var, operator]


class Exchange:
    """See the module.

    Args:
        worker_pool: makes and keeps the workers.
        opening: the pipeline, as it is opened on every worker.
        assembly: where batches come together.
        policy: see `Policy`.
        stats: counters to add to.
        warn: called with what the user should know.
    """

    def __init__(
        self,
        worker_pool: WorkerPool,
        opening: messages.Open,
        assembly: Assembly,
        policy: Policy,
        stats: SessionStats,
        warn: Callable[[str, type[Warning]], None],
    ) -> None:
        self.union = DataUnion(worker_pool, opening, lambda text: warn(text, UserWarning))
        self.schedule = Schedule(self.union.holdings)
        self.replays = 0  # answers of lanes that are on their way to what was asked for
        self.opened: Callable[[], None] = lambda: None
        self._worker_pool = worker_pool
        self._opening = opening
        self._assembly = assembly
        self._policy = policy
        self._stats = stats
        self._warn = warn
        self._now = worker_pool.now
        self._noted: set[str] = set()
        self._reference: dict[str, str] | None = None  # how the first worker computes
        self._numerics_told = False
        self._verifier = Verifier(policy.verify)
        self._layout_probe = LayoutProbe(self.schedule, assembly)

    def step(self, pause: float) -> None:
        """Asks what can be asked and takes what has come; waits up to `pause` seconds for something."""
        now = self._now()
        self.greet(now)
        self._dismiss()
        self._settle_shards(now)
        self._ask(now)
        arrivals = self._worker_pool.exchange(min(pause, self._worker_pool.patience))
        try:
            for arrival in arrivals:
                self._take_all(arrival)
        finally:
            for frame in itertools.chain.from_iterable(arrival.frames for arrival in arrivals):
                frame.discard()
        now = self._now()
        for link, why in self._worker_pool.silent(now):
            self._link_lost(link, why)
        self._stats.slices_timed_out += self._worker_pool.end_stuck(now, self._policy.slice_timeout)
        self._ask(now)
        work = self.schedule.idle_work(now, hedge=self._policy.hedge)  # nothing whose answer has come
        if work.again is not None:
            self._ask_one(*work.again, now)
        self._cancel(work.taken)

    def _take_all(self, arrival: Arrival) -> None:
        try:
            for frame in arrival.frames:
                self._take(self._worker_pool.worker_of(arrival.link, frame.route), frame)
        except ProtocolError as error:
            self._link_lost(arrival.link, str(error))
        else:
            if arrival.broken is not None:
                self._link_lost(arrival.link, arrival.broken)

    def greet(self, now: float) -> None:
        """Starts, or connects to, the workers that are missing, and has the new ones open the pipeline."""
        for worker in self._worker_pool.maintain(now):
            worker.link.post(self._opening, worker.route)

    def _dismiss(self) -> None:
        """Asks those that are to go for nothing more, and lets go of them when they owe nothing."""
        for worker in self._worker_pool.leaving():
            if worker.state is WorkerState.DISMISSED:
                worker.state = WorkerState.LEAVING
                self.union.gone(worker.number)
                self.schedule.leave(worker)
                self.schedule.recut()
                self._cancel(self.schedule.not_begun(worker))
            if not worker.outstanding:
                self._worker_pool.release(worker)

    def abandon(self) -> None:
        """A pass has ended: cancels its requests, and drops the checks that wait."""
        self._verifier.clear()
        self._cancel([owed for worker in self._worker_pool.workers() for owed in worker.outstanding.values()])

    def _cancel(self, requests: Sequence[Request]) -> None:
        for worker, owed in itertools.groupby(requests, key=lambda request: request.worker):
            worker.link.post(messages.Cancel([request.number for request in owed]), worker.route)

    def _link_lost(self, link: Link, why: str) -> None:
        for worker in self._worker_pool.link_lost(link, why, self._now()):
            self._lost(worker, may_still_write=worker.own_host)

    # Asking

    def _ask(self, now: float) -> None:
        self.union.judge(self.schedule.bundles.values(), now)
        if self._opening.lanes:
            self.schedule.lanes.executors = max(self._worker_pool.executors, self.schedule.executors)
        if (probe := self._layout_probe.next_row()) is not None:
            number, row = probe
            request = self._layout_probe.request = self.schedule.ask(number, row, "layout", now)
            self._send(request, batch_rows(row, self.schedule.placement, request.worker), b"", messages.SUM)
        self._worker_pool.held(short=self.ask_slices())
        while (check := self._verifier.next(self.schedule.makers, self.schedule.requested)) is not None:
            number, first = check
            made = first.request.message
            layout = b"" if made.whole else first.done.layout
            avoid = first.done.executor if number == first.request.worker.number else -1
            request = self.schedule.ask(number, first.request.slice, "check", now, first)
            self._send(request, made.batches, layout, messages.SUM, avoid)

    def ask_slices(self) -> bool:
        """Asks for slices while workers have room. Returns whether there is one that there is no memory for."""
        now = self._now()
        while (chosen := self.schedule.next_slice()) is not None:
            if not self._ask_one(*chosen, now):
                return True
        return False

    def _ask_one(self, number: WorkerNumber, slice_: Slice, now: float) -> bool:
        """Asks a worker for a slice. Returns False when there is no memory for it."""
        worker, bundle = self.schedule.workers[number], slice_.bundle
        again = bool(slice_.requests)
        if again:
            slab = self._assembly.prepare_spare(slice_)
            if not slab:
                return False
        elif not self._assembly.prepare(slice_, head=self.schedule.head is bundle):
            return False
        else:
            slab = bundle.slab
        check = messages.MAKE
        if not again and not bundle.left_out and self._may_check(worker, slice_):
            plan = bundle.plan
            if self._verifier.wants(plan.epoch, plan.step, slice_.first):
                check = messages.MAKE_AND_SUM
        request = self.schedule.request(number, slice_, now)
        if slab:
            request.slab = slab
            self._worker_pool.offer(worker, self._assembly.ledger, slab)
            self._assembly.ledger.lend(slab)
        self._stats.hedges += request.purpose == "hedge"
        batches = batch_rows(slice_, self.schedule.placement, worker)
        self._send(request, batches, self._assembly.layout_of(slice_), check)
        return True

    def _may_check(self, worker: Worker, slice_: Slice) -> bool:
        if slice_.draw is not None and not (slice_.draw.first and slice_.draw.cheap()):
            return False  # another worker would have to replay the lane; its beginning says nothing of tokens
        if not self._policy.verify:
            return False
        makers = self.schedule.makers(worker, slice_)
        if makers is self.schedule.workers:
            return self._worker_pool.executors > 1  # those too that will be started
        return sum(other.executors for other in makers.values()) > 1

    def _send(
        self, request: Request, batches: tuple[messages.BatchRows, ...], layout: bytes, check: int, avoid: int = -1
    ) -> None:
        plan, draw = request.slice.bundle.plan, None
        if request.check is not None:
            draw = request.check.request.message.draw
        elif request.slice.draw is not None:
            draw = self.schedule.lanes.asked(request.slice.draw)
        request.message = messages.SliceRequest(
            request.number, self._opening.pipeline, plan.epoch, plan.seed, batches, request.slice.whole, request.slab,
            layout, check, avoid, self._policy.slice_timeout, draw,
        )  # fmt: skip
        self._worker_pool.request(request.worker, request.message)

    # Answers

    def _take(self, worker: Worker | None, frame: Frame) -> None:
        message = frame.message
        if worker is None:
            return  # a host that went down while this was on its way
        if isinstance(message, messages.Opened):
            self._opened(worker, message)
        elif isinstance(message, messages.OpenFailed):
            raise remade(message.error, f"{worker.name} cannot open the pipeline", PipelineError)
        elif isinstance(message, messages.Down):
            self._worker_pool.down(worker, message.reason, refused=message.refused)
            self._lost(worker, may_still_write=False)
        elif isinstance(message, (messages.Welcome, messages.Challenge, messages.Refused)):
            self._worker_pool.handshake(worker, message)
        elif isinstance(message, messages.Answer):
            self._answer(worker, message, frame)

    def _opened(self, worker: Worker, message: messages.Opened) -> None:
        if worker.state is not WorkerState.OPENING:
            return  # the answer to a comparison of the shards, or of one that is to go
        if not self.union.opened(worker, message, self._now()):
            return
        worker.numerics = kind_of(message.numerics)
        if self._reference is None:
            self._reference = message.numerics
        different = differences(self._reference, message.numerics)
        if different and self._policy.numerics == "refuse":
            reason = f"{worker.name} is not used, it computes with other libraries or another CPU: {different}"
            self._warn(reason, UserWarning)
            self._worker_pool.refuse(worker, reason)
            self.union.refused(worker.number)
            self.schedule.recut()
            return
        if different and not self._numerics_told:
            self._numerics_told = True
            self._warn(
                f"workers compute with different libraries or CPUs, batches may differ in the last bits: {different}",
                UserWarning,
            )
        self._serve(worker)

    def _settle_shards(self, now: float) -> None:
        if (placement := self.union.settle(now)) is not None:
            self.schedule.placement = placement
            for worker in self._worker_pool.workers():
                if worker.ready:
                    self._serve(worker)

    def _serve(self, worker: Worker) -> None:
        self._worker_pool.opened(worker)
        if self.union.gathering:
            return  # until it is known what the others hold
        comparison = self.union.comparison()
        if comparison is not None:
            worker.link.post(comparison, worker.route)
        self.schedule.add_worker(worker, self._now())
        self.opened()

    def _answer(self, worker: Worker, message: messages.Answer, frame: Frame) -> None:
        """Does what follows from an answer."""
        request = self.schedule.answered(worker, message.request, self._now())
        if request is None:
            self._stats.duplicates_dropped += isinstance(message, messages.Done)
            return
        self._assembly.ledger.settle(request.slab)
        slice_, bundle = request.slice, request.slice.bundle
        if isinstance(message, messages.Lost):
            worker.reason = message.reason  # its host replaces the executor
        if request.check is not None:
            if isinstance(message, messages.Done):
                self._compare(worker, request.check, message)
        elif request.purpose == "layout":
            self._layout_probe.answered(worker, slice_, message)
        elif request.unwanted:
            self._stats.duplicates_dropped += isinstance(message, messages.Done)
        elif isinstance(message, messages.Done):
            self._done(worker, request, message, frame)
        elif isinstance(message, messages.Unstackable):
            if request.message.check:
                self._verifier.unwanted()
            self._restart(bundle)
            self.schedule.make_whole(bundle)
        elif isinstance(message, messages.Failed):
            error = remade(message.error, f"raised on {worker.name}")
            bundle.failures = dict.fromkeys(range(len(bundle.plans)), error)
        elif isinstance(message, messages.Lost):
            self._stats.slices_timed_out += message.hung
            self._died(worker, slice_, message.reason)

    def _compare(self, worker: Worker, check: Check, done: messages.Done) -> None:
        self._stats.worker_cpu_seconds += done.cpu
        if done.drawn is not None and done.drawn.behind:
            return  # a replay that takes too long for a check
        compared = self._verifier.compared
        difference = self._verifier.compare(worker, check, done)
        self._stats.slices_verified += self._verifier.compared - compared
        if difference is not None:
            self._stats.purity_failures += 1
            if self._stats.purity_failures == 1:
                self._warn(difference.warning(), PurityWarning)

    def _done(self, worker: Worker, request: Request, message: messages.Done, frame: Frame) -> None:
        slice_, bundle = request.slice, request.slice.bundle
        self._worker_pool.served = True
        self._stats.worker_cpu_seconds += message.cpu
        self._stats.latencies.append(min(self._now() - request.asked, request.expected + message.seconds))
        drawn = message.drawn
        if slice_.draw is not None and drawn is not None:
            if drawn.behind:
                self.replays += 1  # it is asked for again: nothing is done
                return
            if drawn.note and drawn.note not in self._noted:
                self._noted.add(drawn.note)
                self._warn(drawn.note, UserWarning)
            slice_.draw.answered(drawn)
            if not drawn.rows:
                bundle.failures[0] = BatchSkipped()
        elif slice_.draw is not None:
            slice_.draw.failed = True
        host = self._stats.hosts.setdefault(worker.name, {"rows": 0, "seconds": 0.0, "cpu_seconds": 0.0})
        host["rows"] += slice_.rows if drawn is None else drawn.rows
        host["seconds"] += message.seconds
        host["cpu_seconds"] += message.cpu
        host["link"] = message.link
        for failure in message.failures:
            if not 0 <= failure.batch < len(bundle.plans):
                raise ProtocolError(f"a failure of batch {failure.batch} of {len(bundle.plans)}")
        skip = bool(message.failures) and self._policy.on_error == "skip"
        if not skip and len(bundle.failures) + len(message.failures) < len(bundle.plans):
            self._assembly.arrived(slice_, request.slab, message, frame)
            self.schedule.stackable |= bool(message.layout)
        self._verifier.made(message.seconds)
        others = self.schedule.done(request, message.seconds, message.cpu)
        if others:
            self._stats.hedges_won += request.purpose == "hedge"
            self._cancel(others)
        if request.message.check and not message.failures and not bundle.failures:
            self._verifier.add(Check(request, message, self.schedule.requested, worker.numerics))
        if skip and bundle.singly and not slice_.whole and slice_.first <= message.failures[0].row < slice_.last:
            [failure] = message.failures
            bundle.left_out[failure.row] = in_short(failure.error)
            self.schedule.go_around(slice_, failure.row)
            self._go_on_without(bundle)
            return
        if skip:
            self._restart(bundle)
            singles = self.schedule.singles(bundle)
            for failure in message.failures:
                self._leave_out(singles[failure.batch], failure.row, in_short(failure.error))
            return
        for failure in message.failures:
            plan = bundle.plans[failure.batch]
            over = f" over index {reprlib.repr(plan.keys[failure.row])}" if 0 <= failure.row < plan.rows else ""
            where = f"raised on {worker.name}{'' if slice_.draw is not None else over}"
            bundle.failures[failure.batch] = remade(failure.error, where)
        self._go_on_without(bundle)

    def _lost(self, worker: Worker, *, may_still_write: bool) -> None:
        self._stats.workers_lost += worker.ready
        requests = self.schedule.remove_worker(worker)
        for request in requests:
            if may_still_write and request.slab:
                self._assembly.ledger.taint(request.slab)
        for place, request in enumerate(requests):
            at_work = place == 0 and worker.is_executor  # it may be what ended it
            if request.check is not None:
                if not at_work:
                    self._verifier.add(request.check)
            elif request.purpose == "layout":
                self._layout_probe.answered(worker, request.slice, None)
            elif request.unwanted:
                continue
            elif at_work:
                self._died(worker, request.slice, worker.reason)
            else:
                self._stats.retries += 1
                if may_still_write:
                    self._restart(request.slice.bundle)
        for request in requests:
            self._assembly.ledger.settle(request.slab)
        self.union.gone(worker.number)
        self.schedule.recut()

    # Rows that cannot be made

    def _restart(self, bundle: Bundle) -> None:
        """Begins a bundle again in another slab."""
        self.schedule.start_over(bundle)
        self._assembly.forget(bundle)

    def _died(self, worker: Worker, slice_: Slice, reason: str) -> None:
        """An executor died over a slice: it is asked for again, unless `Schedule.died` gives it up."""
        self._stats.retries += 1
        bundle = slice_.bundle
        if self.schedule.died(slice_):
            if slice_.whole and slice_ not in bundle.slices:
                self._assembly.forget(bundle)  # its rows lie elsewhere
            if self.schedule.bundles.get((bundle.plan.epoch, bundle.plan.step)) is not bundle:
                self._assembly.forget(bundle)  # each of its batches stands alone now
            return
        ended = {2: "two", 4: "four"}.get(slice_.deaths, slice_.deaths)
        if self._policy.on_error == "skip":
            why = f"{ended} workers ended over it; the last one, on {worker.name}: {reason}"
            if slice_.whole or slice_.rows == bundle.rows:
                self._restart(bundle)
                self._leave_out(bundle, -1, why)
            else:
                bundle.left_out.update(dict.fromkeys(range(slice_.first, slice_.last), why))
                slice_.done = True
                self._go_on_without(bundle)
            return
        keys = list(bundle.plan.keys[slice_.first : slice_.last])
        shown = f"indices {keys[:16]}{'...' if len(keys) > 16 else ''}"
        if slice_.draw is not None:
            shown = f"outputs {keys[0]}..{keys[-1]} of lane {slice_.draw.cursor.lane}"
        bundle.failures[0] = WorkerError(
            f"{ended} workers ended while they made {shown}; the last one, on {worker.name}: {reason}",
            hint="load these samples in a plain Python process to see why; they may need too much memory or exit",
        )

    def _leave_out(self, single: Bundle, row: int, reason: str) -> None:
        """Leaves a row, or all rows, out of a batch, which is asked for again without them."""
        plan = single.plan
        rows = [row] if 0 <= row < plan.rows else [row for row in range(plan.rows) if row not in single.left_out]
        single.left_out.update(dict.fromkeys(rows, reason))
        self._make_without(single)

    def _make_without(self, single: Bundle) -> None:
        if len(single.left_out) == single.rows:
            single.failures[0] = BatchSkipped()
        else:
            self.schedule.make_whole(single)

    def _go_on_without(self, bundle: Bundle) -> None:
        """Rows of a batch ended workers that made them alone, or raised beside such rows. Once all are known, or of the
        former `MAX_ENDING`, it is made without them: each costs workers, and how many may end in a while is limited.
        """
        if not bundle.left_out or bundle.slices[0].whole:
            return
        if bundle.complete or sum(slice_.deaths >= MAX_DEATHS for slice_ in bundle.slices) >= MAX_ENDING:
            self._restart(bundle)
            self._make_without(bundle)
