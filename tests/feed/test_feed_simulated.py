"""Thousands of simulated schedules of faults: every batch once, in order, with the right bytes, and always onwards.

`HEADRACE_SOAK=1` makes them many more, `HEADRACE_SCHEDULES=n` so many. A failure prints its seed:
`HEADRACE_SEED=n` repeats it.
"""

from __future__ import annotations

import os
import random
from collections import Counter, deque
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from simulator import Data, Peer, SimulatedPool, World, a_worker, plain, would_be_given_up
from source_data import fill_tars
from torch.utils.data import default_collate

from headrace.feed import Source, Window, mix, tar
from headrace.feed.client.policy import Policy, SessionStats
from headrace.feed.client.scheduler import Schedule
from headrace.feed.client.session import Session
from headrace.feed.client.work_units import Request
from headrace.feed.identifiers import WorkerNumber
from headrace.feed.pipelines.fetch import Built
from headrace.feed.plan.bookmark import Place, Progress
from headrace.feed.plan.epoch import BatchPlan, EpochPlan
from headrace.feed.plan.orders.mixed_order import MixedOrder
from headrace.feed.wire import messages

SCHEDULES = int(os.environ.get("HEADRACE_SCHEDULES") or (20_000 if os.environ.get("HEADRACE_SOAK") == "1" else 65))


COUNTERS = (
    "retries",
    "hedges",
    "hedges_won",
    "duplicates_dropped",
    "slices_verified",
    "slices_timed_out",
    "purity_failures",
)
released: Counter[World] = Counter()  # workers that were let go
PATIENCE = 120.0  # simulated seconds in which a batch must come

WORLDS = {
    "nothing happens": World(("executor", "executor")),
    "executors die": World(("executor",) * 3, kill=0.05),
    "executors hang": World(("executor",) * 3, hang=0.03),
    "executors come and go": World(("executor",) * 4, leave=0.03, delay=0.01),
    "executors come and go, and die": World(("executor",) * 4, leave=0.03, kill=0.05, hang=0.01, delay=0.01),
    "hosts come and go, and die": World(("server", "remote", "remote"), executors=2, leave=0.03, kill=0.03, cut=0.03),
    "slow and fast": World(("executor",) * 4, spread=30.0, delay=0.01),
    "a host's executors die": World(("remote",), executors=3, kill=0.1),
    "own host and others": World(("server", "remote"), executors=2, kill=0.02, cut=0.03, hang=0.02),
    "cut off": World(("remote",) * 3, executors=2, cut=0.05, delay=0.05),
    "own host restarts": World(("server", "server"), executors=2, cut=0.08),
    "garbage": World(("remote", "server", "executor"), executors=2, corrupt=0.05, duplicate=0.1),
    "everything": World(
        ("executor", "server", "remote", "remote"), executors=2, kill=0.03, hang=0.02, cut=0.03, duplicate=0.1,
        corrupt=0.02, delay=0.05, spread=5.0,
    ),
}  # fmt: skip


def collate_list(samples: list[object]) -> list[object]:
    """A collate function of the user's: its batches do not stack."""
    return list(samples)


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 64 rows."""
    return fill_tars(tmp_path_factory.mktemp("tars"), {"a": 10, "b": 31, "c": 23})


def rows_of(tars: Path, shape: int) -> Source:
    """The rows of shards, as samples of the form of `Data`."""

    def sample(row: dict[str, Any]) -> tuple[Any, int]:
        numbers = torch.tensor([float(sum(row["bin"]) % 1000), random.random()])
        return torch.cat([torch.rand(shape), numbers]), int(row["cls"])

    return tar(tars).map(sample)


def simulate(world: World, seed: int, tars: Path) -> SessionStats:
    """Runs one schedule, of a dataset in memory or of shards, and checks what comes out."""
    chance = random.Random(seed)
    length, batch = chance.choice([(40, 4), (33, 8), (64, 16), (20, 1)])
    stackable = chance.random() < 0.7
    data = Data(length, chance.choice([2, 100, 5000]))
    dataset = data if chance.random() < 0.6 else rows_of(tars, data.shape)
    built = Built(dataset, default_collate if stackable else collate_list, stackable)
    shuffle = chance.choice([False, True, Window(4, 3)])
    plan = EpochPlan(length, batch, seed, shuffle=shuffle)
    if chance.random() < 0.3:
        mixture = mix({"a": data, "b": rows_of(tars, data.shape)}, {"a": 0.6, "b": 0.4}, rows=length)
        built = replace(built, dataset=mixture)
        plan = replace(plan, order=MixedOrder(mixture.mixing, seed, shuffle))
    one_batch = (4 * (data.shape + 2) + 8 + 128) * batch
    memory = one_batch * chance.choice([1, 2, 5, 1000])
    worker_pool = SimulatedPool(world, built, chance, length)
    policy = Policy(
        slice_timeout=5.0, hedge=chance.random() < 0.7, verify=chance.choice([0.0, 0.001, 0.3]), memory=memory,
        prefetch=chance.choice([None, None, 1, 2]), stall_timeout=PATIENCE,
    )  # fmt: skip
    warned: list[str] = []
    session = Session(
        worker_pool,
        messages.Open(1, "m:f", {}, "", "", True),
        policy,
        SessionStats(),
        lambda text, _: warned.append(text),
    )
    worker_pool.doomed = lambda number: would_be_given_up(worker_pool.workers(), number)
    latest = kept(session._schedule)
    held: deque[tuple[object, object]] = deque()
    window = random.Random(f"window {seed}").choice([1, 1, 3, 8])
    try:
        for epoch in range(2):
            stop = chance.randrange(plan.steps + 1) if epoch == 0 else plan.steps  # the first pass may be broken off
            session.begin(plan.epoch(epoch))
            progress = Progress(epoch)
            for _ in range(stop):
                assert session.wait_for(epoch, progress.step, None, window)
                step = session.first_ready(epoch, progress.step, window)
                assert step is not None
                assert progress.step <= step < progress.step + window
                assert step not in progress.ahead
                progress.took(step)
                taken = session.take(epoch, step)
                assert taken is not None
                expected = plain(built, plan.batch(epoch, step))
                check(taken[0], expected)
                held.append((taken[0], expected))
                del taken
                while len(held) > chance.randrange(6):
                    check(*held.popleft())  # nobody wrote to it while it was held
                worker_pool.time += chance.random() * 0.02
            if stop == plan.steps:
                assert progress.place == Place(stop)
                assert not session.wait_for(epoch, stop, None, window)
        while held:
            check(*held.popleft())
        settle(session, worker_pool)
        assert not warned
    except BaseException:
        print("the latest requests:", *map(story, latest), sep="\n")
        raise
    finally:
        session.close()
    released[world] += worker_pool.released
    return session.stats


def kept(schedule: Schedule) -> deque[Request]:
    """Keeps the latest requests of a schedule: their stories tell what went wrong."""
    latest: deque[Request] = deque(maxlen=40)
    ask = schedule.ask

    def keep(*arguments: Any) -> Request:
        request = ask(*arguments)
        latest.append(request)
        return request

    schedule.ask = keep  # type: ignore[method-assign]
    return latest


def story(request: Request) -> str:
    slice_, plan = request.slice, request.slice.bundle.plan
    return (
        f"request {request.number} ({request.purpose}) to worker {request.worker.number} at {request.asked:.4f} s: "
        f"rows {slice_.first}..{slice_.last - 1} of batch {plan.step} of epoch {plan.epoch}, slab {request.slab}, "
        f"whole: {slice_.whole}, done: {slice_.done}, unwanted: {request.unwanted}"
    )


def settle(session: Session, worker_pool: SimulatedPool) -> None:
    """Waits for the last answers; then no memory is in use, and nothing is kept of what came."""
    until = worker_pool.time + PATIENCE
    while any(worker.outstanding for worker in worker_pool.workers()):
        assert worker_pool.time < until
        session._exchange.step(0.2)
    pool = session._assembly.ledger
    assert pool.free_bytes == pool.total_bytes
    assert not session._assembly._results


def check(got: object, expected: object) -> None:
    """The same structure and the same bits."""
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(got, expected)  # type: ignore[arg-type]
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)  # type: ignore[arg-type]
        for one, other in zip(got, expected, strict=True):  # type: ignore[call-overload]
            check(one, other)
    else:
        assert got == expected


@pytest.mark.promise("feed-guarantees", "in plan order, whatever happens to workers and messages")
@pytest.mark.promise("feed", "`in_order=False`: each batch comes once, a slow one delays none, resume is exact")
@pytest.mark.timeout(3600 if SCHEDULES > 1_000 else 120)
@pytest.mark.parametrize("name", WORLDS)
def test_every_batch_comes_once_in_order_with_the_right_bytes_whatever_happens(name: str, tars: Path) -> None:
    world = WORLDS[name]
    given = os.environ.get("HEADRACE_SEED")
    first = int(given) if given else random.randrange(2**31)
    sums = SessionStats()
    count = 1 if given else SCHEDULES // len(WORLDS)
    for seed in range(first, first + (1 if given else 20 * count)):  # more if, by chance, something did not happen
        if seed - first >= count and not lacking(world, sums):
            break
        try:
            stats = simulate(world, seed, tars)
        except BaseException:
            print(f"HEADRACE_SEED={seed}")
            raise
        for counter in (
            "retries",
            "hedges",
            "duplicates_dropped",
            "slices_verified",
            "workers_lost",
            "slices_timed_out",
        ):
            setattr(sums, counter, getattr(sums, counter) + getattr(stats, counter))
        sums.purity_failures += stats.purity_failures
    print(name, "from seed", first, sums)
    assert sums.purity_failures == 0
    assert given or not lacking(world, sums)


@pytest.mark.parametrize("hedge", [True, False])
def test_idle_workers_take_what_a_hung_one_has_not_begun_and_copy_only_what_it_is_at(hedge: bool) -> None:
    built, plan, stats = (
        Built(Data(600, 2), default_collate, default_collate=True),
        EpochPlan(600, 10, 1),
        SessionStats(),
    )
    worker_pool = SimulatedPool(World(("executor",) * 3), built, random.Random(7), 600)
    policy = Policy(slice_timeout=50.0, hedge=hedge, verify=0.0, prefetch=8, stall_timeout=PATIENCE)
    opening = messages.Open(1, "m:f", {}, "", "", True)
    session = Session(worker_pool, opening, policy, stats, lambda text, _: pytest.fail(text))
    with closing(session):
        session.begin(plan.epoch(0))
        for step in range(plan.steps):
            assert session.wait_for(0, step, None)
            check(session.take(0, step)[0], plain(built, plan.batch(0, step)))  # type: ignore[index]
            if step == 20:
                queued = max(worker_pool.peers, key=lambda peer: len(_owed(session, peer)))
                queued.hung, hung = True, worker_pool.time
                assert len(_owed(session, queued)) > 3
        took = worker_pool.time - hung
        assert (took < 5.0, stats.hedges, stats.slices_timed_out) == ((True, 1, 0) if hedge else (False, 0, 1))


def _owed(session: Session, peer: Peer) -> list[Request]:
    assert peer.worker is not None
    return list(session._schedule.workers[peer.worker.number].outstanding.values())


def test_no_fault_is_played_over_rows_that_another_one_on_its_way_may_cost() -> None:
    schedule, workers = Schedule(), [a_worker(number, f"executor {number}") for number in (1, 2, 3)]
    for worker in workers:
        schedule.add_worker(worker, 0.0)
    schedule.push([BatchPlan(0, 0, 0, [0], 0)])
    asked = schedule.next_slice()
    assert asked is not None
    first = schedule.request(WorkerNumber(1), asked[1], 0.0)
    assert not would_be_given_up(workers, first.number)  # it may hang, which is told later
    second = schedule.request(WorkerNumber(2), asked[1], 1.0)
    assert [would_be_given_up(workers, request.number) for request in (first, second)] == [True, True]
    schedule.remove_worker(workers[0])
    assert not would_be_given_up(workers, second.number)
    asked[1].deaths = 1
    assert would_be_given_up(workers, second.number)
    schedule.leave(workers[1])
    assert would_be_given_up(workers, second.number)  # one that is to go still works


def lacking(world: World, sums: SessionStats) -> list[str]:
    """Returns what was to happen in a world and did not."""
    happened = {
        "retries": sums.retries > 0 or not (world.kill or world.cut or world.corrupt),
        "timeouts": sums.slices_timed_out > 0 or world.hang < 0.03 or world.kinds[0] != "executor",
        "hedges": sums.hedges > 0 or world.hang < 0.03,
        "checks": sums.slices_verified > 0,
        "duplicates": sums.duplicates_dropped > 0 or not world.duplicate,
        "releases": released[world] > 0 or not world.leave or "executor" not in world.kinds,
    }
    return [name for name, seen in happened.items() if not seen]


def test_the_same_seed_gives_the_same_schedule(tars: Path) -> None:
    world = replace(WORLDS["everything"], kill=0.1)
    assert simulate(world, 5, tars) == simulate(world, 5, tars)
