"""The writers: one write a record, torn ends, caps, disk errors that are reported and never raised."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from headrace.runs import EventWriter, HostSecond, LogWriter, MetricWriter
from headrace.runs.events import Event, HostRegistered, JobStarted
from headrace.runs.writers import AppendFile, write_behind

LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z [oeh] .*")


def test_a_log_line_has_time_kind_and_the_bytes_as_they_came(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "g" / "h" / "0.log"
    with LogWriter(path) as log:
        assert log.write_line("o", b"caf\xe9 100%\r\n", t=1_795_201_262.123456)
        assert log.write_line("e", b"", t=1_795_201_263.0)
        assert log.note("gone", t=1_795_201_263.5)
    assert path.read_bytes() == (
        b"2026-11-20T19:01:02.123456Z o caf\xe9 100%\n"
        b"2026-11-20T19:01:03.000000Z e \n"
        b"2026-11-20T19:01:03.500000Z h gone\n"
    )


def test_newlines_inside_a_line_make_lines_with_a_head_each(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "0.log") as log:
        log.write_line("o", b"one\ntwo\n")
    lines = (tmp_path / "0.log").read_bytes().splitlines()
    assert [line[30:] for line in lines] == [b"one", b"two"]
    assert all(LINE.fullmatch(line) for line in lines)


def test_a_long_line_is_not_split(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "0.log") as log:
        log.write_line("o", b"x" * 5_000_000)
    (line,) = (tmp_path / "0.log").read_bytes().splitlines()
    assert line[30:] == b"x" * 5_000_000


def test_an_unknown_stream_letter_is_refused(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "0.log") as log, pytest.raises(ValueError, match="'o' or 'e'"):
        log.write_line("h", b"forged")


def test_threads_of_one_program_never_mix_lines(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "0.log")

    def write(kind: str) -> None:
        for _ in range(500):
            log.write_line(kind, kind.encode() * 300)

    threads = [threading.Thread(target=write, args=(kind,)) for kind in "oe"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    lines = (tmp_path / "0.log").read_bytes().splitlines()
    assert len(lines) == 1000
    assert {(line[28:29], line[30:]) for line in lines} == {(b"o", b"o" * 300), (b"e", b"e" * 300)}


@pytest.mark.promise("runs", "a log has a cap, and says what it dropped")
def test_beyond_the_cap_lines_are_dropped_counted_and_told_twice(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = LogWriter(path, cap_bytes=400)
    written = [log.write_line("o", b"x" * 60) for _ in range(10)]  # 91 bytes a line on disk: four fit
    assert written == [True] * 4 + [False] * 6
    assert not log.write_line("o", b"")  # would fit, but a log with holes would lie
    assert path.read_bytes().splitlines()[-1][28:].startswith(b"h log cap of 400 bytes reached")
    log.close()
    lines = path.read_bytes().splitlines()
    assert (log.dropped_lines, log.dropped_bytes) == (7, 6 * 91 + 31)
    assert lines[-1][28:] == b"h 7 lines (577 bytes) dropped: log cap reached"
    assert len(lines) == 6


def test_the_cap_counts_what_an_earlier_writer_left(tmp_path: Path) -> None:
    for expected in (True, False):
        with LogWriter(tmp_path / "0.log", cap_bytes=150) as log:
            assert log.write_line("o", b"x" * 60) is expected


def test_after_a_torn_line_of_a_killed_writer_the_next_record_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "engine.jsonl"
    path.write_bytes(b'{"event":"job_sta')
    with EventWriter(path) as events:
        events.write(JobStarted(t=2.0))
        events.write(HostRegistered(t=3.0, group="g", host="algo-1"))
    torn, *rest = path.read_bytes().splitlines()
    assert torn == b'{"event":"job_sta'
    assert [msgspec.json.decode(line, type=Event) for line in rest] == [
        JobStarted(t=2.0),
        HostRegistered(t=3.0, group="g", host="algo-1"),
    ]


def test_a_full_disk_is_reported_once_and_never_raised() -> None:
    reports: list[tuple[Path, OSError]] = []
    with MetricWriter("/dev/full", on_error=lambda path, error: reports.append((path, error))) as metrics:
        metric = HostSecond(t=1.0, cpu=1.0, cores=1, rss=1, processes=1)
        assert [metrics.write(metric) for _ in range(3)] == [False] * 3
        assert metrics.lost == 3
    assert [(str(path), error.strerror) for path, error in reports] == [("/dev/full", "No space left on device")]


def test_a_directory_that_cannot_be_made_is_reported_and_never_raised(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events").write_text("a file where a directory should be")
    with EventWriter(tmp_path / "events" / "engine.jsonl") as events:
        assert not events.write(JobStarted(t=1.0))
    assert "headrace: cannot write" in capfd.readouterr().err


def test_a_record_after_close_is_lost_and_reported(tmp_path: Path) -> None:
    reports: list[str] = []
    events = EventWriter(tmp_path / "e.jsonl", on_error=lambda _, error: reports.append(str(error.strerror)))
    events.close()
    assert not events.write(JobStarted(t=1.0))
    assert reports == ["the writer is closed"]


PARTIAL = """
import resource, signal, sys
from headrace.runs import LogWriter
path = sys.argv[1]
errors = []
log = LogWriter(path, on_error=lambda path, error: errors.append(error.strerror))
log.write_line("o", b"a" * 100)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
assert not log.write_line("o", b"b" * 100)     # 69 of its bytes fit
assert not log.write_line("o", b"c" * 100 + b"\\nthree\\nlines")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert log.write_line("o", b"d" * 100)
log.close()
assert errors == ["File too large"], errors
assert log.lost == 4
"""


def test_a_short_write_is_told_in_the_log_once_the_disk_has_room_again(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    subprocess.run([sys.executable, "-c", PARTIAL, str(path)], check=True, timeout=30)
    first, torn, note, last = path.read_bytes().splitlines()
    assert first[30:] == b"a" * 100
    assert len(first) + 1 + len(torn) == 200
    assert note[28:] == b"h 4 lines lost here: File too large"
    assert last[30:] == b"d" * 100


def test_the_descriptor_is_append_only_and_not_inherited(tmp_path: Path) -> None:
    import fcntl

    file = AppendFile(tmp_path / "f")
    file.append(b"one\n")
    (mine,) = _open_on(file.path)
    assert fcntl.fcntl(mine, fcntl.F_GETFL) & os.O_APPEND
    assert fcntl.fcntl(mine, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    file.close()
    assert _open_on(file.path) == []


@pytest.mark.timeout(30)
def test_what_a_writer_raises_behind_its_callers_is_raised_at_the_end_and_all_else_is_written(tmp_path: Path) -> None:
    def report(path: Path, error: OSError) -> None:
        raise RuntimeError(f"{path.name} cannot be told")

    (tmp_path / "file").touch()
    blocked, log = LogWriter(tmp_path / "file" / "0.log", on_error=report), LogWriter(tmp_path / "1.log")
    threads = threading.active_count()

    def write() -> None:
        with write_behind():
            assert blocked.write_line("o", b"lost")
            assert log.write_line("o", b"kept")
            log.close()

    with pytest.raises(RuntimeError, match=r"0\.log cannot be told"):
        write()
    assert (tmp_path / "1.log").read_bytes()[30:] == b"kept\n"
    assert threading.active_count() == threads


def _open_on(path: Path) -> list[int]:
    return [int(link.name) for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and _target(link) == path]


def _target(link: Path) -> Path | None:
    try:
        return link.readlink()
    except OSError:
        return None
