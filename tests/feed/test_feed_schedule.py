"""Who is asked for what: the state machine, step by step."""

from __future__ import annotations

import collections
import itertools
import random

import pytest
from simulator import a_worker

from headrace.feed.client.scheduler import MAX_DEATHS, MAX_DEATHS_TOGETHER, Schedule
from headrace.feed.client.work_units import Request, Slice
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.wire import messages
from headrace.feed.worker.executor_rules import DEPTH

DONE = messages.Done(1, 0, [], b"", 0.0, 0.0)


def plan(step: int, rows: int = 8, epoch: int = 0) -> BatchPlan:
    return BatchPlan(epoch, step, step * rows, list(range(step * rows, (step + 1) * rows)), 0)


def a_schedule(*workers: tuple[str, int], steps: int = 6, rows: int = 8) -> Schedule:
    schedule = Schedule()
    for number, (name, executors) in enumerate(workers, 1):
        schedule.add_worker(a_worker(number, name, executors), 0.0)
    for step in range(steps):
        schedule.push([plan(step, rows)])
    return schedule


def ask_all(schedule: Schedule) -> list[tuple[int, Request, Slice]]:
    """Asks until nothing should be asked. Returns (worker, request, slice)."""
    asked = []
    while (chosen := schedule.next_slice()) is not None:
        number, slice_ = chosen
        asked.append((number, schedule.request(number, slice_, 0.0), slice_))
    return asked


def answered(schedule: Schedule, number: int, request: Request, now: float) -> Slice | None:
    """A worker has made the rows of a request. Returns the slice; None when nobody needs them (any more)."""
    assert request.worker.number == number
    found = schedule.answered(request.worker, request.number, now)
    assert found in (request, None)
    return request.slice if found is not None and not request.unwanted else None


def finish(schedule: Schedule, number: int, request: Request, seconds: float = 0.01) -> Slice | None:
    slice_ = answered(schedule, number, request, 0.0)
    if slice_ is not None:
        schedule.done(request, seconds, seconds)
    return slice_


def test_batches_are_asked_for_in_order_and_only_as_deep_as_the_executors_reach() -> None:
    asked = ask_all(a_schedule(("a", 2)))
    assert [slice_.bundle.plan.step for _, _, slice_ in asked] == list(range(2 * DEPTH))


@pytest.mark.parametrize(("away", "steps"), [(0.0, 4), (0.03, 4), (0.4, 10), (4.0, 17)])  # 17: all that there are
def test_before_nobody_asks_for_a_while_as_much_is_asked_for_as_that_takes(away: float, steps: int) -> None:
    schedule = a_schedule(("a", 2), steps=21)
    for number, request, _ in ask_all(schedule):
        finish(schedule, number, request, seconds=0.1)
    schedule.unattended(away)
    assert len(schedule.workers[1].outstanding) + len(ask_all(schedule)) == steps
    schedule.unattended(0.0)
    assert ask_all(schedule) == []


def deep(*workers: tuple[str, int], steps: int = 20) -> tuple[Schedule, dict[int, list[Request]]]:
    """Nobody will ask for a while, so the first worker has all batches to make, of 0.1 s each, and others have come."""
    schedule = a_schedule(("a", 1), steps=steps)
    for number, request, _ in ask_all(schedule):
        finish(schedule, number, request, seconds=0.1)
    schedule.unattended(100.0)
    owed = [request for _, request, _ in ask_all(schedule)]
    for number, (name, executors) in enumerate(workers, 2):
        schedule.add_worker(a_worker(number, name, executors), 0.0)
    return schedule, {1: owed}


def test_a_worker_that_has_not_answered_yet_is_asked_for_little_however_long_nobody_will_ask() -> None:
    schedule, _ = deep(("new", 2))
    for step in range(20, 60):
        schedule.push([plan(step)])
    asked = [number for number, _, _ in ask_all(schedule)]
    assert asked.count(2) == 2 * DEPTH


def test_what_waits_at_a_busy_worker_is_taken_back_for_one_that_has_nothing_to_do() -> None:
    schedule, owed = deep(("idle", 1))
    assert ask_all(schedule) == []
    [taken] = schedule.idle_work(0.0).taken
    assert taken is owed[1][DEPTH], "the earliest that nobody has begun"
    assert schedule.idle_work(0.0).taken == [], "it has been"
    assert schedule.answered(taken.worker, taken.number, 0.0) is taken
    [(number, _, slice_)] = ask_all(schedule)
    assert (number, slice_) == (2, taken.slice)
    assert schedule.idle_work(0.0).taken == [], "nobody is idle"


def test_what_a_stuck_worker_does_not_give_back_is_asked_for_twice_and_costs_no_share_of_the_hedges() -> None:
    schedule, owed = deep(("idle", 1), steps=6)
    assert len(owed[1]) == 4
    late = 0.32  # it should have made the first one after 0.1
    schedule.hedges, schedule.requested = 1, 10  # there may be no more
    [first] = schedule.idle_work(late).taken
    assert schedule.idle_work(late + 0.05).again is None, "it may give it back"
    for request in [first, owed[1][2], owed[1][3]]:
        late += 0.2
        number, slice_ = schedule.idle_work(late).again or (0, None)
        assert (number, slice_) == (2, request.slice)
        moved = schedule.request(2, request.slice, late)
        assert moved.purpose == "moved"
        finish(schedule, 2, moved, seconds=0.1)
        assert request.slice.done
        schedule.idle_work(late)
    assert schedule.hedges == 1
    assert schedule.idle_work(9.0).again is None, "the one that it is at may be made by both"
    for step in (0, 1):
        schedule.pop(0, step)
    schedule.requested = 100
    assert schedule.idle_work(9.0).again == (2, owed[1][0].slice)


def test_nothing_is_asked_for_twice_without_hedging() -> None:
    schedule, _ = deep(("idle", 1))
    assert schedule.idle_work(1.0, hedge=False).taken
    assert schedule.idle_work(9.0, hedge=False).again is None


def test_nothing_is_taken_back_that_would_not_come_sooner() -> None:
    schedule, owed = deep()
    for request in owed[1][: -DEPTH - 1]:
        finish(schedule, 1, request, seconds=0.1)
    schedule.add_worker(a_worker(2, "slow", 1), 0.0)
    schedule.workers[2].seconds_per_row = 1.0
    assert schedule.idle_work(0.0).taken == []
    schedule.workers[2].seconds_per_row = 0.01
    assert schedule.idle_work(0.0).taken == owed[1][-1:]
    schedule, owed = deep(("idle", 1))
    for request in owed[1]:
        request.slice.holders = frozenset({1})
    assert schedule.idle_work(0.0).taken == [], "it does not hold them"


def test_what_one_that_is_to_go_has_not_begun_is_known() -> None:
    schedule, owed = deep()
    assert schedule.not_begun(schedule.workers[1]) == owed[1][DEPTH:]
    assert schedule.workers[1].outstanding_rows == 8 * len(owed[1])
    for request in owed[1]:
        finish(schedule, 1, request, seconds=0.1)
    assert schedule.not_begun(schedule.workers[1]) == []
    assert schedule.workers[1].outstanding_rows == 0


def test_the_parts_of_a_lost_source_are_asked_for_elsewhere_first_of_all() -> None:
    schedule = a_schedule(("a", 1), ("b", 1))
    asked = ask_all(schedule)
    owed = schedule.remove_worker(schedule.workers[1])
    assert owed == [request for number, request, _ in asked if number == 1]
    for number, request, _ in asked:
        if number == 2:
            finish(schedule, 2, request)
    again = ask_all(schedule)
    assert [slice_ for _, _, slice_ in again][: len(owed)] == [request.slice for request in owed]
    assert {number for number, _, _ in again} == {2}


def died(schedule: Schedule, asked: tuple[int, Request, Slice]) -> bool:
    """The worker that was asked for a slice dies over it. Returns whether the slice may be asked for again."""
    worker, request, slice_ = asked
    answered(schedule, worker, request, 0.0)
    return schedule.died(slice_)


def test_a_batch_that_is_made_whole_is_given_up_after_four_deaths() -> None:
    schedule = a_schedule(("a", 1), steps=1)
    for _ in range(MAX_DEATHS_TOGETHER - 1):
        [asked, *_] = ask_all(schedule)
        assert died(schedule, asked)
    [asked, *_] = ask_all(schedule)
    assert not died(schedule, asked)


@pytest.mark.promise(
    "feed-errors", "only a sample over which two workers died while they made it alone is given up, by name"
)
def test_only_rows_over_which_two_died_alone_are_given_up_whatever_is_killed_from_outside() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        schedule = a_schedule(("a", 64), steps=0)
        schedule.stackable = chance.random() < 0.9
        for step in range(3):
            schedule.push([plan(step, rows=chance.choice([1, 8, 200, 1500]))])
        alone: collections.Counter[tuple[int, int]] = collections.Counter()
        for _ in range(60):
            asked = ask_all(schedule)
            if not asked:
                break
            _, _, slice_ = chosen = chance.choice(asked)
            row = (slice_.bundle.plan.step, slice_.first)
            if slice_.rows == 1:
                alone[row] += 1
            given_up = not died(schedule, chosen)
            wanted = alone[row] >= MAX_DEATHS if slice_.rows == 1 else slice_.deaths >= MAX_DEATHS_TOGETHER
            assert given_up == wanted
            if given_up:
                break
            for other in asked:
                if other is not chosen:
                    answered(schedule, other[0], other[1], 0.0)


def test_deaths_are_remembered_when_the_batch_is_asked_for_whole() -> None:
    schedule = a_schedule(("a", 1))
    slice_ = ask_all(schedule)[0][2]
    schedule.died(slice_)
    schedule.make_whole(slice_.bundle)
    assert [(p.first, p.last, p.whole, p.deaths) for p in slice_.bundle.slices] == [(0, 8, True, 1)]


def test_a_failed_batch_is_left_alone_and_the_others_go_on() -> None:
    schedule = a_schedule(("a", 1))
    asked = ask_all(schedule)
    answered(schedule, 1, asked[0][1], 0.0)
    asked[0][2].bundle.failures[0] = ValueError()
    assert [slice_.bundle.plan.step for _, _, slice_ in ask_all(schedule)] == [2]


def test_a_big_batch_is_cut_into_parts_once_its_cost_is_known_and_all_rows_are_covered() -> None:
    schedule = a_schedule(("a", 4), ("b", 4), rows=10)
    schedule.stackable = True
    first = ask_all(schedule)
    assert all((slice_.first, slice_.last) == (0, 10) for _, _, slice_ in first)
    for number, request, _ in first:
        finish(schedule, number, request, seconds=0.45)
    for step in range(6, 8):
        schedule.push([plan(step, 10)])
    slices = [slice_ for _, _, slice_ in ask_all(schedule)]
    assert len(slices) == 10
    for _, group in itertools.groupby(slices, key=lambda slice_: slice_.bundle.plan.step):
        edges = [(slice_.first, slice_.last) for slice_ in group]
        assert edges == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]


def test_batches_that_are_not_stackable_are_never_cut() -> None:
    schedule = a_schedule(("a", 1), rows=10, steps=3)
    for number, request, _ in ask_all(schedule):
        finish(schedule, number, request, seconds=5.0)
    assert [(slice_.first, slice_.last) for _, _, slice_ in ask_all(schedule)] == [(0, 10)]


def test_a_slow_source_gets_the_latest_part_and_one_at_a_time() -> None:
    schedule = a_schedule(("quick", 1), ("slow", 1), steps=8)
    for number, request, _ in ask_all(schedule):
        finish(schedule, number, request, seconds=0.01 if number == 1 else 1.0)
    for step in range(8, 16):
        schedule.push([plan(step)])
    asked = ask_all(schedule)
    slow = [slice_.bundle.plan.step for number, _, slice_ in asked if number == 2]
    quick = [slice_.bundle.plan.step for number, _, slice_ in asked if number == 1]
    assert slow == [15]
    assert len(quick) == DEPTH
    assert quick == sorted(quick)
    assert max(quick) < 15


def test_starting_over_forgets_the_rows_that_were_made_and_drops_the_answers_that_still_come() -> None:
    schedule = a_schedule(("a", 8), rows=10, steps=1)
    schedule.stackable = True
    schedule._cost_per_row = 0.05
    asked = ask_all(schedule)
    batch = asked[0][2].bundle
    finish(schedule, 1, asked[0][1])
    schedule.start_over(batch)
    assert not any(slice_.done for slice_ in batch.slices)
    assert [answered(schedule, 1, request, 0.0) for _, request, _ in asked[1:]] == [None] * 4
    for number, request, _ in ask_all(schedule):
        finish(schedule, number, request)
    assert batch.complete


def test_clearing_drops_the_answers_of_what_is_under_way() -> None:
    schedule = a_schedule(("a", 1))
    asked = ask_all(schedule)
    schedule.clear()
    schedule.push([plan(0)])  # the same address again, of another pass
    assert [answered(schedule, 1, request, 0.0) for _, request, _ in asked] == [None, None]
    assert len(ask_all(schedule)) == 1


def test_a_batch_without_rows_can_be_asked_for() -> None:
    schedule = a_schedule(("a", 1), steps=0)
    schedule.push([BatchPlan(0, 0, 0, [], 0)])
    [(number, request, slice_)] = ask_all(schedule)
    finish(schedule, number, request)
    assert slice_.bundle.complete


@pytest.mark.parametrize("attempt", range(20))
def test_whatever_dies_every_row_of_every_batch_is_made_in_the_end(attempt: int) -> None:
    print("seed", attempt)
    chance = random.Random(attempt)
    schedule = a_schedule(("a", 2), ("b", 3), ("c", 1), steps=30, rows=12)
    schedule.stackable = True
    schedule._cost_per_row = chance.choice([0.0, 0.02, 0.2])
    under_way: list[tuple[int, Request]] = []
    numbers = itertools.count(4)
    made: dict[int, list[int]] = {}
    while len(made) < 30:
        under_way += [(number, request) for number, request, _ in ask_all(schedule)]
        event = chance.random()
        if event < 0.1 and len(schedule.workers) > 1:
            schedule.remove_worker(chance.choice(list(schedule.workers.values())))
            schedule.add_worker(a_worker(next(numbers), "new", chance.randint(1, 3)), 0.0)
        elif event < 0.15:
            batch = chance.choice(list(schedule.bundles.values()))
            schedule.start_over(batch)
        elif under_way:
            number, request = under_way.pop(chance.randrange(len(under_way)))
            finish(schedule, number, request, chance.uniform(0.001, 0.3))
        for (_, step), batch in list(schedule.bundles.items()):
            if batch.complete:
                made[step] = [
                    row for slice_ in schedule.pop(0, step).slices for row in range(slice_.first, slice_.last)
                ]
    assert all(sorted(rows) == list(range(12)) for rows in made.values())


def test_after_a_death_a_part_is_asked_for_row_by_row_so_that_the_next_one_names_the_row() -> None:
    schedule = a_schedule(("a", 16), steps=1)
    schedule.stackable = True
    [(_, request, slice_)] = ask_all(schedule)
    answered(schedule, 1, request, 0.0)
    assert schedule.died(slice_)
    rows = ask_all(schedule)
    assert [(each.first, each.last, each.deaths) for _, _, each in rows] == [(k, k + 1, 0) for k in range(8)]
    _, request, bad = rows[3]
    answered(schedule, 1, request, 0.0)
    assert schedule.died(bad)
    [again] = ask_all(schedule)
    assert again[2] is bad
    assert not died(schedule, again)


def test_small_batches_travel_together_as_far_as_time_and_bytes_allow() -> None:
    schedule = a_schedule(("a", 1), steps=1)
    assert schedule.bundle_size(8, 100, 1 << 20) == 1  # nothing is known yet
    finish(schedule, 1, ask_all(schedule)[0][1], seconds=0.008)
    assert schedule.bundle_size(8, 0, 1 << 20) == 1
    assert schedule.bundle_size(1, 100, 1 << 20) == 10  # 1 ms a row, 10 ms together
    assert schedule.bundle_size(1, 100, 350) == 3
    assert schedule.bundle_size(8, 100, 1 << 20) == 1
    assert schedule.bundle_size(1, 1 << 20, 1000) == 1


def test_a_bundle_is_one_part_and_after_a_death_each_of_its_batches_stands_alone() -> None:
    schedule = a_schedule(("a", 16), steps=0)
    schedule.push([plan(step) for step in range(3)])
    schedule.push([plan(3)])
    (_, request, slice_), _ = ask_all(schedule)
    assert (slice_.first, slice_.last) == (0, 24)
    answered(schedule, 1, request, 0.0)
    assert schedule.died(slice_)
    assert list(schedule.bundles) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [each.bundle.plan.step for _, _, each in ask_all(schedule)] == [0, 1, 2]


def late(schedule: Schedule, now: float) -> tuple[int, Slice] | None:
    assert schedule.next_slice() is None
    return schedule.idle_work(now).again


@pytest.mark.promise("feed-guarantees", "requests are doubled at most once in twenty, and never without an idle worker")
def test_the_first_batch_in_line_is_asked_for_twice_when_it_is_late_and_somebody_is_idle() -> None:
    schedule = a_schedule(("a", 1), ("b", 1), steps=2)
    (one, first, head), (other, second, _) = ask_all(schedule)
    first.expected = 0.5
    assert late(schedule, 10.0) is None  # the other one is busy
    finish(schedule, other, second)
    assert late(schedule, 1.0) is None  # not late yet
    assert late(schedule, 1.2) == (other, head)
    again = schedule.request(other, head, 1.2)
    assert again.purpose == "hedge"
    assert schedule.hedges == 1
    assert late(schedule, 9.0) is None  # twice is enough
    slice_ = answered(schedule, other, again, 1.3)
    assert slice_ is head
    assert schedule.done(again, 0.1, 0.1) == [first]
    assert answered(schedule, one, first, 5.0) is None


@pytest.mark.promise("feed-guarantees", "requests are doubled at most once in twenty, and never without an idle worker")
def test_at_most_one_in_twenty_requests_is_a_hedge() -> None:
    schedule = a_schedule(("a", 1), ("b", 1), steps=2)
    schedule.hedges = 5
    _, (other, second, _) = ask_all(schedule)
    finish(schedule, other, second)
    schedule.requested = 90
    assert late(schedule, 100.0) is None
    schedule.requested = 100
    assert late(schedule, 100.0) is not None


def test_without_hedging_nothing_is_asked_for_twice() -> None:
    schedule = Schedule()
    schedule.add_worker(a_worker(1, "a", 1), 0.0)
    schedule.push([plan(0)])
    ask_all(schedule)
    schedule.add_worker(a_worker(2, "b", 1), 0.0)
    assert schedule.idle_work(1000.0, hedge=False).again is None
    assert late(schedule, 1000.0) is not None


def test_an_executor_that_works_on_one_part_for_too_long_is_stuck_and_an_answer_begins_the_time_anew() -> None:
    schedule = a_schedule(("a", 1))
    (_, request, _), *_ = ask_all(schedule)
    worker = schedule.workers[1]
    assert not worker.stuck(9.0, 10.0)
    assert worker.stuck(11.0, 10.0)
    answered(schedule, 1, request, 11.0)
    assert not worker.stuck(20.0, 10.0)
    assert worker.stuck(22.0, 10.0)


def test_two_that_end_over_a_part_at_the_same_time_say_no_more_than_one_and_the_rows_are_tried_alone() -> None:
    schedule = a_schedule(("a", 1), ("b", 1), steps=2)
    schedule.stackable = True
    (one, first, head), (other, second, _) = ask_all(schedule)
    finish(schedule, other, second)
    again = schedule.request(other, head, 10.0)
    answered(schedule, one, first, 11.0)
    assert schedule.died(head)
    assert schedule.bundles[0, 0].slices == [head]  # the other one may still make it
    answered(schedule, other, again, 12.0)
    assert schedule.died(head)
    slices = schedule.bundles[0, 0].slices
    assert [(slice_.first, slice_.last, slice_.deaths) for slice_ in slices] == [(k, k + 1, 0) for k in range(8)]
