"""Lines that are not among the best at a step are stopped early, by what their runs logged, whoever is killed."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from controller_process import Controllers
from effort import SOAK

from headrace.cli.main import invoke
from headrace.errors import JobInvalid
from headrace.grid.controller import early_stop
from headrace.grid.controller.control_grid import controlling
from headrace.grid.controller.early_stop import MissingMetric, ReachedRungs, is_past_last, judged, rungs_of
from headrace.grid.grid_file import EarlyStop
from headrace.grid.grid_record import LineRecord, LineState, Rung
from headrace.grid.journal import Journal
from headrace.grid.load_grid import read_grid_file
from headrace.grid.read_grid import journal_path, open_journal, read_grid
from headrace.runs import Stream, Value, ValueNotFinite, ValueSecond

ROWS = 3000 if SOAK else 300


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.promise("grid-reference", "only a line that is not among the best 1/`factor` at a step is stopped early")
def test_a_line_goes_on_when_it_is_among_the_best_one_in_factor_that_have_come_so_far(rng: random.Random) -> None:
    for _ in range(ROWS):
        factor, goal = rng.randint(2, 5), rng.choice(("min", "max"))
        values = [rng.choice((rng.random(), rng.randint(0, 3))) for _ in range(rng.randint(1, 40))]
        rungs = [judged(9, value, values[:index], goal, factor, True) for index, value in enumerate(values)]
        for index, rung in enumerate(rungs):
            ordered = sorted(values[: index + 1], reverse=goal == "max")
            assert (rung.rank, rung.of) == (ordered.index(rung.value) + 1, index + 1)
            best = ordered[: (index + 1) // factor]
            assert rung.stopped == (index + 1 >= factor and rung.value not in best), (factor, goal, values)
            assert not rung.stopped or rung.rank > 1
        mirrored = [-value for value in values]
        other = "max" if goal == "min" else "min"
        for index, rung in enumerate(rungs):
            again = judged(9, mirrored[index], mirrored[:index], other, factor, True)  # type: ignore[arg-type]
            assert (again.rank, again.stopped) == (rung.rank, rung.stopped)
            assert not judged(9, values[index], values[:index], goal, factor, False).stopped, "its run is over"


def test_a_run_reaches_each_rung_once_with_its_first_value_there_however_its_records_come(rng: random.Random) -> None:
    for _ in range(ROWS):
        rule = EarlyStop(after=rng.randint(1, 20), factor=rng.randint(2, 4), up_to=rng.choice((None, 20, 100)))
        stepped, step, records = rng.random() < 0.5, 0, list[tuple[Stream, Value]]()
        expected: dict[int, float] = {}
        rungs = rungs_of(rule)
        following = next(rungs, 0)
        for t in range(rng.randint(0, 30)):
            count, value = rng.randint(1, 9), rng.random()
            step += count
            second = ValueSecond(
                t=t, name="loss", stream="0", count=count, last=value, low=0, high=1, total=value,
                step=step if stepped else None,
            )  # fmt: skip
            records.append((Stream("algo", "algo-1", "0"), second))
            if rng.random() < 0.3:  # another metric
                records.append((Stream("algo", "algo-1", "0"), msgspec.structs.replace(second, name="accuracy")))
            while following and step >= following:
                expected[following] = value
                following = next(rungs, 0)
        run, reached = ReachedRungs(rule, "loss"), list[tuple[int, float]]()
        while records:
            size = rng.randint(1, len(records))
            part, records = records[:size], records[size:]
            reached += run.take(rng.sample(part, size) if stepped else part)
        assert reached == list(expected.items()), rule


def test_a_run_that_diverged_is_the_worst_of_all_that_came_and_does_not_hold_a_place(rng: random.Random) -> None:
    for _ in range(ROWS):
        factor, goal = rng.randint(2, 5), rng.choice(("min", "max"))
        values: list[float] = []
        for _ in range(rng.randint(1, 30)):
            value = rng.choice((rng.random(), math.nan, math.inf, -math.inf))
            rung = judged(9, value, values, goal, factor, True)
            values.append(rung.value)
            if math.isfinite(value):
                better = sum(
                    other < value if goal == "min" else other > value for other in values if math.isfinite(other)
                )
                assert rung.rank == 1 + better, "one that diverged is behind it"
            else:
                assert rung.rank == rung.of == len(values)
                assert rung.value == (math.inf if goal == "min" else -math.inf), "a journal cannot hold NaN"
                assert rung.stopped == (rung.of >= factor)


def test_a_run_reaches_its_rungs_by_values_that_are_no_finite_numbers_too() -> None:
    rungs, stream = ReachedRungs(EarlyStop(after=10, factor=2, up_to=40), "loss"), Stream("algo", "algo-1", "0")
    broken = [ValueNotFinite(t=t, name="loss", stream="0", count=10, last=text) for t, text in ((1, "nan"), (2, "inf"))]
    odd = ValueNotFinite(t=3, name="loss", stream="0", count=30, last="1,5")
    assert [(step, str(value)) for step, value in rungs.take((stream, each) for each in broken)] == [
        (10, "nan"),
        (20, "inf"),
    ]
    assert rungs.take([(stream, odd)]) == [], "it is no number at all, so nobody knows"
    number = ValueSecond(t=4, name="loss", stream="0", count=1, last=0.5, low=0.5, high=0.5, total=0.5)
    assert rungs.take([(stream, number)]) == [(40, 0.5)]


def test_a_line_that_has_passed_its_last_rung_is_read_no_more() -> None:
    rule = EarlyStop(after=10, factor=2, up_to=30)
    first, last = Rung(10, 0.5, 1, 1, False), Rung(20, 0.5, 1, 1, False)
    assert [is_past_last(rule, rungs) for rungs in ((), (first,), (first, last))] == [False, False, True]
    assert not is_past_last(EarlyStop(after=10), (first, last)), "without up_to there is none"


@pytest.mark.parametrize(
    ("logs", "seconds", "words"),
    [
        (["acuracy"], 31, "did you mean 'acuracy'?"),
        (["acuracy"], 29, ""),
        (["loss", "Accuracy"], 31, "did you mean 'Accuracy'?"),
        (["loss", "val_accuracy"], 599, ""),
        (["loss", "epoch"], 599, ""),  # it may be logged at the end of an epoch
        (["loss", "epoch"], 601, "known: epoch, loss"),
        (["accuracy"], 601, ""),
    ],
)
def test_a_metric_that_runs_do_not_log_is_told_once_with_the_near_names(
    logs: list[str], seconds: int, words: str
) -> None:
    missing, stream = MissingMetric("accuracy"), Stream("algo", "algo-1", "0")
    messages = []
    for t in (0, seconds / 2, seconds, seconds + 1 if words else seconds):
        for run in ("a", "b"):
            records = [ValueNotFinite(t=t, name=name, stream="0", count=1, last="nan") for name in logs]
            messages.append(missing.take(run, [(stream, record) for record in records]))
    assert [message.partition("; ")[2] for message in messages if message] == [words] * bool(words)
    assert all("not the objective's, 'accuracy'" in message for message in messages if message)
    assert missing.settled == (bool(words) or "accuracy" in logs)


def test_a_rung_is_told_in_words() -> None:
    told = [str(Rung(1000, 0.5, rank, 30, rank == 12)) for rank in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 101, 111, 112)]
    assert [words.split()[0] for words in told if not words.startswith("s")] == [
        *("1st", "2nd", "3rd", "4th", "11th", "13th", "21st", "22nd", "23rd", "101st", "111th", "112th")
    ]
    assert told[5] == "stopped early: 12th of 30 at step 1000"


GRID = """
name: big
job: job.yaml
engine: {engine}
lines: {{product: {{hyperparameters.loss: {losses}}}}}
objective: {{metric: loss, goal: min}}
early_stop: {{after: 10, factor: 2, up_to: 20}}
limits: {{starts_per_second: 1000, parallel: 1}}
"""
JOB = "{source_dir: code, entry_point: train.py, instance_type: ml.c5.xlarge, instance_count: 1}"
SCRIPT = """
import sys, time
import headrace
loss = float(sys.argv[-1])
headrace.log({"loss": loss}, step=12)
while loss >= 0.5:
    time.sleep(0.05)
"""
LOSSES = (0.3, 0.8, 0.2, 0.6)
STOPPED = ("", "stopped early: 2nd of 2 at step 10", "", "stopped early: 3rd of 4 at step 10")


def written(folder: Path, losses: tuple[float, ...] = LOSSES, engine: str = "ledger") -> Path:
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(SCRIPT)
    (folder / "job.yaml").write_text(JOB)
    file = folder / "array.yaml"
    file.write_text(GRID.format(losses=list(losses), engine=engine))
    return file


def test_the_rule_needs_an_objective_and_a_step_to_judge_at(tmp_path: Path) -> None:
    file = written(tmp_path)
    text = file.read_text()
    for old, new, said in (
        ("objective: {metric: loss, goal: min}", "", "early_stop needs an objective"),
        ("up_to: 20", "up_to: 9", "up_to must not be below after"),
        ("factor: 2", "factor: 1", "early_stop.factor"),
        ("after: 10", "after: 0", "early_stop.after"),
    ):
        file.write_text(text.replace(old, new))
        with pytest.raises(JobInvalid, match=said):
            read_grid_file(file)


@pytest.fixture(scope="module")
def controllers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controllers]:
    with Controllers(tmp_path_factory.mktemp("engine"), {}) as found:
        yield found


@pytest.mark.promise("grid-reference", "only a line that is not among the best 1/`factor` at a step is stopped early")
def test_a_controller_that_is_killed_beside_a_decision_decides_nothing_twice(
    controllers: Controllers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4 if SOAK else 2
    file, stopped = written(tmp_path, LOSSES[:count]), STOPPED[:count]
    instants = ("before reached#3", "before stop#1", "after stop#1", "before ended#2") if SOAK else ("after reached#3",)
    for number, kill_at in enumerate(instants):
        home, ledger = tmp_path / f"home{number}", tmp_path / f"ledger{number}"
        code, _, name = controllers.run(file, home, ledger, kill_at)
        assert (code, name) == (-9, kill_at.partition("#")[0])
        assert controllers.run(file, home, ledger)[0] == 0
        monkeypatch.setenv("HEADRACE_HOME", str(home))
        lines = read_grid("big").lines
        assert tuple(line.reason for line in lines) == stopped, kill_at
        assert [line.state is LineState.STOPPED_EARLY for line in lines] == [bool(reason) for reason in stopped]
        told = Counter(line.split()[0] for line in ledger.read_text().splitlines())
        assert (told["submitted"], told["ended"]) == (count, count), told


def test_lines_that_were_stopped_early_run_again_only_by_name_and_go_on_beyond_that_step(
    controllers: Controllers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, home = written(tmp_path, (0.3, 0.8)), tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    assert controllers.run(file, home, tmp_path / "ledger")[0] == 0
    assert invoke(["grid", "retry", "big"]) == 0
    assert [line.state for line in read_grid("big").lines] == [LineState.COMPLETED, LineState.STOPPED_EARLY]
    assert invoke(["grid", "retry", "big", "2"]) == 0
    assert controllers.run(file, home, tmp_path / "ledger")[0] == 0
    again = read_grid("big").lines[1]
    assert len(again.attempts) == 2
    assert [(rung.step, rung.stopped) for rung in again.rungs] == [(10, False), (20, True)]
    journal = Journal(journal_path("big"))
    journal.retry([again.key], also_completed=True)
    journal.close()
    assert read_grid("big").lines[1].rungs == (), "with other code it is judged anew"


@pytest.mark.parametrize("version", [1, 2])
def test_a_journal_of_before_gets_the_table_of_rungs(version: int, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with open_journal(path, create=True).database as database:
        database.execute("DROP TABLE rungs")
        if version == 1:
            database.execute("ALTER TABLE lines DROP COLUMN stop_asked")
        database.execute(f"PRAGMA user_version={version}")
    database.close()
    database = open_journal(path).database
    database.execute("SELECT stop_asked FROM lines, rungs")
    database.close()


@pytest.mark.promise("grid-reference", "only a line that is not among the best 1/`factor` at a step is stopped early")
def test_a_bad_line_of_real_jobs_is_stopped_early_and_the_grid_is_finished_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    file = written(tmp_path, LOSSES[:2], engine="local")
    assert invoke(["grid", "run", str(file)]) == 0
    said = capsys.readouterr()
    assert "combination 2 of the matrix: running" in said.err
    assert f"combination 2 of the matrix: stopped early, {read_grid('big').lines[1].attempts[0].run_id}" in said.err
    assert STOPPED[1] in said.err
    assert invoke(["grid", "report", "big", "--output", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["states"] == {"completed": 1, "stopped early": 1}
    assert report["lines"][1]["reason"] == STOPPED[1]
    assert report["lines"][1]["metrics"] == {"loss": 0.8}
    assert report["best"] == [0]


MISSPELT = """
import pathlib, time
import headrace
began = time.monotonic()
while not pathlib.Path(GATE).exists() and time.monotonic() - began < 60:
    headrace.log({"los": 1.0})
    time.sleep(0.05)
"""


def test_a_run_that_diverged_is_stopped_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    file = written(tmp_path, LOSSES[:2], engine="local")
    diverged = SCRIPT.replace('{"loss": loss}', '{"loss": loss if loss < 0.5 else float("nan")}')
    (tmp_path / "code" / "train.py").write_text(diverged)
    assert invoke(["grid", "run", str(file)]) == 0
    assert STOPPED[1] in capsys.readouterr().err


def test_a_misspelt_objective_is_told_while_the_first_run_runs_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(early_stop, "NEAR_SECONDS", 0.5)
    file, gate = written(tmp_path, (0.8,), engine="local"), tmp_path / "gate"
    (tmp_path / "code" / "train.py").write_text(MISSPELT.replace("GATE", repr(str(gate))))
    messages = []

    def told(line: LineRecord, words: str) -> None:
        messages.append((line.state, words))
        if "not the objective's, 'loss'" in words:
            gate.touch()

    with controlling(str(file), confirm=lambda *_: True, told=told) as controller:
        grid = controller.run()
    assert gate.exists(), messages
    assert [state for state, words in messages if "did you mean 'los'?" in words] == [LineState.RUNNING], "once"
    assert grid.lines[0].state is LineState.COMPLETED
