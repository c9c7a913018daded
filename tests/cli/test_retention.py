"""Old runs go by a rule, given to `headrace prune` or in the settings file; grids go with their runs, or stay whole."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Cli

from headrace.cli.user_settings import apply_settings
from headrace.grid.grid_record import AttemptRecord, AttemptState, GridRecord, LineRecord, LineState
from headrace.grid.journal import Journal
from headrace.grid.read_grid import journal_path
from headrace.own_runs import leave_list
from headrace.runs import EventWriter, RunPaths, Status, create_run
from headrace.runs.events import JobStarted, RunFinished

DAY = 86_400.0


def make(cli: Cli, name: str, days: float, finished: bool = True) -> RunPaths:
    """A run that has ended so many days ago, or that a process of this machine still answers for."""
    ended = time.time() - days * DAY
    paths = create_run(name, runs=cli.runs, created=ended - 60)
    with EventWriter(paths.events("engine")) as events:
        events.write(JobStarted(t=ended - 50))
        if finished:
            events.write(RunFinished(t=ended, status=Status.COMPLETED))
    if finished:
        paths.header.write_text(json.dumps(json.loads(paths.header.read_text()) | {"supervisor_start_time": -1.0}))
    return paths


def make_grid(cli: Cli, name: str, days: float, ended: bool, lines: int = 2) -> list[RunPaths]:
    """A grid whose lines have had an attempt each, that has ended so many days ago or goes on."""
    keys = [f"{number:012x}" for number in range(lines)]
    records = tuple(
        LineRecord(index, key, f"array.txt:{index + 1}", {}, f"{name}-{key}", "local", "", 0.0, 1.0, LineState.WAITING)
        for index, key in enumerate(keys)
    )
    journal, runs = Journal(journal_path(name), create=True), []
    journal.begin(GridRecord(name, "/grids/array.yaml", "d1", 1.0, records))
    for key in keys:
        attempt = AttemptRecord(1, f"{name}-{key}", "local", "", "r1", AttemptState.INTENDED, 2.0)
        journal.intend(key, attempt)
        runs.append(make(cli, attempt.job_name, days))
        if ended or key != keys[0]:  # of that one nobody has written down yet that it has a run
            journal.ended(key, attempt, LineState.COMPLETED)
    if ended:
        journal.finish(time.time() - days * DAY)
    journal.close()
    return runs


@pytest.fixture
def grids(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", cli.env["HEADRACE_HOME"])
    return cli.runs.parent / "grids"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.promise("running", "a grid that has not ended keeps its runs, whatever `rm`, `prune` or the settings say")
def test_a_grid_goes_whole_when_it_has_ended_and_stays_whole_until_then(cli: Cli, grids: Path) -> None:
    old, new = make_grid(cli, "old", 50, ended=True), make_grid(cli, "new", 40, ended=True)
    going, alone = make_grid(cli, "going", 60, ended=False), make(cli, "alone", 50)
    damaged = make_grid(cli, "damaged", 50, ended=True)
    (grids / "damaged" / "journal.sqlite").write_bytes(b"x" * 4096)
    foreign = make(cli, "foreign", 50)
    leave_list(foreign.root)

    refused = cli("rm", alone.id, going[0].id)
    assert f"error: {going[0].id} is of the grid going, whose report is made of its runs" in refused.stderr
    assert f"error: {new[0].id} is of the grid new" in cli("rm", alone.id, new[0].id).stderr
    assert "error: the grid going has not ended" in cli("rm", "going", alone.id).stderr
    assert alone.header.is_file(), "none was removed"
    before = names(cli.runs)
    dry = cli("prune", "--older", "30d", "--keep", "1", "--dry-run")
    assert {line.split(",")[0] for line in dry.stdout.splitlines()[:-1]} == {
        *(f"would remove {run.id}" for run in old), "would remove grid old",
    }  # fmt: skip
    assert "grid damaged stays with its runs, as it cannot be read" in dry.stderr
    assert (names(cli.runs), names(grids)) == (before, {"old", "new", "going", "damaged"})

    third = make_grid(cli, "third", 10, ended=True)
    gone = cli("rm", "third")
    assert gone.returncode == 0, gone.stderr
    assert "removed grid third" in gone.stdout
    assert not (grids / "third").exists()
    assert not any(run.root.exists() for run in third)

    removed = json.loads(cli("prune", "--older", "30d", "--output", "json").stdout)
    assert sorted(removed["grids"]) == ["new", "old"]
    assert {run["run_id"] for run in removed["runs"]} == {run.id for run in (*old, *new, alone)}
    assert names(cli.runs) == {run.id for run in (*going, *damaged, foreign)}
    assert names(grids) == {"going", "damaged"}


def test_the_settings_file_has_runs_removed_when_a_run_starts_and_no_other_goes_on(
    cli: Cli, grids: Path, job_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, grid = make(cli, "one", 40), make(cli, "one", 35), make_grid(cli, "going", 50, ended=False)
    settings = cli.runs.parent / "settings.yaml"
    settings.write_text("retention: {older: 30d, keep: 1}\n")
    job = job_file("print('ran')")
    other = make(cli, "other", 0, finished=False)  # this process answers for it
    apply_settings()
    assert capsys.readouterr().err == ""
    leave_list(other.root)
    started = cli("run", job, "--quiet")
    assert started.returncode == 0, started.stderr
    [line] = [line for line in started.stderr.splitlines() if "removed" in line]
    assert line.startswith("headrace: removed 1 run, ")
    assert line.endswith(f": ended more than 30d ago and not among the newest 1 of their job ({settings})")
    assert not old.root.exists()
    assert names(cli.runs) > {new.id, *(run.id for run in grid)}


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("retention: {older: soon}", 1, "must be an age"),
        ("retention:\n  keep: -1", 2, "must be at least 0"),
        ("retention: {}", 1, "must have older, keep, or both"),
        ("retain: {keep: 5}", 1, "unknown key"),
        ("retention: {keep: 5", 1, ""),
    ],
)
def test_what_the_settings_file_may_not_say_is_told_with_its_line_and_nothing_starts(
    cli: Cli, job_file: Callable[..., str], text: str, line: int, why: str
) -> None:
    settings = cli.runs.parent / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(text)
    refused = cli("run", job_file("print('ran')"))
    assert refused.returncode == 2
    assert f"{settings}:{line}" in refused.stderr
    assert why in refused.stderr
    assert not cli.runs.exists() or not names(cli.runs)
