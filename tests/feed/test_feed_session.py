"""The session, with workers that the test plays by hand on the other end of real sockets."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
import pytest
import torch
from feed_servers import open_descriptors
from torch.utils.data import default_collate

from headrace.errors import PipelineError, WorkerError, WorkersLost
from headrace.feed.batch.row_layout import learn
from headrace.feed.batch.slab import Slab
from headrace.feed.client.policy import Policy, SessionStats
from headrace.feed.client.session import Session
from headrace.feed.client.worker_pool import Worker, WorkerPool
from headrace.feed.plan.epoch import EpochPlan
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import FramedConnection, Link

LAYOUT = learn(torch.tensor(0.0), default_collate)
ENCODED = msgspec.msgpack.encode(LAYOUT)
ROWS = 4


class Hand:
    """A feed server's end of a connection, played by the test."""

    def __init__(self, connection: socket.socket) -> None:
        self.channel = FramedConnection(connection)
        self.slabs: dict[int, Slab] = {}
        self.asks: list[messages.SliceRequest] = []

    def read(self) -> list[messages.Message]:
        """Takes what has come."""
        got = []
        for frame in self.channel.receive():
            if isinstance(frame.message, messages.SlabOffer):
                self.slabs[frame.message.slab] = Slab(frame.take_descriptor(), frame.message.size)
            elif isinstance(frame.message, messages.SliceRequest):
                self.asks.append(frame.message)
            got.append(frame.message)
        return got

    def opened(self, length: int = 40, **numerics: str) -> None:
        self.channel.send(messages.Opened(1, length, False, numerics))

    def answer(self, request: messages.SliceRequest, *, value: float | None = None) -> None:
        """Answers with rows that hold the keys, or a value."""
        fresh = request.slab not in self.slabs
        slab = (
            Slab.create(sum(LAYOUT.size(batch.rows) for batch in request.batches))
            if fresh
            else self.slabs[request.slab]
        )
        start = 0
        for batch in request.batches:
            rows = slab.view()[start:].view("f4")
            rows[batch.first : batch.last] = batch.keys if value is None else value
            start += LAYOUT.size(batch.rows)
        done = messages.Done(request.number, slab.size, [], ENCODED, 0.01, 0.01, fresh)
        self.channel.send(done, descriptors=[slab.descriptor] if fresh else [])
        if fresh:
            slab.close()

    def close(self) -> None:
        self.channel.close()
        for slab in self.slabs.values():
            slab.close()
        self.slabs.clear()


class ByHand(WorkerPool):
    """Workers that are there from the beginning and never replaced."""

    def __init__(self, names: str, *, is_executor: bool = False) -> None:
        super().__init__()
        self.hands: dict[str, Hand] = {}
        for name in names:
            ours, theirs = socket.socketpair()
            self.hands[name] = Hand(theirs)
            self._add(name, Link(FramedConnection(ours)), own_host=not is_executor, is_executor=is_executor)
        self._new = self.workers()

    def maintain(self, now: float) -> list[Worker]:
        new, self._new = self._new, []
        if not self._workers:
            raise WorkersLost("no data worker is left")
        return new

    def release(self, worker: Worker) -> None:
        raise AssertionError("nobody leaves")

    def link_lost(self, link: Link, reason: str, now: float) -> list[Worker]:
        [worker] = [worker for worker in self._workers.values() if worker.link is link]
        self.down(worker, reason)
        link.close()
        return [worker]

    def describe(self) -> str:
        return "by hand"

    def close(self) -> None:
        for link in self.links():
            link.close()
        for hand in self.hands.values():
            hand.close()


@pytest.fixture
def worker_pool() -> Iterator[ByHand]:
    made = ByHand("ab")
    yield made
    made.close()


@pytest.fixture
def session(worker_pool: ByHand) -> Iterator[Session]:
    opening = messages.Open(1, "m:f", {}, "", "", True)
    made = Session(
        worker_pool,
        opening,
        Policy(verify=0, hedge=False, memory=1 << 20, prefetch=2, stall_timeout=5),
        SessionStats(),
        warnings.warn,
    )
    made.begin(EpochPlan(40, ROWS, 0).epoch(0))
    yield made
    made.close()


def ready(worker_pool: ByHand, session: Session) -> tuple[Hand, Hand]:
    """Opens both, and has the first batches made, so that the layout is known."""
    a, b = worker_pool.hands["a"], worker_pool.hands["b"]
    session._exchange.step(0.0)
    for hand in (a, b):
        assert isinstance(hand.read()[0], messages.Open)
        hand.opened()
    session._exchange.step(0.01)
    session._exchange.step(0.0)
    for hand in (a, b):
        hand.read()
        for request in hand.asks:
            hand.answer(request)
        hand.asks.clear()
    session._exchange.step(0.01)
    return a, b


def take(session: Session, step: int) -> list[float]:
    assert session.wait_for(0, step, 5)
    taken = session.take(0, step)
    assert taken is not None
    batch, rows = taken
    assert rows == ROWS
    result: list[float] = batch.tolist()
    return result


def expected(step: int) -> list[float]:
    return [float(step * ROWS + row) for row in range(ROWS)]


def test_a_batch_that_a_lost_server_may_still_write_to_is_begun_again_in_another_slab(
    worker_pool: ByHand, session: Session
) -> None:
    a, b = ready(worker_pool, session)
    for step in range(4):
        assert take(session, step) == expected(step)
    session._exchange.step(0.0)
    a.read()
    b.read()
    [doomed, *_] = a.asks
    assert doomed.slab in a.slabs
    a.channel.close()  # its executors live on, and write a little later
    session._exchange.step(0.01)
    a.slabs[doomed.slab].view()[:] = 0xFF
    b.read()
    while not (again := [request for request in b.asks if request.batches[0].step == doomed.batches[0].step]):
        b.answer(b.asks.pop(0))  # it has no room before
        session._exchange.step(0.0)
        b.read()
    assert [request.slab != doomed.slab for request in again] == [True]
    while b.asks:
        b.answer(b.asks.pop(0))
        session._exchange.step(0.0)
        b.read()
    a.slabs[doomed.slab].view()[:] = 0xFF
    assert take(session, doomed.batches[0].step if doomed.batches[0].step == 4 else 4) == expected(4)
    assert session.stats.retries >= 1
    for step in range(5, 10):
        while not session._schedule.bundles[0, step].complete:
            b.read()
            while b.asks:
                b.answer(b.asks.pop(0))
            session._exchange.step(0.01)
        assert take(session, step) == expected(step)
        a.slabs[doomed.slab].view()[:] = 0xFF
    assert not session.wait_for(0, 10, 5)


@pytest.mark.promise("feed-guarantees", "a second answer counts for nothing")
def test_a_second_answer_is_dropped_and_counted(worker_pool: ByHand, session: Session) -> None:
    a, b = ready(worker_pool, session)
    assert take(session, 0) == expected(0)
    assert session.wait_for(0, 1, 5)
    session._exchange.step(0.0)
    a.read()
    b.read()
    hand = a if a.asks else b
    [request, *_] = hand.asks
    hand.answer(request)
    session._exchange.step(0.01)
    hand.channel.send(messages.Done(request.number, 64, [], ENCODED, 0.1, 0.1))
    session._exchange.step(0.01)
    assert session.stats.duplicates_dropped == 1
    assert take(session, 1) == expected(1)


@pytest.mark.parametrize(
    "lie",
    [
        {"layout": b"\xff"},
        {"fresh": True},
    ],
)
def test_a_worker_whose_answer_is_not_sound_is_left(
    lie: dict[str, object], worker_pool: ByHand, session: Session
) -> None:
    a, b = ready(worker_pool, session)
    for step in range(4):
        take(session, step)
    session._exchange.step(0.0)
    a.read()
    b.read()
    [request, *_] = a.asks
    done = {"request": request.number, "size": 64, "nodes": [], "layout": ENCODED}
    a.channel.send(messages.Done(**(done | {"seconds": 0.1, "cpu": 0.1} | lie)))  # type: ignore[arg-type]
    session._exchange.step(0.01)
    for step in range(4, 10):
        for _ in range(50):
            b.read()
            while b.asks:
                b.answer(b.asks.pop(0))
            session._exchange.step(0.01)
            if session._schedule.bundles[0, step].complete:
                break
        assert take(session, step) == expected(step)
    assert [worker.name for worker in worker_pool.workers()] == ["b"]


def test_checks_that_wait_are_made_after_a_late_slice_was_won_by_another_worker(worker_pool: ByHand) -> None:
    clock = [0.0]
    worker_pool.now = lambda: clock[0]
    policy = Policy(verify=1, memory=1 << 20, prefetch=2, stall_timeout=5)
    made = Session(worker_pool, messages.Open(1, "m:f", {}, "", "", True), policy, SessionStats(), warnings.warn)
    with closing(made):
        made.begin(EpochPlan(4 * ROWS, ROWS, 0).epoch(0))
        exchange, hands = made._exchange, worker_pool.hands.values()
        exchange.step(0.0)
        for hand in hands:
            hand.read()
            hand.opened(4 * ROWS)
        exchange.step(0.01)
        exchange.step(0.0)
        for hand in hands:
            hand.read()
        slow, quick = sorted(hands, key=lambda hand: min(request.batches[0].step for request in hand.asks))
        assert [len(hand.asks) for hand in (slow, quick)] == [2, 2]
        for request in quick.asks:
            quick.answer(request)
        exchange.step(0.01)  # the checks of these two wait: the other worker has no room for them
        clock[0] = 1000.0
        exchange.step(0.0)
        quick.read()
        hedge = quick.asks[-1]
        assert hedge.batches[0].step == 0
        quick.answer(hedge)
        exchange.step(0.01)
        assert made.stats.hedges_won == 1
        [first, second] = slow.asks
        assert any(message == messages.Cancel([first.number]) for message in slow.read())
        slow.channel.send(messages.Cancelled(first.number))
        slow.answer(second)
        exchange.step(0.01)
        exchange.step(0.0)
        slow.read()
        checks = {request.batches[0].step for request in slow.asks if request.check == messages.SUM}
        assert checks == {request.batches[0].step for request in quick.asks[:2]}


def test_workers_that_see_data_of_another_length_are_refused(worker_pool: ByHand, session: Session) -> None:
    session._exchange.step(0.0)
    worker_pool.hands["a"].opened(40)
    worker_pool.hands["b"].opened(39)
    with pytest.raises(PipelineError, match="39 samples on b and 40 elsewhere"):
        session.wait_for(0, 0, 5)
    assert session.closed


def test_workers_with_other_numerics_are_warned_about_once(worker_pool: ByHand, session: Session) -> None:
    session._exchange.step(0.0)
    worker_pool.hands["a"].opened(40, torch="2.1", cpu_capability="AVX2")
    worker_pool.hands["b"].opened(40, torch="2.2", cpu_capability="AVX2")
    with pytest.warns(UserWarning, match=r"torch: 2\.1 and 2\.2"):
        session._exchange.step(0.01)


def test_a_failure_is_raised_when_its_batch_is_due_and_not_before(worker_pool: ByHand, session: Session) -> None:
    a, b = ready(worker_pool, session)
    for step in range(4):
        take(session, step)
    session._exchange.step(0.0)
    a.read()
    b.read()
    later = max([*a.asks, *b.asks], key=lambda request: request.batches[0].step)
    hand = a if later in a.asks else b
    if hand.asks[0] is not later:
        for request in hand.asks[:-1]:
            hand.answer(request)
    error = messages.RemoteError("mymodule:MyError", "bad", "Traceback: here")
    hand.channel.send(messages.Failed(later.number, error))
    other = b if hand is a else a
    for request in other.asks:
        other.answer(request)
    session._exchange.step(0.01)
    session._exchange.step(0.01)
    for step in range(4, later.batches[0].step):
        assert take(session, step) == expected(step)
    assert session.wait_for(0, later.batches[0].step, 5)
    with pytest.raises(WorkerError, match=r"MyError: bad(.|\n)*raised on (.|\n)*Traceback: here"):
        session.take(0, later.batches[0].step)


def test_closing_gives_everything_up_even_under_way(worker_pool: ByHand, session: Session) -> None:
    ready(worker_pool, session)
    before = open_descriptors()
    session.close()
    assert open_descriptors() < before
    session.close()


ERROR = messages.RemoteError("builtins:ValueError", "no", "")
ANSWERS = {
    "done": lambda number: messages.Done(number, 0, [], ENCODED, 0.01, 0.01),
    "unstackable": messages.Unstackable,
    "failed": lambda number: messages.Failed(number, ERROR),
    "lost": lambda number: messages.Lost(number, "killed by SIGKILL", True),
    "cancelled": messages.Cancelled,
}


@contextmanager
def played(names: str, *, is_executor: bool = False, verify: float = 0) -> Iterator[tuple[Session, list[Hand]]]:
    """A session of one batch a worker, which each has been asked for."""
    pool = ByHand(names, is_executor=is_executor)
    policy = Policy(verify=verify, hedge=False, memory=1 << 20, stall_timeout=5)
    made = Session(pool, messages.Open(1, "m:f", {}, "", "", True), policy, SessionStats(), warnings.warn)
    with closing(made):
        made.begin(EpochPlan(len(names) * ROWS, ROWS, 0).epoch(0))
        made._exchange.step(0.0)
        hands = list(pool.hands.values())
        for hand in hands:
            hand.opened(len(names) * ROWS)
        step(made, hands)
        yield made, hands


def step(session: Session, hands: list[Hand]) -> None:
    session._exchange.step(0.01)
    session._exchange.step(0.0)
    for hand in hands:
        hand.read()


def by_whom(hands: list[Hand], step: int) -> Hand:
    return next(hand for hand in hands if any(request.batches[0].step == step for request in hand.asks))


@pytest.mark.parametrize(
    ("answer", "again", "whole", "retries"),
    [("unstackable", 1, True, 0), ("failed", 0, False, 0), ("lost", 1, False, 1), ("cancelled", 1, False, 0)],
)
def test_what_follows_from_an_answer_without_rows(answer: str, again: int, whole: bool, retries: int) -> None:
    with played("a") as (session, [hand]):
        [request] = hand.asks
        hand.channel.send(ANSWERS[answer](request.number))
        step(session, [hand])
        assert [ask.whole for ask in hand.asks[1:]] == [whole] * again
        assert (session.stats.retries, session.stats.slices_timed_out) == (retries, retries)
        if answer == "failed":
            assert session.wait_for(0, 0, 5)
            with pytest.raises(ValueError, match="no"):
                session.take(0, 0)


@pytest.mark.parametrize("answer", ANSWERS)
def test_nothing_follows_from_an_answer_that_nobody_needs_but_rows_are_counted(answer: str) -> None:
    with played("a") as (session, [hand]):
        [request] = hand.asks
        session.begin(iter(()))
        hand.channel.send(ANSWERS[answer](request.number))
        step(session, [hand])
        stats = session.stats
        assert (stats.duplicates_dropped, stats.retries, stats.slices_timed_out) == (answer == "done", 0, 0)
        assert hand.asks == [request]


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_check_compares_what_was_made_and_gives_up_at_anything_else(answer: str) -> None:
    with played("ab", verify=1) as (session, hands):
        one, other = by_whom(hands, 0), by_whom(hands, 1)
        for hand in hands:
            hand.answer(hand.asks[0])
        step(session, hands)
        [check] = [request for request in other.asks if request.check == messages.SUM]
        other.channel.send(ANSWERS[answer](check.number))
        step(session, hands)
        assert session.stats.slices_verified == (answer == "done")
        assert session.stats.retries == 0
        assert [len(hand.asks) for hand in (one, other)] == [2, 2]  # each has made one, and was asked for the other's


@pytest.mark.parametrize("is_executor", [True, False])
def test_a_check_is_made_by_another_when_its_worker_is_lost_unless_it_may_be_what_ended_it(is_executor: bool) -> None:
    with played("abc", is_executor=is_executor, verify=1) as (session, hands):
        one = by_whom(hands, 0)
        one.answer(one.asks[0])
        step(session, hands)
        [checker] = [hand for hand in hands if hand.asks[-1].check == messages.SUM]
        [third] = [hand for hand in hands if hand not in (one, checker)]
        checker.answer(checker.asks[0]) if is_executor else None  # so that the check is what it is at
        checker.channel.close()
        hands.remove(checker)
        step(session, hands)
        checks = [request.batches[0].step for request in third.asks if request.check == messages.SUM]
        assert checks == ([] if is_executor else [0])


def test_what_nobody_needs_is_no_retry_when_its_worker_is_lost() -> None:
    with played("ab", is_executor=True) as (session, [a, b]):
        session.begin(iter(()))
        a.channel.close()
        step(session, [b])
        assert session.stats.workers_lost == 1
        assert session.stats.retries == 0


def test_another_row_tells_the_layout_when_the_worker_that_was_asked_is_lost() -> None:
    pool = ByHand("abc")
    policy = Policy(verify=0, memory=1 << 20, stall_timeout=5)
    made = Session(pool, messages.Open(1, "m:f", {}, "", "", True), policy, SessionStats(), warnings.warn)
    with closing(made):
        made.begin(EpochPlan(8, 8, 0).epoch(0))
        made._exchange.step(0.0)
        hands = list(pool.hands.values())
        for hand, shards in zip(hands, (["x"], ["x"], ["y"]), strict=True):
            hand.channel.send(messages.Opened(1, 4, False, {}, [(shard, 4) for shard in shards]))
        step(made, hands)
        [asked] = [hand for hand in hands if hand.asks]
        asked.channel.close()
        hands.remove(asked)
        step(made, hands)
        assert [len(request.batches[0].keys) for hand in hands for request in hand.asks] == [1]
