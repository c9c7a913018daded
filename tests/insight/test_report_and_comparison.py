"""Reports and comparisons of small synthetic runs whose right answers are computed by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from headrace.insight import Comparison, Report, compare, cost_report, report
from headrace.insight.advise.clusters import first_of_all
from headrace.insight.figures.run_files import absent, why_unread
from headrace.insight.render.html import page
from headrace.insight.render.run_documents import report_document
from headrace.runs import (
    Cause,
    CauseKind,
    EventWriter,
    HostSecond,
    LoaderSecond,
    MetricWriter,
    Run,
    Status,
    Stream,
    create_run,
    state_of,
)
from headrace.runs.events import DataWorkerLost, Event, JobStarted, ProgramExited, ProgramStarted, RunFinished
from loader_seconds import loader_second

RANK0, RANK1 = Stream("dnn", "algo-1", "0"), Stream("dnn", "algo-1", "1")
FEED = Stream("data", "algo-2", "feed")

# (steps, samples, wait, step): the first record is warm-up and must not count, so it is absurd.
SLOW = [(1, 10, 9.0, 9.9), (10, 100, 0.5, 1.0), (5, 50, 0.8, 1.0), (10, 100, 0.2, 1.0)]


def loader(t: float, values: tuple[int, int, float, float], name: str = "train") -> LoaderSecond:
    steps, samples, wait, step = values
    return loader_second(t, loader=name, steps=steps, samples=samples, wait=wait, step=step)


def host(t: float, cpu: float, cores: int = 2, rss: int = 100) -> HostSecond:
    return HostSecond(t=t, cpu=cpu, cores=cores, rss=rss, processes=3)


def make(
    runs: Path,
    name: str,
    metrics: dict[Stream, list[LoaderSecond | HostSecond]],
    extra: list[Event] | None = None,
    status: Status = Status.COMPLETED,
    plan: bool = True,
) -> Run:
    """A run from job_started at 100 to the rank's exit at 112.5; its feed server ends at 114."""
    paths = create_run(name, runs=runs, created=99.0)
    cause = None if status is Status.COMPLETED else Cause(CauseKind.PROGRAM_EXITED, "", "dnn", "algo-1", exit_code=3)
    events: list[Event] = [
        JobStarted(t=100.0),
        ProgramStarted(t=100.1, group="data", host="algo-2", stream="feed", pid=2),
        ProgramStarted(t=100.5, group="dnn", host="algo-1", stream="0", pid=1),
        *(extra or []),
        ProgramExited(t=112.5, group="dnn", host="algo-1", stream="0", exit_code=0),
        ProgramExited(t=114.0, group="data", host="algo-2", stream="feed", exit_code=0, stopped=True),
        RunFinished(t=115.0, status=status, cause=cause),
    ]
    with EventWriter(paths.events("engine")) as writer:
        for event in events:
            writer.write(event)
    for stream, records in metrics.items():
        with MetricWriter(paths.metrics(stream)) as out:
            for record in records:
                out.write(record)
    if plan:
        groups = [{"name": "dnn", "hosts": ["algo-1"], "x": 1}, {"name": "data", "hosts": ["algo-2"]}]
        (paths.root / "plan.json").write_text(json.dumps({"groups": groups, "completion_groups": ["dnn"]}))
    return Run(paths)


def seconds(values: list[tuple[int, int, float, float]], name: str = "train") -> list[LoaderSecond | HostSecond]:
    return [loader(101.0 + index, value, name) for index, value in enumerate(values)]


HOSTS: dict[Stream, list[LoaderSecond | HostSecond]] = {
    # Window 101..104. Within it the two cores of dnn used 3 of 6 core seconds: 50 %. Outside it the values are absurd.
    Stream("dnn", "algo-1", "host"): [
        host(100.0, -50.0),
        host(101.0, 1.0, rss=700),
        host(102.0, 2.0),
        host(103.0, 2.0),
        host(104.0, 4.0),
        host(105.0, 90.0, rss=900),
    ],
    # One core, 2.7 of 3 seconds: 90 %.
    Stream("data", "algo-2", "host"): [host(101.0, 0.0, 1), host(102.0, 0.9, 1), host(104.0, 2.7, 1)],
}


def test_the_figures_of_one_rank_leave_the_warm_up_out(tmp_path: Path) -> None:
    found = report(make(tmp_path, "j", {RANK0: seconds(SLOW), **HOSTS}))
    (one,) = found.loaders
    assert (one.loader, one.group, one.host, one.rank, one.ranks) == ("train", "dnn", "algo-1", "0", 1)
    assert one.steps.value == 26
    assert one.samples.value == 260
    assert one.step_time.value == pytest.approx(1000 * 3.0 / 25)  # 120 ms
    assert one.step_time.unit == "ms"
    assert one.samples_per_second.value == pytest.approx(250 / 3.0)
    assert one.data_wait.value == pytest.approx(100 * 1.5 / 3.0)
    assert one.step_time.window is not None
    assert (one.step_time.window.start, one.step_time.window.end) == (101.0, 104.0)
    # Per-second step times 100, 200, 100 ms: 10th and 90th percentile with linear interpolation.
    assert one.step_time.spread is not None
    assert (one.step_time.spread.low, one.step_time.spread.high, one.step_time.spread.count) == pytest.approx(
        (100, 180, 3)
    )


def test_ranks_add_their_rates_and_share_step_time_and_wait(tmp_path: Path) -> None:
    fast = [(99, 99, 0.0, 0.1), (20, 200, 0.1, 1.0), (20, 200, 0.1, 1.0), (20, 200, 0.1, 1.0)]
    found = report(make(tmp_path, "j", {RANK0: seconds(SLOW), RANK1: seconds(fast)}))
    training = found.training
    assert training is not None
    assert (training.ranks, training.rank) == (2, "")
    assert training.samples_per_second.value == pytest.approx(250 / 3 + 200)
    assert training.steps.value == 159  # of the job: what the rank that did most did; its own row has each rank's
    assert [one.steps.value for one in found.loaders] == [26, 159]
    assert training.step_time.value == pytest.approx(1000 * 3.0 / 60)
    assert training.data_wait.value == pytest.approx(100 * 1.8 / 6.0)
    # n-th seconds of both ranks: 300, 250, 300.
    assert training.samples_per_second.spread is not None
    assert training.samples_per_second.spread.low == pytest.approx(260)
    assert training.samples_per_second.spread.high == pytest.approx(300)


def test_of_ranks_that_do_not_wait_for_each_other_the_slowest_decides(tmp_path: Path) -> None:
    metrics = {
        Stream("dnn", "algo-1", str(number)): seconds([(10, 100, 0.0, length)] * 10)
        for number, length in enumerate((1.0, 1.4, 1.0))
    }
    found = report(make(tmp_path, "j", metrics))
    training = found.training
    assert training is not None
    assert training.steps.value == 100, "of the job, not 300"
    assert training.step_time.value == pytest.approx(140.0), "not the mean, 113 ms"
    assert training.samples_per_second.value == pytest.approx(30 / 0.14)
    assert training.samples_per_second.value * training.step_time.value / 1000 == pytest.approx(30)
    assert training.step_time.spread is not None
    assert (training.step_time.spread.low, training.step_time.spread.high) == pytest.approx((140, 140))
    assert training.samples_per_second.spread is not None
    assert training.samples_per_second.spread.high == pytest.approx(30 / 0.14)
    assert [one.step_time.value for one in found.loaders] == pytest.approx([100, 140, 100])


def test_cpu_is_the_share_of_the_groups_own_cores_in_the_training_window(tmp_path: Path) -> None:
    found = report(make(tmp_path, "j", {RANK0: seconds(SLOW), **HOSTS}))
    dnn, data = found.groups
    assert (dnn.name, dnn.hosts, dnn.cores) == ("dnn", ("algo-1",), 2)
    assert dnn.cpu.value == pytest.approx(50.0)
    assert data.cpu.value == pytest.approx(90.0)
    assert dnn.cpu.window is not None
    assert dnn.cpu.window.seconds == 3.0
    assert dnn.max_rss.value == 900  # the whole run, not the training window
    assert (dnn.max_rss.unit, dnn.cpu.unit) == ("bytes", "%")


def test_time_to_train_ends_with_the_last_completion_program_not_with_the_feed_server(tmp_path: Path) -> None:
    found = report(make(tmp_path, "j", {}))
    assert found.time_to_train.value == pytest.approx(12.5)
    assert (found.started, found.ended) == (100.0, 115.0)
    assert [(p.group, p.stream, p.exit_code, p.seconds) for p in found.programs] == [
        ("data", "feed", 0, pytest.approx(13.9)),
        ("dnn", "0", 0, pytest.approx(12.0)),
    ]


def test_a_program_of_another_group_does_not_delay_the_time_to_train(tmp_path: Path) -> None:
    late = [
        ProgramStarted(t=101.0, group="data", host="algo-2", stream="0", pid=3),
        ProgramExited(t=113.9, group="data", host="algo-2", stream="0", exit_code=0, stopped=True),
    ]
    assert report(make(tmp_path, "j", {}, [*late])).time_to_train.value == pytest.approx(12.5)


def test_without_a_plan_ranks_count_and_feed_servers_do_not(tmp_path: Path) -> None:
    found = report(make(tmp_path, "j", {}, plan=False))
    assert found.time_to_train.value == pytest.approx(12.5)
    assert [group.name for group in found.groups] == ["data", "dnn"]


@pytest.mark.parametrize("damaged", [False, True])
def test_without_a_plan_a_note_says_why_there_is_no_cost(tmp_path: Path, damaged: bool) -> None:
    run = make(tmp_path, "j", {RANK0: seconds(SLOW)}, plan=False)
    if damaged:
        (run.paths.root / "plan.json").write_text("{")
    found = report(run)
    assert found.cost is None
    assert found.notes[0].startswith(
        "plan.json cannot be read, so the instance types and what the run costs are not known"
    )
    assert found.unread == found.notes[0]
    header = page("j", report_document(found)).partition("<table")[0]
    assert "plan.json cannot be read" in header
    other = report(make(tmp_path, "k", {}))
    assert other.unread == ""
    assert "plan.json" not in " ".join(other.notes)


def test_missing_metrics_give_none_and_a_note_never_zero(tmp_path: Path) -> None:
    found = report(make(tmp_path, "j", {}))
    assert found.training is None
    assert found.loaders == ()
    assert any("headrace.track" in note for note in found.notes)
    for group in found.groups:
        assert (group.cpu.value, group.cpu.note) == (None, "no metrics of its hosts")
        assert group.max_rss.value is None
        assert group.cores is None


def test_a_loader_of_one_second_has_only_warm_up_and_says_so(tmp_path: Path) -> None:
    found = report(make(tmp_path, "j", {RANK0: seconds(SLOW[:1]), **HOSTS}))
    (one,) = found.loaders
    assert one.steps.value == 1
    for figure in (one.step_time, one.samples_per_second, one.data_wait):
        assert figure.value is None
        assert "warm-up" in figure.note
    assert found.groups[0].cpu.window is not None
    assert found.groups[0].cpu.window.end == 105.0  # all of job_started .. last exit that has metrics


def test_the_main_loader_is_train_even_when_another_delivers_more(tmp_path: Path) -> None:
    both = [*seconds(SLOW), *seconds([(1, 9999, 0.0, 1.0)] * 3, "eval")]
    found = report(make(tmp_path, "j", {RANK0: both}))
    assert [one.loader for one in found.loaders] == ["train", "eval"]
    assert found.training is not None
    assert found.training.loader == "train"
    other = report(make(tmp_path, "k", {RANK0: seconds(SLOW, "a"), RANK1: seconds([(1, 9999, 0.0, 1.0)] * 3, "b")}))
    assert other.training is not None
    assert other.training.loader == "b"


def test_ranks_are_listed_by_number(tmp_path: Path) -> None:
    metrics = {Stream("dnn", "algo-1", str(rank)): seconds(SLOW) for rank in (10, 9, 0)}
    assert [one.rank for one in report(make(tmp_path, "j", metrics)).loaders] == ["0", "9", "10"]


def test_a_failed_run_has_no_time_to_train_but_its_cause(tmp_path: Path) -> None:
    lost = DataWorkerLost(t=105.0, group="data", host="algo-2", reason="killed by SIGKILL")
    found = report(make(tmp_path, "j", {}, [lost], Status.FAILED))
    assert found.status is Status.FAILED
    assert str(found.cause) == "dnn/algo-1: exited with code 3"
    assert (found.time_to_train.value, found.time_to_train.note) == (None, "the run did not complete: Failed")
    assert found.degraded
    assert any("degraded" in note for note in found.notes)


def test_a_host_without_metrics_is_named_in_its_groups_figures(tmp_path: Path) -> None:
    run = make(tmp_path, "j", {RANK0: seconds(SLOW), **HOSTS})
    plan = {"groups": [{"name": "dnn", "hosts": ["algo-1", "algo-3"]}], "completion_groups": ["dnn"]}
    (run.paths.root / "plan.json").write_text(json.dumps(plan))
    (dnn,) = report(run).groups
    assert dnn.cpu.value == pytest.approx(50.0)
    assert dnn.cpu.note == "without algo-3, which wrote no metrics"
    assert dnn.cores is None


def test_damaged_lines_are_among_the_notes(tmp_path: Path) -> None:
    run = make(tmp_path, "j", {RANK0: seconds(SLOW)})
    with run.paths.metrics(RANK0).open("ab") as file:
        file.write(b"{}\n")
    found = report(run)
    assert any("line 5" in note for note in found.notes)
    assert found.loaders[0].steps.value == 26


def test_every_figure_of_a_report_has_a_unit_and_a_formula_and_survives_json(tmp_path: Path) -> None:
    found = report(make(tmp_path, "j", {RANK0: seconds(SLOW), **HOSTS}))
    document = msgspec.json.decode(msgspec.json.encode(found))
    figures = list(_figures(document))
    assert len(figures) >= 1 + 1 + 5 + 5 + 4  # verdict, time, training, the loader, two groups
    for figure in figures:
        assert figure["unit"]
        assert figure["name"] in document["formulas"]
        assert (figure["value"] is None) == (figure["window"] is None)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found


def _figures(node: object) -> list[dict[str, object]]:
    if isinstance(node, list):
        return [figure for item in node for figure in _figures(item)]
    if isinstance(node, dict):
        mine = [node] if {"unit", "value", "window"} <= node.keys() else []
        return mine + [figure for item in node.values() for figure in _figures(item)]
    return []


def test_a_comparison_gives_every_figure_its_ratio_to_the_first_run(tmp_path: Path) -> None:
    slow = make(tmp_path, "homogeneous", {RANK0: seconds(SLOW), **HOSTS})
    fast_records = [(0, 0, 0.0, 0.0), (20, 200, 0.25, 1.0), (20, 200, 0.25, 1.0), (20, 200, 0.25, 1.0)]
    fast = make(tmp_path, "heterogeneous", {RANK0: seconds(fast_records), **HOSTS})
    found = compare([report(slow), report(fast), report(slow)])
    rows = {(row.name, row.group): [(cell.figure.value, cell.ratio) for cell in row.cells] for row in found.rows}
    approx = pytest.approx
    assert rows["time_to_train", ""] == [(12.5, 1.0)] * 3
    assert rows["step_time", ""] == [(approx(120), 1.0), (approx(50), approx(50 / 120)), (approx(120), 1.0)]
    assert rows["samples_per_second", ""][1] == (approx(200), approx(2.4))
    assert rows["data_wait", ""][1] == (approx(25), approx(0.5))
    assert rows["cpu", "dnn"][1] == (approx(50), 1.0)
    named = [(name, group) for name in ("cpu", "cpu_per_1000_samples") for group in ("dnn", "data")]
    assert [key for key in rows if key[1]] == named
    assert rows["cpu_per_1000_samples", "dnn"][1] == (approx(1000 * 1.0 / 200), approx(1 / 2.4))
    assert found.rows[1].cells[0].figure.spread is not None
    assert any("different numbers of samples" in note for note in found.notes)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Comparison) == found
    assert {row.name for row in found.rows} | {"ratio", "spread"} <= found.formulas.keys()


def test_a_figure_that_one_run_lacks_has_no_ratio(tmp_path: Path) -> None:
    with_metrics = report(make(tmp_path, "a", {RANK0: seconds(SLOW), **HOSTS}))
    without = report(make(tmp_path, "b", {}, status=Status.FAILED))
    for order in ([with_metrics, without], [without, with_metrics]):
        found = compare(order)
        for row in found.rows:
            assert row.cells[1].ratio is None
            assert None in [cell.figure.value for cell in row.cells]
        assert any(note.endswith("do not stand for a whole training") for note in found.notes)


def test_a_first_value_of_zero_gives_no_ratio(tmp_path: Path) -> None:
    none = [(10, 100, 0.0, 1.0)] * 3
    found = compare([report(make(tmp_path, name, {RANK0: seconds(none)})) for name in "ab"])
    (wait,) = [row for row in found.rows if row.name == "data_wait"]
    assert [(cell.figure.value, cell.ratio) for cell in wait.cells] == [(0.0, None), (0.0, None)]


def test_folders_that_a_run_has_lost_are_told_with_what_is_not_known_for_that(tmp_path: Path) -> None:
    run = make(tmp_path, "j", {RANK0: seconds(SLOW)})
    (run.paths.root / "logs").mkdir()
    assert absent(run.paths, run.state()) == []
    shutil.rmtree(run.paths.root / "logs")
    for folder, words in (("logs", "no lines"), ("metrics", "no figures")):
        shutil.rmtree(run.paths.root / folder, ignore_errors=True)
        for notes in (report(Run(run.paths)).notes, cost_report(Run(run.paths)).notes):
            (line,) = [note for note in notes if f"/{folder}: the folder is missing" in note]
            assert words in line
    shutil.rmtree(run.paths.root / "events")
    assert absent(run.paths, state_of([], True)) == [], "it may be about to begin"
    gone = absent(run.paths, state_of([], False))
    assert [Path(one.path).name for one in gone] == ["events", "metrics", "logs"]
    assert "how it ended" in gone[0].reason


def test_costs_tell_of_damaged_lines(tmp_path: Path) -> None:
    run = make(tmp_path, "j", {RANK0: seconds(SLOW)})
    with run.paths.events("engine").open("ab") as file:
        file.write(b"[1]\n")
    assert any("engine.jsonl, line" in note and "damaged line left out" in note for note in cost_report(run).notes)


def test_a_file_that_cannot_be_read_is_told_in_words_of_the_user(tmp_path: Path) -> None:
    run = make(tmp_path, "j", {RANK0: seconds(SLOW)})
    plan = run.paths.root / "plan.json"
    for make_it, words in (
        (lambda: plan.unlink(), "the file is missing"),
        (lambda: plan.mkdir(), "there is a folder in its place"),
    ):
        make_it()
        assert report(Run(run.paths)).unread.endswith(f": {words}")
    assert why_unread(msgspec.DecodeError("x")) == "it holds no complete record (x)"


def busy_host(t: float, cpu: float, busy: float) -> HostSecond:
    return msgspec.structs.replace(host(t, cpu), busy=busy)


@pytest.mark.promise("verdicts", "a run whose cores other programs had says so, and no data hosts are advised for it")
def test_a_run_whose_cores_others_had_is_not_judged_by_its_times(tmp_path: Path) -> None:
    """Two cores: the run had 0.4 of them, its other host on the same machine 0.2, and programs beside it the rest."""
    hosts = {
        Stream("dnn", "algo-1", "host"): [busy_host(101.0 + n, 0.4 * n, 50 + 2.0 * n) for n in range(4)],
        Stream("data", "algo-2", "host"): [busy_host(101.0 + n, 0.2 * n, 50 + 2.0 * n) for n in range(4)],
    }
    quiet = report(make(tmp_path / "quiet", "q", {RANK0: seconds(SLOW), **HOSTS}))
    run = make(tmp_path / "busy", "b", {RANK0: seconds(SLOW), **hosts})
    plan = run.paths.root / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "hosts": [{"name": "algo-1"}, {"name": "algo-2"}]}))
    busy = report(run)
    crowd = "the machine was busy with something else: other programs had 70 % of the cores of dnn/algo-1, its own 20 %"
    assert crowd in busy.verdict.sentence
    assert busy.verdict.name is quiet.verdict.name, "the waits are what they are"
    assert "run it again while nothing else runs there" in busy.verdict.next
    assert "something else" not in quiet.verdict.sentence
    assert first_of_all(busy.verdict).startswith(f"It cannot be told whether CPU hosts would help, because {crowd}")
    compared = compare([quiet, busy])
    assert any("busy with something else in b" in line for line in compared.summary)
    row = next(row for row in compared.rows if row.name == "cpu_per_1000_samples" and row.group == "dnn")
    assert row.cells[0].figure.value == pytest.approx(1000 * 1.0 / (250 / 3))  # 1 CPU second a second
    assert row.cells[1].figure.value == pytest.approx(1000 * 0.4 / (250 / 3))
    assert f"{busy.run_id}: {crowd}" in compared.notes
