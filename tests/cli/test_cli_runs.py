"""`logs`, `report`, `compare` and `stop` on runs that lie on disk."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import time
from pathlib import Path

import pytest
from command_line import Cli

from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.ticket import write_ticket
from headrace.private_folders import new_folder
from headrace.runs import (
    Cause,
    CauseKind,
    EventWriter,
    HostSecond,
    LogWriter,
    MetricWriter,
    RunPaths,
    Status,
    Stream,
    create_run,
    give_to_engine,
)
from headrace.runs.events import (
    Event,
    JobStarted,
    ProgramExited,
    ProgramStarted,
    RunFinished,
    SecondaryStatus,
    StatusChanged,
)
from headrace.runs.store import process_start_time
from loader_seconds import loader_second

RANK = Stream("dnn", "algo-1", "0")
FEED = Stream("data", "algo-2", "feed")


def make(cli: Cli, name: str, wait: float = 0.5, finished: bool = True) -> RunPaths:
    paths = create_run(name, runs=cli.runs, created=1_795_201_200.0)
    with LogWriter(paths.log(RANK)) as log:
        log.write_line("o", b"step 1", 1_795_201_262.25)
        log.write_line("e", "d\xe9j\xe0 \x1b[31mred\x1b[0m \x1b[2K".encode(), 1_795_201_264.0)
    with LogWriter(paths.log(FEED)) as log:
        log.write_line("o", b"serving", 1_795_201_263.0)
    with EventWriter(paths.events("engine")) as events:
        events.write(JobStarted(t=1_795_201_260.0))
        events.write(ProgramStarted(t=1_795_201_260.0, group="dnn", host="algo-1", stream="0", pid=1))
        if finished:
            events.write(ProgramExited(t=1_795_201_270.0, group="dnn", host="algo-1", stream="0", exit_code=0))
            events.write(RunFinished(t=1_795_201_271.0, status=Status.COMPLETED))
    with MetricWriter(paths.metrics(RANK)) as metrics:
        for second in range(4):
            metrics.write(loader_second(1_795_201_262.0 + second, wait=wait))
    with MetricWriter(paths.metrics(Stream("dnn", "algo-1", "host"))) as metrics:
        for second in range(6):
            metrics.write(HostSecond(t=1_795_201_261.0 + second, cpu=second * 0.5, cores=2, rss=3 << 20, processes=2))
    return paths


def test_logs_are_merged_by_time_with_their_place(cli: Cli) -> None:
    make(cli, "j")
    result = cli("logs", "j")
    assert result.returncode == 0
    assert result.stdout == (
        "dnn/algo-1[0] step 1\ndata/algo-2[feed] serving\ndnn/algo-1[0] d\xe9j\xe0 \x1b[31mred\x1b[0m \\u001b[2K\n"
    )
    assert cli("logs", "j/data", "--timestamps").stdout == "2026-11-20T19:01:03.000000Z data/algo-2[feed] serving\n"
    assert cli("logs", "j/dnn/algo-1/0", "-f").stdout.count("\n") == 2


def test_logs_begin_with_the_programs_and_show_the_agents_notes_where_they_are_asked_for(cli: Cli) -> None:
    paths = make(cli, "j")
    agent = Stream("dnn", "algo-1", "agent")
    with LogWriter(paths.log(agent)) as log:
        log.write_line("o", b"the agent of algo-1 begins", 1_795_201_261.0)
    note = "dnn/algo-1[agent] the agent of algo-1 begins\n"
    assert note not in cli("logs", "j").stdout
    assert note not in cli("logs", "j/dnn", "-f").stdout
    assert cli("logs", "j", "--tail", "1", "--grep", "agent|step").stdout == "dnn/algo-1[0] step 1\n"
    assert cli("logs", "j", "--agent").stdout.startswith(note)
    assert cli("logs", "j/dnn/algo-1/agent").stdout == note
    assert "agent" not in cli("logs", "j", "--output", "json").stdout


def waiting(cli: Cli, name: str, *more: Event) -> RunPaths:
    """A run that its platform has not given instances."""
    paths = create_run(name, runs=cli.runs, created=1_795_201_200.0)
    give_to_engine(paths)
    words = "Slurm job 7 waits: Resources"
    with EventWriter(paths.events("engine")) as events:
        for event in (StatusChanged(t=1_795_201_201.0, status=SecondaryStatus.PENDING, message=words), *more):
            events.write(event)
    return paths


def test_every_command_says_of_a_run_that_waits_since_when_and_why(cli: Cli) -> None:
    waiting(cli, "j")
    since = "2026-11-20 19:00:01 UTC"
    assert f"waits for its instances since {since} (" in (shown := cli("status", "j").stdout)
    assert "): Slurm job 7 waits: Resources\n" in shown
    why = f"the run has not started: Pending since {since}: Slurm job 7 waits: Resources"
    reported, cost = cli("report", "j").stdout, cli("cost", "j").stdout
    assert f"\nunknown: {why}\n" in reported
    assert "wrap the training loader" not in reported
    assert why in cost.splitlines()[0]
    assert "the figures are of now" not in reported + cost
    assert f"headrace: {why}. --agent" in cli("logs", "j").stderr
    advised = cli("advise", "j")
    assert (advised.returncode, f"error: the run cannot be advised: {why}" in advised.stderr) == (2, True)


def test_a_run_that_ended_before_it_started_says_so(cli: Cli) -> None:
    cause = Cause(CauseKind.STOPPED, "Slurm job 7 was cancelled while it waited")
    waiting(cli, "j", RunFinished(t=1_795_201_300.0, status=Status.STOPPED, cause=cause))
    why = "the run ended before its programs started: Stopped: Slurm job 7 was cancelled while it waited"
    for command in ("report", "cost", "advise", "logs"):
        shown = cli(command, "j")
        assert why in shown.stdout + shown.stderr, command
        assert "Traceback" not in shown.stderr


def test_several_runs_are_stopped_by_one_command_and_what_cannot_be_is_told(cli: Cli) -> None:
    first, second = make(cli, "one"), make(cli, "two")
    result = cli("stop", "one", "nobody", "two", "one")
    assert result.stdout.splitlines() == [f"{each.id} is not running: Completed" for each in (first, second)]
    assert (result.returncode, result.stderr.splitlines()[0]) == (2, f"error: no run 'nobody' in {cli.runs}")
    assert (cli("stop", "one", "two").returncode, cli("stop").returncode) == (0, 2)


def test_logs_of_an_unknown_place_name_the_known_ones(cli: Cli) -> None:
    make(cli, "j")
    result = cli("logs", "j/gpu")
    assert result.returncode == 2
    assert "no logs of gpu" in result.stderr
    assert "dnn/algo-1[0]" in result.stderr


def test_logs_that_follow_end_with_the_run_and_say_how_it_ended(cli: Cli) -> None:
    paths = make(cli, "j", finished=False)
    child = cli.start("logs", "j/data", "-f")
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "data/algo-2[feed] serving\n"
        with LogWriter(paths.log(FEED)) as log:
            log.write_line("o", b"more", time.time())
        assert child.stdout.readline() == "data/algo-2[feed] more\n"
    finally:  # a command that waits in vain ends with the run
        with EventWriter(paths.events("engine")) as events:
            events.write(RunFinished(t=time.time(), status=Status.STOPPED))
        out, err = child.communicate(timeout=10)
    assert (child.returncode, out) == (0, "")
    assert err == f"headrace: {paths.id}: Stopped\n"


def test_the_json_report_is_one_document_and_holds_units_windows_and_formulas(cli: Cli) -> None:
    paths = make(cli, "j")
    result = cli("report", "j", "--output", "json")
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert (found["run_id"], found["status"], found["cause"]) == (paths.id, "Completed", None)
    assert found["time_to_train"]["value"] == 10.0
    training = found["training"]
    assert (training["step_time"]["value"], training["step_time"]["unit"]) == (pytest.approx(100), "ms")
    assert training["samples_per_second"]["value"] == pytest.approx(100)
    assert training["data_wait"]["value"] == pytest.approx(50)
    assert training["data_wait"]["window"]["end"] > training["data_wait"]["window"]["start"]
    assert found["groups"][0]["cpu"]["value"] == pytest.approx(25)
    assert "left out" in found["formulas"]["window"]


def test_the_report_as_text_shows_the_same_figures(cli: Cli) -> None:
    make(cli, "j")
    text = cli("report", "j").stdout
    assert "Completed" in text
    assert "time to train: 10.0 s" in text
    row = next(line for line in text.splitlines() if line.startswith("train "))
    assert "100.0 ms" in row
    assert "50.0 %" in row
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) < 200


def test_a_comparison_as_text_and_as_json(cli: Cli) -> None:
    slow, fast = make(cli, "slow"), make(cli, "fast", wait=0.25)
    text = cli("compare", "slow", "fast").stdout
    (row,) = [line for line in text.splitlines() if line.startswith("data wait")]
    assert row.split() == [
        "data",
        "wait",
        "50.0",
        "%",
        "[50.0",
        "..",
        "50.0]",
        "25.0",
        "%",
        "[25.0",
        "..",
        "25.0]",
        "0.50",
        *["not", "known:", "too", "few", "independent", "seconds"],
    ]
    found = json.loads(cli("compare", "slow", "fast", "--output", "json").stdout)
    assert [run["run_id"] for run in found["runs"]] == [slow.id, fast.id]
    (wait,) = [one for one in found["rows"] if one["name"] == "data_wait"]
    assert wait["cells"][1]["ratio"] == pytest.approx(0.5)


def test_missing_figures_are_shown_as_a_dash_with_a_note(cli: Cli) -> None:
    create_run("empty", runs=cli.runs)
    text = cli("report", "empty").stdout
    assert "time to train: -" in text
    assert "unknown: the run has not started" in text


def test_stopping_a_finished_run_says_that_it_is_finished(cli: Cli) -> None:
    paths = make(cli, "j")
    result = cli("stop", "j")
    assert (result.returncode, result.stdout) == (0, f"{paths.id} is not running: Completed\n")


def on_terminal(cli: Cli, *arguments: str) -> str:
    """Returns what a command writes to a terminal."""
    master, slave = pty.openpty()
    child = cli.start(*arguments, out=slave)
    os.close(slave)
    found = b""
    try:
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # EIO: the last writer has closed the terminal
                break
            if not data:
                break
            found += data
    finally:
        os.close(master)
        child.wait(30)
    return found.decode()


def test_on_a_terminal_groups_have_colours_unless_no_color_is_set(cli: Cli, tmp_path: Path) -> None:
    make(cli, "j")
    shown = on_terminal(cli, "logs", "j")
    assert "\x1b[36mdnn/algo-1[0]\x1b[0m step 1" in shown
    assert "\x1b[35mdata/algo-2[feed]\x1b[0m serving" in shown
    cli.env["NO_COLOR"] = "1"
    assert "\x1b[36m" not in on_terminal(cli, "logs", "j")


def test_a_run_by_which_an_endpoint_plays_the_service_is_not_listed_twice(cli: Cli) -> None:
    mine = create_run("digits", "sagemaker", runs=cli.runs)
    write_ticket(mine, ServiceTicket(f"{mine.id}-try2", "us-east-1", "", {}, "", "", "", attempt=2))
    earlier, served = create_run(mine.id, "local", runs=cli.runs), create_run(f"{mine.id}-try2", "local", runs=cli.runs)
    other = create_run("digits", "local", runs=cli.runs)
    for paths in (mine, earlier, served, other):
        with EventWriter(paths.events("engine")) as events:
            events.write(RunFinished(t=time.time(), status=Status.COMPLETED))
    listed = json.loads(cli("ps", "--all", "--output", "json").stdout)
    assert {line["run_id"]: line["serves"] for line in listed} == {
        mine.id: "", earlier.id: mine.id, served.id: mine.id, other.id: "",
    }  # fmt: skip
    assert cli("ps", "--all").stdout.count(f"plays the service for {mine.id}") == 2


@pytest.mark.promise("running", "a run is removed with all that is in it and nothing outside, never while it goes on")
def test_runs_that_have_ended_are_removed_by_id_or_by_a_rule_and_others_stay(cli: Cli) -> None:
    old, new, going = make(cli, "one"), make(cli, "one"), make(cli, "two", finished=False)
    give_to_nobody = json.loads(going.header.read_text()) | {"supervisor_pid": os.getpid(), "node": ""}
    going.header.write_text(json.dumps(give_to_nobody | {"supervisor_start_time": process_start_time(os.getpid())}))
    assert "B" in cli("ps", "--all").stdout.splitlines()[1].split()[-1]
    refused = cli("rm", "one")
    assert refused.returncode == 2
    assert "'one' is not the id of a run\nhint: name the run, such as " in refused.stderr
    assert old.id in refused.stderr
    refused = cli("rm", old.id, going.id)
    assert f"error: {going.id} goes on" in refused.stderr
    assert old.header.is_file(), "none was removed"
    dry = cli("prune", "--older", "1h", "--keep", "1", "--dry-run").stdout
    assert dry.startswith("would remove one-")
    assert len([*cli.runs.iterdir()]) == 3
    removed = json.loads(cli("prune", "--keep", "1", "--output", "json").stdout)
    (left,) = {old.id, new.id} - {run["run_id"] for run in removed["runs"]}
    assert removed["bytes"] > 0
    assert sorted(path.name for path in cli.runs.iterdir()) == sorted([left, going.id])
    assert cli("rm", left).stdout.startswith(f"removed {left}, ")
    assert [path.name for path in cli.runs.iterdir()] == [going.id]


@pytest.mark.promise("running", "a run is removed with all that is in it and nothing outside, never while it goes on")
def test_what_a_killed_run_has_left_among_the_temporary_files_goes_with_it(cli: Cli, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    cli.env["TMPDIR"] = str(temporary)
    killed, kept = make(cli, "killed"), temporary / "headrace-of-somebody"
    left = [new_folder(f"headrace-{number:08x}-", temporary) for number in range(2)]
    kept.mkdir()
    held = os.open(left[1], os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)  # of a run that goes on
    try:
        cli("rm", killed.id)
    finally:
        os.close(held)
    assert sorted(temporary.iterdir()) == sorted([left[1], kept])
