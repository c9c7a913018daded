"""The clients of a feed server: their connections, the pipelines they have open, and the slices that they wait for.

Slices wait in a queue that is fair between jobs by bytes. The job that was made the fewest bytes for is next; inside a
job it is the smallest (epoch, step), so that no rank lags. A slice is charged when it is given out, with what the job's
slices have had on average, and corrected when its size is known. A job that comes, or comes back after it had nothing
to do, begins level with the others: idle time is not saved up, and nobody is made to wait for what he got while he was
alone.

Pipelines that say the same are one. One that nobody has open any more is kept for a minute: a loader that had it may
only have lost its connection. Any other loader that opens it opens it anew, and so finds the data as they are then.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.errors import ProtocolError
from headrace.feed.batch.slab import Slab
from headrace.feed.identifiers import MAX_JOB, NO_SLAB, PipelineNumber, RequestNumber, SlabNumber
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.frames import NO_PAYLOAD, Payload
from headrace.feed.wire.messages import JobStatus


@dataclass(eq=False)
class ClientConnection:
    """One connection of a client.

    Attributes:
        channel: the connection.
        name: who it is, for the log.
        local: whether it came over the Unix socket and can pass descriptors.
        deadline: monotonic time by which it must have proved itself.
        hello: its proof, None until then.
        job: which job it belongs to, as it said when it opened a pipeline.
        plans: of its loaders, by name.
        slabs: those that it has offered, by its own numbers, with the numbers that they have here.
    """

    channel: FramedConnection
    name: str
    local: bool
    deadline: float
    challenge: messages.Challenge
    hello: messages.Hello | None = None
    closed: bool = False
    job: str = ""
    plans: dict[str, str] = field(default_factory=dict)
    slabs: dict[SlabNumber, tuple[SlabNumber, Slab]] = field(default_factory=dict)

    @property
    def summed(self) -> bool:
        """Whether what it is sent carries sums."""
        return not self.channel.stream.authentic

    def send(
        self,
        message: messages.Message,
        descriptors: Sequence[int] = (),
        payload: Payload = NO_PAYLOAD,
        sent: Callable[[], None] | None = None,
        key: RequestNumber | None = None,
    ) -> None:
        """Queues a message; nothing when the connection is gone (the server's loop notices that)."""
        if not self.closed:
            try:
                self.channel.send(message, descriptors=descriptors, payload=payload, sent=sent, key=key)
                return
            except (ConnectionClosed, OSError):  # it is gone, or no descriptor is left for what it is passed
                self.closed = True
                self.channel.close()
                return
        if sent is not None:
            sent()

    def abort(self, request: RequestNumber) -> None:
        """Stops the answer to a request, if it is on its way; answers `Cancelled` if nothing of it had left."""
        if not self.closed and self.channel.abort(request):
            self.send(messages.Cancelled(request))


@dataclass(eq=False)
class ServerRequest:
    """A client's request on its way through the server.

    Attributes:
        message: its number and its slab are the client's, its pipeline is this server's.
        arrival: counts the requests of all clients.
        charged: bytes, see the module.
    """

    client: ClientConnection
    message: messages.SliceRequest
    arrival: int
    staging: SlabNumber = NO_SLAB
    cancelled: bool = False
    begun: float = 0.0
    charged: float = 0.0


_SMOOTHING = 0.3


@dataclass
class JobWork:
    """The work of one job.

    Attributes:
        waiting: heap of its slices that wait, by (epoch, step, number).
        at_work: numbers of the slices that were given out.
        charge: bytes, as compared with other jobs.
        mean: bytes of a slice.
        slices, bytes, cpu_seconds: made since it came.
    """

    waiting: list[tuple[int, int, int, ServerRequest]] = field(default_factory=list)
    at_work: set[int] = field(default_factory=set)
    charge: float = 0.0
    mean: float = 0.0
    slices: int = 0
    bytes: int = 0
    cpu_seconds: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether it waits for anything."""
        return bool(self.waiting or self.at_work)


class FairQueue:
    """See the module.

    Attributes:
        jobs: the work of each job, by name.
        clients: those of each job.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, JobWork] = {}
        self.clients: dict[str, list[ClientConnection]] = {}
        self._passed: list[tuple[int, int, int, ServerRequest]] = []

    def __len__(self) -> int:
        return sum(len(job.waiting) for job in self.jobs.values())

    def push(self, request: ServerRequest) -> None:
        """Adds a slice of its client's job."""
        job = self.jobs.setdefault(request.client.job, JobWork())
        if not job.busy:
            job.charge = max(job.charge, min((other.charge for other in self.jobs.values() if other.busy), default=0.0))
        heapq.heappush(job.waiting, (request.message.epoch, request.message.batches[0].step, request.arrival, request))

    def first(self, left_out: Collection[str]) -> ServerRequest | None:
        """Returns the slice whose turn it is, but for those of some jobs; None when nothing else waits."""
        ready = [(job.charge, name) for name, job in self.jobs.items() if job.waiting and name not in left_out]
        return self.jobs[min(ready)[1]].waiting[0][3] if ready else None

    def pass_over(self, request: ServerRequest) -> None:
        """Has the next slice of its job come first, until `restore`."""
        self._passed.append(heapq.heappop(self.jobs[request.client.job].waiting))

    def restore(self) -> None:
        """Puts back what was passed over."""
        for item in self._passed:
            heapq.heappush(self.jobs[item[3].client.job].waiting, item)
        self._passed.clear()

    def give_out(self, request: ServerRequest) -> None:
        """The slice, the first of its job, is given to an executor."""
        job = self.jobs[request.client.job]
        heapq.heappop(job.waiting)
        job.at_work.add(request.arrival)
        request.charged = job.mean
        job.charge += job.mean

    def ended(self, request: ServerRequest, size: int | None, cpu: float = 0.0) -> None:
        """An executor has ended with a slice.

        Args:
            request: the slice.
            size: bytes made; None when nothing was.
            cpu: seconds that it took.
        """
        job = self.jobs.get(request.client.job)
        if job is None or request.arrival not in job.at_work:
            return  # the job has gone, and come again
        job.at_work.discard(request.arrival)
        job.charge += (size or 0) - request.charged
        if size is not None:
            job.mean += (size - job.mean) * (_SMOOTHING if job.slices else 1.0)
            job.slices += 1
            job.bytes += size
            job.cpu_seconds += cpu

    def take_out(self, unwanted: Callable[[ServerRequest], bool]) -> list[ServerRequest]:
        """Removes slices that wait. Returns them."""
        out = []
        for job in self.jobs.values():
            out += [item[3] for item in job.waiting if unwanted(item[3])]
            job.waiting = [item for item in job.waiting if not unwanted(item[3])]
            heapq.heapify(job.waiting)
        return out

    def enter(self, client: ClientConnection, job: str) -> None:
        """Notes which job a client belongs to. Raises ProtocolError if it belongs to another one."""
        known = client in self.clients.get(client.job, ())
        if len(job) > MAX_JOB or (known and job != client.job):
            raise ProtocolError(f"a client of job {client.job!r} opened a pipeline of job {job[:MAX_JOB]!r}")
        client.job = job
        if not known:
            self.clients.setdefault(job, []).append(client)

    def leave(self, client: ClientConnection) -> None:
        """A client is gone. With the last of its job, the job is forgotten."""
        self.take_out(lambda request: request.client is client)
        others = [other for other in self.clients.get(client.job, ()) if other is not client]
        if others:
            self.clients[client.job] = others
        else:
            self.clients.pop(client.job, None)
            self.jobs.pop(client.job, None)

    def status(self, staged: Callable[[str], int]) -> list[JobStatus]:
        """Returns what is made for each job.

        Args:
            staged: returns the bytes of a job's results that are on their way.
        """
        told = []
        for name, clients in self.clients.items():
            made = self.jobs.get(name, JobWork())
            counts = len(clients), len(made.waiting), made.slices, made.bytes
            told.append(JobStatus(name, *counts, made.cpu_seconds, staged(name)))
        return told


KEPT_SECONDS = 60.0


@dataclass(frozen=True)
class _Holding:
    number: PipelineNumber
    opener: str


@dataclass
class KnownPipeline:
    """A pipeline that some client has opened.

    Attributes:
        message: how executors open it, with its number on this server.
        opened: what the first executor that opened it told; None before.
        deaths: executors that ended while they opened it.
        left: who had it open within the last minute, see `messages.Open.opener`, and when (monotonic seconds).
        unused: since when nobody has it open (monotonic seconds); None while somebody has.
    """

    message: messages.Open
    opened: messages.Opened | None = None
    deaths: int = 0
    left: dict[str, float] = field(default_factory=dict)
    unused: float | None = None


class OpenPipelines:
    """See the module.

    Attributes:
        waiting: those that are being opened: the clients that wait for it, and their numbers for it.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._numbered: dict[bytes, PipelineNumber] = {}
        self._known: dict[PipelineNumber, KnownPipeline] = {}
        self._clients: dict[tuple[ClientConnection, PipelineNumber], _Holding] = {}
        self.waiting: dict[PipelineNumber, list[tuple[ClientConnection, PipelineNumber]]] = {}

    def __getitem__(self, number: PipelineNumber) -> KnownPipeline:
        return self._known[number]

    def enter(self, client: ClientConnection, message: messages.Open, now: float) -> PipelineNumber:
        """A client opens a pipeline, at `now` (monotonic seconds). Returns its number on this server."""
        anonymous = msgspec.structs.replace(message, pipeline=0, loader="", plan="", job="", opener="")
        key = msgspec.msgpack.encode(anonymous, order="deterministic")
        number = self._numbered.get(key)
        if number is None or self._is_of_the_past(number, message.opener):
            number = self._numbered[key] = PipelineNumber(next(self._numbers))
            self._known[number] = KnownPipeline(msgspec.structs.replace(anonymous, pipeline=number))
        before = self._clients.pop((client, message.pipeline), None)
        self._clients[client, message.pipeline] = _Holding(number, message.opener)
        self._known[number].unused = None
        if before is not None:
            self._left({before}, now)
        return number

    def _is_of_the_past(self, number: PipelineNumber, opener: str) -> bool:
        """Whether only others had it open, and nobody has. One that is being opened holds what there is now."""
        known = self._known[number]
        return known.unused is not None and number not in self.waiting and opener not in known.left

    def number(self, client: ClientConnection, pipeline: PipelineNumber) -> PipelineNumber | None:
        """Returns the number on this server of what a client has opened; None if it has not."""
        holding = self._clients.get((client, pipeline))
        return None if holding is None else holding.number

    def holders(self, number: PipelineNumber) -> list[ClientConnection]:
        """Returns the clients that have a pipeline open."""
        return [client for (client, _), holding in self._clients.items() if holding.number == number]

    def opened(self, message: messages.Opened) -> None:
        """An executor has opened a pipeline: those that wait are told, if it is the first one."""
        known = self._known.get(message.pipeline)
        if known is not None and known.opened is None:
            known.opened = message
            known.message = msgspec.structs.replace(known.message, shards=message.shards)
            for client, number in self.waiting.pop(message.pipeline, []):
                client.send(msgspec.structs.replace(message, pipeline=number))

    def failed(self, message: messages.OpenFailed) -> None:
        """A pipeline cannot be opened: those that wait are told."""
        for client, number in self.waiting.pop(message.pipeline, []):
            client.send(messages.OpenFailed(number, message.error))

    def forget(self, client: ClientConnection, now: float) -> None:
        """A client is gone, at `now` (monotonic seconds)."""
        gone = {holding for (holder, _), holding in self._clients.items() if holder is client}
        self._clients = {key: holding for key, holding in self._clients.items() if key[0] is not client}
        self._left(gone, now)

    def _left(self, gone: set[_Holding], now: float) -> None:
        held = {holding.number for holding in self._clients.values()}
        for holding in gone:
            known = self._known[holding.number]
            known.left = {opener: since for opener, since in known.left.items() if now - since <= KEPT_SECONDS}
            known.left[holding.opener] = now
            if holding.number not in held:
                known.unused = now

    def let_go(self, now: float) -> list[PipelineNumber]:
        """Forgets the pipelines that nobody has open, and nobody may come back for.

        Args:
            now: monotonic seconds.

        Returns:
            Their numbers, for the executors.
        """
        unused = {number: known.unused for number, known in self._known.items() if known.unused is not None}
        if not unused:
            return []
        current = set(self._numbered.values())
        gone = [number for number, since in unused.items() if now - since > KEPT_SECONDS or number not in current]
        for number in gone:
            del self._known[number]
            self.waiting.pop(number, None)
        self._numbered = {key: number for key, number in self._numbered.items() if number in self._known}
        return gone
