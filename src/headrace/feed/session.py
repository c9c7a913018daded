"""A session: one client of the feed at work. The shell around `schedule`.

It holds the links, the slabs and the clock. Everything happens inside `next_batch`, in the caller's thread: there is
no thread that could starve or leak. While the trainer computes, workers and receiver go on by themselves, as far as
they were asked; the window of batches is that far.
"""

from __future__ import annotations

import collections
import select
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import FeedError, PipelineError, ProtocolError, WorkerError, WorkersLost
from headrace.feed import messages, tree
from headrace.feed.assembly import Assembly
from headrace.feed.fingerprint import differences
from headrace.feed.frames import Frame
from headrace.feed.links import Link
from headrace.feed.plan import BatchPlan
from headrace.feed.schedule import Batch, Part, Schedule
from headrace.feed.supply import Supply, Worker
from headrace.feed.trouble import raise_remote
from headrace.feed.wire import ConnectionClosed


@dataclass
class SessionStats:
    """Counters of a loader's sessions."""

    batches: int = 0
    bytes: int = 0
    bytes_copied: int = 0
    retries: int = 0
    workers_lost: int = 0
    duplicates_dropped: int = 0
    worker_cpu_seconds: float = 0.0


class Session:
    """See the module.

    Args:
        supply: makes and keeps the workers.
        opening: the pipeline, as it is opened on every worker.
        memory: limit of the slabs, bytes.
        prefetch: batches on their way per executor; None to choose.
        stall_timeout: seconds after which a batch that does not come is an error; names who was waited for.
        stats: counters to add to.
        warn: called with what the user should know.
    """

    def __init__(
        self,
        supply: Supply,
        opening: messages.Open,
        *,
        memory: int,
        prefetch: int | None,
        stall_timeout: float,
        stats: SessionStats,
        warn: Callable[[str], None],
    ) -> None:
        self._supply = supply
        self._opening = opening
        self._assembly = Assembly(memory)
        self._prefetch = prefetch
        self._stall_timeout = stall_timeout
        self._warn = warn
        self._schedule = Schedule()
        self._plans: Iterator[BatchPlan] = iter(())
        self._warned = False
        self._numerics: dict[str, str] | None = None
        self.length: int | None = None
        self.stats = stats
        self.closed = False

    # The caller's side

    def begin(self, plans: Iterator[BatchPlan]) -> None:
        """Starts on a new sequence of batches; what was under way is forgotten."""
        stale = self._schedule.clear()
        self._assembly.forget_all()
        by_worker: dict[Worker, list[int]] = {}
        for worker in self._supply.workers():
            source = self._schedule.sources.get(worker.number)
            owed = [request for request in stale if source is not None and request in source.outstanding]
            if owed:
                by_worker[worker] = owed
        for worker, requests in by_worker.items():
            _send(worker.link, messages.Cancel(requests), worker.route)
        self._plans = plans
        self._fill()

    def wait_for_length(self, timeout: float | None) -> int:
        """Returns the dataset's length as the workers tell it. Raises as `wait_for`."""
        self._pump(lambda: self.length is not None, timeout, "the dataset's length")
        assert self.length is not None
        return self.length

    def wait_for(self, epoch: int, step: int, timeout: float | None) -> bool:
        """Waits until a batch is there. Returns False beyond the plan's end.

        Raises:
            WorkersLost: nobody is left who can serve.
            PipelineError, or the user's own exception type: the pipeline cannot be opened.
            RuntimeError: `timeout` seconds have passed. The session goes on; after any other error it is closed.
        """
        if self.closed:
            raise FeedError("this pass over the loader has ended: an error ended it, or the loader was closed")
        self._fill()
        if (epoch, step) not in self._schedule.batches:
            return False
        head = self._schedule.batches[epoch, step]
        self._pump(lambda: head.complete or head.failure is not None, timeout, f"batch {step} of epoch {epoch}")
        return True

    def take(self, epoch: int, step: int) -> tuple[Any, int]:
        """Returns the batch (or the sample, without batching) that was waited for, and its number of rows.

        Raises:
            WorkerError, or the user's own exception type: the dataset or collate function raised.
        """
        head = self._schedule.pop(epoch, step)
        if head.failure is not None:
            self._assembly.forget(head)
            raise head.failure
        data, size, copied = self._assembly.hand_over(head)
        self.stats.batches += 1
        self.stats.bytes += size
        self.stats.bytes_copied += size if copied else 0
        return data, head.plan.rows

    def close(self) -> None:
        """Ends the session's links and processes and gives up its slabs."""
        if not self.closed:
            self.closed = True
            self._supply.close()
            self._assembly.shelf.close()

    # The pump

    def _fill(self) -> None:
        executors = max(1, self._schedule.executors)
        window = self._prefetch * executors if self._prefetch else max(8, 2 * executors)
        while len(self._schedule.batches) < window:
            plan = next(self._plans, None)
            if plan is None:
                return
            self._schedule.push(plan)

    def _pump(self, finished: Callable[[], bool], timeout: float | None, what: str) -> None:
        begun = time.monotonic()
        deadline = begun + timeout if timeout else None
        self._step_or_close(0.0)
        while not finished():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise RuntimeError(
                    f"DataLoader timed out after {timeout} seconds waiting for {what}: {self._awaited()}"
                )
            if now - begun > self._stall_timeout:
                awaited = self._awaited()
                self.close()
                raise WorkersLost(
                    f"{what} did not come within {self._stall_timeout:.0f} s: {awaited}",
                    hint="a sample may take that long: raise stall_timeout; or a worker hangs: see its log",
                )
            pause = min(0.2, deadline - now) if deadline is not None else 0.2
            self._step_or_close(max(0.0, pause))

    def _step_or_close(self, pause: float) -> None:
        try:
            self._step(pause)
        except BaseException:  # whatever interrupted it (a Ctrl-C too), what is under way is not known any more
            self.close()
            raise

    def _awaited(self) -> str:
        head = next(iter(self._schedule.batches.values()), None)
        names = {worker.number: worker.name for worker in self._supply.workers()}
        if head is not None:
            for part in head.parts:
                if part.request:
                    keys = list(head.plan.keys[part.first : part.last])[:8]
                    return f"waited for {names.get(part.source, 'a worker')}, indices {keys}"
        return self._supply.describe()

    def _step(self, pause: float) -> None:
        for worker in self._supply.maintain(time.monotonic()):
            _send(worker.link, self._opening, worker.route)
        self._ask()
        poll = select.poll()
        links = {link.channel.fileno(): link for link in self._supply.links()}
        for descriptor, link in links.items():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if link.channel.wants_write else 0))
        for descriptor, events in poll.poll(int(pause * 1000)):
            link = links[descriptor]
            try:
                if events & select.POLLOUT:
                    link.channel.flush()
                if events & ~select.POLLOUT:
                    self._hear(link)
            except (ConnectionClosed, ProtocolError) as error:
                self._link_lost(link, str(error))
        for link, why in self._supply.silent(time.monotonic()):
            self._link_lost(link, why)
        if pause:
            self._ask()

    def _hear(self, link: Link) -> None:
        frames = collections.deque(link.channel.receive())
        try:
            while frames:
                frame = frames.popleft()
                try:
                    self._take(self._supply.worker_of(link, frame.route), frame)
                finally:
                    frame.discard()
        finally:
            for frame in frames:
                frame.discard()

    def _link_lost(self, link: Link, why: str) -> None:
        for worker in self._supply.link_lost(link, why):
            self._lost(worker, may_still_write=worker.kind == "server")

    # Asking

    def _ask(self) -> None:
        while True:
            chosen = self._schedule.next_part()
            if chosen is None:
                return
            number, part = chosen
            worker = self._supply.worker(number)
            if worker is None or not self._ask_one(worker, part):
                return

    def _ask_one(self, worker: Worker, part: Part) -> bool:
        batch, plan = part.batch, part.batch.plan
        if not self._assembly.prepare(part, head=next(iter(self._schedule.batches.values())) is batch):
            return False
        if batch.slab:
            self._offer(worker, batch.slab)
        request = self._schedule.asked(worker.number, part)
        keys, leaves, size = tree.describe(list(plan.keys[part.first : part.last]), "indices")
        ask = messages.Ask(
            request, self._opening.pipeline, plan.epoch, plan.step, plan.seed, plan.position, plan.rows,
            part.first, part.last, keys, part.whole, batch.slab, self._assembly.layout_of(part),
            tree.packed(leaves, size),
        )  # fmt: skip
        if batch.slab:
            self._assembly.shelf.lend(batch.slab, request)
        _send(worker.link, ask, worker.route)
        return True

    def _offer(self, worker: Worker, number: int) -> None:
        self._announce_dropped()
        if number not in worker.link.slabs:
            worker.link.slabs.add(number)
            slab = self._assembly.shelf[number]
            _send(worker.link, messages.SlabOffer(number, slab.size), descriptors=[slab.descriptor])

    def _announce_dropped(self) -> None:
        for number in self._assembly.shelf.take_dropped():
            for link in self._supply.links():
                if number in link.slabs:
                    link.slabs.discard(number)
                    _send(link, messages.SlabDrop(number))

    # Answers

    def _take(self, worker: Worker | None, frame: Frame) -> None:
        message = frame.message
        if worker is None:
            return  # a host that went down while this was on its way
        if isinstance(message, messages.Opened):
            self._opened(worker, message)
        elif isinstance(message, messages.OpenFailed):
            raise_remote(message.error, f"{worker.name} cannot open the pipeline", PipelineError)
        elif isinstance(message, messages.Down):
            self._supply.down(worker, message.reason, refused=message.refused)
            self._lost(worker, may_still_write=False)
        elif isinstance(message, (messages.Welcome, messages.Challenge, messages.Refused)):
            self._supply.handshake(worker, message)
        elif not isinstance(message, messages.Pong):
            self._answer(worker, message, frame)

    def _opened(self, worker: Worker, message: messages.Opened) -> None:
        if self.length is not None and self.length != message.length:
            raise PipelineError(
                f"the dataset has {message.length} samples on {worker.name} and {self.length} elsewhere",
                hint="all workers must see the same data; check the channel on that host",
            )
        self.length = message.length
        if self._numerics is None:
            self._numerics = message.numerics
        different = differences(self._numerics, message.numerics)
        if different and not self._warned:
            self._warned = True
            self._warn(
                f"workers compute with different libraries or CPUs, batches may differ in the last bits: {different}"
            )
        worker.ready = True
        self._schedule.add_source(worker.number, worker.name, worker.executors, shared=worker.kind == "server")
        self._fill()

    def _answer(self, worker: Worker, message: messages.Message, frame: Frame) -> None:
        request = getattr(message, "request", 0)
        part = self._schedule.answered(worker.number, request)
        self._assembly.shelf.settle(request)
        if part is None:
            self.stats.duplicates_dropped += isinstance(message, messages.Done)
            return
        if isinstance(message, messages.Done):
            self._done(worker, part, message, frame)
        elif isinstance(message, messages.Unstackable):
            self._restart(part.batch)
            self._schedule.make_whole(part.batch)
        elif isinstance(message, messages.Failed):
            try:
                raise_remote(message.error, f"raised on {worker.name}", WorkerError)
            except Exception as error:  # noqa: BLE001 - the user's own exception, raised when its batch is due
                part.batch.failure = error
        elif isinstance(message, messages.Lost):
            self._supply.note_lost(worker, message.reason)
            self._died(worker, part, message.reason)

    def _done(self, worker: Worker, part: Part, message: messages.Done, frame: Frame) -> None:
        self._assembly.arrived(part.batch, message, frame)
        self._schedule.stackable = self._assembly.stackable
        self._schedule.done(worker.number, part, message.seconds, message.cpu)
        self.stats.worker_cpu_seconds += message.cpu

    def _died(self, worker: Worker, part: Part, reason: str) -> None:
        self.stats.retries += 1
        if not self._schedule.died(part):
            keys = list(part.batch.plan.keys[part.first : part.last])
            shown = f"{keys[:16]}{'...' if len(keys) > 16 else ''}"
            part.batch.failure = WorkerError(
                f"two workers ended while they made indices {shown}; the last one, on {worker.name}: {reason}",
                hint="load these samples in a plain Python process to see why; they may need too much memory",
            )

    def _lost(self, worker: Worker, *, may_still_write: bool) -> None:
        self.stats.workers_lost += worker.ready
        worker.ready = False
        running = self._schedule.sources.get(worker.number)
        first = next(iter(running.outstanding), None) if running is not None else None
        requests = list(running.outstanding) if running is not None else []
        owed = self._schedule.remove_source(worker.number)
        for request in requests:
            if may_still_write:
                self._assembly.shelf.taint(request)
        for request, part in zip(requests, owed, strict=True):
            batch = part.batch
            if self._schedule.batches.get((batch.plan.epoch, batch.plan.step)) is not batch:
                continue
            self.stats.retries += 1
            if worker.kind == "executor" and request == first:
                self._died(worker, part, worker.reason)
            if may_still_write:
                self._restart(batch)
        for request in requests:
            self._assembly.shelf.settle(request)

    def _restart(self, batch: Batch) -> None:
        """Begins a batch again in another slab."""
        self._schedule.start_over(batch)
        self._assembly.forget(batch)


def _send(link: Link, message: messages.Message, route: int = 0, descriptors: Sequence[int] = ()) -> None:
    try:
        link.channel.send(message, route=route, descriptors=descriptors)
    except ConnectionClosed:
        return  # polling the link tells the same, and then what it owes is asked for elsewhere
