"""A request from asking to what follows: what it is for, whether its rows are needed, and how it ends."""

from __future__ import annotations

import pytest

from headrace.feed.client.verifier import Check
from headrace.feed.client.work_units import Bundle, Outcome, Purpose, Request, Slice
from headrace.feed.plan.epoch import BatchPlan
from headrace.feed.wire import messages

ERROR = messages.RemoteError("builtins:ValueError", "no", "")
DONE = messages.Done(7, 64, [], b"layout", 0.01, 0.01)
UNSTACKABLE, FAILED = messages.Unstackable(7), messages.Failed(7, ERROR)
LOST, CANCELLED = messages.Lost(7, "killed by SIGKILL", True), messages.Cancelled(7)


def a_request(purpose: Purpose = "rows", unwanted: str = "", check: Check | None = None) -> Request:
    bundle = Bundle((BatchPlan(2, 5, 40, list(range(40, 48)), 0),))
    return Request(7, 1, Slice(bundle, 2, 6, whole=False), purpose, 1.5, 0.25, check, slab=3, unwanted=unwanted)


CHECK = Check(a_request(), DONE, 7, "kind")


@pytest.mark.parametrize("purpose", ["rows", "hedge"])
@pytest.mark.parametrize(
    ("answer", "follows"),
    [
        (DONE, Outcome.ROWS),
        (UNSTACKABLE, Outcome.WHOLE),
        (FAILED, Outcome.FAIL),
        (LOST, Outcome.DIED),
        (CANCELLED, Outcome.NOTHING),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_follows_from_an_answer_whose_rows_are_needed(
    purpose: Purpose, answer: messages.Answer, follows: Outcome
) -> None:
    assert a_request(purpose).answered(answer, 2.0) is follows


@pytest.mark.parametrize("answer", [DONE, UNSTACKABLE, FAILED, LOST, CANCELLED], ids=lambda value: type(value).__name__)
def test_nothing_follows_from_an_answer_that_nobody_needs_but_rows_are_counted(answer: messages.Answer) -> None:
    follows = a_request(unwanted="its batch began again").answered(answer, 2.0)
    assert follows is (Outcome.DUPLICATE if answer is DONE else Outcome.NOTHING)


@pytest.mark.parametrize("unwanted", ["", "the pass has ended"])
@pytest.mark.parametrize("answer", [DONE, UNSTACKABLE, FAILED, LOST, CANCELLED], ids=lambda value: type(value).__name__)
def test_a_check_compares_data_and_gives_up_at_anything_else(answer: messages.Answer, unwanted: str) -> None:
    follows = a_request("check", unwanted, CHECK).answered(answer, 2.0)
    assert follows is (Outcome.COMPARE if answer is DONE else Outcome.NOTHING)


@pytest.mark.parametrize("answer", [DONE, UNSTACKABLE, FAILED, LOST, CANCELLED], ids=lambda value: type(value).__name__)
def test_whatever_comes_of_a_layout_is_noted_so_that_another_row_can_be_requested(answer: messages.Answer) -> None:
    assert a_request("layout").answered(answer, 2.0) is Outcome.LAYOUT


@pytest.mark.parametrize("at_work", [True, False])
def test_what_follows_when_the_worker_is_lost(at_work: bool) -> None:
    def follows(request: Request) -> Outcome:
        return request.lost("exited with code 1", 2.0, at_work=at_work)

    assert follows(a_request()) is (Outcome.DIED if at_work else Outcome.AGAIN)
    assert follows(a_request("check", check=CHECK)) is (Outcome.NOTHING if at_work else Outcome.CHECK_AGAIN)
    assert follows(a_request(unwanted="another worker was quicker")) is Outcome.NOTHING
    assert follows(a_request("layout")) is Outcome.LAYOUT


def test_a_request_tells_its_story() -> None:
    request = a_request("hedge")
    asked = (
        "request 7 (hedge) to worker 1: rows 2..5 of batch 5 of epoch 2, slab 3; "
        "asked at 1.5000 s, expected to take 0.2500 s; "
    )
    assert str(request) == f"{asked}no answer yet"
    request.unwanted = "another worker was quicker"
    request.answered(DONE, 2.125)
    assert str(request) == f"{asked}not needed any more: another worker was quicker; at 2.1250 s: Done"
    lost = a_request()
    lost.lost("killed by SIGKILL", 3.0, at_work=True)
    assert str(lost).endswith("at 3.0000 s: its worker is gone: killed by SIGKILL")
