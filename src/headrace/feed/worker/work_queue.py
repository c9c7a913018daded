"""The desk between a feed server's clients and its executors.

Asks of all clients wait in one queue, smallest (epoch, step) first, so that no rank lags. A local client's slabs are
passed on to the executors, which write into them. For a client behind TCP the desk has staging slabs of its own,
bounded in bytes, from which the result is sent as it lies. When an executor dies, the slice that it worked on is
reported lost to its client, who decides; what waited behind it goes back into the queue; the executor is replaced
within a budget.
"""

from __future__ import annotations

import heapq
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import HeadraceError, ProtocolError
from headrace.feed.batch.slab import Slab
from headrace.feed.metrics.rates import Tally
from headrace.feed.metrics.worker_meter import WorkMeter
from headrace.feed.wire import messages
from headrace.feed.wire.channel import ConnectionClosed
from headrace.feed.wire.frames import Frame
from headrace.feed.worker.client_connection import Client
from headrace.feed.worker.executor_pool import DEPTH, Crew, Member, exit_reason
from headrace.feed.worker.plan_check import Plans
from headrace.feed.worker.restart_budget import RestartBudget
from headrace.feed.worker.send_buffers import Staging, check_ask, staged

MAX_OPEN_DEATHS = 2
MIN_DEADLINE = 1.0  # seconds; a client may not have executors ended sooner
STACK_SECONDS = 0.5  # that an executor which hangs has for writing its stack


class CrewLost(HeadraceError):
    """The executors die faster than they may be replaced."""


@dataclass(eq=False)
class Task:
    """An Ask on its way. `request` is the desk's number for it; the Ask holds the client's."""

    client: Client
    ask: messages.Ask
    request: int
    pipeline: int
    staging: int = 0
    cancelled: bool = False
    begun: float = 0.0


@dataclass
class _Known:
    """A pipeline that some client has opened."""

    message: messages.Open
    opened: messages.Opened | None = None
    deaths: int = 0


class Desk:
    """See the module.

    Args:
        crew: the executors.
        tell: called with status events: ready, executor_lost.
        memory: limit of the staging slabs, bytes.
        work: measures the executors.
    """

    def __init__(self, crew: Crew, tell: Callable[..., None], memory: int, work: WorkMeter) -> None:
        self._crew = crew
        self._tell = tell
        self._work = work
        self._unsent = 0  # results on their way out, which the network has not taken yet
        self._staging = Staging(memory, lambda number: self._forget_slab(-number))
        self._numbers = 0
        self._queue: list[tuple[int, int, int, Task]] = []
        self._numbered: dict[bytes, int] = {}
        self._known: dict[int, _Known] = {}
        self._waiting: dict[int, list[tuple[Client, int]]] = {}
        self._pipelines: dict[tuple[Client, int], int] = {}
        self._plans = Plans()
        self._client_slabs: dict[tuple[Client, int], int] = {}
        self._slabs: dict[int, Slab] = {}
        self._restarts = RestartBudget()
        self._ready = False
        self.tally = Tally(time.monotonic())
        self.numerics: dict[str, str] = {}

    @property
    def queued(self) -> int:
        """Slices that wait for an executor."""
        return len(self._queue)

    @property
    def staging_bytes(self) -> int:
        """Bytes of the staging slabs that hold results."""
        return self._staging.bytes_in_use

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # What clients say

    def open(self, client: Client, message: messages.Open) -> None:
        """Opens a pipeline for a client on one executor; the others open it when they are first given a slice of it."""
        conflict = self._plans.conflict(client, message)
        if conflict:
            error = messages.RemoteError("headrace.errors:PipelineError", conflict, "")
            client.send(messages.OpenFailed(message.pipeline, error))
            return
        anonymous = msgspec.structs.replace(message, pipeline=0, loader="", plan="")
        key = msgspec.msgpack.encode(anonymous, order="deterministic")
        number = self._numbered.setdefault(key, self._numbers + 1)
        if number not in self._known:
            self._numbers = number
            self._known[number] = _Known(msgspec.structs.replace(anonymous, pipeline=number))
        self._pipelines[client, message.pipeline] = number
        opened = self._known[number].opened
        if opened is not None:
            client.send(msgspec.structs.replace(opened, pipeline=message.pipeline))
            return
        waiting = self._waiting.setdefault(number, [])
        waiting.append((client, message.pipeline))
        self._crew.ensure(message.capability)
        alive = self._alive(message.capability)
        if len(waiting) == 1 and alive:  # otherwise it is introduced to the executor that is on its way
            self._introduce(min(alive, key=lambda member: len(member.tasks)), number)

    def ask(self, client: Client, ask: messages.Ask) -> None:
        """Queues a slice."""
        number = self._pipelines.get((client, ask.pipeline))
        if number is None:
            raise ProtocolError(f"an ask for pipeline {ask.pipeline}, which is not open")
        check_ask(ask)
        self._enqueue(Task(client, ask, self._number(), number))

    def _enqueue(self, task: Task) -> None:
        heapq.heappush(self._queue, (task.ask.epoch, task.ask.pieces[0].step, task.request, task))

    def cancel(self, client: Client, message: messages.Cancel) -> None:
        """Forgets slices that are still queued and stops those on their way.

        A slice at work is finished and its result dropped.
        """
        wanted = set(message.requests)
        for request in wanted:
            client.abort(request)
        kept = []
        for item in self._queue:
            task = item[3]
            if task.client is client and task.ask.request in wanted:
                client.send(messages.Cancelled(task.ask.request))
            else:
                kept.append(item)
        self._queue = kept
        heapq.heapify(self._queue)
        for member in self._crew.members.values():
            for task in member.tasks:
                if task.client is client and task.ask.request in wanted:
                    task.cancelled = True

    def offer(self, client: Client, number: int, slab: Slab) -> None:
        """Takes a slab of a local client. Raises ProtocolError if it has offered that number already."""
        if (client, number) in self._client_slabs:
            slab.close()
            raise ProtocolError(f"slab {number} was offered twice")
        own = self._number()
        self._client_slabs[client, number] = own
        self._slabs[own] = slab

    def drop(self, client: Client, number: int) -> None:
        """Lets a client's slab go."""
        own = self._client_slabs.pop((client, number), None)
        if own is not None:
            self._slabs.pop(own).close()
            self._forget_slab(own)

    def _forget_slab(self, own: int) -> None:
        for member in self._alive():
            if own in member.slabs:
                member.slabs.discard(own)
                self._give(member, messages.SlabDrop(own))

    def client_gone(self, client: Client) -> None:
        """Forgets a client."""
        for owner, number in list(self._client_slabs):
            if owner is client:
                self.drop(client, number)
        self._pipelines = {key: number for key, number in self._pipelines.items() if key[0] is not client}
        self._plans.forget(client)
        self._queue = [item for item in self._queue if item[3].client is not client]
        heapq.heapify(self._queue)

    # What executors say

    def hear(self, member: Member, frame: Frame) -> None:
        """Takes an executor's answer."""
        message = frame.message
        try:
            if isinstance(message, messages.Opened):
                self._opened(message)
            elif isinstance(message, messages.OpenFailed):
                self._open_failed(message)
            elif isinstance(message, (messages.Done, messages.Failed, messages.Unstackable)):
                self._answered(member, message, frame)
        finally:
            frame.discard()

    def _opened(self, message: messages.Opened) -> None:
        known = self._known[message.pipeline]
        self.numerics = message.numerics
        if known.opened is None:
            known.opened = message
            for client, number in self._waiting.pop(message.pipeline, []):
                client.send(msgspec.structs.replace(message, pipeline=number))

    def _open_failed(self, message: messages.OpenFailed) -> None:
        for client, number in self._waiting.pop(message.pipeline, []):
            client.send(messages.OpenFailed(number, message.error))
        for member in self._alive():  # the next Open tries again
            member.opened.discard(message.pipeline)

    def _answered(
        self, member: Member, message: messages.Done | messages.Failed | messages.Unstackable, frame: Frame
    ) -> None:
        if not member.tasks or member.tasks[0].request != message.request:
            raise ProtocolError(f"executor {member.number} answered {message.request}, which is not its turn")
        task = member.tasks[0]
        if len(member.tasks) > 1:
            member.tasks[1].begun = time.monotonic()
        member.hung = ""
        self._work.answered(member.number, message)
        answer = msgspec.structs.replace(message, request=task.ask.request)
        if isinstance(answer, messages.Done):
            member.slices += 1
            self.tally.add(time.monotonic(), answer.size, answer.cpu)
        if isinstance(answer, messages.Done) and not task.cancelled and not task.client.local:
            self._send_payload(task, answer, frame)
            member.tasks.popleft()
            return
        member.tasks.popleft()
        if task.cancelled:
            task.client.send(messages.Cancelled(task.ask.request))
        elif isinstance(answer, messages.Done):
            answer = msgspec.structs.replace(answer, slab=0 if answer.fresh else task.ask.slab)
            task.client.send(answer, descriptors=frame.descriptors)
        else:
            task.client.send(answer)
        self._unstage(task)

    def _send_payload(self, task: Task, answer: messages.Done, frame: Frame) -> None:
        if answer.fresh:
            self._unstage(task)
            task.staging = self._staging.adopt(Slab(frame.take_descriptor(), answer.size))
        if not task.staging:  # digests only, or nothing but failures
            task.client.send(msgspec.structs.replace(answer, slab=0, size=0))
            return
        number = task.staging
        payload = self._staging.payload(number, task.ask, task.pipeline, answer)
        answer = msgspec.structs.replace(answer, slab=0, fresh=False, size=sum(part.nbytes for part in payload))
        request = task.ask.request

        def sent() -> None:
            self._unsent -= 1
            self._staging.release(number)

        self._unsent += 1
        task.client.send(answer, payload=payload, sent=sent, key=request)

    def _unstage(self, task: Task) -> None:
        if task.staging:
            self._staging.release(task.staging)
            task.staging = 0

    # Giving work

    def _alive(self, capability: str | None = None) -> list[Member]:
        return [
            member for member in self._crew.members.values()
            if not member.dead and (capability is None or member.capability == capability)
        ]  # fmt: skip

    def dispatch(self) -> None:
        """Gives queued slices to executors that have room."""
        short = self._give_out()
        self._work.hold(self._unsent + (len(self._queue) if short else 0))

    def _give_out(self) -> bool:
        """Does so. Returns whether it ended for want of memory."""
        while self._queue:
            _, _, _, task = self._queue[0]
            capability = self._known[task.pipeline].message.capability
            alive, avoid = self._alive(capability), task.ask.avoid
            others = [member for member in alive if member.number != avoid and len(member.tasks) < 2 * DEPTH]
            free = [member for member in alive if len(member.tasks) < DEPTH]
            fit = others if avoid >= 0 and others else free  # a check by the one who made it would tell nothing
            if not fit:
                return False
            if not self._prepare(min(fit, key=lambda candidate: len(candidate.tasks)), task):
                return True  # the staging memory is used up; it comes back when the clients have read
            heapq.heappop(self._queue)
        return False

    def end_stuck(self) -> None:
        """Ends executors that have worked on a slice for longer than its deadline: their stacks go to the log first."""
        now = time.monotonic()
        for member in self._alive():
            task = member.tasks[0] if member.tasks else None
            if task is None or not task.ask.deadline:
                continue
            deadline = max(MIN_DEADLINE, task.ask.deadline)
            if now - task.begun < deadline:
                continue
            if not member.hung:
                member.hung = f"it hung for {deadline:.0f} s; its stack is in the log"
                self._crew.signal(member, signal.SIGUSR1)
            elif now - task.begun > deadline + STACK_SECONDS:
                self._crew.signal(member, signal.SIGKILL)

    def _prepare(self, member: Member, task: Task) -> bool:
        ask = task.ask
        slab = 0
        if task.client.local:
            slab = self._client_slabs.get((task.client, ask.slab), 0)
            if slab:
                self._offer(member, slab, self._slabs[slab])
        else:
            staging = self._staging.reserve(ask, task.pipeline)
            if staging is None:
                return False
            if staging:
                task.staging, slab = staging, -staging
                self._offer(member, slab, self._staging[staging])
            ask = staged(ask)
        self._introduce(member, task.pipeline)
        if not member.tasks:
            task.begun = time.monotonic()
        member.tasks.append(task)
        self._work.asked(member.number, ask)
        self._give(member, msgspec.structs.replace(ask, request=task.request, pipeline=task.pipeline, slab=slab))
        return True

    def _offer(self, member: Member, number: int, slab: Slab) -> None:
        if number not in member.slabs:
            member.slabs.add(number)
            self._give(member, messages.SlabOffer(number, slab.size), [slab.descriptor])

    def _introduce(self, member: Member, pipeline: int) -> None:
        if pipeline not in member.opened:
            member.opened.add(pipeline)
            self._give(member, self._known[pipeline].message)

    def _give(self, member: Member, message: messages.Message, descriptors: Sequence[int] = ()) -> None:
        try:
            member.channel.send(message, descriptors=descriptors)
        except ConnectionClosed:
            self._crew.discard(member)  # its end is told by the zygote

    # Executors that end

    def member_closed(self, member: Member) -> None:
        """Takes an executor out of service whose socket has closed; the zygote tells how it ended."""
        self._crew.discard(member)

    def hear_zygote(self, frames: Sequence[Frame]) -> None:
        """Takes what the zygote tells. ConnectionClosed passes through: without a zygote the server ends."""
        for frame in frames:
            message = frame.message
            if isinstance(message, messages.Forked):
                self._crew.members[message.number].pid = message.pid
                if not self._ready and all(member.pid for member in self._crew.members.values()):
                    self._ready = True
                    self._tell(event="ready", executors=self._crew.size)
            elif isinstance(message, messages.Exited):
                member = self._crew.by_pid(message.pid)
                if member is not None:
                    self._replace(member, member.hung or exit_reason(message.status))

    def _replace(self, member: Member, reason: str) -> None:
        self._crew.discard(member)
        self._work.lost(member.number)
        allowed = self._restarts.spend(time.monotonic())
        self._tell(event="executor_lost", pid=member.pid, reason=reason, replaced=allowed)
        for place, task in enumerate(member.tasks):
            self._unstage(task)
            if task.cancelled:
                task.client.send(messages.Cancelled(task.ask.request))
            elif place == 0:
                text = f"executor {member.number}: {reason}"
                task.client.send(messages.Lost(task.ask.request, text, bool(member.hung)))
            elif not task.client.closed:
                self._enqueue(task)
        if not allowed:
            raise CrewLost(f"{self._restarts.describe('executors')}; the last one {reason}")
        fresh = self._crew.start(member.number, member.capability)
        for number in list(self._waiting):
            capability = self._known[number].message.capability
            if number in member.opened:
                self._retry_open(fresh, number, reason)
            elif capability == member.capability and not any(number in other.opened for other in self._alive()):
                self._introduce(fresh, number)

    def _retry_open(self, member: Member, number: int, reason: str) -> None:
        known = self._known[number]
        known.deaths += 1
        if known.deaths < MAX_OPEN_DEATHS:
            self._introduce(member, number)
            return
        known.deaths = 0
        text = f"making {known.message.factory} ended {MAX_OPEN_DEATHS} executors; the last one {reason}"
        self._open_failed(messages.OpenFailed(number, messages.RemoteError("headrace.errors:WorkerError", text, "")))
