"""What lies in a run's folder in the place of its files makes no reader wait, fill the memory or fail: it is damage."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace.child_python import read_report
from headrace.errors import RunNotFound
from headrace.runs import EventWriter, LogWriter, Run, RunPaths, Status, Stream, create_run, list_runs
from headrace.runs.describe import run_line
from headrace.runs.events import JobStarted, ProgramStarted, RunFinished
from headrace.runs.log_pages import LogQuery, page_at
from headrace.runs.record_pieces import Known, NewPieces
from headrace.runs.store import read_header, read_plan, unreadable_headers

RANK = Stream("g", "algo-1", "0")
DEEP = 100_000
Put = Callable[[Path], None]


def nested(path: Path) -> None:
    lines = (b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP)
    path.write_bytes(b"\n".join([*lines, b'{"event":"job_started","t":1.0,"x":' + lines[0] + b"}", b""]))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


def a_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


PUTS: dict[str, Put] = {
    "a FIFO": os.mkfifo,
    "a link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to another's file": lambda path: path.symlink_to("/etc/passwd"),
    "a socket": a_socket,
    "a folder": Path.mkdir,
    "3 GB of nothing": sparse,
    "a deeply nested line": nested,
}


@pytest.fixture(params=PUTS.values(), ids=PUTS)
def put(request: pytest.FixtureRequest) -> Put:
    return request.param


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = create_run("odd", runs=tmp_path / "runs")
    with EventWriter(made.events("engine")) as events:
        events.write(JobStarted(t=1.0))
        events.write(ProgramStarted(t=1.0, group="g", host="algo-1", stream="0", pid=1))
        events.write(RunFinished(t=2.0, status=Status.COMPLETED))
    with LogWriter(made.log(RANK)) as log:
        log.write_line("o", b"step 1", 1.0)
    return made


@pytest.mark.promise("runs", "what lies in the place of a record's files is reported as damage and harms no reader")
@pytest.mark.promise("security", "odd lines of programs count as damage")
def test_files_that_grow(paths: RunPaths, put: Put) -> None:
    odd = [paths.events("odd"), paths.log(Stream("g", "algo-1", "odd")), paths.metrics(RANK)]
    for path in odd:
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path)
    run = Run(paths)
    assert run.status is Status.COMPLETED
    assert [line.text for line in run.logs() if line.stream == RANK] == ["step 1"]
    assert [line.text for line in run.logs(last=1) if line.stream == RANK] == ["step 1"]
    assert run.metrics() == {}
    told = {damage.path for damage in run.damage}
    assert set(map(str, odd)) <= told
    assert run_line(run, 3.0).status == "Completed"
    page = page_at(paths, LogQuery(), 0.0)
    assert "step 1" in [line.text for line in page.lines]


@pytest.mark.promise("runs", "what lies in the place of a record's files is reported as damage and harms no reader")
@pytest.mark.promise("security", "odd files in a record are damage with a place")
def test_files_that_are_read_as_a_whole(paths: RunPaths, put: Put) -> None:
    put(paths.plan)
    with pytest.raises((OSError, msgspec.DecodeError)):
        read_plan(paths, dict)
    paths.header.unlink()
    put(paths.header)
    with pytest.raises((OSError, msgspec.DecodeError)):
        read_header(paths)
    assert list_runs(paths.root.parent) == []
    assert [damage.path for damage in unreadable_headers(paths.root.parent)] == [str(paths.header)]
    try:
        assert Run.open("odd", paths.root.parent).supervised is False
    except RunNotFound:  # nothing in the place of its header is a file
        assert not paths.header.is_file()


def test_a_folder_among_the_runs_without_a_header_is_told_as_such_and_one_that_cannot_be_read_with_the_reason(
    paths: RunPaths,
) -> None:
    runs, damaged = paths.root.parent, paths.header
    (runs / "empty").mkdir()
    damaged.unlink()
    damaged.mkdir()
    told = {damage.path: damage.reason for damage in unreadable_headers(runs)}
    assert told[str(runs / "empty" / "run.json")] == "is missing: its folder is no run, and may be removed"
    assert str(runs) not in told[str(damaged)]
    assert told[str(damaged)].startswith("cannot be read: ")


def test_a_record_that_is_stored_elsewhere_takes_no_file_along_that_a_link_leads_to(paths: RunPaths) -> None:
    link = paths.log(Stream("g", "algo-1", "odd"))
    link.symlink_to("/etc/passwd")
    paths.plan.symlink_to("/etc/passwd")
    pieces, more = NewPieces(paths).next(Known(), last=True)
    assert not more
    names = {piece.path for piece, _ in pieces}
    assert "logs/g/algo-1/0.log" in names
    assert not names & {"plan.json", "logs/g/algo-1/odd.log"}


@pytest.mark.promise("security", "odd lines of programs count as damage")
def test_a_protocol_line_that_is_nested_too_deep_is_no_report() -> None:
    assert read_report("[" * DEEP) is None
