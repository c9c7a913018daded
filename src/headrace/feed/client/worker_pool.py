"""A pool of workers: what a session needs of them, wherever they are.

`local_pool` keeps processes of its own; `remote_pool` keeps connections to feed servers. Both give up only after a
bounded time; the error names whom they waited for, and what was wrong with each.
"""

from __future__ import annotations

import abc
import enum
import itertools
import logging
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace.errors import FeedError, ProtocolError
from headrace.feed.batch.slab import SlabPool
from headrace.feed.client.work_units import Request
from headrace.feed.identifiers import NO_ROUTE, RequestNumber, RouteNumber, SlabNumber, WorkerNumber
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import NOWHERE, ClientHandshake, Endpoint
from headrace.feed.wire.framed_connection import ConnectionClosed, Link
from headrace.feed.wire.frames import Frame
from headrace.feed.worker.executor_rules import DEPTH

ASK_AFTER = 1.0
GONE_AFTER = 3.0


class Keepalive:
    """When to ask a silent feed server for a sign of life, and when to give it up.

    A stopped or frozen host keeps its connections: its kernel goes on acknowledging. So a client asks (`Ping`) when it
    has heard nothing for a while. A feed server answers at once, whatever its executors do; one that does not answer is
    gone, and its work is asked for elsewhere. The caller reads what has come before it checks, so a caller that was
    busy itself gives up no server: only the silence after the question counts. What counts as a sign is decided by
    `FramedConnection.signs_of_life`: single bytes do not.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._heard = now
        self._asked: float | None = None
        self._received = 0

    def check(self, now: float, received: int) -> Literal["", "ask", "gone"]:
        """Returns what to do now.

        Args:
            now: monotonic seconds.
            received: number that has grown if the peer has given a sign of life.
        """
        if received != self._received:
            self._received, self._heard, self._asked = received, now, None
        if self._asked is not None:
            return "gone" if now - self._asked > GONE_AFTER else ""
        if now - self._heard > ASK_AFTER:
            self._asked = now
            return "ask"
        return ""


_log = logging.getLogger(__name__)

START_SECONDS = 60.0
_ROUTES = 0xFFFF  # of a frame
PATIENCE = 0.2  # seconds that one exchange waits for something at most
RECOVER_SECONDS = 6.0
REFUSED_SECONDS = 1.5  # for hosts that refuse this client, or that it refuses: they are tried twice
REFUSED_HINT = (
    "servers and trainer need the same secret file and, with TLS, tls_ca= the CA of the servers' certificates; the "
    "logs of these hosts tell more"
)


class Arrival(NamedTuple):
    """What has come over a link; `broken`: why nothing more will, None while it is open."""

    link: Link
    frames: list[Frame]
    broken: str | None


class WorkerState(enum.Enum):
    """How far a worker has come."""

    OPENING = "it is connected, and has not opened the pipeline"
    READY = "it is asked for slices"
    LEFT_OUT = "it computes differently, and is not asked"
    DISMISSED = "it is to go; its session has not seen that yet"
    LEAVING = "it is asked for nothing more, and goes when it owes nothing"


@dataclass(eq=False)
class Worker:
    """One worker, a local executor or a host's feed server, as the session sees it.

    Attributes:
        number: its number in the schedule; no other worker of the session ever has it.
        name: for messages.
        link: the connection that carries it.
        own_host: whether it is the feed server of this host: it shares cores with the trainer, and writes to the slabs
            that it was lent, also when its connection is lost.
        is_executor: whether it is one process, which may have ended over what it was at, not a server of some.
        executors: how many slices it makes at a time.
        reason: why it was lost.
        numerics: how it computes, once it has said so; what is made is compared among equal ones.
        seconds_per_row: measured, of one executor; 0 until it has answered.
        outstanding: requests whose answers it owes, in the order asked; changed by `owe` and `answered` only.
        outstanding_rows: rows that it has been asked for.
        since: when it was last idle, or answered: what it works on has taken that long at most.
        lead: seconds of work that each of its executors should have, because it is asked for nothing meanwhile.
        made: rows that it has made.
    """

    number: WorkerNumber
    name: str
    link: Link
    own_host: bool = False
    is_executor: bool = False
    executors: int = 1
    state: WorkerState = WorkerState.OPENING
    reason: str = ""
    numerics: bytes = b""
    handshake: ClientHandshake | None = None
    endpoint: Endpoint = NOWHERE
    keepalive: Keepalive | None = None
    deadline: float = 0.0
    seconds_per_row: float = 0.0
    outstanding: dict[RequestNumber, Request] = field(default_factory=dict)
    outstanding_rows: int = 0
    since: float = 0.0
    lead: float = 0.0
    made: int = 0

    def owe(self, request: Request) -> None:
        """It has been asked."""
        self.outstanding[request.number] = request
        self.outstanding_rows += request.slice.rows

    def answered(self, number: RequestNumber) -> Request | None:
        """It has answered. Returns the request; None when it does not owe that answer (any more)."""
        request = self.outstanding.pop(number, None)
        self.outstanding_rows -= request.slice.rows if request is not None else 0
        return request

    @property
    def expected(self) -> float:
        """Seconds of each executor that its outstanding rows will take; 0 until it has answered."""
        return self.outstanding_rows * self.seconds_per_row / self.executors

    @property
    def has_room(self) -> bool:
        """Whether it should be asked for more."""
        return len(self.outstanding) < DEPTH * self.executors or 0.0 < self.expected < self.lead

    def stuck(self, now: float, limit: float) -> bool:
        """Whether it has worked on one slice for more than `limit` seconds; of one executor."""
        return bool(self.outstanding) and now - self.since > limit

    @property
    def ready(self) -> bool:
        """Whether it is asked for slices."""
        return self.state is WorkerState.READY

    @property
    def leaves(self) -> bool:
        """Whether it is to go."""
        return self.state in (WorkerState.DISMISSED, WorkerState.LEAVING)

    @property
    def route(self) -> RouteNumber:
        """Frame route to it: on a shared link the last 16 bits of its number."""
        return RouteNumber(self.number & _ROUTES) if self.link.shared else NO_ROUTE


class WorkerPool(abc.ABC):
    """What a session needs of its workers.

    Attributes:
        now: the clock, monotonic seconds.
        all_needed: whether every host must be used, as none may hold what another one does.
    """

    now: Callable[[], float] = staticmethod(time.monotonic)
    all_needed = False

    def __init__(self) -> None:
        self._workers: dict[WorkerNumber, Worker] = {}
        self._numbers = map(WorkerNumber, itertools.count(1))
        self.served = False  # whether any worker has answered
        self._some_leave = False  # asked at every step, however many workers there are

    def _add(
        self, name: str, link: Link, endpoint: Endpoint = NOWHERE, *, own_host: bool = False, is_executor: bool = False
    ) -> Worker:
        taken = {0, *(number & _ROUTES for number in self._workers)}
        number = next(number for number in self._numbers if number & _ROUTES not in taken)
        worker = self._workers[number] = Worker(number, name, link, own_host, is_executor, endpoint=endpoint)
        return worker

    def workers(self) -> list[Worker]:
        """Returns the workers that have a connection."""
        return list(self._workers.values())

    def links(self) -> list[Link]:
        """Returns the connections."""
        return list({id(worker.link): worker.link for worker in self._workers.values()}.values())

    def worker_of(self, link: Link, route: RouteNumber) -> Worker | None:
        """Returns the worker that a frame came from."""
        of_link = (worker for worker in self._workers.values() if worker.link is link)
        return next((worker for worker in of_link if not link.shared or worker.route == route), None)

    def down(self, worker: Worker, reason: str, *, refused: bool = False) -> None:
        """A worker is gone; its link stays. `refused`: its server refuses this client."""
        _log.info("%s: lost: %s", worker.name, reason)
        worker.reason = reason
        self._workers.pop(worker.number, None)

    def silent(self, now: float) -> list[tuple[Link, str]]:
        """Returns connections whose peer gives no sign of life, and why it is given up. Call it after reading."""
        return []

    def exchange(self, pause: float) -> list[Arrival]:
        """Sends what is queued and returns what has come; waits up to `pause` seconds for something."""
        poll = select.poll()
        links = {link.channel.fileno(): link for link in self.links()}
        for descriptor, link in links.items():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if link.channel.wants_write else 0))
        arrivals: list[Arrival] = []
        for descriptor, events in poll.poll(int(pause * 1000)):
            link, frames, broken = links[descriptor], [], None
            try:
                if events & select.POLLOUT:
                    link.channel.flush()
                if events & ~select.POLLOUT:
                    frames = link.channel.receive()
            except (ConnectionClosed, ProtocolError) as error:
                broken = str(error)
            arrivals.append(Arrival(link, frames, broken))
        return arrivals

    def request(self, worker: Worker, request: messages.SliceRequest) -> None:
        """Asks a worker for a slice."""
        worker.link.post(request, worker.route)

    def opened(self, worker: Worker) -> None:
        """The pipeline is open on a worker."""
        worker.state = WorkerState.READY

    def offer(self, worker: Worker, ledger: SlabPool, number: SlabNumber) -> None:
        """Passes a slab on to a worker that has not got it, and has all workers let go of those that are gone."""
        for dropped in ledger.take_dropped():
            for link in self.links():
                link.drop(dropped)
        worker.link.offer(number, ledger[number])

    def resize(self, executors: int) -> None:
        """Has as many executors from now on. Raises FeedError where others decide that."""
        raise FeedError(f"{type(self).__name__} cannot have {executors} executors: feed servers have their own number")

    def dismiss(self, worker: Worker) -> None:
        """A worker is to go as soon as it owes nothing."""
        self._some_leave = True
        if worker.state is not WorkerState.LEAVING:
            worker.state = WorkerState.DISMISSED

    def leaving(self) -> list[Worker]:
        """Returns the workers that are to go as soon as they owe nothing."""
        found = [worker for worker in self._workers.values() if worker.leaves] if self._some_leave else []
        self._some_leave = bool(found)
        return found

    @abc.abstractmethod
    def release(self, worker: Worker) -> None:
        """Lets a worker go that was leaving and owes nothing."""

    def held(self, *, short: bool) -> None:  # noqa: B027 - of interest only where workers are measured
        """Whether there are slices that are not requested because there is no memory for them."""

    @property
    def patience(self) -> float:
        """Seconds after which `maintain` should be called again."""
        return PATIENCE

    def absent(self) -> list[str]:
        """Returns the names of those that should serve, and are not ready."""
        return []

    def refused(self, now: float) -> set[str]:
        """Returns the names of hosts that have refused this client for a while, or shown it a wrong certificate."""
        return set()

    @property
    def hosts(self) -> int:
        """Hosts that serve, as far as is known, whether they are used or not."""
        return sum(worker.ready for worker in self._workers.values())

    @property
    def executors(self) -> int:
        """Executors of all workers, those included that will be started, without those that are not used."""
        return sum(worker.executors for worker in self._workers.values() if worker.state is not WorkerState.LEFT_OUT)

    def refuse(self, worker: Worker, reason: str) -> None:
        """The worker stays connected, but is not used. `reason` is reported when no worker is left."""
        worker.reason, worker.state = reason, WorkerState.LEFT_OUT

    def end_stuck(self, now: float, limit: float) -> int:
        """Ends the local executors that have worked on one slice for more than `limit` seconds: they hang.

        Returns:
            How many were not known to hang. A feed server ends its own.
        """
        return 0

    @abc.abstractmethod
    def maintain(self, now: float) -> list[Worker]:
        """Keeps the workers up. Returns those to whom the pipeline must be opened now. Raises WorkersLost."""

    @abc.abstractmethod
    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        """A connection broke. Returns the workers that went with it."""

    def starting(self) -> set[str]:
        """Returns the hosts whose servers start, as the job says that watches them; it says when one is lost."""
        return set()

    def handshake(self, worker: Worker, message: messages.Message) -> None:
        """Takes a message of a server's handshake. Local executors have none."""
        raise ProtocolError(f"an unexpected {type(message).__name__} from {worker.name}")

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns whom a session waits for, in words."""

    def receiver_cpu(self) -> float:
        """Returns the CPU seconds of receivers, those that have ended included."""
        return 0.0

    @abc.abstractmethod
    def close(self) -> None:
        """Ends everything."""
