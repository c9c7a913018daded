"""A record from somebody else makes no command delete, send, submit or kill anything: it is only read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from command_line import Cli
from effort import SOAK

from headrace.cli.main import cli as commands
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.ticket import write_ticket
from headrace.grid.grid_record import AttemptRecord, AttemptState, GridRecord, LineRecord, LineState
from headrace.grid.journal import Journal
from headrace.grid.read_grid import FILE
from headrace.hosting.supervision.cleanup import remove_channels, sweep_leftovers
from headrace.runs import EventWriter, RunPaths, create_run, give_to_engine, process_start_time
from headrace.runs.events import JobStarted
from headrace.runs.segment_reader import Copied, WriterCursor
from headrace.runs.store import COPIED

OF_RUNS = {"run", "runs", "selector", "record"}
"""Names of the arguments that name runs."""
QUICK = {"status", "logs", "fetch", "wait", "stop", "report"}
KEPT_OPEN = {"ui"}  # a server: the page asks as `ps` does
OPTIONS = {"wait": ["--timeout", "0.1"], "logs": ["--platform"]}


def commands_of_runs() -> list[list[str]]:
    """Returns the command lines over one run, generated from the commands that there are; `ps` needs none.

    In `make test` those that act, and those that each look at a run in another way.
    """
    lines = [["ps"], ["ps", "--all", "--output", "json"], ["logs", "RUN"], ["stop", "RUN", "--now"]]
    group = click.Context(commands)
    for name in commands.list_commands(group):
        command = commands.get_command(group, name)
        arguments = [each for each in command.params if isinstance(each, click.Argument)] if command else []
        if name not in KEPT_OPEN and (SOAK or name in QUICK) and any(each.name in OF_RUNS for each in arguments):
            lines.append([name, *["RUN"] * (2 if name == "compare" else 1), *OPTIONS.get(name, [])])
    return lines


def foreign(runs: Path, engine: str = "local") -> RunPaths:
    """Makes the record of a run that goes on, and puts a copy of it into its place, as it comes from somebody else."""
    paths = create_run("theirs", engine, runs=runs)
    with EventWriter(paths.events("engine")) as events:
        events.write(JobStarted(t=time.time()))
    shutil.move(shutil.copytree(paths.root, runs / ".aside"), runs / f"{paths.id[:-4]}ffff")
    shutil.rmtree(paths.root)
    return RunPaths(runs / f"{paths.id[:-4]}ffff")


def change_header(paths: RunPaths, **fields: object) -> None:
    header = json.loads(paths.header.read_bytes())
    paths.header.write_text(json.dumps({**header, "run_id": paths.id, **fields}))


@pytest.fixture
def service() -> Iterator[socket.socket]:
    """A port where whoever waits for a signed request listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


def asks_a_service(paths: RunPaths, address: str, pid: int) -> None:
    give_to_engine(paths)
    change_header(paths, engine="sagemaker")
    names = ("sagemaker", "s3", "logs", "sts")
    write_ticket(
        paths,
        ServiceTicket(
            name="theirs", region="eu-west-1", profile="", endpoints=dict.fromkeys(names, address), channel="s3://b/c",
            record="s3://b/r", model="s3://b/m", begun=time.time() - 3600, pid=1, start=0.0, node="elsewhere",
        ),
    )  # fmt: skip


def is_a_copy(paths: RunPaths, address: str, pid: int) -> None:
    copied = Copied(f"s3://b/{paths.id}", "engine", {"engine": WriterCursor()})
    (paths.root / COPIED).write_text(json.dumps({"place": copied.place, "leader": "engine", "writers": {}}))


def names_a_process(paths: RunPaths, address: str, pid: int) -> None:
    change_header(paths, supervisor_pid=pid, supervisor_start_time=process_start_time(pid), node=socket.gethostname())


@pytest.mark.promise("runs", "a record from somebody else is read, and starts, sends, signals and removes nothing")
@pytest.mark.parametrize("claim", [asks_a_service, is_a_copy, names_a_process])
@pytest.mark.promise("security", "for a record of somebody else nothing is sent, signalled or removed")
def test_no_command_sends_or_kills_for_a_record_of_somebody_else(
    cli: Cli, service: socket.socket, claim: Callable[[RunPaths, str, int], None]
) -> None:
    address = "http://{}:{}".format(*service.getsockname())
    paths = foreign(cli.runs)
    cli.env.update(
        {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1"}
    )
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        claim(paths, address, process.pid)
        before = {path: path.read_bytes() for path in paths.root.rglob("*") if path.is_file()}
        lines = commands_of_runs()
        assert {line[0] for line in lines} >= QUICK
        told = {}
        for line in lines:
            done = cli(*[paths.id if word == "RUN" else word for word in line])
            told[" ".join(line)] = done
            assert "Traceback" not in done.stderr, (line, done.stderr)
            assert process.poll() is None, line
            with pytest.raises(BlockingIOError):
                service.accept()
        process.communicate(b"\n")
    assert {path: path.read_bytes() for path in paths.root.rglob("*") if path.is_file()} == before
    assert "not started here" in told["ps"].stdout
    assert "not started here" in told["status RUN"].stdout
    assert json.loads(told["ps --all --output json"].stdout)[0]["foreign"] is True
    assert told["stop RUN"].returncode == 2
    assert "error: " in told["stop RUN"].stderr


@pytest.mark.promise("runs", "a record from somebody else is read, and starts, sends, signals and removes nothing")
@pytest.mark.parametrize("own", [False, True], ids=["somebody else's", "own"])
@pytest.mark.promise("security", "for a record of somebody else nothing is sent, signalled or removed")
def test_what_a_record_s_links_lead_to_is_not_removed_when_a_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    paths = create_run("mine") if own else foreign(tmp_path / "home" / "runs")
    change_header(paths, supervisor_pid=2**22, supervisor_start_time=1.0)
    mine = tmp_path / "mine"
    (mine / "views" / "folder").mkdir(parents=True)
    (mine / "photo").write_text("photo")
    made = tmp_path / "environments" / ".made" / "work-1"
    made.mkdir(parents=True)
    (paths.root / "channels").symlink_to(mine)
    (paths.root / "environments").symlink_to(tmp_path / "environments")
    sweep_leftovers()
    if own:
        remove_channels(paths)
    assert (mine / "photo").read_text() == "photo"
    assert (mine / "views" / "folder").is_dir()
    assert own or made.is_dir()


def foreign_grid(home: Path, run_id: str) -> Path:
    """Makes the journal of a grid whose line has this run, and copies it, as it comes from somebody else.

    Returns the folder of the copy; the own one has the name `own`.
    """
    line = LineRecord(
        0, "key", "array.txt:1", {"lr": 1}, "own-1", "local", "here", 1.0, 1.0, LineState.WAITING
    )  # fmt: skip
    attempt = AttemptRecord(1, "own-1", "local", "here", "digest", AttemptState.INTENDED, 1.0)
    with contextlib.closing(Journal(home / "grids" / "own" / FILE, create=True)) as journal:
        journal.begin(GridRecord("own", str(home / "grids" / "fifo"), "d", 1.0, (line,)))
        journal.intend("key", attempt)
        journal.started("key", 1, run_id, 1.0)
    os.mkfifo(home / "grids" / "fifo")
    return Path(shutil.copytree(home / "grids" / "own", home / "grids" / "theirs"))


def _changes(statement: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / FILE)) as database, database:
            database.executescript(statement)

    return change


def _in_place(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


JOURNALS: dict[str, Callable[[Path], None]] = {
    "as it was copied": lambda _: None,
    "its lease leads elsewhere": _in_place("lease", lambda path: path.symlink_to("/etc/hostname")),
    "its journal is a FIFO": _in_place(FILE, os.mkfifo),
    "its log is a FIFO": _in_place(f"{FILE}-wal", os.mkfifo),
    "its lines have no end": _changes(
        "ALTER TABLE lines RENAME TO old; CREATE VIEW lines AS WITH RECURSIVE n(key) AS "
        "(SELECT 1 UNION ALL SELECT key FROM n) SELECT * FROM n, old"
    ),
    "an older one": _changes("PRAGMA user_version=1"),
    "of no year": _changes("UPDATE grid SET created = 1e300, ended = 1e300"),
    "nested": _changes(f"UPDATE lines SET fields = '{'[' * 100_000}'"),
    "of other types": _changes("UPDATE lines SET fields = 7, state = x'ff', position = 'a'"),
    "controls the terminal": _changes("UPDATE lines SET place = char(27) || ']0;x', reason = char(27, 155)"),
}


@pytest.mark.promise("running", "a grid's journal from somebody else is read, and starts, stops and visits nothing")
@pytest.mark.parametrize(
    "change", list(JOURNALS.values())[:: 1 if SOAK else 4], ids=list(JOURNALS)[:: 1 if SOAK else 4]
)
def test_the_journal_of_somebody_else_starts_and_stops_nothing(cli: Cli, change: Callable[[Path], None]) -> None:
    own = create_run("own-1", runs=cli.runs)
    with EventWriter(own.events("engine")) as events:
        events.write(JobStarted(t=time.time()))
    folder = foreign_grid(cli.cwd / "home", own.id)
    change(folder)
    (cli.cwd / "job.yaml").write_text("entry_point: a.py\ninstance_groups: [{name: g, type: ml.c5.xlarge, count: 1}]\n")
    (cli.cwd / "array.yaml").write_text("name: theirs\njob: job.yaml\nlines: [{hyperparameters.a: 1}]\n")
    (cli.cwd / "a.py").write_text("")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        names_a_process(own, "", process.pid)
        before = (folder / FILE).read_bytes() if (folder / FILE).is_file() else b""
        lines = (
            ["list"], ["status", "theirs", "--notes"], ["report", "theirs"], ["logs", "theirs", "key"],
            ["stop", "theirs"], ["stop", "theirs", "key"], ["retry", "theirs"], ["run", "array.yaml", "--yes"],
        )  # fmt: skip
        for line in lines:
            done = cli("grid", *line, timeout=20)
            assert "Traceback" not in done.stderr, (line, done.stderr)
            assert not set("\x1b\x9b") & set(done.stdout + done.stderr), line
            assert done.returncode or line[0] not in ("stop", "retry", "run"), (line, done)
        assert process.poll() is None
        process.communicate(b"\n")
    assert [path.name for path in cli.runs.iterdir()] == [own.id]
    assert before == ((folder / FILE).read_bytes() if before else b"")
    status = cli("grid", "status", "theirs", "--output", "json")
    assert status.returncode or json.loads(status.stdout)["foreign"] is True
    assert json.loads(cli("grid", "status", "own", "--output", "json").stdout)["foreign"] is False


def test_a_record_of_somebody_else_takes_no_name_from_an_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.engines.new_run import check_name
    from headrace.grid.controller.attempt_runner import find_attempt

    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    paths = foreign(tmp_path / "home" / "runs")
    change_header(paths, node="elsewhere")  # it cannot be seen from here whether that process lives
    check_name("theirs")
    assert find_attempt("theirs", "local", "digest") is None
