"""A cause is a value; one function says it."""

from __future__ import annotations

import msgspec
import pytest

from headrace.runs import Cause, CauseKind
from headrace.runs.cause import cause_text, in_words

STALLED = Cause(CauseKind.STALLED, "no output for 5 s")
EXITED = Cause(CauseKind.PROGRAM_EXITED, group="dnn", host="algo-1", stream="0", exit_code=1)


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (EXITED, "exited with code 1"),
        (
            Cause(CauseKind.PROGRAM_EXITED, "mpirun is not installed", exit_code=127),
            "exited with code 127: mpirun is not installed",
        ),
        (Cause(CauseKind.PROGRAM_EXITED, signal=9), "killed by SIGKILL"),
        (Cause(CauseKind.PROGRAM_EXITED, signal=40), "killed by signal 40"),
        (
            Cause(CauseKind.OUT_OF_MEMORY, "the machine has none left", signal=9),
            "killed by the kernel for memory (OOM): the machine has none left",
        ),
        (
            Cause(CauseKind.CHILD_OUT_OF_MEMORY, "the kernel had killed it", exit_code=1),
            "exited with code 1, after the kernel had killed it",
        ),
        (Cause(CauseKind.LAUNCHER_KILLED, "the proxy", signal=9), "the proxy was killed by SIGKILL"),
        (STALLED, "stalled: no output for 5 s"),
        (Cause(CauseKind.MAX_RUN, "longer than 3 s"), "MaxRuntimeExceeded: longer than 3 s"),
        (Cause(CauseKind.BUDGET, "2 USD"), "BudgetExceeded: 2 USD"),
        (Cause(CauseKind.HOST_LOST, "silent for 5 s"), "silent for 5 s"),
        (Cause(CauseKind.DATA_SERVICE_LOST, "is gone", then=STALLED), "is gone; stalled: no output for 5 s"),
        (Cause(CauseKind.DATA_SERVICE_LOST, "is gone", then=EXITED), "is gone; dnn/algo-1[0] then exited with code 1"),
    ],
)
def test_every_kind_has_its_words(cause: Cause, text: str) -> None:
    assert cause_text(cause) == cause.reason == text


def test_the_place_stands_before_the_words_as_far_as_there_is_one() -> None:
    assert str(EXITED) == "dnn/algo-1[0]: exited with code 1"
    assert str(msgspec.structs.replace(EXITED, stream="")) == "dnn/algo-1: exited with code 1"
    assert str(STALLED) == "stalled: no output for 5 s"


def test_as_json_a_cause_says_itself_and_has_its_fields() -> None:
    for cause in (EXITED, STALLED, Cause(CauseKind.DATA_SERVICE_LOST, "is gone", then=EXITED)):
        document = msgspec.json.decode(msgspec.json.encode(in_words(cause)))
        assert document.pop("reason") == cause.reason
        assert msgspec.convert(document, Cause) == cause
        assert str(in_words(cause)) == str(cause)
    assert in_words(None) is None
