"""Slices are placed where their samples are: the schedule with sharded data, without I/O."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import random
import socket
from pathlib import Path

import pytest
from feed_servers import write_secret
from simulator import a_worker

from headrace.errors import WorkersLost
from headrace.feed.client.assembly import Assembly
from headrace.feed.client.local_pool import ExecutorInputs, LocalPool
from headrace.feed.client.remote_pool import RemotePool
from headrace.feed.client.scheduler import Schedule
from headrace.feed.client.shard_placement import DataUnion, LayoutProbe
from headrace.feed.client.work_units import Request
from headrace.feed.client.worker_pool import RECOVER_SECONDS, START_SECONDS, WorkerState
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.plan.epoch import BatchPlan, EpochPlan
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import Endpoints
from headrace.feed.wire.framed_connection import FramedConnection, Link

HELD = {1: ["a", "b"], 2: ["b", "c"], 3: ["c", "a"]}
SIZE = 20


class Hosts:
    """Three hosts, each of which lacks a third of the data, and what they are asked for."""

    def __init__(self, seed: int, held: dict[int, list[str]] = HELD) -> None:
        self.held, self.random = held, random.Random(seed)
        self.schedule = Schedule()
        worker_pool = LocalPool(0, None, ExecutorInputs({}))  # nobody is waited for
        self.union = DataUnion(worker_pool, messages.Open(1, "m:f", {}, "", "", True), pytest.fail)
        for number in held:
            self.tell(number)
        placement = self.union.settle(0.0)
        assert placement is not None
        self.schedule.placement = placement
        for number in held:
            self.schedule.add_worker(a_worker(number, f"host-{number}", 2), 0.0)
        self.schedule.stackable = True
        self.asked: list[Request] = []

    def tell(self, number: int) -> None:
        shards = [(key, SIZE) for key in sorted(self.held[number])]
        worker = a_worker(number, f"host-{number}")
        assert self.union.opened(worker, messages.Opened(1, len(shards) * SIZE, False, {}, shards), 0.0)

    def ask_all(self) -> None:
        while (chosen := self.schedule.next_slice()) is not None:
            number, slice_ = chosen
            keys = slice_.bundle.plan.keys[slice_.first : slice_.last]
            assert all("abc"[key // SIZE] in self.held[number] for key in keys)
            self.asked.append(self.schedule.request(number, slice_, 0.0))

    def answer_one(self) -> None:
        request = self.asked.pop(self.random.randrange(len(self.asked)))
        assert self.schedule.answered(request.worker, request.number, 0.0) is request
        if not request.unwanted:
            self.schedule.done(request, 0.01, 0.01)

    def lose(self, number: int) -> None:
        self.schedule.remove_worker(self.schedule.workers[WorkerNumber(number)])
        self.asked = [request for request in self.asked if request.worker.number != number]
        self.union.gone(WorkerNumber(number))
        self.schedule.recut()

    def judge(self, now: float) -> None:
        self.union.judge(self.schedule.bundles.values(), now)

    def come_back(self, number: int) -> None:
        self.tell(number)
        self.schedule.add_worker(a_worker(number, f"host-{number}", 2), 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_asked_of_a_holder_and_comes_once_while_hosts_come_and_go(seed: int) -> None:
    hosts = Hosts(seed)
    plans = EpochPlan(3 * SIZE, 7, seed, shuffle=True).epoch(0)
    lost, left = 0, 200
    for plan in plans:
        hosts.schedule.push([plan])
    while not all(bundle.complete for bundle in hosts.schedule.bundles.values()):
        hosts.ask_all()
        if left and hosts.random.random() < 0.2:
            left -= 1
            if lost:
                hosts.come_back(lost)
                lost = 0
            else:
                lost = hosts.random.choice(list(HELD))
                hosts.lose(lost)
        elif hosts.asked:
            hosts.answer_one()
    for bundle in hosts.schedule.bundles.values():
        edges = [(slice_.first, slice_.last) for slice_ in bundle.slices]
        assert edges[0][0] == 0
        assert edges[-1][1] == bundle.rows
        assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))


def test_a_busy_holder_does_not_keep_the_others_from_their_rows() -> None:
    hosts = Hosts(0, {1: ["a"], 2: ["b", "c"]})
    for plan in EpochPlan(3 * SIZE, 1, 0).epoch(0):
        hosts.schedule.push([plan])
    hosts.ask_all()
    assert [request.worker.number for request in hosts.asked] == [1] * 4 + [2] * 4


def test_rows_without_a_holder_end_the_run_only_after_the_time_that_a_host_has_to_come_back() -> None:
    hosts = Hosts(0, {1: ["a"], 2: ["b", "c"]})
    for plan in EpochPlan(3 * SIZE, 10, 0, shuffle=True).epoch(0):
        hosts.schedule.push([plan])
    hosts.ask_all()
    hosts.judge(0.0)
    hosts.lose(2)
    hosts.judge(1.0)
    hosts.judge(1.0 + RECOVER_SECONDS)
    hosts.come_back(2)
    hosts.judge(2.0 + RECOVER_SECONDS)
    hosts.lose(2)
    hosts.judge(20.0)
    with pytest.raises(WorkersLost, match=r"data are lost: 40 samples of 'b', 'c' were only on host-2"):
        hosts.judge(20.1 + RECOVER_SECONDS)


def test_a_layout_is_learned_row_by_row_and_nothing_is_kept_of_the_batches_that_are_gone() -> None:
    hosts = Hosts(0, {1: ["a", "b"], 2: ["b", "c"]})
    hosts.schedule.stackable = False
    assembly = Assembly(1 << 20)
    probe = LayoutProbe(hosts.schedule, assembly)
    worker = a_worker(1, "host-1")
    across = list(range(SIZE - 2, SIZE + 2))  # of a and of b: only host 1 holds them all
    for step in range(3):
        hosts.schedule.push([BatchPlan(0, step, step * len(across), across, 0)])
        hosts.ask_all()
        assert not hosts.asked  # the layout must be known first
        for answer in (
            messages.Failed(1, messages.RemoteError("builtins:ValueError", "no", "")),
            messages.Unstackable(1),
        ):
            found = probe.next_row()
            assert found is not None
            number, row = found
            assert (number, row.first) == (1, 0 if isinstance(answer, messages.Failed) else 1)
            probe.request = hosts.schedule.ask(number, row, "layout", 0.0)
            assert probe.next_row() is None  # one at a time
            hosts.schedule.answered(probe.request.worker, probe.request.number, 0.0)
            probe.answered(worker, row, answer)
        hosts.ask_all()
        assert [request.slice.whole for request in hosts.asked] == [True]
        hosts.answer_one()
        hosts.schedule.pop(0, step)
    del found, row
    gc.collect()
    assert not probe._tried
    assembly.ledger.close()


def write_hosts(folder: Path, *states: str) -> Endpoints:
    """Writes the feed.json of hosts h1, h2 ... and returns what reads it."""
    hosts = [
        {"host": f"h{number}", "group": "g", "address": f"tcp://127.0.0.1:{number}", "executors": 1, "state": state}
        for number, state in enumerate(states, 1)
    ]
    write_secret(folder / "secret")
    fresh = folder / "fresh.json"
    fresh.write_text(json.dumps({"generation": 1, "secret_file": str(folder / "secret"), "hosts": hosts}))
    fresh.rename(folder / "feed.json")
    return Endpoints(str(folder / "feed.json"))


@pytest.mark.parametrize("state", ["ready", "lost", "opens"])
def test_the_time_in_which_a_host_must_tell_its_shards_begins_when_its_job_has_started_it(
    tmp_path: Path, state: str
) -> None:
    endpoints = write_hosts(tmp_path, "ready", "starting")
    worker_pool = RemotePool(endpoints, "test", 0, 1)
    union = DataUnion(worker_pool, messages.Open(1, "m:f", {}, "", "", True), pytest.fail)
    with contextlib.ExitStack() as stack:
        stack.callback(worker_pool.close)

        def opens(place: int, shard: str, now: float) -> None:
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            worker = worker_pool._add(f"h{place + 1}", Link(FramedConnection(ours)))
            worker.endpoint, worker.state = endpoints.current()[place], WorkerState.READY
            assert union.opened(worker, messages.Opened(1, SIZE, False, {}, [(shard, SIZE)]), now)

        opens(0, "a", 0.0)
        for now in (1.0, 2 * START_SECONDS, 50 * START_SECONDS):
            assert union.settle(now) is None, "its job still starts it"
            assert union.gathering
        if state == "opens":
            opens(1, "b", now)
            assert union.settle(now) is not None
            assert union.length == 2 * SIZE
            return
        write_hosts(tmp_path, "ready", state)
        assert union.settle(now + START_SECONDS) is None
        with pytest.raises(WorkersLost, match="h2 did not open the pipeline within 60 s"):
            union.settle(now + START_SECONDS + 0.1)


def test_a_host_that_feed_json_calls_ready_after_it_was_connected_to_is_not_absent(tmp_path: Path) -> None:
    endpoints = write_hosts(tmp_path, "starting")
    worker_pool = RemotePool(endpoints, "test", 0, 1)
    ours, theirs = socket.socketpair()
    with theirs:
        worker = worker_pool._add("h1", Link(FramedConnection(ours)))
        worker.endpoint, worker.state = endpoints.current()[0], WorkerState.READY
        write_hosts(tmp_path, "ready")
        assert worker_pool.absent() == []
        worker_pool.close()


def test_a_worker_s_number_is_never_used_again_and_its_route_is_that_of_no_other_worker() -> None:
    worker_pool, link = LocalPool(0, None, ExecutorInputs({})), Link(None, shared=True)  # type: ignore[arg-type]
    staying = worker_pool._add("h1", link)
    assert (staying.number, staying.route) == (1, 1)
    worker_pool._numbers = map(WorkerNumber, itertools.count(0xFFFE))
    numbers, routes = [], []
    for _ in range(4):
        worker = worker_pool._add("h2", link)
        assert worker_pool.worker_of(link, worker.route) is worker
        numbers.append(worker.number)
        routes.append(worker.route)
        worker_pool.down(worker, "gone")
        assert worker_pool.worker_of(link, worker.route) is None
    assert numbers == [0xFFFE, 0xFFFF, 0x10002, 0x10003]  # 0 is no route, and 1 is that of the one that stayed
    assert routes == [0xFFFE, 0xFFFF, 2, 3]
    assert worker_pool.worker_of(link, staying.route) is staying
