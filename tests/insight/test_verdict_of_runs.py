"""Every verdict from the files of a run, read as `headrace report` reads them."""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgspec
import pytest
from recorded_runs import FEED, START, columns_of, feed, host, loader, rank, record

from headrace.insight import Verdict, report
from headrace.insight.evidence import NEXT_APART, STALL_SECONDS, silence_of
from headrace.runs import Cause, CauseKind, Metric, Program, ServiceSecond, Status, Stream

TRAINER, DATA = Stream("dnn_group", "algo-2", "host"), Stream("data_group", "algo-1", "host")


def judged(runs: Path, metrics: dict[Stream, list[Metric]]) -> Verdict:
    return report(record(runs, "job", dict(metrics))).verdict


def test_input_bound_the_ranks_wait_and_the_data_workers_work(tmp_path: Path) -> None:
    found = judged(tmp_path, {rank(0): loader(0.4), FEED: feed(0.97, 0.01, link=0.05)})
    assert (found.name, found.band, found.inferred) == ("input-bound", "highly", False)
    figures = {one.name: one for one in found.evidence}
    assert figures["data_wait"].value == pytest.approx(40)
    assert figures["produce"].value == pytest.approx(97)
    assert figures["link"].value == pytest.approx(5)
    assert figures["data_wait"].window == found.window
    assert figures["data_wait"].confidence is not None
    assert "the data workers make samples 97 % of the time" in found.sentence


def test_the_warm_up_has_no_say(tmp_path: Path) -> None:
    records = loader(0.01)
    first = loader(0.99)[0]
    assert judged(tmp_path, {rank(0): [first, *records[1:]], FEED: feed(0.3, 0.5)}).name == "compute-bound"


@pytest.mark.parametrize(
    ("name", "band", "words", "metrics"),
    [
        ("network-bound", "highly", "workers do not help", {rank(0): loader(0.3), FEED: feed(0.2, 0.7, link=0.96)}),
        ("compute-bound", "not", "60 % of their time to spare", {rank(0): loader(0.01), FEED: feed(0.4, 0.1)}),
        ("compute-bound", "not", "do not add CPU hosts", {rank(0): loader(0.01), FEED: feed(0.4, 0.1)}),
        ("balanced", "not", "", {rank(0): loader(0.02), FEED: feed(0.9, 0.05)}),
        ("skewed", "highly", "", {rank(0): loader(0.01, seed=1), rank(1): loader(0.3, seed=2), FEED: feed(0.5, 0.1)}),
        ("skewed", "not", "computes", {rank(0): loader(0.0), rank(1): loader(0.0, step=0.15), FEED: feed(0.5, 0.1)}),
    ],
    ids=["a busy link", "time to spare", "no hosts", "nothing to spare", "one rank waits", "one computes longer"],
)  # fmt: skip
def test_what_ranks_workers_and_links_do_makes_the_verdict(
    tmp_path: Path, name: str, band: str, words: str, metrics: dict[Stream, list[Metric]]
) -> None:
    found = judged(tmp_path, metrics)
    assert (found.name, found.band) == (name, band)
    assert words in found.sentence + found.next
    assert found.rank == ("dnn_group/algo-2[1]" if name == "skewed" else "")


def until(ago: float, records: list[Metric]) -> list[Metric]:
    """Moves records in time so that the last one is of `ago` seconds before now."""
    shift = time.time() - ago - records[-1].t
    return [msgspec.structs.replace(one, t=one.t + shift) for one in records]


def test_stalled_a_run_that_goes_on_without_a_step(tmp_path: Path) -> None:
    ranks: dict[Stream, list[Metric]] = {
        rank(0): until(STALL_SECONDS + 10, loader(0.1)),
        rank(1): until(STALL_SECONDS + 30, loader(0.1)),
    }
    found = report(record(tmp_path, "job", dict(ranks), ended=None)).verdict
    assert (found.name, found.rank) == ("stalled", "dnn_group/algo-2[1]")
    assert found.evidence[0].value == pytest.approx(STALL_SECONDS + 10, abs=5)


def test_a_run_that_goes_on_and_makes_steps_is_judged_by_what_is_there(tmp_path: Path) -> None:
    found = report(record(tmp_path, "job", {rank(0): until(1, loader(0.4))}, ended=None)).verdict
    assert found.name == "input-bound"


def test_stalled_a_run_that_stall_after_has_ended(tmp_path: Path) -> None:
    detail = "no output or metrics for 5 s; the quietest: dnn_group/algo-2[0] (5 s)"
    cause = Cause(CauseKind.STALLED, detail, "dnn_group", "algo-2", "0")
    found = report(record(tmp_path, "job", {rank(0): loader(0.1)}, status=Status.FAILED, cause=cause)).verdict
    assert (found.name, found.rank, found.notes) == ("stalled", "dnn_group/algo-2[0]", (f"stalled: {detail}",))
    assert {one.name: one.value for one in found.evidence} == {"silence": pytest.approx(10)}


def test_stalled_a_run_that_waited_for_a_lost_server_of_tf_data(tmp_path: Path) -> None:
    reason = "is gone for good: tf-worker-0 killed by SIGKILL; stalled: no output or metrics for 60 s"
    missing, _, silence = reason.partition("; stalled: ")
    then = Cause(CauseKind.STALLED, silence)
    cause = Cause(CauseKind.DATA_SERVICE_LOST, missing, "data_group", "algo-1", "tf-worker-0", then=then)
    found = report(record(tmp_path, "job", {rank(0): loader(0.0)}, status=Status.FAILED, cause=cause)).verdict
    assert (found.name, found.rank, found.notes) == ("stalled", "", (reason,))
    assert found.sentence.endswith("; the job waited for data_group/algo-1[tf-worker-0]")
    assert found.formula == "the run was ended because it waited for a lost server of tf.data.service"
    assert "tf.data.service was lost" in found.next


@pytest.mark.parametrize("wait", [0.0, 0.4])
def test_that_tf_data_does_not_tell_what_its_workers_do_is_said_instead_of_that_nothing_was_measured(
    tmp_path: Path, wait: float
) -> None:
    worker = Stream("data_group", "algo-1", "tf-worker-0")
    served: list[Metric] = [
        ServiceSecond(t=one.t, stream=worker.name, role="worker", cpu=1.0, rss=1) for one in loader(wait)
    ]
    found = judged(tmp_path, {rank(0): loader(wait), worker: served})
    assert any(note.startswith("TensorFlow does not tell how its workers spend their time, ") for note in found.notes)
    assert not any("was not measured" in note for note in found.notes)


def test_unknown_without_metrics_and_with_too_few(tmp_path: Path) -> None:
    for metrics in ({}, {rank(0): loader(0.5, seconds=3)}):
        found = report(record(tmp_path, "job", dict(metrics))).verdict
        assert (found.name, found.inferred) == ("unknown", False)
        assert "headrace.track" in found.next


def test_inferred_from_gpu_and_cpu_use_when_no_loader_was_measured(tmp_path: Path) -> None:
    found = judged(tmp_path, {TRAINER: host(0.4, gpu=45.0), DATA: host(0.99)})
    assert (found.name, found.inferred) == ("input-bound", True)
    assert found.sentence.startswith("input-bound (inferred): GPU use is 45 %, CPU use of data_group 99 %")


def test_a_run_that_has_ended_by_itself_is_not_stalled_whenever_it_is_read(tmp_path: Path) -> None:
    run = record(tmp_path, "job", {rank(0): loader(0.4)}, ended=4000.0)  # an hour of evaluation after the training
    assert report(run).verdict.name == "input-bound"


def test_only_a_run_that_goes_on_can_stand_still() -> None:
    silent = columns_of({rank(0): loader(0.1)})
    rank_seen_alive = (Program(rank(0), 1, START),)  # its exit was never written
    now = START + 10_000
    assert silence_of(Status.FAILED, None, rank_seen_alive, silent, now) is None
    assert silence_of(Status.STOPPING, None, rank_seen_alive, silent, now) is None
    found = silence_of(Status.IN_PROGRESS, None, rank_seen_alive, silent, now)
    assert found is not None
    assert found.seconds == pytest.approx(10_000 - 31)
    uploading = (Program(rank(0), 1, START, ended=START + 40),)
    assert silence_of(Status.IN_PROGRESS, None, uploading, silent, now) is None


def test_workers_of_another_loader_have_no_say(tmp_path: Path) -> None:
    mine = [msgspec.structs.replace(one, loader="train") for one in feed(0.9, 0.05)]
    others = [msgspec.structs.replace(one, loader="eval") for one in feed(0.0, 0.0)]
    found = judged(tmp_path, {rank(0): [*loader(0.4), *mine, *others]})
    figures = {one.name: one.value for one in found.evidence}
    assert figures["produce"] == pytest.approx(90)
    assert "link" not in figures  # they are processes of the rank


def changed(records: list[Metric], **what: object) -> list[Metric]:
    return [msgspec.structs.replace(one, **what) for one in records]


def serving(tasks: int | None) -> list[Metric]:
    """A server of tf.data.service with so many pipelines."""
    kept = {"stream": "tf-worker-0", "role": "worker", "rss": 1 << 20, "tasks": tasks}
    return [ServiceSecond(t=START + second, cpu=0.5 * second, **kept) for second in range(34)]  # type: ignore[arg-type]


IDLE_FEED = changed(feed(0.0, 0.0), samples=0, slices=0, cpu=0.0, bytes=0)
SERVER = Stream("data_group", "algo-1", "tf-worker-0")


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        ({rank(0): loader(0.011), TRAINER: host(0.99)}, "unknown"),
        ({rank(0): loader(0.011), TRAINER: host(0.75)}, "compute-bound"),
        ({rank(0): loader(0.011)}, "unknown"),
        ({rank(0): loader(0.011), TRAINER: host(0.3, cores=1)}, "unknown"),
        ({rank(0): loader(0.011), TRAINER: host(0.3, cores=1, gpu=50.0)}, "compute-bound"),
        ({rank(0): loader(0.011), TRAINER: host(0.11, cores=1)}, "unknown"),
        ({rank(0): loader(0.011), TRAINER: host(0.09, cores=1)}, "compute-bound"),
        ({rank(0): loader(0.011), rank(1, "algo-3"): loader(0.011), TRAINER: host(0.5)}, "unknown"),
        ({rank(0): loader(0.011), TRAINER: host(0.5), DATA: host(0.99)}, "compute-bound"),
        ({rank(0): loader(0.011), TRAINER: host(0.99), FEED: feed(0.4, 0.1)}, "compute-bound"),
        ({rank(0): [*loader(0.011), *changed(feed(0.4, 0.1), loader="train")], TRAINER: host(0.99)}, "compute-bound"),
        ({rank(0): [*loader(0.011), *changed(feed(0.4, 0.1), loader="eval")], TRAINER: host(0.99)}, "unknown"),
        ({rank(0): loader(0.011), TRAINER: host(0.99), FEED: IDLE_FEED}, "unknown"),
        ({rank(0): changed(loader(0.011), queue=2.0), TRAINER: host(0.99)}, "compute-bound"),
        ({rank(0): changed(loader(0.011), compute=0.9), TRAINER: host(0.99)}, "compute-bound"),
        ({rank(0): loader(0.011), TRAINER: host(0.99), SERVER: serving(1)}, "compute-bound"),
        ({rank(0): loader(0.011), TRAINER: host(0.99), SERVER: serving(0)}, "unknown"),
        ({rank(0): loader(0.3), TRAINER: host(0.99)}, "input-bound"),
    ],
    ids=[
        "a foreign loader on a busy host", "and on one with cores to spare", "no CPU metrics",
        "a rank without its core",
        "a rank that waits for its GPU", "a rank with a tenth of a core", "a rank that sleeps", "of one of two hosts",
        "another host is busy", "a feed", "niced workers of the rank", "workers of another loader",
        "a feed that made nothing", "headrace's loader, in next()", "CUDA events", "tf.data.service",
        "servers without pipelines", "it waits",
    ],
)  # fmt: skip
def test_who_makes_the_batches_and_where_decides_what_a_low_wait_means(
    tmp_path: Path, metrics: dict[Stream, list[Metric]], name: str
) -> None:
    found = judged(tmp_path, metrics)
    assert found.name == name
    assert (found.next == NEXT_APART) == (name == "unknown")


def test_samples_that_nobody_counted_are_absent_and_not_0(tmp_path: Path) -> None:
    found = report(record(tmp_path, "job", {rank(0): changed(loader(0.3), samples=0)})).training
    assert found is not None
    assert found.steps.value
    for figure in (found.samples, found.samples_per_second):
        assert figure.value is None
        assert "do not tell how many samples" in figure.note


def test_ranks_that_neither_wait_for_batches_nor_compute_wait_for_something_else(tmp_path: Path) -> None:
    found = judged(tmp_path, {rank(0): loader(0.033), TRAINER: host(0.01)})
    assert found.name == "compute-bound"
    assert "hardly compute on the CPU (1.0 % of the cores of dnn_group/algo-2)" in found.sentence
    assert "a device, a sleep or a lock" in found.sentence
    assert {one.name: one.value for one in found.evidence}["cpu"] == pytest.approx(1)
    # One of two hosts computes: it is no rest of all.
    other = Stream("data_group", "algo-1", "0")
    both = {rank(0): loader(0.033), other: loader(0.033), TRAINER: host(0.01), DATA: host(0.6)}
    assert "a sleep or a lock" not in judged(tmp_path / "two", both).sentence


def test_data_workers_that_the_loader_does_not_use_are_told_and_no_more_of_them_advised(tmp_path: Path) -> None:
    for wait, name in ((0.1, "input-bound"), (0.01, "compute-bound")):
        found = judged(tmp_path / name, {rank(0): loader(wait), TRAINER: host(0.5), FEED: IDLE_FEED})
        assert found.name == name
        assert "the data workers made no sample: the loader does not use them" in found.sentence
        assert "more data workers" not in found.next
        assert not any("busy only 0 %" in note for note in found.notes)
    used = judged(tmp_path / "used", {rank(0): loader(0.1), TRAINER: host(0.5), FEED: feed(0.5, 0.1)})
    assert "does not use them" not in used.sentence


def test_a_warm_up_that_was_most_of_the_run_is_told_with_its_longest_step(tmp_path: Path) -> None:
    def first(step: float, longest: float) -> list[Metric]:
        records = loader(0.3)
        return [msgspec.structs.replace(records[0], steps=21, step=step, step_max=longest), *records[1:]]

    note = "the warm-up, which is left out, lasted 100.7 s on dnn_group/algo-2[1], "
    stalled = judged(tmp_path / "a", {rank(0): first(1.0, 0.1), rank(1): first(100.7, 100.0)})
    assert (stalled.name, "; but " + note in stalled.sentence) == ("input-bound", True)
    assert any(one.startswith(note) and "21 steps, one of them of 100.0 s" in one for one in stalled.notes)
    slow = judged(tmp_path / "b", {rank(0): first(6.0, 3.0)})
    assert "warm-up" not in slow.sentence
    assert any("lasted 6.0 s on dnn_group/algo-2[0], 17 % of the time of all its steps" in one for one in slow.notes)
    usual = judged(tmp_path / "c", {rank(0): first(5.0, 3.0)})
    long = judged(tmp_path / "d", {rank(0): [*first(6.0, 3.0), *until_of(loader(0.3, seconds=300))]})
    assert not any("warm-up" in one for one in (*usual.notes, *long.notes))


def until_of(records: list[Metric]) -> list[Metric]:
    """The same records, a minute later."""
    return [msgspec.structs.replace(one, t=one.t + 60) for one in records[1:]]


def test_the_range_of_ranks_that_end_apart_holds_the_value(tmp_path: Path) -> None:
    generator = random.Random(5)

    def waits(seconds: int, usual: float) -> list[Metric]:
        records = loader(0.0, seconds=seconds, noise=0.0)
        return [msgspec.structs.replace(one, wait=usual * generator.uniform(0.2, 1.8)) for one in records]

    found = report(record(tmp_path, "job", {rank(0): waits(22, 0.01), rank(1): waits(32, 0.3)}))
    assert found.training is not None
    for figure in (found.training.data_wait, found.verdict.evidence[0]):
        assert figure.name == "data_wait"
        assert figure.value is not None
        assert figure.confidence is not None
        assert figure.confidence.low <= figure.value <= figure.confidence.high
    spread = found.training.samples_per_second.spread
    assert spread is not None
    assert (spread.count, spread.high / spread.low) == (31, pytest.approx(2)), "two ranks at first, then one"
