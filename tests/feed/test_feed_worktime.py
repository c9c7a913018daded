"""What executors spend their time on: computed from values, and measured at a real feed server."""

from __future__ import annotations

import random

import pytest

from headrace.feed.metrics.worker_meter import WindowTime, WorkTime


def test_slices_follow_one_another_however_late_their_answers_are_read() -> None:
    """Asked at 0 for two slices of 0.2 s; both answers are read at 1: the executor was idle from 0.4 on."""
    work = WorkTime(1, 0.0)
    work.asked(1, 0.0)
    work.asked(1, 0.0)
    work.answered(1, 1.0, 0.2)
    work.answered(1, 1.0, 0.2)
    assert work.take(1.0) == pytest.approx(WindowTime(1.0, 0.4, 0.0, 0.6))


def test_a_slice_at_work_counts_in_both_windows_that_it_spans() -> None:
    work = WorkTime(2, 10.0)
    work.asked(1, 10.25)
    assert work.take(11.0) == pytest.approx(WindowTime(1.0, 0.75, 0.0, 1.25))
    work.answered(1, 11.5, 1.25)
    assert work.take(12.0) == pytest.approx(WindowTime(1.0, 0.5, 0.0, 1.5))


def test_a_slice_begins_when_it_was_asked_for_at_the_earliest() -> None:
    work = WorkTime(1, 0.0)
    work.asked(1, 0.0)
    work.asked(1, 0.8)  # behind the first, which was done at 0.1, but whose answer was not read
    work.answered(1, 0.85, 0.1)
    work.answered(1, 1.0, 0.1)
    assert work.take(1.0).produce == pytest.approx(0.2)


def test_an_answer_that_does_not_tell_its_time_ends_now_and_a_lost_executor_works_no_more() -> None:
    work = WorkTime(2, 0.0)
    work.asked(1, 0.0)
    work.asked(2, 0.0)
    work.answered(1, 0.5, None)
    work.lost(2, 0.25)
    work.lost(2, 0.5)
    work.answered(2, 0.75, 0.1)  # of the one that is gone: not counted
    assert work.take(1.0) == pytest.approx(WindowTime(1.0, 0.75, 0.0, 1.25))


def test_each_result_that_waits_to_be_sent_blocks_one_executor_that_has_nothing_to_do() -> None:
    work = WorkTime(3, 0.0)
    work.asked(1, 0.0)
    work.hold(1, 0.0)  # 0 to 0.5: two are free, one of them is blocked
    work.hold(5, 0.5)  # 0.5 to 0.75: both are
    work.hold(0, 0.75)
    assert work.take(1.0) == pytest.approx(WindowTime(1.0, 1.0, 0.5 + 0.5, 1.0))
    assert work.take(2.0) == pytest.approx(WindowTime(1.0, 1.0, 0.0, 2.0))


def test_in_every_window_the_three_add_up_to_the_executors_time_and_nothing_is_negative() -> None:
    chance = random.Random(5)
    work, now, owed = WorkTime(4, 0.0), 0.0, dict.fromkeys(range(4), 0)
    made, told = 0.0, 0.0
    for _ in range(5000):
        now += chance.expovariate(200)
        number, what = chance.randrange(4), chance.random()
        if what < 0.4:
            work.asked(number, now)
            owed[number] += 1
        elif what < 0.8 and owed[number]:
            seconds = chance.choice([None, chance.random() * 0.01])
            work.answered(number, now, seconds)
            owed[number] -= 1
            made += seconds or 0.0
        elif what < 0.9:
            work.hold(chance.randrange(6), now)
        elif what < 0.92:
            work.lost(number, now)
            owed[number] = 0
        elif what < 0.95:
            spent = work.take(now)
            assert spent.produce + spent.blocked + spent.idle == pytest.approx(4 * spent.seconds)
            assert min(spent) >= 0.0
            told += spent.produce
    assert told >= made * 0.9
