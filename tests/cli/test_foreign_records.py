"""A record from somebody else makes no command delete, send, submit or kill anything: it is only read."""

from __future__ import annotations

import json
import shutil
import socket
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
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket, write_ticket
from headrace.hosting.inputs.channel_area import remove_channels
from headrace.hosting.supervision.cleanup import sweep_leftovers
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


@pytest.mark.parametrize("claim", [asks_a_service, is_a_copy, names_a_process])
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


@pytest.mark.parametrize("own", [False, True], ids=["somebody else's", "own"])
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


def test_a_record_of_somebody_else_takes_no_name_from_an_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.engines.new_run import check_name
    from headrace.grid.controller.start_attempt import find_attempt

    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    paths = foreign(tmp_path / "home" / "runs")
    change_header(paths, node="elsewhere")  # it cannot be seen from here whether that process lives
    check_name("theirs")
    assert find_attempt("theirs", "local", "digest") is None
