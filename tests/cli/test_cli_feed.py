"""`headrace feed`: servers by hand, their secret and their status, as a user at a shell has them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import psutil
import pytest
from command_line import Cli

from headrace import __version__, feed
from headrace.cli.commands.feed import size
from patience import allowed

Serve = Callable[..., tuple[str, "subprocess.Popen[str]"]]


def ended(processes: list[psutil.Process], seconds: float = 10.0) -> bool:
    """Waits for processes to end."""
    return not psutil.wait_procs(processes, timeout=seconds)[1]


@pytest.fixture
def server_cli(tmp_path: Path) -> Cli:
    """Servers serve as where there is no torch: nothing here loads a batch."""
    cli = Cli(tmp_path)
    cli.env["PYTHONPATH"] = f"{Path(__file__).parents[1] / 'without_torch'}{os.pathsep}{cli.env['PYTHONPATH']}"
    return cli


@pytest.fixture
def secret(cli: Cli, tmp_path: Path) -> Path:
    assert cli("feed", "secret", "feed.secret").returncode == 0
    return tmp_path / "feed.secret"


@pytest.fixture
def serve(server_cli: Cli, secret: Path) -> Iterator[Serve]:
    """Starts a server on a free port; returns the address that it tells, and the process."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, bind: str = "127.0.0.1:0") -> tuple[str, subprocess.Popen[str]]:
        command = ["feed", "serve", "--bind", bind, "--executors", "2", "--secret-file", str(secret), *options]
        child = server_cli.start(*command, err=subprocess.PIPE)
        started.append(child)
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line.startswith('ready, executors: 2; in the trainer: workers="tcp://'), line or child.communicate()[1]
        return line.split('"')[1], child

    yield start
    for child in started:
        child.terminate()
        child.communicate(timeout=15)


def status(cli: Cli, *arguments: str) -> tuple[list[dict[str, Any]], int]:
    result = cli("feed", "status", *arguments, "--output", "json")
    return json.loads(result.stdout), result.returncode


# The secret


def test_a_secret_is_64_random_digits_that_only_its_owner_may_read(cli: Cli, secret: Path) -> None:
    assert len(bytes.fromhex(secret.read_text())) == 32
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    printed = cli("feed", "secret").stdout
    assert len(bytes.fromhex(printed)) == 32
    assert printed != secret.read_text()


def test_a_secret_is_never_overwritten(cli: Cli, secret: Path) -> None:
    before = secret.read_text()
    result = cli("feed", "secret", "feed.secret")
    assert (result.returncode, secret.read_text()) == (2, before)
    assert result.stderr.startswith("error: feed.secret exists already\nhint: ")


# Indexes


@pytest.mark.promise(
    "feed-formats", "`headrace feed index` makes the index of shards before a job, which counts nothing again"
)
def test_an_index_is_made_before_the_job_and_found_by_it(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.jsonl").write_text("1\n2\n3\n")
    result = cli("feed", "index", "data", "--pattern", "*.jsonl")
    assert (result.returncode, result.stdout) == (0, "6 rows in data\n"), result.stderr
    [index] = (folder / ".headrace-index").iterdir()
    made = index.stat().st_mtime_ns, index.stat().st_ino
    assert list(feed.jsonl(folder)) == [1, 2, 3, 1, 2, 3]
    assert (index.stat().st_mtime_ns, index.stat().st_ino) == made, "nothing is counted again"


def test_an_index_of_nothing_is_an_error_in_words(cli: Cli, tmp_path: Path) -> None:
    unknown = cli("feed", "index", str(tmp_path), "--pattern", "*.bin")
    assert (unknown.returncode, unknown.stderr.splitlines()[0]) == (2, "error: of what kind are shards '*.bin'?")
    none = cli("feed", "index", str(tmp_path))
    assert none.returncode
    assert "matches '*.tar'" in none.stderr
    assert "Traceback" not in none.stderr


# Serving


@pytest.mark.promise("feed-standalone", "a server started by hand prints what the trainer needs; its end ends all")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_server_says_what_the_trainer_needs_and_ends_with_all_it_started(
    serve: Serve, number: signal.Signals, code: int
) -> None:
    address, child = serve()
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    assert host == "127.0.0.1"
    socket.create_connection((host, int(port)), 5).close()
    family = psutil.Process(child.pid).children(recursive=True)
    assert len(family) >= 3, "a fork server and two executors"
    child.send_signal(number)
    out, err = child.communicate(timeout=allowed(15))
    assert (child.returncode, out, err.strip()) == (code, "", "")
    assert ended(family)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5).close()


def test_a_server_that_is_ready_says_so_as_one_line_of_json(cli: Cli, server_cli: Cli, secret: Path) -> None:
    options = ("--bind", "127.0.0.1:0", "--executors", "2", "--secret-file", str(secret), "--host-name", "h1")
    child = server_cli.start("feed", "serve", *options, "--output", "json", err=subprocess.PIPE)
    try:
        assert child.stdout is not None
        told = json.loads(child.stdout.readline())
        assert told == {"workers": told["workers"], "executors": 2, "host": "h1", "pid": child.pid, "tls": False}
        [answer], code = status(cli, told["workers"], "--secret-file", str(secret))
        assert (code, answer["status"]["host"]) == (0, "h1")
    finally:
        child.terminate()
        out, err = child.communicate(timeout=15)
    assert (child.returncode, out, err) == (0, "", "")


@pytest.mark.promise("feed-standalone", "a server started by hand prints what the trainer needs; its end ends all")
def test_nothing_outlives_a_server_that_is_killed(serve: Serve) -> None:
    _, child = serve()
    family = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    child.wait(10)
    assert ended(family)


def test_listening_to_others_without_tls_is_told_once_and_the_host_name_is_what_trainers_are_given(
    serve: Serve,
) -> None:
    address, child = serve("--host-name", "h1", bind="0.0.0.0:0")
    assert address.startswith("tcp://h1:")
    child.terminate()
    _, err = child.communicate(timeout=15)
    assert err.startswith("warning: it listens on 0.0.0.0 without TLS")
    assert len(err.splitlines()) == 1


def test_executors_default_to_the_cores_of_the_cpu_set(server_cli: Cli, secret: Path) -> None:
    one = min(os.sched_getaffinity(0))
    command = ["feed", "serve", "--bind", "127.0.0.1:0", "--secret-file", str(secret)]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {one})
    try:
        child = server_cli.start(*command)
    finally:
        os.sched_setaffinity(0, before)
    assert child.stdout is not None
    line = child.stdout.readline()
    child.terminate()
    child.communicate(timeout=15)
    assert line.startswith("ready, executors: 1;")


@pytest.mark.parametrize(
    ("arguments", "code", "error", "hint"),
    [
        ([], 2, "a feed server needs a secret", "headrace feed secret FILE"),
        (["--secret-file", "nowhere"], 2, "from nowhere: No such file", "make one: headrace feed secret nowhere"),
        (["--secret-file", "short"], 2, "has 1 bytes, at least 16 are needed", "headrace feed secret FILE"),
        (["--secret-file", "words"], 2, "does not hold hexadecimal digits", "headrace feed secret"),
        (["--secret-file", "feed.secret", "--bind", "h1"], 2, "'h1' is not HOST:PORT", "127.0.0.1:7070"),
        (["--secret-file", "feed.secret", "--bind", "192.0.2.1:7070"], 2, "cannot listen on 192.0.2.1:7070", ""),
        (["--secret-file", "feed.secret", "--memory", "some"], 2, "'some' is not a size", "--help"),
        (["--secret-file", "feed.secret", "--executors", "0"], 2, "--executors", "--help"),
        (["--secret-file", "feed.secret", "--code", "nowhere"], 2, "'nowhere' does not exist", "--help"),
    ],
)
def test_a_mistake_of_serve_is_an_error_and_a_hint(
    cli: Cli, secret: Path, arguments: list[str], code: int, error: str, hint: str
) -> None:
    (cli.cwd / "short").write_text("5e")
    (cli.cwd / "words").write_text("not a secret")
    result = cli("feed", "serve", *arguments)
    assert result.returncode == code
    assert result.stdout == ""
    assert error in result.stderr
    assert hint in result.stderr
    assert result.stderr.startswith("error: ")


@pytest.mark.promise("security", "a secret file that others may read is refused")
def test_a_secret_that_others_may_read_is_refused(cli: Cli, secret: Path) -> None:
    secret.chmod(0o640)
    result = cli("feed", "serve", "--bind", "127.0.0.1:0", "--secret-file", str(secret))
    assert result.returncode == 2
    assert (
        f"error: others than you may read or write the feed's secret in {secret}: its mode is 0640\n" in result.stderr
    )
    assert f"hint: chmod 600 {secret}" in result.stderr


def test_a_port_in_use_is_an_error(cli: Cli, secret: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = cli("feed", "serve", "--bind", address, "--secret-file", str(secret))
    assert result.returncode == 2
    assert f"error: cannot listen on {address}: Address already in use\nhint: another program" in result.stderr


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("512M", 512 << 20), ("1.5 GiB", 3 << 29), ("2gb", 2 << 30), ("64k", 64 << 10)]
)
def test_sizes_are_read_as_people_write_them(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize("text", ["", "0", "-1", "1 parsec", "G", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        size(text)


# Status


def test_status_tells_who_serves_and_with_what(cli: Cli, serve: Serve, secret: Path) -> None:
    address, child = serve("--host-name", "h1")
    [told], code = status(cli, address.removeprefix("tcp://"), "--secret-file", str(secret))
    assert (code, told["address"], told["error"]) == (0, address, None)
    known = told["status"]
    assert (known["host"], known["version"], known["queue"], known["clients"]) == ("h1", __version__, 0, [])
    assert known["uptime"] > 0
    assert known["numerics"]["numpy"]
    pids = {executor["pid"] for executor in known["executors"]}
    assert len(pids) == 2
    assert pids <= {process.pid for process in psutil.Process(child.pid).children(recursive=True)}
    table = cli("feed", "status", address, "--secret-file", str(secret))
    assert table.returncode == 0
    for word in ("h1", address, *map(str, pids)):
        assert word in table.stdout


def test_the_environment_names_servers_and_secret_as_it_does_for_a_loader(cli: Cli, serve: Serve, secret: Path) -> None:
    one, _ = serve()
    other, _ = serve()
    cli.env |= {"HEADRACE_FEED": f"{one},{other.removeprefix('tcp://')}", "HEADRACE_FEED_SECRET_FILE": str(secret)}
    told, code = status(cli)
    assert code == 0
    assert [each["address"] for each in told] == [one, other]
    table = cli("feed", "status").stdout
    for each in told:  # both are of this host, and have its name
        for executor in each["status"]["executors"]:
            assert re.search(rf"{each['address']} .*\b{executor['pid']}\b", table), table


def test_a_replaced_executor_is_counted(cli: Cli, serve: Serve, secret: Path) -> None:
    address, _ = serve()
    arguments = (address, "--secret-file", str(secret))
    [told], _ = status(cli, *arguments)
    psutil.Process(told["status"]["executors"][1]["pid"]).kill()
    deadline = time.monotonic() + 30
    while [each["restarts"] for each in told["status"]["executors"]] != [0, 1]:
        assert time.monotonic() < deadline
        [told], _ = status(cli, *arguments)


def test_servers_that_do_not_answer_are_told_with_their_reason_beside_those_that_do(
    cli: Cli, serve: Serve, secret: Path
) -> None:
    address, _ = serve()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        arguments = (address, silent, "tcp://127.0.0.1:1", "--secret-file", str(secret), "--timeout", "1")
        told, code = status(cli, *arguments)
        table = cli("feed", "status", *arguments)
    assert code == 1
    assert [each["error"] for each in told] == [None, "no answer within 1 s", "connection refused"]
    assert told[0]["status"]["executors"]
    assert (table.returncode, address in table.stdout) == (1, True)
    assert "127.0.0.1:1: connection refused" in table.stdout


def test_a_server_with_another_secret_refuses_and_no_data_is_shown(cli: Cli, serve: Serve) -> None:
    address, _ = serve()
    assert cli("feed", "secret", "other").returncode == 0
    [told], code = status(cli, address, "--secret-file", "other")
    assert (code, told["status"]) == (1, None)
    assert told["error"] == "the feed server refuses this client: wrong secret"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--secret-file", "feed.secret"], "which feed servers?"),
        (["h1:7070"], "no secret for the feed servers"),
        (["h1", "--secret-file", "feed.secret"], "'tcp://h1' is not HOST:PORT"),
        ([":7070", "--secret-file", "feed.secret"], "'tcp://:7070' is not HOST:PORT"),
        (["h1:7070", "--secret-file", "nowhere"], "cannot read the feed's secret from nowhere"),
        (["h1:7070", "--timeout", "0", "--secret-file", "feed.secret"], "--timeout"),
    ],
)
def test_a_mistake_of_status_is_an_error_a_hint_and_exit_code_2(
    cli: Cli, secret: Path, arguments: list[str], error: str
) -> None:
    result = cli("feed", "status", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert error in result.stderr
    assert "\nhint: " in result.stderr


@pytest.mark.parametrize("name", ["serve", "status", "secret"])
def test_the_help_of_each_has_an_example(cli: Cli, name: str) -> None:
    result = cli("feed", name, "--help")
    assert result.returncode == 0
    assert f"headrace feed {name} " in result.stdout.partition("Examples:")[2]
