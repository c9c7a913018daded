"""Values in lines, on a clock that the test moves; and that no regular expression holds up the agent."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.agent.metrics.log_metrics import LINE_CHARACTERS, SECOND_SECONDS, STRIKES, LogValues
from headrace.instance.launch_plan import MetricDefinition
from headrace.runs import MetricWriter, ValueNotFinite, ValueSecond
from headrace.runs.events import LeftOut


class Kept(MetricWriter):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def write(self, record: object) -> bool:
        self.found.append(record)
        return True

    def close(self) -> None:
        pass


class Host:
    def __init__(self, **regexes: str) -> None:
        self.now = 100.0
        self.writer = Kept()
        definitions = [MetricDefinition(name, regex) for name, regex in regexes.items()]
        self.spent = time.thread_time
        self.events = Kept()
        self.values = LogValues(
            definitions, self.writer, self.events, "g", "algo-1", clock=lambda: self.now, spent=lambda: self.spent()
        )

    def left_out(self) -> list[tuple[LeftOut, str, int, str]]:
        return [(each.what, each.definition, each.count, each.example) for each in self.events.found]

    @property
    def found(self) -> list[ValueSecond | ValueNotFinite]:
        return self.writer.found


@pytest.fixture
def make() -> Iterator[type[Host]]:
    yield Host
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


def test_values_are_summed_up_per_second_metric_and_program(make, logged) -> None:
    host = make(loss=r"loss=([-+0-9.e]+)", lr=r"lr (\S+)")
    host.values.take("0", [b"step 1 loss=2.5 lr 1e-3", b"loss=1.5", b"nothing"])
    host.values.take("1", [b"loss=-4 loss=99"])  # the first match of a line counts
    host.values.flush()
    host.now = 101.0
    host.values.take("0", [b"loss=7"])
    host.values.flush()
    host.values.flush()  # nothing new: no record
    assert host.found == [
        ValueSecond(t=100.0, name="loss", stream="0", count=2, last=1.5, low=1.5, high=2.5, total=4.0),
        ValueSecond(t=100.0, name="lr", stream="0", count=1, last=0.001, low=0.001, high=0.001, total=0.001),
        ValueSecond(t=100.0, name="loss", stream="1", count=1, last=-4.0, low=-4.0, high=-4.0, total=-4.0),
        ValueSecond(t=101.0, name="loss", stream="0", count=1, last=7.0, low=7.0, high=7.0, total=7.0),
    ]
    host.values.close()
    assert logged() == []


def test_text_that_is_no_finite_number_is_counted_and_told(make, logged) -> None:
    host = make(loss="loss=(.*)", maybe="x(y)?")
    host.values.take("0", [b"loss=nan", b"loss=1,5", b"loss=inf", b"loss=\xff", b"loss=2", b"x"])
    host.values.close()
    assert [each.count for each in host.found] == [1], "a finite one follows"
    assert logged() == [
        "metric definitions: values of loss were no finite numbers, the first: 'nan' (told once, counted at the end)",
        "metric definitions: 4 values of loss were no finite numbers",
    ]
    assert host.left_out() == [(LeftOut.VALUES, "loss", 0, "nan"), (LeftOut.VALUES, "loss", 4, "")]


@pytest.mark.parametrize(
    ("lines", "latest"),
    [
        ([b"loss=1", b"loss=nan"], "nan"),
        ([b"loss=nan", b"loss=1"], ""),
        ([b"loss=1", b"loss=-inf", b"x"], "-inf"),
        ([b"loss=oops"], "oops"),
    ],
)
def test_a_latest_value_that_is_no_finite_number_stands_in_the_record(make, logged, lines, latest) -> None:
    host = make(loss="loss=(.*)", maybe="x(y)?")
    for line in lines:
        host.values.take("0", [line])
        host.values.flush()
    host.values.close()
    newest = host.found[-1]
    assert (newest.last if isinstance(newest, ValueNotFinite) else "") == latest


def test_the_far_end_of_a_long_line_is_not_searched_and_that_is_told(make, logged) -> None:
    host = make(loss=r"loss=([0-9]+)")
    inside = b"x" * (LINE_CHARACTERS - 6) + b"loss=5"
    wide = "\N{SNOWMAN}".encode() * (LINE_CHARACTERS - 6) + b"loss=6"
    host.values.take("0", [inside, wide, b"x" + inside, b"x" * (1 << 23) + b"loss=7"])
    host.values.close()
    assert [(each.count, each.last) for each in host.found] == [(2, 6.0)]
    assert logged()[-1] == "metric definitions: 2 lines were searched in their first 4096 characters only"


EVIL = ["(x+)+$", "(x|x)*(y)", ".*.*.*=([0-9])", r"(\w*)*\s(z)"]


@pytest.mark.parametrize("regex", EVIL)
def test_a_search_that_would_take_for_ever_is_broken_off_and_its_definition_switched_off(
    make, regex: str, logged
) -> None:
    host = make(evil=regex, good="([0-9]+) samples")
    line = b"x" * 3000 + b"! 12 samples"
    began = time.process_time()
    for _ in range(STRIKES + 1):
        host.values.take("0", [line])
        host.values.flush()
    assert time.process_time() - began < 2.0  # some 0.2 s here; without the limit longer than the universe
    host.values.close()
    assert sum(each.count for each in host.found if each.name == "good") == STRIKES + 1
    assert not any(each.name == "evil" for each in host.found)
    assert any(
        line.startswith(f"metric definition evil is switched off: {STRIKES} of its searches") for line in logged()
    )
    assert logged()[-1] == f"metric definitions: {STRIKES} searches of evil were broken off after 50 ms"
    assert host.left_out() == [
        (LeftOut.SEARCHES, "evil", 0, ""),
        (LeftOut.DEFINITION, "evil", STRIKES, regex),
        (LeftOut.SEARCHES, "evil", STRIKES, ""),
    ]


def test_lines_beyond_the_budget_of_a_second_are_left_out_and_counted(make, logged) -> None:
    host = make(n="([0-9]+)")
    clock = itertools.count()
    host.spent = lambda: next(clock) * SECOND_SECONDS / 3.5  # the budget is used up in the fourth search
    host.values.take("0", [b"1"] * 6)
    host.values.take("0", [b"2"])
    host.values.flush()
    host.values.take("0", [b"3"])
    host.values.close()
    assert [(each.count, each.last) for each in host.found] == [(4, 1.0), (1, 3.0)]
    assert logged()[-1] == "metric definitions: 3 lines were not searched: more than 0.2 s of work"


def test_the_alarm_of_a_search_disturbs_nothing_else(make) -> None:
    host = make(n="([0-9]+)")
    host.values.take("0", [b"1"])
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    signal.raise_signal(signal.SIGVTALRM)  # a late one: nothing is raised
    assert threading.current_thread() is threading.main_thread()
    host.values.close()
    signal.raise_signal(signal.SIGVTALRM)
