"""The work queue between a feed server's clients and its executors.

Requests of all clients wait in one `FairQueue`: every job gets as many bytes. A local client's slabs are passed on to
the executors, which write into them. For a client behind TCP the work queue has staging slabs of its own, bounded in
bytes, from which the result is sent as it lies. When an executor dies, the slice that it worked on is reported lost to
its client, who decides; what waited behind it goes back into the queue; the executor is replaced.

How often that may happen is a budget of each job for each of its pipelines: a job whose samples, or whose dataset, end
too many executors is refused here, and the others go on. Executors that end while they work for nobody have a budget of
their own, which is the server's.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable, Sequence

import msgspec

from headrace.errors import HeadraceError, PipelineError, ProtocolError, WorkerError
from headrace.exit_status import exit_text, split_status
from headrace.feed.batch.slab import Slab
from headrace.feed.descriptors import FULL, no_room
from headrace.feed.identifiers import NO_SLAB, PipelineNumber, SlabNumber
from headrace.feed.metrics.worker_meter import WorkMeter
from headrace.feed.wire import messages
from headrace.feed.wire.frames import Frame
from headrace.feed.wire.messages import Exited, Forked, JobStatus
from headrace.feed.wire.remote_errors import remote_error
from headrace.feed.worker.clients import ClientConnection, FairQueue, OpenPipelines, ServerRequest
from headrace.feed.worker.executor_pool import ExecutorPool, ExecutorProcess
from headrace.feed.worker.executor_rules import RestartBudget
from headrace.feed.worker.send_buffers import (
    Staging,
    check_request,
    is_empty,
    made_bytes,
)

MAX_OPEN_DEATHS = 2
MIN_DEADLINE = 1.0  # seconds; a client may not have executors ended sooner


_Charge = tuple[str, PipelineNumber]  # a job, and what it has open
WINDOW = 10.0


class SliceRate:
    """Counts slices.

    Args:
        now: monotonic seconds.

    Attributes:
        slices: slices made.
        bytes: their bytes.
        cpu_seconds: CPU time of the executors that it took.
    """

    def __init__(self, now: float) -> None:
        self.begun = now
        self.slices = 0
        self.bytes = 0
        self.cpu_seconds = 0.0
        self._recent: collections.deque[list[float]] = collections.deque()  # one entry a second: when, slices, bytes

    def add(self, now: float, size: int, cpu: float) -> None:
        """Counts a slice of `size` bytes that took `cpu` seconds."""
        self.slices += 1
        self.bytes += size
        self.cpu_seconds += cpu
        if not self._recent or now - self._recent[-1][0] >= 1.0:
            self._recent.append([now, 0, 0])
        self._recent[-1][1] += 1
        self._recent[-1][2] += size
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._recent and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()

    def rates(self, now: float) -> tuple[float, float]:
        """Returns slices a second and bytes a second over the last ten seconds, or since the start if that is less."""
        self._forget(now)
        span = max(1.0, min(WINDOW, now - self.begun))
        return sum(entry[1] for entry in self._recent) / span, sum(entry[2] for entry in self._recent) / span


def enter_plan(client: ClientConnection, message: messages.Open, ranks: Sequence[ClientConnection]) -> str:
    """Takes a client's plan. Returns what is wrong with it beside those of other ranks, empty if nothing is.

    Args:
        client, message: whose plan, and what it opens.
        ranks: all clients of its job.
    """
    for other in ranks if message.plan else ():
        if other.plans.get(message.loader, message.plan) == message.plan or other.hello is None or client.hello is None:
            continue
        if other.hello.rank != client.hello.rank:  # the same rank may have made another loader of this name
            return (
                f"rank {client.hello.rank} and rank {other.hello.rank} have different plans for the loader "
                f"{message.loader!r}: pipeline, length, seed, shuffle, drop_last, global batch, world size, and where "
                "they begin (a state that was loaded) must be equal on all ranks; ranks of different jobs that share "
                "a server are told apart by HEADRACE_FEED_JOB"
            )
    if message.plan:
        client.plans[message.loader] = message.plan
    return ""


class ExecutorsLost(HeadraceError):
    """The executors die faster than they may be replaced."""


class WorkQueue:
    """See the module.

    Args:
        pool: the executors.
        tell: called with status events: ready, executor_lost, job_refused.
        memory: limit of the staging slabs, bytes.
        work: measures the executors.
    """

    def __init__(self, pool: ExecutorPool, tell: Callable[..., None], memory: int, work: WorkMeter) -> None:
        self._pool = pool
        self._tell = tell
        self._work = work
        self._unsent = 0  # results on their way out, which the network has not taken yet
        self._staging = Staging(memory, self._forget_slab)
        self._arrivals = itertools.count(1)
        self._queue = FairQueue()
        self._pipelines = OpenPipelines()
        self._restarts = RestartBudget()  # of executors that ended while they worked for nobody
        self._charged = collections.defaultdict[_Charge, RestartBudget](RestartBudget)
        self._ready = False
        self.tally = SliceRate(time.monotonic())
        self.numerics: dict[str, str] = {}

    @property
    def queued(self) -> int:
        """Slices that wait for an executor."""
        return len(self._queue)

    @property
    def staging_bytes(self) -> int:
        """Bytes of the staging slabs that hold results."""
        return self._staging.bytes_in_use

    def jobs(self) -> list[JobStatus]:
        """Returns what is made for each job."""
        return self._queue.status(self._staging.held)

    # What clients say

    def open(self, client: ClientConnection, message: messages.Open) -> None:
        """Opens a pipeline for a client on one executor; the others open it when they are first given a slice of it."""
        self._queue.enter(client, message.job)
        if conflict := enter_plan(client, message, self._queue.clients[message.job]):
            client.send(messages.OpenFailed(message.pipeline, remote_error(PipelineError(conflict))))
            return
        number = self._pipelines.enter(client, message, time.monotonic())
        self.let_go()
        if refusal := self._refusal((message.job, number)):
            self._refuse(client, refusal)
            return
        opened = self._pipelines[number].opened
        if opened is not None:
            client.send(msgspec.structs.replace(opened, pipeline=message.pipeline))
            return
        waiting = self._pipelines.waiting.setdefault(number, [])
        waiting.append((client, message.pipeline))
        alive = self._pool.alive()
        if len(waiting) == 1 and alive:  # otherwise it is introduced to the executor that is on its way
            self._introduce(min(alive, key=lambda executor: len(executor.requests)), number)

    def request(self, client: ClientConnection, message: messages.SliceRequest) -> None:
        """Queues a slice."""
        number = self._pipelines.number(client, message.pipeline)
        if number is None:
            raise ProtocolError(f"a request for pipeline {message.pipeline}, which is not open")
        check_request(message)
        message = msgspec.structs.replace(
            message, pipeline=number, alone=not client.local, sums=not client.local and client.summed
        )
        self._queue.push(ServerRequest(client, message, next(self._arrivals)))

    def cancel(self, client: ClientConnection, message: messages.Cancel) -> None:
        """Forgets slices that are still queued and stops those on their way.

        A slice at work is finished and its result dropped.
        """
        wanted = set(message.requests)
        for number in wanted:
            client.abort(number)
        for request in self._queue.take_out(lambda each: each.client is client and each.message.number in wanted):
            client.send(messages.Cancelled(request.message.number))
        for executor in self._pool.executors.values():
            for request in executor.requests:
                if request.client is client and request.message.number in wanted:
                    request.cancelled = True

    def offer(self, client: ClientConnection, number: SlabNumber, slab: Slab) -> None:
        """Takes a slab of a local client. Raises ProtocolError if it has offered that number already."""
        if number in client.slabs:
            slab.close()
            raise ProtocolError(f"slab {number} was offered twice")
        client.slabs[number] = next(self._staging.numbers), slab

    def drop(self, client: ClientConnection, number: SlabNumber) -> None:
        """Lets a client's slab go."""
        if number in client.slabs:
            own, slab = client.slabs.pop(number)
            slab.close()
            self._forget_slab(own)

    def _forget_slab(self, own: SlabNumber) -> None:
        for executor in self._pool.alive():
            executor.drop(own)

    def client_gone(self, client: ClientConnection) -> None:
        """Forgets a client."""
        for number in [*client.slabs]:
            self.drop(client, number)
        self._pipelines.forget(client, time.monotonic())
        self._queue.leave(client)

    def let_go(self) -> None:
        """Has the executors close what nobody has open any more; see `OpenPipelines.let_go`."""
        for number in self._pipelines.let_go(time.monotonic()):
            for charge in [charge for charge in self._charged if charge[1] == number]:
                del self._charged[charge]
            self._staging.forget(number)
            self._pool.forget(number)
            for executor in self._pool.alive():  # also one that could not open it: it keeps what it has built
                executor.opened.discard(number)
                executor.opening.discard(number)
                executor.post(messages.Close(number))

    # What executors say

    def hear(self, executor: ExecutorProcess, frame: Frame) -> None:
        """Takes an executor's answer."""
        message = frame.message
        try:
            if isinstance(message, messages.Opened):
                executor.opening.discard(message.pipeline)
                self._opened(message)
            elif isinstance(message, messages.OpenFailed):
                executor.opening.discard(message.pipeline)
                self._open_failed(message)
            elif isinstance(message, (messages.Done, messages.Failed, messages.Unstackable)):
                self._answered(executor, message, frame)
        finally:
            frame.discard()

    def _opened(self, message: messages.Opened) -> None:
        for (_, number), budget in self._charged.items():
            if number == message.pipeline:
                budget.begun()
        self.numerics = message.numerics
        self._pipelines.opened(message)

    def _open_failed(self, message: messages.OpenFailed) -> None:
        self._pipelines.failed(message)
        for executor in self._pool.alive():  # the next Open tries again
            executor.opened.discard(message.pipeline)

    def _answered(
        self, executor: ExecutorProcess, message: messages.Done | messages.Failed | messages.Unstackable, frame: Frame
    ) -> None:
        if not executor.requests or executor.requests[0].message.number != message.request:
            raise ProtocolError(
                f"executor {executor.number} answered request {message.request}, which it does not work on"
            )
        request = executor.requests[0]
        if len(executor.requests) > 1:
            executor.requests[1].begun = time.monotonic()
        executor.hang.answered()
        self._work.answered(executor.number, message)
        if isinstance(message, messages.Done):
            executor.slices += 1
            size = made_bytes(request.message, message)
            self.tally.add(time.monotonic(), size, message.cpu)
            self._queue.ended(request, size, message.cpu)
        else:
            self._queue.ended(request, None)
        if isinstance(message, messages.Done) and not request.cancelled and not request.client.local:
            self._send_payload(request, message, frame)
        else:
            told = messages.Cancelled(message.request) if request.cancelled else message
            request.client.send(told, descriptors=() if request.cancelled else frame.descriptors)
            self._unstage(request)
        executor.requests.popleft()

    def _send_payload(self, request: ServerRequest, answer: messages.Done, frame: Frame) -> None:
        if answer.fresh:
            self._unstage(request)
            fresh = Slab(frame.take_descriptor(), answer.size)
            request.staging = self._staging.adopt(fresh, request.client.job)
        if not request.staging or is_empty(request.message, answer):  # digests only, or nothing but failures
            self._unstage(request)
            answer.size = 0
            request.client.send(answer)
            return
        number = request.staging
        payload = self._staging.payload(number, request.message, answer)
        answer.size, answer.link = sum(part.nbytes for part in payload.pieces), self._work.links.share(time.monotonic())
        answer.fresh, answer.sums = False, b""

        def sent() -> None:
            self._unsent -= 1
            self._staging.release(number)

        self._unsent += 1
        request.client.send(answer, payload=payload, sent=sent, key=request.message.number)

    def _unstage(self, request: ServerRequest) -> None:
        if request.staging:
            self._staging.release(request.staging)
            request.staging = NO_SLAB

    # Giving work

    def dispatch(self) -> None:
        """Gives queued slices to executors that have room."""
        short = self._give_out()
        self._work.hold(self._unsent + (len(self._queue) if short else 0))

    def _give_out(self) -> bool:
        """Sends slices until none fits. Returns whether a job waits because it has no memory left."""
        full: set[str] = set()  # jobs that get nothing now
        short = False
        while (request := self._queue.first(full)) is not None:
            executor = self._pool.choose(request)
            if executor is None:
                if request.message.draw is None:
                    full.add(request.client.job)
                else:
                    self._queue.pass_over(request)  # its lane's executor has no room; others may have
                continue
            try:
                prepared = self._prepare(executor, request)
            except OSError as error:  # no memory, or no descriptor, for a job that holds nothing
                self._queue.give_out(request)
                self._queue.ended(request, None)
                self._unstage(request)
                told = remote_error(no_room(error) if error.errno in FULL else error)
                request.client.send(messages.Failed(request.message.number, told))
                continue
            if prepared:
                self._queue.give_out(request)
            else:
                short = True  # the job's staging memory is used up; it comes back when its clients have read
                full.add(request.client.job)
        self._queue.restore()
        return short

    def end_stuck(self) -> None:
        """Ends executors that have worked on a slice for longer than its deadline: their stacks go to the log first."""
        now = time.monotonic()
        for executor in self._pool.alive():
            request = executor.requests[0] if executor.requests else None
            if request is None or not request.message.deadline:
                continue
            deadline = max(MIN_DEADLINE, request.message.deadline)
            if now - request.begun >= deadline:
                executor.hang.overdue(now, deadline)

    def _prepare(self, executor: ExecutorProcess, request: ServerRequest) -> bool:
        message, slab = request.message, NO_SLAB
        if request.client.local:
            if message.slab in request.client.slabs:
                slab, memory = request.client.slabs[message.slab]
                executor.offer(slab, memory)
        else:
            staging = self._staging.reserve(message, request.client.job, len(self._queue.clients))
            if staging is None:
                return False
            if staging:
                request.staging = slab = staging
                executor.offer(slab, self._staging[staging])
        self._introduce(executor, message.pipeline)
        if not executor.requests:
            request.begun = time.monotonic()
        executor.requests.append(request)
        self._work.asked(executor.number, message)
        executor.post(msgspec.structs.replace(message, slab=slab))
        return True

    def _introduce(self, executor: ExecutorProcess, pipeline: PipelineNumber) -> None:
        if pipeline not in executor.opened:
            executor.opened.add(pipeline)
            executor.opening.add(pipeline)
            executor.post(self._pipelines[pipeline].message)

    # Executors that end

    def hear_forkserver(self, frames: Sequence[Frame]) -> None:
        """Takes what the fork server reports. Raises ConnectionClosed: without a fork server the feed server ends."""
        for frame in frames:
            message = frame.message
            if isinstance(message, Forked):
                self._pool.executors[message.number].pid = message.pid
                if not self._ready and all(executor.pid for executor in self._pool.executors.values()):
                    self._ready = True
                    self._tell(event="ready", executors=self._pool.size)
            elif isinstance(message, Exited):
                self._replace(self._pool.executors[message.number], message.status)

    def _replace(self, executor: ExecutorProcess, status: int) -> None:
        reason, hung = executor.hang.reason or exit_text(*split_status(status)), bool(executor.hang.reason)
        self._pool.discard(executor)
        self._work.lost(executor.number)
        charge = self._worked_for(executor)
        opening = charge is not None and charge[1] in executor.opening
        budget = self._restarts if charge is None else self._charged[charge]
        alive = self._pool.alive()
        others = charge is not None and any(charge[1] in other.opened - other.opening for other in alive)
        allowed = budget.spend(time.monotonic(), begun=not opening, killed_beside_others=status < 0 and others)
        replaced = allowed or charge is not None
        self._tell(event="executor_lost", pid=executor.pid, status=status, hung=hung, reason=reason, replaced=replaced)
        for place, request in enumerate(executor.requests):
            self._unstage(request)
            self._queue.ended(request, None)
            if request.cancelled:
                request.client.send(messages.Cancelled(request.message.number))
            elif place == 0 and not opening:
                text = f"executor {executor.number}: {reason}"
                request.client.send(messages.Lost(request.message.number, text, hung))
            elif not request.client.closed:
                self._queue.push(request)
        if not allowed:
            ended = f"{budget.describe('executors')}; the last one {reason}"
            if charge is None:
                raise ExecutorsLost(ended)
            self._give_up(charge, ended, opening=opening)
        fresh = self._pool.start(executor.number)
        for number in list(self._pipelines.waiting):
            if number in executor.opened:
                self._retry_open(fresh, number, reason)
            elif not any(number in other.opened for other in self._pool.alive()):
                self._introduce(fresh, number)

    def _worked_for(self, executor: ExecutorProcess) -> _Charge | None:
        """Returns the job and the pipeline that an executor worked for, and so may have ended of; None if for none."""
        if executor.requests:
            request = executor.requests[0]
            return request.client.job, request.message.pipeline
        for number, clients in self._pipelines.waiting.items():
            if number in executor.opening and clients:
                return clients[0][0].job, number
        return None

    def _give_up(self, charge: _Charge, ended: str, *, opening: bool) -> None:
        """A job has used up its executors over a pipeline: its clients are refused."""
        job, number = charge
        factory = self._pipelines[number].message.factory
        work = f"while they made {factory}" if opening else f"over samples of {factory}"
        budget = self._charged[charge]
        if not budget.refusal:
            budget.refusal = f"{ended}, {work}"
            self._tell(event="job_refused", job=job, reason=budget.refusal)
        for client in self._pipelines.holders(number):
            if client.job == job:
                self._refuse(client, budget.refusal)
        self._queue.take_out(lambda request: request.client.closed)

    def _refusal(self, charge: _Charge) -> str:
        """Returns why a job is refused a pipeline; empty when it is not, or not any more."""
        budget = self._charged.get(charge)  # there is none before an executor has ended over it
        if budget is None:
            return ""
        if budget.left(time.monotonic()):
            budget.refusal = ""
        return budget.refusal

    def _refuse(self, client: ClientConnection, why: str) -> None:
        client.send(messages.Refused(why))
        client.closed = True  # the server's loop forgets it
        client.channel.close()

    def _retry_open(self, executor: ExecutorProcess, number: PipelineNumber, reason: str) -> None:
        known = self._pipelines[number]
        known.deaths += 1
        if known.deaths < MAX_OPEN_DEATHS:
            self._introduce(executor, number)
            return
        known.deaths = 0
        text = f"making {known.message.factory} ended {MAX_OPEN_DEATHS} executors; the last one {reason}"
        self._open_failed(messages.OpenFailed(number, remote_error(WorkerError(text))))
