"""`headrace grid run` and the commands beside it, with an engine whose platform refuses, throttles and takes back."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from controller_process import installed_engine
from grid_jobs import until

from headrace.cli.main import invoke
from headrace.grid.grid_record import CopyState, LineState
from headrace.grid.load_grid import load_grid
from headrace.grid.read_grid import journal_path, read_grid
from headrace.runs import Run
from objectstore import ObjectStore

GRID = """
name: big
job: job.yaml
engine: ledger
lines: {lines}
placement: {{regions: [us-west-2, eu-central-1], wishes: [cheapest]}}
limits: {{starts_per_second: 100}}
retry: {{attempts: 2, delay: 0}}
"""
JOB = "{source_dir: code, entry_point: train.py, instance_type: ml.c5.xlarge, instance_count: 1}"


class Beside:
    """A grid's file, and commands about it.

    Args:
        folder: of all of it.
        path: PYTHONPATH with the engine.
    """

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self.file = folder / "array.yaml"
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.environment = {**os.environ, "PYTHONPATH": path}
        (folder / "code").mkdir()
        (folder / "code" / "train.py").touch()
        (folder / "job.yaml").write_text(JOB)

    def write(self, values: list[float], more: str = "") -> list[str]:
        """Writes a grid of a line a value. Returns the names of their jobs."""
        self.file.write_text(GRID.format(lines=f"{{product: {{hyperparameters.lr: {values}}}}}") + more)
        return [f"big-{line.key}" for line in load_grid(self.file).lines]

    def fault(self, job_name: str, what: str) -> None:
        """Has the platform do something else with a job than run it."""
        (self.faults / job_name).write_text(what)

    def ask(self, *arguments: str, code: int = 0) -> Any:
        """Returns what a command prints as JSON; its text when that is none."""
        told, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(wrong):
            found = invoke(["grid", *arguments])
        assert found == code, (found, told.getvalue(), wrong.getvalue())
        return json.loads(told.getvalue()) if "json" in arguments else told.getvalue() + wrong.getvalue()

    def run(self, *arguments: str, code: int = 0) -> dict[int, dict[str, Any]]:
        """Runs the grid. Returns its lines by their position."""
        found = self.ask("run", str(self.file), "--output", "json", *arguments, code=code)
        return {line["index"]: line for line in found["lines"]}

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Begins to run the grid."""
        return subprocess.Popen(
            self.command("run", str(self.file), *arguments), env=self.environment, stderr=subprocess.PIPE, text=True
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "headrace", "grid", *arguments]

    def platform(self, what: str) -> list[str]:
        """Returns the job names of which the platform says something."""
        path = self.folder / "ledger"
        found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [line[1] for line in found if line[0] == what]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Beside:
    for name in ("home", "ledger", "faults"):
        monkeypatch.setenv({"home": "HEADRACE_HOME"}.get(name, name.upper()), str(tmp_path / name))
    path = installed_engine(tmp_path / "engine")
    monkeypatch.syspath_prepend(tmp_path / "engine")
    return Beside(tmp_path, path)


def test_each_line_is_tried_again_by_its_cause_and_one_that_fails_alone_is_named(beside: Beside) -> None:
    well, throttled, elsewhere, spot, broken, never = names = beside.write([0, 1, 2, 3, 4, 5])
    beside.fault(throttled, "throttle")
    beside.fault(elsewhere, "capacity")
    beside.fault(spot, "spot")
    beside.fault(broken, "broken")
    for ending in ("", "-a2", "-a3"):
        beside.fault(never + ending, "capacity")
    lines = beside.run(code=1)
    states = [lines[index]["state"] for index in range(6)]
    assert states == [*["completed"] * 4, "failed", "failed"]
    assert [len(lines[index]["attempts"]) for index in range(6)] == [1, 2, 2, 2, 1, 3]
    regions = {index: [each["region"] for each in lines[index]["attempts"]] for index in range(6)}
    first, second = regions[2]
    assert first != second, "without capacity the next region comes first"
    assert regions[1] == [first, first]
    assert regions[3] == [first, second]
    assert regions[5] == [first, second, first]
    causes = [lines[index]["attempts"][-1]["cause"]["kind"] for index in (4, 5)]
    assert causes == ["program_exited", "instance_not_started"]
    assert sorted(beside.platform("submitted")) == sorted(
        [well, f"{throttled}-a2", f"{elsewhere}-a2", spot, f"{spot}-a2", broken]
    )
    shown = beside.ask("status", "big")
    assert "4 completed" in shown
    assert "exited with code 3" in shown
    assert "too many requests" in beside.ask("status", "big", "--notes")

    assert "2 lines may run again" in beside.ask("retry", "big")
    beside.fault(broken + "-a2", "well")
    lines = beside.run()
    assert {line["state"] for line in lines.values()} == {"completed"}
    assert len(beside.platform("submitted")) == 8
    assert beside.run() == lines, "nothing is left to do"
    assert len(names) == 6


def test_a_changed_file_is_shown_and_must_be_confirmed(beside: Beside) -> None:
    first, second = beside.write([1, 2])
    planned = beside.ask("plan", str(beside.file), "--output", "json")["digest"]
    assert "its digest" not in beside.ask("run", str(beside.file), "--digest", planned)
    beside.write([2, 3])
    said = beside.ask("run", str(beside.file), "--digest", planned, code=2)
    assert "has other lines now" in said
    said = beside.ask("run", str(beside.file), code=2)
    assert "1 line new combination 2 of the matrix" in said
    assert "1 line no longer in it (those that have begun go on, the others are not started): " in said
    assert "not confirmed" in said
    assert sorted(beside.platform("submitted")) == sorted([first, second])
    beside.run("--yes")
    assert len(beside.platform("submitted")) == 3
    (beside.folder / "job.yaml").write_text(JOB.replace("count: 1", "count: 2"))
    assert "the job, its values for a region, or its code" in beside.ask("run", str(beside.file), code=2)
    with beside.file.open("a") as file:
        file.write("budget: {usd: 3}\n")
    said = beside.ask("run", str(beside.file), code=2)
    assert "its budget: none before, 3 USD now" in said
    assert "deadline" not in said


def test_a_failure_of_a_line_that_the_file_has_no_more_counts_unless_it_had_happened_before(beside: Beside) -> None:
    _, failed, _ = beside.write([1, 2, 3])
    beside.fault(failed, "broken")
    beside.run(code=1)
    _, _, slow = beside.write([1, 3, 4])  # the failed line is edited: another one runs in its place
    beside.fault(slow, "slow")
    controller = beside.begin("--yes")
    assert controller.stderr is not None
    until(lambda: read_grid("big").counts[LineState.RUNNING] == 1)
    controller.terminate()
    _, said = controller.communicate(timeout=60)
    assert "1 line of those had failed: the record stays, the exit code ignores it" in said
    beside.write([1, 3])
    ledger = beside.folder / "ledger"
    ledger.write_text(ledger.read_text().replace(" slow\n", " broken\n"))
    said = beside.ask("run", str(beside.file), "--yes", code=1)
    assert "2 completed, 2 failed" in said
    assert "1 line failed and then left the grid's file: the exit code ignores that" in said
    assert "2 lines failed and then left the grid's file" in beside.ask("run", str(beside.file))


def test_another_file_of_the_same_name_is_not_taken_for_the_grid(beside: Beside) -> None:
    beside.write([1])
    beside.run()
    other = beside.folder / "other" / "array.yaml"
    shutil.copytree(beside.folder / "code", other.parent / "code")
    for name in ("array.yaml", "job.yaml"):
        shutil.copy(beside.folder / name, other.parent / name)
    said = beside.ask("run", str(other), code=2)
    assert f"from another file: {beside.file}" in said
    assert beside.ask("report", "big").count("no process controls the grid") == 0, "it is over"
    assert "not confirmed" in said
    beside.ask("run", str(other), "--yes")
    assert beside.ask("list", "--output", "json")["grids"][0]["file"] == str(other)
    shutil.rmtree(journal_path("big").parent)
    assert "takes up big-" in beside.ask("run", str(other)), "the runs are there still"
    assert len(beside.platform("submitted")) == 1


def test_only_one_process_controls_a_grid_and_ctrl_c_leaves_runs_or_stops_them(beside: Beside) -> None:
    names = beside.write([1, 2])
    for name in names:
        beside.fault(name, "slow")
    controller = beside.begin()
    until(lambda: len(beside.platform("submitted")) == 2)
    until(lambda: read_grid("big").counts[LineState.RUNNING] == 2)
    assert "another process controls the grid big" in beside.ask("run", str(beside.file), code=2)
    assert f"controlled by process {controller.pid}" in beside.ask("status", "big")
    controller.send_signal(signal.SIGINT)
    assert "runs go on" in controller.communicate(timeout=60)[1]
    assert controller.returncode == 130
    assert "no process controls it" in beside.ask("status", "big")
    assert beside.platform("stopped") == []

    controller = beside.begin("--on-interrupt", "stop")
    assert controller.stderr is not None
    until(lambda: "2 running" in controller.stderr.readline())  # type: ignore[union-attr]
    controller.send_signal(signal.SIGINT)
    controller.communicate(timeout=60)
    assert controller.returncode == 130
    assert sorted(beside.platform("stopped")) == sorted(beside.platform("submitted")) == sorted(names)
    assert read_grid("big").counts == {LineState.STOPPED: 2}


def test_stop_reaches_the_controller_or_does_it_itself(beside: Beside) -> None:
    names = beside.write([1, 2, 3], "deadline: 3600\n")
    for name in names:
        beside.fault(name, "slow")
        beside.fault(f"{name}-a2", "slow")
    controller = beside.begin()
    until(lambda: read_started() == 3)
    stopped = beside.ask("stop", "big", "--output", "json")
    assert stopped["controlled"]
    assert stopped["grid"]["stop_asked"]
    controller.communicate(timeout=60)
    assert controller.returncode == 1
    assert read_grid("big").counts == {LineState.STOPPED: 3}
    again = beside.ask("retry", "big", "1", "--output", "json")
    assert (again["controlled"], again["lines"]) == (False, [names[0].removeprefix("big-")])
    controller = beside.begin()
    until(lambda: read_started() == 1)
    controller.terminate()
    assert "runs go on" in controller.communicate(timeout=60)[1]
    assert controller.returncode == 143
    assert "no process controls the grid" in beside.ask("report", "big")
    assert "3 stopped" in beside.ask("stop", "big"), "without a controller, and without the grid's file"
    assert beside.platform("stopped")[-1] == f"{names[0]}-a2"


def test_some_lines_of_a_grid_are_stopped_and_the_others_go_on(beside: Beside) -> None:
    names = beside.write([1, 2, 3])
    for name in names:
        beside.fault(name, "slow")
    controller = beside.begin()
    until(lambda: read_started() == 3)
    assert "combination 2 of the matrix: being stopped" in beside.ask("stop", "big", "2")
    until(lambda: read_grid("big").counts == {LineState.STOPPED: 1, LineState.RUNNING: 2})
    assert beside.platform("stopped") == [names[1]]
    controller.terminate()
    controller.communicate(timeout=60)
    beside.ask("stop", "big", "3")  # without a controller
    assert beside.platform("stopped") == names[1:]
    assert read_grid("big").stop_asked is None
    beside.ask("stop", "big")
    assert read_grid("big").counts == {LineState.STOPPED: 3}
    beside.ask("retry", "big", "2")
    assert [line.stop_asked is None for line in read_grid("big").lines] == [True, True, False]


def test_code_that_was_edited_is_a_change_and_lines_that_have_not_run_get_it(beside: Beside) -> None:
    beside.write([1, 2])
    beside.run()
    assert "completed" in beside.ask("run", str(beside.file)), "nothing has changed"
    (beside.folder / "code" / "train.py").write_text("print(2)")
    said = beside.ask("run", str(beside.file), code=2)
    assert "or its code: lines that have not begun use the new one; 2 of 2 lines have begun with the old one" in said
    assert "2 of 2 lines have ended, and will not run again; with --again they do" in said
    beside.run("--yes")
    assert len(beside.platform("submitted")) == 2
    beside.write([1, 2, 3])
    beside.run("--yes")
    assert len(beside.platform("submitted")) == 3
    lines = beside.run("--again")
    assert {line["state"] for line in lines.values()} == {"completed"}
    assert [len(line["attempts"]) for line in lines.values()] == [2, 2, 2]
    assert len(beside.platform("submitted")) == 6


def test_an_objective_that_is_a_misspelt_metric_of_the_job_is_refused_and_one_that_may_be_logged_is_not(
    beside: Beside,
) -> None:
    (beside.folder / "job.yaml").write_text(JOB[:-1] + ', metric_definitions: [{name: accuracy, regex: "acc=(.*)"}]}')
    beside.write([1])
    with beside.file.open("a") as file:
        file.write("objective: {metric: acuracy, goal: max}\n")
    for command in ("plan", "run"):
        said = beside.ask(command, str(beside.file), code=2)
        assert "objective.metric: must be a metric of the job" in said
        assert "did you mean 'accuracy'?" in said
    assert beside.platform("submitted") == []
    beside.file.write_text(beside.file.read_text().replace("acuracy", "val_accuracy"))
    beside.ask("plan", str(beside.file))


def test_what_keeps_lines_waiting_is_told_once_and_the_plan_says_how_long_it_assumes_they_run(beside: Beside) -> None:
    beside.write([1, 2, 3, 4])
    beside.file.write_text(beside.file.read_text().replace("second: 100", "second: 100, parallel: 1"))
    assert "when every job runs as long as is expected of it (24:00:00 at most, its max_run" in beside.ask(
        "plan", str(beside.file)
    )
    said = beside.ask("run", str(beside.file))
    assert said.count("it and others wait until lines that run are over, because limits.parallel is 1") == 1


def read_started() -> int:
    try:
        return read_grid("big").counts[LineState.RUNNING]
    except Exception:  # noqa: BLE001  # it has not begun
        return 0


def test_a_budget_that_is_used_up_and_a_deadline_stop_everything(beside: Beside) -> None:
    names = beside.write([1, 2], "deadline: 1\n")
    for name in names:
        beside.fault(name, "slow")
    lines = beside.run(code=1)
    why = "the grid's deadline has passed"
    assert {(line["state"], line["reason"], len(line["attempts"])) for line in lines.values()} == {("stopped", why, 1)}
    said = beside.ask("status", "big", "--notes")
    assert said.count(why) == 3, "of both lines, and in the notes"
    assert "by the user" not in said
    assert f"with a later one in {beside.file}" in beside.ask("stop", "big")
    assert f"with a later one in {beside.file}" in beside.ask("retry", "big")
    beside.file.write_text(beside.file.read_text().replace("name: big", "name: poor") + "budget: {usd: 0}\n")
    found = beside.run(code=1)
    assert {(line["state"], line["reason"]) for line in found.values()} == {("stopped", "the grid's budget is used up")}
    assert len(beside.platform("submitted")) == 2


def test_an_engine_or_a_region_that_cannot_be_is_told_before_anything_starts(beside: Beside) -> None:
    beside.write([1], "in_regions: {us-west-2: {entry_point.deep: 3}}\n")
    assert "in_regions.us-west-2" in beside.ask("run", str(beside.file), code=2)
    beside.file.write_text(
        beside.file.read_text().replace("engine: ledger", "engine: ledgr").partition("in_regions")[0]
    )
    assert "did you mean" in beside.ask("run", str(beside.file), code=2)
    beside.file.write_text(beside.file.read_text().replace("engine: ledgr", "engine: sagemaker"))
    assert "combination 1 of the matrix" in beside.ask("run", str(beside.file), code=2)
    assert beside.platform("submitted") == []
    assert beside.ask("list", "--output", "json") == {"grids": [], "unread": []}, "nothing is left of it"


def test_a_grid_may_mix_engines(beside: Beside) -> None:
    beside.write([1])
    beside.file.write_text("name: big\njob: job.yaml\nlines: {product: {engine: [local, ledger]}}\n")
    lines = beside.run()
    assert {(line["engine"], line["state"]) for line in lines.values()} == {
        ("local", "completed"), ("ledger", "completed"),
    }  # fmt: skip
    assert len(beside.platform("submitted")) == 1
    said = beside.ask("logs", "big", "nobody", code=2)
    assert "no line is called 'nobody'" in said
    assert beside.ask("logs", "big", lines[0]["key"]).startswith("headrace: no program has written anything")


FULL = """
set -e
grids="$HEADRACE_HOME/grids"; mkdir -p "$grids"; mount -t tmpfs -o size=300k tmpfs "$grids"
"$@" 2> full && code=0 || code=$?; echo "$code"
mount -o remount,size=16m "$grids"
"$@" 2> again && code=0 || code=$?; echo "$code"
cp -r "$grids" "$grids.kept"
"""


@pytest.mark.namespaces
def test_a_full_disk_under_the_journal_loses_no_line_and_starts_none_twice(beside: Beside) -> None:
    names = beside.write(list(range(25)))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", FULL, "sh", *beside.command("run", str(beside.file))],
        env=beside.environment,
        cwd=beside.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = (beside.folder / "full").read_text()
    first, *_, last = done.stdout.split()
    assert (first, last) == ("1", "0"), (done, said)
    assert "cannot be written: database or disk is full" in said
    assert "hint: is there room on the disk?" in said
    assert sorted(beside.platform("submitted")) == sorted(beside.platform("ended")) == sorted(names)


def test_a_line_starts_when_its_copy_is_whole_and_reads_it_and_one_whose_data_cannot_be_copied_fails_alone(
    beside: Beside, s3: ObjectStore
) -> None:
    for number in range(3):
        s3.put(f"data/{number}", bytes([number]) * 100)
    beside.write([1])
    (beside.folder / "job.yaml").write_text(JOB[:-1] + ", inputs: {train: s3://nowhere/x}}")
    s3.client.put_object(Bucket=s3.bucket, Key="cold/0", Body=b"0", StorageClass="GLACIER")
    places = [s3.uri("data/"), s3.uri("data/"), s3.uri("cold/")]
    (beside.folder / "array.txt").write_text("".join(f"us-west-2,{place}\n" for place in places))
    beside.file.write_text(
        "name: big\njob: job.yaml\nengine: ledger\nlines: {file: array.txt}\nretry: {attempts: 0}\n"
        f"placement: {{data: {{'{s3.uri()}': {{region: us-east-1}}}},"
        f" copy_to: {{us-west-2: '{s3.uri('copies')}'}}}}\n"
    )
    assert {(line["state"], "--measure" in line["reason"]) for line in beside.run(code=1).values()} == {
        ("unplaced", True)
    }
    lines = beside.run("--measure", "--yes", code=1)
    assert [lines[index]["state"] for index in range(3)] == ["completed", "completed", "failed"]
    assert "cold/ could not be copied" in lines[2]["reason"]
    assert lines[2]["attempts"] == []
    copies = {copy.place: copy for copy in read_grid("big").copies}
    whole = copies[places[0]]
    assert (whole.state, whole.bytes_done, copies[places[2]].state) == (CopyState.DONE, 300, CopyState.FAILED)
    for index in (0, 1):
        run = Run.open(lines[index]["attempts"][0]["run_id"])
        assert whole.target in json.loads(run.paths.job.read_text())["inputs"]["train"]["s3_data"]
    assert sum("/objects/" in key for key in s3.listed()) == 3, "copied once for both"
    s3.put("cold/0", b"it is restored")
    beside.ask("retry", "big")
    assert {line["state"] for line in beside.run("--measure").values()} == {"completed"}
