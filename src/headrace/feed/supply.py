"""The supply of workers: started, connected, watched, replaced.

`LocalSupply` keeps processes of its own; `RemoteSupply` keeps connections to the feed servers that `places` names:
directly to the one of the own host, through one receiver process to the others. Both give up only after a bounded
time, and say whom they waited for and what was wrong with each.
"""

from __future__ import annotations

import abc
import collections
import itertools
import os
import select
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Literal, NamedTuple

from headrace.errors import ProtocolError, WorkersLost
from headrace.feed import messages
from headrace.feed.auth import HANDSHAKE_SECONDS, ClientHandshake, RefusedByServer
from headrace.feed.compute import Built
from headrace.feed.frames import Frame
from headrace.feed.links import ExecutorLink, Link, ReceiverLink, connect_unix, start_executor, start_receiver
from headrace.feed.places import Place, Places
from headrace.feed.pulse import Pulse
from headrace.feed.wire import ConnectionClosed

Kind = Literal["executor", "server", "remote"]
START_SECONDS = 60.0
RECOVER_SECONDS = 6.0
ALL_LOST_SECONDS = 1.0
RETRY_SECONDS, RETRY_LIMIT = 0.2, 1.0  # doubled with every failure; a refusal counts as many
RESTARTS, RESTART_WINDOW = 20, 60.0
STACK_SECONDS = 0.5  # to write a stack


class Arrival(NamedTuple):
    """What has come over a link; `broken` says why nothing more will, None when it is well."""

    link: Link
    frames: list[Frame]
    broken: str | None


@dataclass(eq=False)
class Worker:
    """One source of batches, as the session sees it.

    Attributes:
        number: its number in the schedule, and its route on a shared link.
        name: for messages.
        kind: ``executor`` (a child of this process), ``server`` (own host) or ``remote``.
        link: the connection that carries it.
        executors: how many parts it makes at a time.
        ready: whether the pipeline is open there.
        reason: why it was lost.
        unused: whether it computes differently and is left out.
    """

    number: int
    name: str
    kind: Kind
    link: Link
    executors: int = 1
    ready: bool = False
    reason: str = ""
    handshake: ClientHandshake | None = None
    place: Place | None = None
    pulse: Pulse | None = None
    deadline: float = 0.0
    unused: bool = False

    @property
    def route(self) -> int:
        """Frame route to it."""
        return self.number if self.link.shared else 0


class Supply(abc.ABC):
    """What a session needs of its workers."""

    def __init__(self) -> None:
        self._workers: dict[int, Worker] = {}

    def _add(self, name: str, kind: Kind, link: Link) -> Worker:
        number = next(number for number in itertools.count(1) if number not in self._workers)
        worker = self._workers[number] = Worker(number, name, kind, link)
        return worker

    def workers(self) -> list[Worker]:
        """Returns the workers that have a connection."""
        return list(self._workers.values())

    def worker(self, number: int) -> Worker | None:
        """Returns a worker by its number."""
        return self._workers.get(number)

    def links(self) -> list[Link]:
        """Returns the connections."""
        return list({id(worker.link): worker.link for worker in self._workers.values()}.values())

    def worker_of(self, link: Link, route: int) -> Worker | None:
        """Returns the worker that a frame came from."""
        if link.shared:
            return self._workers.get(route)
        return next((worker for worker in self._workers.values() if worker.link is link), None)

    def down(self, worker: Worker, reason: str, *, refused: bool = False) -> None:
        """A worker is gone; its link stays. `refused`: it will not have this client."""
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
        arrivals = []
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

    def expected(self) -> int:
        """Returns how many workers may come, those that are there included."""
        return len(self._workers)

    def refuse(self, worker: Worker, reason: str) -> None:
        """The worker stays connected, but is not used. `reason` is told when nobody is left."""
        worker.reason, worker.unused = reason, True

    def end_stuck(self, numbers: Sequence[int], now: float, limit: float) -> int:
        """Ends the local executors that hang; returns how many of them are news. Others are ended where they are."""
        return 0

    @abc.abstractmethod
    def maintain(self, now: float) -> list[Worker]:
        """Keeps the workers up. Returns those to whom the pipeline must be opened now. Raises WorkersLost."""

    @abc.abstractmethod
    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        """A connection broke. Returns the workers that went with it."""

    def handshake(self, worker: Worker, message: messages.Message) -> None:
        """Takes a message of a server's handshake. Local executors have none."""
        raise ProtocolError(f"an unexpected {type(message).__name__} from {worker.name}")

    def note_lost(self, worker: Worker, reason: str) -> None:
        """One executor of a host died; the host replaces it."""
        worker.reason = reason

    @abc.abstractmethod
    def describe(self) -> str:
        """Says whom one waits for."""

    def receiver_cpu(self) -> float:
        """Returns the CPU seconds of receivers, those that have ended included."""
        return 0.0

    @abc.abstractmethod
    def close(self) -> None:
        """Ends everything."""


class LocalSupply(Supply):
    """Executors that are children of this process.

    Args:
        executors: how many.
        context: start method, as torch's `multiprocessing_context`.
        given: pipelines as objects.
        init: `worker_init_fn`.
    """

    def __init__(
        self,
        executors: int,
        context: str | BaseContext | None,
        given: dict[int, Built],
        init: Callable[[int], None] | None,
    ) -> None:
        super().__init__()
        self._size = executors
        self._context = context
        self._given = given
        self._init = init
        self._owner = os.getpid()
        self._missing = collections.deque(range(executors))
        self._restarts: collections.deque[float] = collections.deque()
        self._last = ""
        self._stuck: dict[int, tuple[str, float]] = {}  # those that are being ended: why, and since when

    def end_stuck(self, numbers: Sequence[int], now: float, limit: float) -> int:
        """Has executors that hang write their stacks to their log, and kills them a moment later."""
        before, self._stuck = self._stuck, {}  # one that has answered after all is not to be killed the next time
        for number in numbers:
            link = self._workers[number].link
            assert isinstance(link, ExecutorLink)
            self._stuck[number] = before.get(number, (f"it hung for {limit:.0f} s; its stack is in the log", now))
            if number not in before:
                link.signal(signal.SIGUSR1)
            elif now - self._stuck[number][1] > STACK_SECONDS:
                link.signal(signal.SIGKILL)
        return len(self._stuck.keys() - before.keys())

    def maintain(self, now: float) -> list[Worker]:
        """Starts what is missing, within the restart budget."""
        started = []
        while self._missing:
            number = self._missing.popleft()
            foreign = [worker.link.channel.fileno() for worker in self._workers.values()]
            link = start_executor(number, self._size, self._context, self._given, self._init, foreign)
            started.append(self._add(f"worker {number}", "executor", link))
        return started

    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        """An executor ended: it is replaced."""
        assert isinstance(link, ExecutorLink)
        worker = self.worker_of(link, 0)
        assert worker is not None
        self._last = worker.reason = self._stuck.pop(worker.number, ("",))[0] or link.reason()
        link.close()
        del self._workers[worker.number]
        self._restarts.append(now)
        while self._restarts[0] < now - RESTART_WINDOW:
            self._restarts.popleft()
        if len(self._restarts) > RESTARTS:
            raise WorkersLost(
                f"{len(self._restarts)} worker processes ended within {RESTART_WINDOW:.0f} s; the last one {self._last}"
            )
        self._missing.append(link.number)
        return [worker]

    def describe(self) -> str:
        """Says whom one waits for."""
        return f"waited for {self._size} local worker processes{f'; the last one {self._last}' if self._last else ''}"

    def close(self) -> None:
        """Ends the executors. In a forked child of the owner nothing is touched."""
        if os.getpid() == self._owner:
            for worker in self._workers.values():
                worker.link.close()
        self._workers.clear()


class RemoteSupply(Supply):
    """Feed servers, on the own host and on others.

    Args:
        places: where they are.
        client: name of this client, for their logs.
        rank, world_size: of this client.
    """

    def __init__(self, places: Places, client: str, rank: int, world_size: int) -> None:
        super().__init__()
        self._places = places
        self._identity = (client, rank, world_size)
        self._receiver: ReceiverLink | None = None
        self._receiver_cpu = 0.0  # of those that have ended
        self._retry: dict[str, float] = {}
        self._delay: dict[str, float] = {}
        self._refused: set[str] = set()
        self._troubles: dict[str, str] = {}
        self._welcomed: list[Worker] = []
        self._served = False
        self._alone_since: float | None = None
        self._owner = os.getpid()

    def links(self) -> list[Link]:
        """Returns the connections; the receiver's also while no host is connected."""
        found = super().links()
        if self._receiver is not None and self._receiver not in found:
            found.append(self._receiver)
        return found

    def expected(self) -> int:
        """Returns how many hosts may come."""
        places = self._places.current()
        return sum(place.state != "lost" and place.address not in self._refused for place in places)

    def refuse(self, worker: Worker, reason: str) -> None:
        """The host computes differently and is not used."""
        super().refuse(worker, reason)
        if worker.place is not None:
            self._troubles[worker.place.name] = reason

    def maintain(self, now: float) -> list[Worker]:
        """Connects to what is not connected."""
        places = self._places.current()
        connected = {worker.place.address for worker in self._workers.values() if worker.place is not None}
        for place in places:
            if place.state != "lost" and place.address not in connected and now >= self._retry.get(place.address, 0.0):
                self._connect(place, now)
        welcomed, self._welcomed = self._welcomed, []
        self._judge(places, now)
        return welcomed

    def _judge(self, places: tuple[Place, ...], now: float) -> None:
        """Raises WorkersLost when nobody serves and the time allowed has passed."""
        serving = [worker for worker in self._workers.values() if not worker.unused]
        if any(worker.handshake is not None and worker.handshake.welcome for worker in serving):
            self._served, self._alone_since = True, None
            return
        self._alone_since = self._alone_since or now
        allowed = RECOVER_SECONDS if self._served else START_SECONDS
        unused = {
            worker.place.address for worker in self._workers.values() if worker.unused and worker.place is not None
        }
        if all(place.state == "lost" or place.address in self._refused | unused for place in places):
            allowed = ALL_LOST_SECONDS
        if now - self._alone_since > allowed:
            raise WorkersLost(f"no data worker is left: {self.describe()}", hint="see the logs of these hosts")

    def _connect(self, place: Place, now: float) -> None:
        delay = self._delay.get(place.address, RETRY_SECONDS)
        self._retry[place.address] = now + delay
        self._delay[place.address] = min(2 * delay, RETRY_LIMIT)
        client, rank, world_size = self._identity
        try:
            if place.address.startswith("unix:"):
                worker = self._add(place.name, "server", connect_unix(place.address))
                worker.handshake = ClientHandshake(self._places.secret, client, rank, world_size)
                worker.deadline, worker.pulse = now + HANDSHAKE_SECONDS, Pulse(now)
            else:
                if self._receiver is None:
                    self._receiver = start_receiver()
                worker = self._add(place.name, "remote", self._receiver)
                dial = messages.Dial(place.address, self._places.secret, client, rank, world_size, self._places.tls_ca)
                self._receiver.channel.send(dial, route=worker.route)
                worker.handshake = ClientHandshake(b"", client)
        except OSError as error:
            self._troubles[place.name] = (error.strerror or str(error)).lower()
            return
        except ConnectionClosed as error:
            self._troubles[place.name] = str(error)
            return
        worker.place = place

    def receiver_cpu(self) -> float:
        """Returns the CPU seconds of receivers, those that have ended included."""
        return self._receiver_cpu + (self._receiver.cpu_seconds() if self._receiver is not None else 0.0)

    def handshake(self, worker: Worker, message: messages.Message) -> None:
        """Takes a step of the handshake; a receiver has already made it for the remote ones."""
        assert worker.handshake is not None
        if worker.kind == "remote" and isinstance(message, messages.Welcome):
            worker.handshake.welcome = message
        else:
            try:
                worker.handshake.step(message, worker.link.channel.send)
            except RefusedByServer:
                self._refuse(worker)
                raise
        if worker.handshake.welcome is not None:
            if not worker.link.shared:
                worker.link.channel.trust()
            if worker.place is not None:
                self._delay.pop(worker.place.address, None)
                self._refused.discard(worker.place.address)
            worker.executors = worker.handshake.welcome.executors
            worker.name = f"{worker.handshake.welcome.host}"
            self._welcomed.append(worker)

    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        """A feed server's connection, or the receiver with all of its hosts, is gone."""
        gone = [worker for worker in self._workers.values() if worker.link is link]
        self._receiver_cpu += link.cpu_seconds() if isinstance(link, ReceiverLink) else 0.0
        why = link.reason() if link.shared else reason
        for worker in gone:
            self.down(worker, why)
        if link is self._receiver:
            self._receiver = None
        link.close()
        return gone

    def down(self, worker: Worker, reason: str, *, refused: bool = False) -> None:
        """A host is gone; it is tried again."""
        super().down(worker, reason)
        if refused:
            self._refuse(worker)
        self._welcomed = [other for other in self._welcomed if other is not worker]
        self._troubles[worker.place.name if worker.place is not None else worker.name] = reason

    def _refuse(self, worker: Worker) -> None:
        if worker.place is not None:
            self._refused.add(worker.place.address)
            self._delay[worker.place.address] = RETRY_LIMIT

    def silent(self, now: float) -> list[tuple[Link, str]]:
        """Asks the own host's feed server for a sign of life; the receiver does so with the others."""
        silent: list[tuple[Link, str]] = []
        for worker in [worker for worker in self._workers.values() if worker.pulse is not None]:
            assert worker.pulse is not None
            verdict = worker.pulse.check(now, worker.link.channel.signs_of_life)
            if worker.handshake is None or worker.handshake.welcome is None:
                if now > worker.deadline:
                    silent.append((worker.link, "no answer in time"))
            elif verdict == "gone":
                silent.append((worker.link, "it gives no sign of life"))
            elif verdict == "ask":
                try:
                    worker.link.channel.send(messages.Ping())
                except ConnectionClosed as error:
                    silent.append((worker.link, str(error)))
        return silent

    def describe(self) -> str:
        """Names every host, its state and its last trouble."""
        told = []
        for place in self._places.current():
            trouble = self._troubles.get(place.name, "")
            told.append(f"{place.name} ({place.address}) {place.state}{f': {trouble}' if trouble else ''}")
        return "; ".join(told) or "no feed server is known"

    def close(self) -> None:
        """Ends the connections and the receiver. In a forked child of the owner nothing is touched."""
        if os.getpid() == self._owner:
            for link in self.links():
                link.close()
        self._workers.clear()
        self._receiver = None
