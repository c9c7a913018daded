"""Figures of data workers, and the parts of a step, from records whose right answers are computed by hand."""

from __future__ import annotations

import pytest
from recorded_runs import columns_of

from headrace.feed_metrics import Because
from headrace.insight import FORMULAS, Window
from headrace.insight.figures.figure import Figure
from headrace.insight.figures.loaders import LoaderReport, WorkersReport, loader_report, workers_reports
from headrace.insight.render.run_documents import _executors
from headrace.runs import LoaderSecond, Stream, WorkerSecond
from loader_seconds import loader_second

ONE, TWO = Stream("data", "algo-2", "feed"), Stream("data", "algo-3", "feed")
RANK = Stream("dnn", "algo-1", "0")
WINDOW = Window(10.0, 14.0)


def worker(t: float, produce: float, blocked: float, **more: float | str) -> WorkerSecond:
    """A second of two executors that made 100 samples of 10 bytes in each executor second."""
    made = int(100 * produce)
    fields = {"cpu": produce / 2, "slices": 5, "samples": made, "bytes": 10 * made, "sending": 0.25, "seconds": 1.0}
    idle = 2 * fields["seconds"] - produce - blocked
    return WorkerSecond(t=t, executors=2, produce=produce, blocked=blocked, idle=idle, **(fields | more))  # type: ignore[arg-type]


def step(t: float, **parts: float | None) -> LoaderSecond:
    """Ten steps of 0.1 s, 0.2 s of them waits."""
    return loader_second(t, **{"samples": 80, "wait": 0.2, "bytes": 8, **parts})


def _trained(records: dict[Stream, list[LoaderSecond]]) -> LoaderReport:
    return loader_report("train", columns_of(records).loaders()["train"])


def values(report: WorkersReport) -> dict[str, float | None]:
    return {name: f.value for name in report.__struct_fields__ if isinstance(f := getattr(report, name), Figure)}


def test_the_figures_of_a_group_count_its_records_in_the_training_window_alone() -> None:
    records = {
        ONE: [worker(10.0, 2.0, 0.0), worker(11.0, 1.0, 0.5), worker(12.0, 2.0, 0.0), worker(14.5, 0.0, 2.0)],
        TWO: [worker(13.0, 1.0, 0.5, sending=0.75)],
    }
    (report,) = workers_reports(columns_of(records), WINDOW)
    assert (report.group, report.loader, report.hosts, report.executors) == ("data", "", ("algo-2", "algo-3"), 4)
    assert values(report) == {
        "supply": pytest.approx(100.0),  # whatever the executors were blocked or idle
        "produce": pytest.approx(100 * 4 / 6),
        "blocked": pytest.approx(100 * 1 / 6),
        "idle": pytest.approx(100 * 1 / 6),
        "cpu": pytest.approx(5.0),  # half a CPU second for 100 samples
        "bytes_per_sample": pytest.approx(10.0),
        "link": pytest.approx(100 * 1.25 / 3),
    }
    assert report.produce.window == Window(10.0, 13.0)
    assert report.produce.spread is not None
    assert report.produce.spread.count == 3
    assert {f.name for f in map(report.__getattribute__, values(report))} <= FORMULAS.keys()


def test_a_number_that_the_loader_chose_is_told_with_what_it_was_based_on() -> None:
    chosen = [
        worker(11.0, 1.0, 0.0, loader="train", because=because, because_figures="2.0 of 2 cores are in use")
        for because in (Because.STALLED, Because.SATURATED)
    ]
    (report,) = workers_reports(columns_of({RANK: chosen}), WINDOW)
    assert (report.because, _executors(report)) == ("saturated", "2 (auto: saturated)")
    assert report.because_text == f"{Because.SATURATED.text} (2.0 of 2 cores are in use)"
    (fixed,) = workers_reports(columns_of({RANK: [worker(11.0, 1.0, 0.0, loader="train")]}), WINDOW)
    assert (fixed.because, _executors(fixed)) == ("", "2")


def test_a_rank_s_own_workers_are_a_report_of_their_own_and_have_no_link() -> None:
    own = worker(12.0, 1.0, 0.0, loader="train", sending=0.0)
    feed, local = workers_reports(columns_of({ONE: [worker(12.0, 1.0, 0.0)], RANK: [own]}), WINDOW)
    assert (feed.group, feed.loader, local.group, local.loader) == ("data", "", "dnn", "train")
    assert local.link.value is None
    assert "nothing goes through the network" in local.link.note


@pytest.mark.promise("metrics", "what was not measured is absent with a note, never 0")
def test_what_was_not_measured_is_no_zero() -> None:
    (idle,) = workers_reports(columns_of({ONE: [worker(12.0, 0.0, 0.0)]}), WINDOW)
    assert idle.idle.value == 100.0
    assert (idle.supply.value, idle.supply.note) == (None, "no sample was made in the training window")
    for window in (None, Window(20.0, 30.0)):
        (outside,) = workers_reports(columns_of({ONE: [worker(12.0, 1.0, 0.0)]}), window)
        assert set(values(outside).values()) == {None}
        assert outside.executors == 2
    assert workers_reports(columns_of({}), WINDOW) == ()


def test_the_parts_of_a_step_are_those_measured() -> None:
    report = _trained({RANK: [step(1), step(2, h2d=0.1, compute=0.8, queue=2), step(3, h2d=0.3, compute=0.6, queue=4)]})
    assert (report.h2d.value, report.compute.value, report.queue.value) == pytest.approx((20.0, 70.0, 3.0))
    assert (report.h2d.note, report.compute.note, report.queue.note) == ("", "", "")
    some = _trained({RANK: [step(1), step(2, compute=0.8), step(3)]})
    assert (some.compute.value, some.compute.note) == (pytest.approx(80.0), "measured in 1 of 2 records")


def test_without_events_compute_is_what_is_left_and_says_so() -> None:
    report = _trained({RANK: [step(1), step(2), step(3, h2d=0.1)]})
    assert report.compute.value == pytest.approx(100 * (0.8 + 0.7) / 2)
    assert report.compute.note.startswith("no CUDA events")
    plain = _trained({RANK: [step(1), step(2)]})
    assert plain.h2d.value is None
    assert plain.queue.value is None
    assert "not headrace's loader" in plain.queue.note
    warm = _trained({RANK: [step(1)]})
    assert (warm.h2d.value, warm.compute.value, warm.queue.value) == (None, None, None)
