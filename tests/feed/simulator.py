"""A simulated network, clock and set of workers for the real session.

Everything above `WorkerPool` is production code: session, exchange, schedule, assembly, verifier, slabs, and the
executors' `make_slice`. What is simulated is time, who runs, and what becomes of messages: a worker may be killed,
hang, be cut off, answer late, twice, out of order, or with garbage, and a worker that was given up goes on writing to
the memory that it was lent. One seed is one schedule of events.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import torch

from headrace.feed.batch.row_layout import Uneven
from headrace.feed.batch.slab import Slab
from headrace.feed.client.scheduler import MAX_DEATHS, MAX_DEATHS_TOGETHER
from headrace.feed.client.worker_pool import Arrival, Worker, WorkerPool
from headrace.feed.descriptors import Descriptors
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.pipelines.fetch import Built, SampleAddresses, make_whole
from headrace.feed.pipelines.seeds import PreservedGenerators
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import Link
from headrace.feed.wire.frames import Frame
from headrace.feed.worker.lane_reader import LaneReaders
from headrace.feed.worker.slices import make_slice


class Line:
    """The session's end of a connection: what it sends becomes an event."""

    def __init__(self, deliver: Callable[[messages.Message, list[int]], None]) -> None:
        self._deliver = deliver

    def send(self, message: messages.Message, *, route: int = 0, descriptors: Sequence[int] = ()) -> None:
        self._deliver(message, [os.dup(descriptor) for descriptor in descriptors])


def a_worker(number: int, name: str = "", executors: int = 1) -> Worker:
    """Makes a worker that nothing is sent to."""
    return Worker(WorkerNumber(number), name, None, executors=executors)  # type: ignore[arg-type]


Kind = Literal["executor", "server", "remote"]


@dataclass(eq=False)
class Peer:
    """One simulated worker."""

    name: str
    kind: Kind
    executors: int
    pace: float  # seconds a row
    slabs: dict[int, Slab] = field(default_factory=dict)
    busy: list[float] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    alive: bool = True
    hung: bool = False
    cut: bool = False  # what it sends and what is sent to it is lost
    worker: Worker | None = None
    link: Link | None = None

    def close(self) -> None:
        for slab in self.slabs.values():
            slab.close()
        self.slabs.clear()


@dataclass(frozen=True)
class World:
    """How bad things are: chances per answer, seconds."""

    kinds: tuple[Kind, ...]
    executors: int = 1
    kill: float = 0.0
    hang: float = 0.0
    cut: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    delay: float = 0.0
    leave: float = 0.0  # chance, whenever there is time for it, that a worker is to go; another one comes later
    spread: float = 1.0  # the slowest worker is that many times slower than the fastest
    back_after: float = 0.5


def would_be_given_up(workers: Iterable[Worker], number: int) -> bool:
    """Returns whether rows could be given up if whoever works on request `number` died now.

    Everything that its worker owes counts, because only one executor of it may die and it is not known over what. And
    so does every request for the same rows: of two that are late both may have hung already, which is told only later.
    """
    for worker in workers:
        if number in worker.outstanding:
            slices = [request.slice for request in worker.outstanding.values()]
            return any(
                slice_.deaths + len(slice_.requests) >= (MAX_DEATHS if slice_.rows == 1 else MAX_DEATHS_TOGETHER)
                for slice_ in slices
            )
    return False


class SimulatedPool(WorkerPool):
    """Workers of a `World`; everything that happens is drawn from `chance`."""

    def __init__(self, world: World, built: Built, chance: random.Random, length: int) -> None:
        super().__init__()
        self.world = world
        self.chance = chance
        self.time = 0.0
        self.faults = 0
        self._built = built
        self._length = length
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._arrivals: list[tuple[Link, Frame | str]] = []
        self._zombies: list[Peer] = []
        self._names = itertools.count()
        self.peers: list[Peer] = []
        self._missing: list[Kind] = list(world.kinds)
        self.released = 0
        self._opening: messages.Open | None = None
        self.lanes: LaneReaders | None = None  # of the worker that answers, for a dataset without a count
        self.doomed: Callable[[int], bool] = lambda _: False  # see `would_be_given_up`

    def now(self) -> float:
        return self.time

    # The network

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.time + seconds, next(self._numbers), action))

    def _lag(self) -> float:
        return 1e-4 + (self.chance.random() * self.world.delay if self.world.delay else 0.0)

    def exchange(self, pause: float) -> list[Arrival]:
        until = self.time + pause
        while not self._arrivals and self._events and self._events[0][0] <= until:
            self.time, _, action = heapq.heappop(self._events)
            action()
        if not self._arrivals:
            self.time = until + 1e-6
            return []
        arrivals, self._arrivals = self._arrivals, []
        gathered = []
        for link, what in arrivals:
            if all(worker.link is not link for worker in self._workers.values()):
                if isinstance(what, Frame):
                    what.discard()
            elif isinstance(what, str):
                gathered.append(Arrival(link, [], what))
            else:
                gathered.append(Arrival(link, [what], None))
        return gathered

    def _send(self, peer: Peer, message: messages.Message, descriptors: Sequence[int] = ()) -> None:
        """A worker speaks: it arrives a little later, if at all."""
        if peer.cut or peer.link is None:
            return
        link, copies = peer.link, Descriptors(os.dup(descriptor) for descriptor in descriptors)
        self._later(self._lag(), lambda: self._arrivals.append((link, Frame(message, 0, copies))))

    # Workers

    def maintain(self, now: float) -> list[Worker]:
        fresh = [self._start(kind) for kind in self._missing]
        self._missing.clear()
        staying = [worker for worker in self._workers.values() if not worker.leaves]
        if len(staying) > 1 and self.chance.random() < self.world.leave:
            self.dismiss(self.chance.choice(staying))
        return fresh

    def release(self, worker: Worker) -> None:
        self.released += 1
        for peer in self.peers:
            if peer.worker is worker:
                assert not [at for at in peer.busy if at > self.time and peer.alive and not peer.cut], "it still works"
                peer.alive = False
        self._gone(worker)

    def _gone(self, worker: Worker) -> None:
        self._workers.pop(worker.number, None)
        [kind] = [peer.kind for peer in self.peers if peer.worker is worker]
        self._later(self.world.back_after, lambda: self._missing.append(kind))

    def _start(self, kind: Kind) -> Worker:
        pace = 0.001 * self.world.spread ** self.chance.random()
        executors = 1 if kind == "executor" else self.world.executors
        peer = Peer(f"{kind} {next(self._names)}", kind, executors, pace, busy=[0.0] * executors)
        peer.link = Link(Line(lambda message, fds: self._said(peer, message, fds)))  # type: ignore[arg-type]
        peer.worker = self._add(peer.name, peer.link, own_host=kind == "server", is_executor=kind == "executor")
        peer.worker.executors = executors
        self.peers.append(peer)
        return peer.worker

    def _said(self, peer: Peer, message: messages.Message, descriptors: list[int]) -> None:
        """The session speaks. What is lent is lent at once: the memory is shared."""
        if isinstance(message, messages.SlabOffer):
            peer.slabs[message.slab] = Slab(descriptors.pop(), message.size)
        elif isinstance(message, messages.SlabDrop):
            peer.slabs.pop(message.slab).close()
        elif isinstance(message, messages.Cancel):
            peer.cancelled.update(message.requests)
        elif isinstance(message, messages.Open):
            self._opening = message
            self._later(self._lag(), lambda: self._open(peer))
        elif isinstance(message, messages.SliceRequest) and not peer.cut:
            self._later(self._lag(), lambda: self._asked(peer, message))

    def _open(self, peer: Peer) -> None:
        if peer.alive:
            self._send(peer, messages.Opened(1, self._length, self._built.whole, {"torch": "1"}))

    def _asked(self, peer: Peer, request: messages.SliceRequest) -> None:
        if not peer.alive or peer.hung:
            return
        slot = min(range(len(peer.busy)), key=lambda number: peer.busy[number])
        rows = sum(len(batch.keys) for batch in request.batches)
        begin = max(self.time, peer.busy[slot])
        peer.busy[slot] = begin + peer.pace * rows * (0.5 + self.chance.random())
        self._later(peer.busy[slot] - self.time, lambda: self._made(peer, request, slot))

    def _made(self, peer: Peer, request: messages.SliceRequest, slot: int) -> None:
        """A slice is finished, or something happens instead."""
        if not peer.alive and peer not in self._zombies:
            return
        chance, world = self.chance, self.world
        if peer.alive and not peer.hung:
            drawn = chance.random()
            for share, fault in ((world.kill, self._kill), (world.hang, self._hang), (world.cut, self._cut)):
                if drawn < share:
                    if not self.doomed(request.number):
                        self.faults += 1
                        fault(peer, request)
                        return
                    break
                drawn -= share
        if peer.hung:
            return
        if request.number in peer.cancelled:
            self._send(peer, messages.Cancelled(request.number))
            return
        self._answer(peer, request, slot)

    def _answer(self, peer: Peer, request: messages.SliceRequest, slot: int) -> None:
        slab = peer.slabs.get(request.slab)
        try:
            done, fresh = make_slice(self._built, request, slab, slot, self.lanes)
        except Uneven:
            self._send(peer, messages.Unstackable(request.number))
            return
        rows = sum(len(batch.keys) for batch in request.batches)
        done = msgspec.structs.replace(done, seconds=peer.pace * rows, cpu=peer.pace * rows)  # of the simulated time
        if not peer.alive:  # a zombie: it has written, and nobody hears it
            if fresh is not None:
                fresh.close()
            return
        if self.chance.random() < self.world.corrupt and not (peer.kind == "executor" and self.doomed(request.number)):
            self.faults += 1
            done = msgspec.structs.replace(done, layout=b"\xc1", nodes=[])
        descriptors = [fresh.descriptor] if fresh is not None else []
        self._send(peer, done, descriptors)
        if self.chance.random() < self.world.duplicate:
            self.faults += 1
            self._send(peer, done, descriptors)
        if fresh is not None:
            fresh.close()

    # Faults

    def _kill(self, peer: Peer, request: messages.SliceRequest) -> None:
        if peer.kind == "executor":
            self._break(peer, "killed by SIGKILL")
        else:  # one executor of a host: the host says so, and replaces it
            self._send(peer, messages.Lost(request.number, "executor 0: killed by SIGKILL"))

    def _hang(self, peer: Peer, request: messages.SliceRequest) -> None:
        if peer.kind == "executor":
            peer.hung = True  # until `end_stuck`
        else:
            self._later(request.deadline, lambda: self._send(peer, messages.Lost(request.number, "it hung", True)))

    def _cut(self, peer: Peer, request: messages.SliceRequest) -> None:
        """The connection is lost, after a while in which nothing goes through; a server works on for itself."""
        del request
        if peer.kind == "executor":
            self._break(peer, "closed its connection")
            return
        peer.cut = True
        self._later(3.0, lambda: self._break(peer, "it gives no sign of life"))

    def _break(self, peer: Peer, why: str) -> None:
        if not peer.alive or peer.link is None:
            return
        peer.alive = False
        if peer.kind == "server":
            self._zombies.append(peer)  # its executors still write to the slabs that they were lent
        self._arrivals.append((peer.link, why))

    def end_stuck(self, now: float, limit: float) -> int:
        ended = 0
        for peer in self.peers:
            if peer.kind == "executor" and peer.worker and peer.worker.stuck(now, limit) and peer.alive:
                self._break(peer, "it hung")
                ended += 1
        return ended

    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        gone = [worker for worker in self._workers.values() if worker.link is link]
        for worker in gone:
            self.down(worker, reason)
            for peer in self.peers:
                if peer.worker is worker:
                    if peer.alive and peer.kind == "server":
                        self._zombies.append(peer)
                    peer.alive = False
            self._gone(worker)
        return gone

    def describe(self) -> str:
        return "simulated workers"

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
        for _, what in self._arrivals:
            if isinstance(what, Frame):
                what.discard()
        while self._events:  # descriptors that are on their way
            _, _, action = heapq.heappop(self._events)
            for cell in action.__closure__ or ():
                if isinstance(cell.cell_contents, Descriptors):
                    cell.cell_contents.close()
        self._workers.clear()


class Data:
    """Samples that hold what tells them apart: index, and numbers drawn from torch's and Python's generators."""

    def __init__(self, length: int, shape: int) -> None:
        self.length = length
        self.shape = shape

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.cat([torch.rand(self.shape), torch.tensor([float(index), random.random()])]), index


def plain(built: Built, plan: BatchPlan) -> Any:
    """The batch as one process makes it."""
    with PreservedGenerators():
        return make_whole(built, SampleAddresses(plan.epoch, plan.seed, plan.position, range(plan.rows), plan.keys))
