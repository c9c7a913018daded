"""Many ranks and many data hosts in one simulated network, in one process and without a descriptor.

Each rank is the real session over the real `RemotePool`. What is simulated is the clock, the receivers with their TCP
connections, and the feed servers, which make the smallest step first. A session has descriptors for slabs, two for
each; here slabs are ordinary memory, which the simulated hosts write to. All ranks take a batch, compute for the same
time, and take the next one, as in data-parallel training.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from simulator import Data
from torch.utils.data import default_collate

from headrace.feed.batch.slab import GRANULE, Slab, _Mapping
from headrace.feed.client.policy import Policy, SessionStats
from headrace.feed.client.remote_pool import RemotePool
from headrace.feed.client.session import Session
from headrace.feed.client.worker_pool import Arrival
from headrace.feed.pipelines.fetch import Built
from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import Endpoints
from headrace.feed.wire.framed_connection import Link
from headrace.feed.wire.frames import Frame
from headrace.feed.worker.slices import make_slice

LAG, TICK, LIMIT = 2e-4, 0.2, 120.0  # seconds: one way; between looks of a session to which nothing comes; for a step
BATCH = 8


class MemorySlab(Slab):
    """A slab in ordinary memory."""

    def __init__(self, size: int) -> None:
        self.descriptor, self.size = -1, max(1, -(-size // GRANULE)) * GRANULE
        self._map = _Mapping(-1, self.size)


@dataclass(eq=False)
class Host:
    """A data host.

    Attributes:
        executors: how many; `idle`: of these.
        queue: what waits, the smallest step first.
        lives: how often it has died.
        clients: connections, by rank and route.
        seconds: of work done.
    """

    name: str
    executors: int
    idle: int
    alive: bool = True
    lives: int = 0
    queue: list[tuple[int, int, tuple[int, int], messages.SliceRequest]] = field(default_factory=list)
    clients: set[tuple[int, int]] = field(default_factory=set)
    seconds: float = 0.0


class _Receiver(Link):
    """A rank's end of its receiver."""

    def __init__(self, send: Callable[..., None]) -> None:
        super().__init__(mock.Mock(send=send, bytes_received=1), shared=True)

    def cpu_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        """There is nothing to close."""


class _Pool(RemotePool):
    """The real choice of hosts, over the simulated network."""

    def __init__(self, fleet: Fleet, endpoints: Endpoints, rank: int, ranks: int) -> None:
        super().__init__(endpoints, f"rank {rank}", rank, ranks)
        self.now = lambda: fleet.time  # type: ignore[method-assign]
        self.frames: list[Frame] = []
        self.link = _Receiver(lambda message, route=0, descriptors=(): fleet.said(rank, route, message))
        self._receiver = self.link  # type: ignore[assignment]

    def exchange(self, pause: float) -> list[Arrival]:
        frames, self.frames = self.frames, []
        return [Arrival(self.link, frames, None)]


class Fleet:
    """See the module.

    Args:
        folder: for the secret.
        ranks, hosts: how many.
        executors: of a host.
        shards: what a host declares, by its number.
        pace: seconds of work a row.
        compute: seconds of a rank a step.
        steps: batches of a rank.
    """

    def __init__(
        self,
        folder: Path,
        ranks: int,
        hosts: int,
        *,
        executors: int = 4,
        shards: Callable[[int], list[tuple[str, int]]] = lambda _: [],
        pace: float = 0.01,
        compute: float = 0.03,
        steps: int = 12,
    ) -> None:
        self.time = 0.0
        self._compute, self._pace, self._steps, self._shards = compute, pace, steps, shards
        self.length = BATCH * steps
        self.built = Built(Data(self.length, 16), default_collate, default_collate=True)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.hosts = {f"h{n}:7070": Host(f"h{n}:7070", executors, executors) for n in range(hosts)}
        (folder / "secret").touch(0o600)
        (folder / "secret").write_text("5e" * 32)
        endpoints = Endpoints(",".join(f"tcp://{name}" for name in self.hosts), str(folder / "secret"))
        self._routes: dict[tuple[int, int], Host] = {}
        self.pools = [_Pool(self, endpoints, rank, ranks) for rank in range(ranks)]
        self.plans = [EpochPlan(self.length, BATCH, rank, shuffle=True) for rank in range(ranks)]
        self.sessions: list[Session] = []
        self._heard: set[int] = set()
        self.waits: list[float] = []  # of the slowest rank, each step
        self.spoken = 0  # bytes of messages, without the batches
        self.most = Counter[int]()  # hosts that a rank was connected to at one time

    # The network

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.time + seconds, next(self._order), action))

    def _tell(self, rank: int, route: int, message: messages.Message) -> None:
        self.spoken += len(messages.encode(message))

        def arrive() -> None:
            self.pools[rank].frames.append(Frame(message, route))  # type: ignore[arg-type]
            self._heard.add(rank)

        self._later(LAG, arrive)

    def said(self, rank: int, route: int, message: messages.Message) -> None:
        """A rank speaks."""
        key = rank, route
        self.spoken += len(messages.encode(message))
        if isinstance(message, messages.Dial):
            self._later(LAG, lambda: self._dialled(key, self.hosts[message.address.removeprefix("tcp://")]))
        elif isinstance(message, messages.Down):
            self._routes.pop(key).clients.discard(key)
        elif isinstance(message, messages.Open) and key in self._routes:
            shards = self._shards(list(self.hosts).index(self._routes[key].name))
            length = sum(rows for _, rows in shards) if shards else self.length
            self._tell(*key, messages.Opened(1, length, False, {"torch": "1"}, shards))
        elif isinstance(message, messages.SliceRequest) and key in self._routes:
            self._later(LAG, lambda: self._asked(key, message))
        elif isinstance(message, messages.Cancel):
            self._later(LAG, lambda: self._cancelled(key, set(message.requests)))

    def _dialled(self, key: tuple[int, int], host: Host) -> None:
        if not host.alive:
            self._tell(*key, messages.Down("connection refused"))
            return
        host.clients.add(key)
        self._routes[key] = host
        self.most[key[0]] = max(self.most[key[0]], sum(rank == key[0] for rank, _ in self._routes_of(key[0])))
        self._tell(*key, messages.Welcome(b"", host.name, host.executors))

    def _routes_of(self, rank: int) -> Iterator[tuple[int, int]]:
        return ((rank, worker.route) for worker in self.pools[rank].workers() if (rank, worker.route) in self._routes)

    def _asked(self, key: tuple[int, int], request: messages.SliceRequest) -> None:
        host = self._routes.get(key)
        if host is not None:
            heapq.heappush(host.queue, (request.batches[0].step, next(self._order), key, request))
            self._start(host)

    def _cancelled(self, key: tuple[int, int], numbers: set[int]) -> None:
        host = self._routes.get(key)
        given_back = [] if host is None else [at for at in host.queue if at[2] == key and at[3].number in numbers]
        for at in given_back:
            host.queue.remove(at)
            self._tell(*key, messages.Cancelled(at[3].number))
        if given_back:
            heapq.heapify(host.queue)

    def _start(self, host: Host) -> None:
        while host.idle and host.queue:
            host.idle -= 1
            _, _, key, request = heapq.heappop(host.queue)
            work = self._pace * sum(len(batch.keys) for batch in request.batches)
            self._later(work, partial(self._made, key, host, request, work, host.lives))

    def _made(self, key: tuple[int, int], host: Host, request: messages.SliceRequest, work: float, lives: int) -> None:
        if host.lives != lives:
            return  # it has died meanwhile
        host.idle += 1
        self._start(host)
        if self._routes.get(key) is host:
            slab = self.sessions[key[0]]._assembly.ledger[request.slab]
            done, _ = make_slice(self.built, request, slab, 0)
            host.seconds += work
            self._tell(*key, msgspec.structs.replace(done, seconds=work, cpu=work))

    def kill(self, names: Sequence[str]) -> None:
        """Hosts die at once."""
        for name in names:
            host = self.hosts[name]
            host.alive, host.lives, host.idle = False, host.lives + 1, host.executors
            host.queue.clear()
            clients, host.clients = host.clients, set()
            for key in clients:
                self._routes.pop(key)
                self._tell(*key, messages.Down("connection reset by peer"))

    def revive(self, names: Sequence[str]) -> None:
        """Hosts are there again."""
        for name in names:
            self.hosts[name].alive = True

    # The ranks

    @contextmanager
    def training(self, memory: int = 64 << 16) -> Iterator[None]:
        """Within it the ranks have sessions, which have begun; how a row is laid out is known from a pass before."""
        policy = Policy(verify=0.0, memory=memory, stall_timeout=LIMIT)
        opening = messages.Open(1, "m:f", {}, "", "", True)
        asked = messages.SliceRequest(0, 1, 0, 0, (messages.BatchRows(0, 0, 1, 0, 1, [0]),), False, 0)
        learned, scratch = make_slice(self.built, asked, None, 0)
        del scratch  # with its descriptors
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(Slab, "create", MemorySlab))
            for pool, plan in zip(self.pools, self.plans, strict=True):
                session = Session(pool, opening, policy, SessionStats(), _fail)
                stack.callback(session.close)
                session._assembly.learn(learned.layout)
                session._schedule.stackable = True
                self.sessions.append(session)
                session.begin(plan.epoch(0))
            yield

    def step(self, number: int) -> list[Any]:
        """All ranks take a batch, and compute. Returns their batches."""
        begun, waiting, batches = self.time, set(range(len(self.sessions))), dict[int, Any]()
        look, self._heard = self.time, set()
        while True:
            due = waiting if self.time >= look else waiting & self._heard
            look = self.time + TICK if self.time >= look else look
            for rank in sorted(due):
                session = self.sessions[rank]
                if session.ready(0, number) or session.ready(0, number):  # what follows from what came is asked next
                    taken = session.take(0, number)
                    assert taken is not None
                    batches[rank] = taken[0]
                    waiting.discard(rank)
            self._heard -= due
            if not waiting:
                break
            assert self.time < begun + LIMIT, f"ranks {sorted(waiting)[:8]} wait for batch {number}"
            self.run(min(look, self._events[0][0] + LAG) - self.time if self._events else look - self.time)
        self.waits.append(self.time - begun)
        self.run(self._compute)
        return [batches[rank] for rank in range(len(self.sessions))]

    def run(self, seconds: float) -> None:
        """Time passes in which no rank looks at what comes."""
        until = self.time + seconds
        while self._events and self._events[0][0] <= until:
            self.time, _, action = heapq.heappop(self._events)
            action()
        self.time = until

    def used(self, rank: int) -> set[str]:
        """Returns the hosts that a rank asks."""
        return {worker.name for worker in self.pools[rank].workers() if worker.ready}

    def summary(self) -> dict[str, float]:
        """Returns connections, and how work is spread over the hosts that live."""
        living = [host for host in self.hosts.values() if host.alive]
        clients, seconds = [len(host.clients) for host in living], [host.seconds for host in living]
        return {
            "connections": sum(clients),
            "host_least": min(clients),
            "host_most": max(clients),
            "work_p5": statistics.quantiles(seconds, n=20)[0] / statistics.fmean(seconds),
            "work_p95": statistics.quantiles(seconds, n=20)[-1] / statistics.fmean(seconds),
        }


def _fail(text: str, kind: type[Warning]) -> None:
    raise AssertionError(text)
