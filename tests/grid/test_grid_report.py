"""The report of a grid: rows, totals, the best lines and the front; as text, CSV, Markdown and HTML."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given

from headrace.cli.main import cli
from headrace.grid.grid_documents import grid_csv, grid_document, grid_page
from headrace.grid.grid_record import (
    AttemptRecord,
    AttemptState,
    CopyRecord,
    CopyState,
    GridRecord,
    LineRecord,
    LineState,
)
from headrace.grid.grid_report import (
    GridReport,
    LineResult,
    Objective,
    RunFigures,
    pareto_front,
    ranked,
    report_grid,
    value_of,
)
from headrace.grid.journal import Journal
from headrace.grid.read_grid import journal_path
from headrace.grid.read_report import list_grids, run_figures, with_running_costs, without_objective
from headrace.insight.render.document import markdown
from headrace.insight.render.html import page as html_page
from headrace.runs import Cause, CauseKind, MetricWriter, Status, Stream, ValueSecond, create_run
from headrace.runs.events import HostStarted, InstancesStarted, SecondaryStatus, StatusChanged
from page_reader import Reader

MOST = Objective(metric="accuracy", goal="max")


def attempt(number: int, state: AttemptState = AttemptState.ENDED, **more: object) -> AttemptRecord:
    fields: dict[str, object] = {
        "job_name": "g-k", "engine": "local", "region": "us-west-2", "request": "d", "intended": 90.0,
        "run_id": f"r{number}", "started": 100.0 * number, "ended": 100.0 * number + 60,
    }  # fmt: skip
    return AttemptRecord(number=number, state=state, **{**fields, **more})  # type: ignore[arg-type]


def line(index: int, state: LineState, *attempts: AttemptRecord, **more: object) -> LineRecord:
    fields: dict[str, object] = {
        "key": f"k{index}", "place": f"a.txt:{index + 1}", "fields": {"hyperparameters.lr": 0.1 * index},
        "job_name": f"g-k{index}", "engine": "local", "region": "us-west-2", "planned_cost": 2.0,
        "planned_seconds": 3600.0,
    }  # fmt: skip
    named = tuple(msgspec.structs.replace(each, job_name=f"g-k{index}-a{each.number}") for each in attempts)
    return LineRecord(index=index, state=state, attempts=named, **{**fields, **more})  # type: ignore[arg-type]


CAUSE = Cause(CauseKind.PROGRAM_EXITED, group="g", host="algo-1", stream="0", exit_code=3)
GRID = GridRecord(
    name="g",
    file="/nowhere/array.yaml",
    digest="d",
    created=50.0,
    lines=(
        line(0, LineState.COMPLETED, attempt(1, cause=CAUSE, cost=1.0), attempt(2, cost=1.5, status=Status.COMPLETED)),
        line(1, LineState.FAILED, attempt(1, cause=CAUSE, cost=0.5, region="eu-west-1")),
        line(2, LineState.RUNNING, attempt(1, AttemptState.RUNNING, ended=None, run_id="live")),
        line(3, LineState.WAITING),
        line(4, LineState.UNPLACED, region="", planned_cost=None, reason="no region is left"),
    ),
    copies=(CopyRecord("s3://a", "us-west-1", "us-west-2", "s3://b", CopyState.DONE, 3.0, 10, 10, 60.0, 70.0, 2.5),),
)
FIGURES = {"r2": RunFigures({"accuracy": 0.9, "loss": 0.2}), "live": RunFigures({"accuracy": 0.5}, 0.25)}


def figures(attempt: AttemptRecord) -> RunFigures | None:
    return FIGURES.get(attempt.run_id)


def made(objective: Objective | None = MOST) -> GridReport:
    return report_grid(GRID, objective, figures, 300.0)


def test_a_row_has_all_attempts_cost_and_the_newest_ones_figures() -> None:
    first, failed, going, waiting, unplaced = made().lines
    assert (first.attempts, first.run_id, first.cost, first.seconds) == (2, "r2", 2.5, 120.0), "without the pause"
    assert first.cause is None, "the line has completed: its first attempt's cause is over"
    assert failed.cause is not None
    assert (failed.cause.exit_code, failed.region) == (3, "eu-west-1")
    assert (going.cost, going.seconds, going.metrics) == (0.25, 200.0, {"accuracy": 0.5})
    assert (waiting.cost, waiting.seconds, waiting.started) == (None, None, None)
    assert unplaced.reason == "no region is left"


def test_totals_count_each_region_and_copy_once() -> None:
    found = made()
    assert found.states == {"waiting": 1, "running": 1, "completed": 1, "failed": 1, "unplaced": 1}
    assert found.cost == pytest.approx(2.5 + 0.5 + 0.25 + 2.5)
    assert found.planned_cost == pytest.approx(4 * 2.0 + 3.0)
    regions = {each.region: each for each in found.regions}
    assert set(regions) == {"eu-west-1", "us-west-2"}
    west = regions["us-west-2"]
    assert (west.lines, west.completed, west.failed, west.stopped, west.going, west.attempts) == (3, 1, 0, 0, 2, 3)
    assert (west.cost, west.copy_cost) == (pytest.approx(2.75), 2.5)


def test_a_line_that_the_grid_stopped_says_why_and_one_without_a_record_or_a_place_in_the_file_is_told() -> None:
    by_user = Cause(CauseKind.STOPPED, "stopped by the user")
    ended = attempt(1, cause=by_user, status=Status.STOPPED, run_id="gone")
    lines = (
        line(0, LineState.STOPPED, ended, reason="the grid's budget is used up"),
        line(1, LineState.COMPLETED, attempt(1, status=Status.COMPLETED, run_id="gone"), in_file=False),
    )
    report = report_grid(msgspec.structs.replace(GRID, lines=lines), None, figures, 300.0)
    text = markdown(grid_document(report))
    assert "the grid's budget is used up" in text
    assert "by the user" not in text
    assert "a.txt:2 (not in the file now)" in text
    assert (report.regions[0].stopped, report.lines[0].spans[0].state) == (1, LineState.STOPPED)
    assert "1 line whose run has no record here: its metrics are not known" in report.notes


@pytest.mark.promise("grid", "the best lines of a grid are completed; none is beaten in both cost and metric")
def test_only_completed_lines_can_be_best() -> None:
    assert made().best == (0,)
    assert made(Objective(metric="nothing", goal="min")).best == ()
    assert any("accuracy, loss" in note for note in made(Objective(metric="nothing", goal="min")).notes)


RESULTS = st.lists(
    st.builds(
        LineResult,
        index=st.integers(0, 10**6),
        place=st.just("p"), key=st.just("k"), job_name=st.just("j"), fields=st.just({}),
        engine=st.just("local"), region=st.just(""), planned_cost=st.none(), planned_seconds=st.none(),
        state=st.sampled_from(LineState),
        cost=st.none() | st.integers(0, 5).map(float),
        metrics=st.dictionaries(st.just("accuracy"), st.integers(0, 5).map(float) | st.just(float("nan"))),
    ),
    max_size=20, unique_by=lambda each: each.index,
)  # fmt: skip


@pytest.mark.promise("grid", "the best lines of a grid are completed; none is beaten in both cost and metric")
@given(RESULTS, st.sampled_from(["min", "max"]))
def test_the_front_is_what_no_line_beats_and_the_rank_is_the_order_of_the_metric(
    results: list[LineResult], goal: str
) -> None:
    objective = Objective(metric="accuracy", goal=goal)  # type: ignore[arg-type]
    sign = 1.0 if goal == "min" else -1.0

    def beats(one: LineResult, other: LineResult) -> bool:
        ours = (one.cost, sign * value_of(one, objective))  # type: ignore[operator]
        theirs = (other.cost, sign * value_of(other, objective))  # type: ignore[operator]
        return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))  # type: ignore[operator]

    known = [each for each in results if value_of(each, objective) is not None and each.cost is not None]
    expected = {each.index for each in known if not any(beats(other, each) for other in known)}
    front = pareto_front(results, objective)
    assert {each.index for each in front} == expected
    assert [each.cost for each in front] == sorted(each.cost for each in front)  # type: ignore[type-var]
    order = [sign * value_of(each, objective) for each in ranked(results, objective)]  # type: ignore[operator]
    assert order == sorted(order)
    assert len(order) == sum(value_of(each, objective) is not None for each in results)


def test_csv_has_a_row_a_line_and_a_column_a_field_and_metric() -> None:
    rows = list(csv.DictReader(io.StringIO(grid_csv(made()))))
    assert [row["state"] for row in rows] == ["completed", "failed", "running", "waiting", "unplaced"]
    assert (rows[0]["metric.accuracy"], rows[0]["metric.loss"], rows[0]["cost"]) == ("0.9", "0.2", "2.5")
    assert (rows[1]["cause_kind"], rows[1]["line.hyperparameters.lr"]) == ("program_exited", "0.1")
    assert (rows[3]["cost"], rows[3]["started"]) == ("", "")


def test_the_page_has_a_bar_for_each_line_that_ran_and_escapes_what_lines_say() -> None:
    evil = msgspec.structs.replace(GRID.lines[0], fields={"hyperparameters.name": "<script>alert(1)</script>"})
    record = msgspec.structs.replace(GRID, lines=(evil, *GRID.lines[1:]))
    text = html_page("g", grid_page(report_grid(record, MOST, figures, 300.0)))
    count = Counter(tag for tag, _ in Reader(text).tags)
    assert count["rect"] == 4 + 3  # four attempts ran; three states have a sign in the legend
    assert "g-k0-a2 (attempt 1)" in text
    assert text.index(">Why</th>") < text.index(">Engine</th>"), "a page is not as wide as the table"
    assert count["circle"] == 1 + 1
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "0.9" in markdown(grid_document(made()))


def started(home: Path, record: GridRecord) -> None:
    path = journal_path(record.name)
    path.parent.mkdir(parents=True)
    journal = Journal(path, create=True)
    journal.begin(msgspec.structs.replace(record, lines=tuple(map(_fresh, record.lines)), copies=()))
    for each in record.lines:
        for one in each.attempts:
            journal.intend(each.key, one)
            journal.started(each.key, one.number, one.run_id, one.started or 0.0)
            if one.state is AttemptState.ENDED:
                journal.ended(each.key, one, each.state if one.number == len(each.attempts) else LineState.WAITING)
    journal.close()


def _fresh(each: LineRecord) -> LineRecord:
    state = LineState.UNPLACED if each.state is LineState.UNPLACED else LineState.WAITING
    return msgspec.structs.replace(each, attempts=(), state=state)


def ask(*words: str) -> Result:
    return CliRunner().invoke(cli, ["grid", *words])


def test_the_commands_read_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    started(tmp_path, GRID)
    done = ask("report", "g")
    assert done.exit_code == 0, done.output
    assert "g: 5 lines: 1 waiting, 1 running, 1 completed, 1 failed, 1 unplaced" in done.output
    assert "exited with code 3" in " ".join(done.output.split())
    assert "array.yaml cannot be read now" in done.output.replace("\n", " ")
    document = json.loads(ask("report", "g", "--output", "json").output)
    assert [each["state"] for each in document["lines"]] == ["completed", "failed", "running", "waiting", "unplaced"]
    page = tmp_path / "g.html"
    assert ask("report", "g", "--file", str(page)).exit_code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert ask("report", "g", "--file", str(tmp_path / "g.csv")).exit_code == 0
    assert (tmp_path / "g.csv").read_text().startswith("index,place,")
    unknown = ask("report", "other")
    assert unknown.exit_code != 0
    assert "there is no grid 'other'" in str(unknown.exception)


def running_for_an_hour(home: Path) -> str:
    """Makes the record of a run of one host, and returns its id."""
    began = time.time() - 3600
    paths = create_run("g-k0", runs=home / "runs", created=began)
    group = {"name": "g", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]}
    (paths.root / "plan.json").write_text(json.dumps({"groups": [group], "completion_groups": ["g"]}))
    events = (
        InstancesStarted(t=began, hosts={"g": ("algo-1",)}),
        HostStarted(t=began, group="g", host="algo-1", pid=1),
        StatusChanged(t=began, status=SecondaryStatus.TRAINING, message="training"),
    )
    (paths.root / "events").mkdir()
    (paths.root / "events" / "engine.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in events))
    return paths.id


def test_runs_of_a_grid_that_are_gone_are_not_looked_for_among_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was looked for in the list of all runs, with the nearest names: 8 ms a line beside 100 runs."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    create_run("other", runs=tmp_path / "runs")
    listed: list[object] = []
    listing = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or listing(path))
    gone = attempt(1, run_id="g-k0-20261129-010203-abcd")
    going = msgspec.structs.replace(gone, state=AttemptState.RUNNING, ended=None)
    grid = msgspec.structs.replace(
        GRID, lines=(line(0, LineState.COMPLETED, gone), line(1, LineState.RUNNING, going)), copies=()
    )
    assert [each.recorded for each in report_grid(grid, None, run_figures, 300.0).lines] == [False, False]
    assert with_running_costs(grid).lines == grid.lines
    assert str(tmp_path / "runs") not in listed


def test_a_line_that_runs_costs_already_in_the_list_and_the_status_also_where_the_home_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for place in (home, tmp_path / "moved"):
        monkeypatch.setenv("HEADRACE_HOME", str(place))
        if place == home:
            goes = attempt(1, AttemptState.RUNNING, run_id=running_for_an_hour(home), ended=None, region="us-east-1")
            started(home, msgspec.structs.replace(GRID, lines=(line(0, LineState.RUNNING, goes),)))
        else:
            home.rename(place)
        ((listed,), _) = list_grids()
        assert listed.cost == pytest.approx(0.204, rel=0.05), "an hour of one host"
    assert f"{listed.cost:.3f} USD so far" in ask("status", "g").output
    (found,) = json.loads(ask("status", "g", "--output", "json").output)["grid"]["lines"]
    assert found["attempts"][0]["cost"] == pytest.approx(0.204, rel=0.05)


def test_best_needs_a_metric_and_says_when_no_line_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    started(tmp_path, GRID)
    assert "by which metric" in str(ask("best", "g").exception)
    assert ask("best", "g", "--min", "a", "--max", "b").exit_code == 2
    none = ask("best", "g", "--max", "accuracy", "--output", "json")
    assert none.exit_code == 1
    assert json.loads(none.stdout)["best"] == []


def test_a_run_that_completed_without_the_objective_s_metric_says_which_one_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    paths = create_run("g-k")
    with MetricWriter(paths.metrics(Stream("g", "algo-1", "values"))) as out:
        out.write(ValueSecond(t=1.0, name="accuracy", stream="0", count=1, last=0.5, low=0.5, high=0.5, total=0.5))
    completed = attempt(1, run_id=paths.root.name)
    assert without_objective(completed, "accuracy") == ""
    assert "without the objective's metric 'acuracy'" in without_objective(completed, "acuracy")
    assert "did you mean 'accuracy'?" in without_objective(completed, "acuracy")
    assert without_objective(attempt(1, run_id="elsewhere"), "acuracy") == "", "no record here"
