"""Logs: selectors, merging by time, following files that grow, and the end of a run."""

from __future__ import annotations

import os
import queue
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.runs import EventWriter, LogWriter, Run, RunPaths, Selector, Status, Stream, create_run, parse_selector
from headrace.runs.events import RunFinished
from headrace.runs.log_lines import LogFollower, LogLine, parse_line
from headrace.runs.tail import CHUNK, Tail, Tree

A = Stream("dnn", "algo-1", "0")
B = Stream("data", "algo-2", "feed")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return create_run("j", runs=tmp_path)


def finish(paths: RunPaths) -> None:
    with EventWriter(paths.events("engine")) as events:
        events.write(RunFinished(t=time.time(), status=Status.COMPLETED))


@pytest.mark.parametrize(
    ("text", "run", "selector"),
    [
        ("j", "j", Selector()),
        ("j/", "j", Selector()),
        ("j/dnn", "j", Selector("dnn")),
        ("j/dnn/algo-1", "j", Selector("dnn", "algo-1")),
        ("j/dnn/algo-1/0", "j", Selector("dnn", "algo-1", "0")),
        ("j/dnn/algo-1[0]", "j", Selector("dnn", "algo-1", "0")),
        ("j/a%2Fb/algo-1", "j", Selector("a/b", "algo-1")),
    ],
)
def test_a_selector_names_run_group_host_and_rank(text: str, run: str, selector: Selector) -> None:
    assert parse_selector(text) == (run, selector)


@pytest.mark.parametrize("text", ["", "/", "j//algo-1", "j/a/b/c/d", "/dnn"])
def test_another_form_of_selector_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="expected RUN") as caught:
        parse_selector(text)
    assert "headrace logs" in caught.value.hint


def test_lines_are_merged_by_time_with_their_streams(paths: RunPaths) -> None:
    with LogWriter(paths.log(A)) as a, LogWriter(paths.log(B)) as b:
        for t in (1.0, 4.0):
            a.write_line("o", f"a{t:.0f}".encode(), t)
        for t in (2.0, 3.0, 5.0):
            b.write_line("e", f"b{t:.0f}".encode(), t)
    assert [(line.text, str(line.stream), line.kind) for line in Run(paths).logs()] == [
        ("a1", "dnn/algo-1[0]", "o"),
        ("b2", "data/algo-2[feed]", "e"),
        ("b3", "data/algo-2[feed]", "e"),
        ("a4", "dnn/algo-1[0]", "o"),
        ("b5", "data/algo-2[feed]", "e"),
    ]
    assert [line.text for line in Run(paths).logs("data")] == ["b2", "b3", "b5"]
    assert [line.text for line in Run(paths).logs("dnn/algo-1[0]")] == ["a1", "a4"]


def test_names_with_slashes_dots_and_spaces_come_back_as_they_were(paths: RunPaths) -> None:
    odd = Stream("a/b ..%", "..", "0")
    with LogWriter(paths.log(odd)) as log:
        log.write_line("o", b"here")
    (line,) = Run(paths).logs()
    assert line.stream == odd
    assert list(Run(paths).logs(Selector("a/b ..%", ".."))) == [line]


def test_invalid_utf8_becomes_replacement_characters(paths: RunPaths) -> None:
    with LogWriter(paths.log(A)) as log:
        log.write_line("o", b"\xff\xfe ok \xe2\x82\xac")
    assert [line.text for line in Run(paths).logs()] == ["\ufffd\ufffd ok \u20ac"]


def test_a_damaged_line_in_the_middle_is_reported_once_and_left_out(paths: RunPaths) -> None:
    with LogWriter(paths.log(A)) as log:
        log.write_line("o", b"one", 1.0)
    with paths.log(A).open("ab") as file:
        file.write(b"half a li\n\n")
    with LogWriter(paths.log(A)) as log:
        log.write_line("o", b"two", 2.0)
    run = Run(paths)
    for _ in range(2):
        assert [line.text for line in run.logs()] == ["one", "two"]
    assert [damage.line for damage in run.damage] == [2, 3]


@pytest.mark.parametrize(
    "line",
    [b"", b"2026-11-20T19:01:02.123456Z", b"2026-11-20T19:01:02.123456Z x t", b"2026-13-20T19:01:02.123456Z o t"],
)
def test_what_is_no_log_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_line(A, line)


def test_unknown_streams_of_a_finished_run_are_refused_with_the_known_ones(paths: RunPaths) -> None:
    with LogWriter(paths.log(A)) as log:
        log.write_line("o", b"one")
    assert list(Run(paths).logs("nobody")) == []  # it may still come
    finish(paths)
    with pytest.raises(UsageError, match="no logs of nobody") as caught:
        list(Run(paths).logs("nobody"))
    assert "dnn/algo-1[0]" in caught.value.hint


WRITER = """
import sys, time
from pathlib import Path
from headrace.runs import EventWriter, LogWriter, RunPaths, Status, Stream
from headrace.runs.events import RunFinished
paths = RunPaths(Path(sys.argv[1]))
logs = {}
for number, command in enumerate(sys.stdin):
    host = f"algo-{number % 5 + 1}"
    log = logs.setdefault(host, None) or LogWriter(paths.log(Stream("g", host, "0")))
    logs[host] = log
    for part in range(200):
        log.write_line("o", f"{number}.{part}".encode())
for log in logs.values():
    log.close()
EventWriter(paths.events("engine")).write(RunFinished(t=time.time(), status=Status.COMPLETED))
"""


@pytest.mark.promise("sagemaker-differences", "absent here: one silent host hides every log (SDK 3)")
def test_following_a_growing_run_gives_every_line_once_in_order_and_ends_with_it(paths: RunPaths) -> None:
    """A writer of another process adds lines and new streams while they are read."""
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(paths.root)], stdin=subprocess.PIPE)
    assert child.stdin is not None
    found: list[LogLine] = []
    with child.stdin:
        lines = Run(paths).logs(follow=True)
        for number in range(12):
            child.stdin.write(b"go\n")
            child.stdin.flush()
            found.extend(next(lines) for _ in range(200 if number else 199))
        child.stdin.close()
        found.extend(lines)
    assert child.wait(10) == 0
    assert [line.text for line in found] == [f"{number}.{part}" for number in range(12) for part in range(200)]
    assert len({line.stream.host for line in found}) == 5


def test_following_ends_when_the_engine_was_killed_and_the_run_says_so(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from headrace.runs import LogWriter, Stream, create_run
paths = create_run("j", runs=Path({str(tmp_path)!r}))
LogWriter(paths.log(Stream("g", "algo-1", "0"))).write_line("o", b"last words")
print(paths.root, flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        run = Run(RunPaths(Path(child.stdout.readline().strip())))
        lines = run.logs(follow=True)
        assert next(lines).text == "last words"
        assert run.status is Status.IN_PROGRESS
        child.kill()
        child.wait(10)
    assert list(lines) == []
    assert run.status is Status.FAILED
    assert str(run.cause) == "the engine was killed"


def test_lines_written_at_the_same_time_are_not_swapped_between_polls(paths: RunPaths) -> None:
    """The newest lines wait for the next poll, in which an older line of another stream may come."""
    follower = LogFollower(paths, Selector(), lambda damage: None)
    now = time.time()
    with LogWriter(paths.log(A)) as a, LogWriter(paths.log(B)) as b:
        a.write_line("o", b"second", now + 100)
        assert list(follower.poll()) == []
        b.write_line("o", b"first", now - 1)
        assert [line.text for line in follower.poll()] == ["first", "second"]


def test_a_tail_that_is_left_in_the_middle_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(1000)) + b"tor")
    tail = Tail(path)
    first = next(tail.lines())
    with path.open("ab") as file:
        file.write(b"n\n")
    assert [first, *tail.lines()] == [b"%d" % number for number in range(1000)] + [b"torn"]
    assert tail.line == 1001
    assert list(tail.lines()) == []


def test_the_last_lines_are_read_from_the_end_and_damage_in_them_has_its_number(tmp_path: Path) -> None:
    path = tmp_path / "f"
    lines = [b"x" * size for size in (0, 3, CHUNK - 1, CHUNK, CHUNK + 1, 0, 0, 7)]
    path.write_bytes(b"\n".join(lines) + b"\ntor")
    for last in range(len(lines) + 2):
        tail = Tail(path, last)
        assert list(tail.lines()) == lines[len(lines) - min(last, len(lines)) :], last
        assert tail.line == len(lines)
    assert list(Tail(tmp_path / "none", 2).lines()) == []
    with path.open("wb") as file:
        file.seek(1 << 40)  # a hole: reading it would take hours
        file.write(b"\na\nb\n")
    assert list(Tail(path, 2).lines()) == [b"a", b"b"]


def test_a_line_longer_than_many_chunks_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * (5 * CHUNK + 3) + b"\nend\n")
    assert [len(line) for line in Tail(path).lines()] == [5 * CHUNK + 3, 3]


def test_a_tree_finds_files_made_within_one_tick_of_the_clock(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "logs", 3, ".log")
    assert tree.new() == []
    for number in range(200):
        path = tmp_path / "logs" / "g" / f"h{number % 7}" / f"{number}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        (path.parent / "other.txt").touch()
        assert tree.new() == [path]


def test_a_file_made_in_the_same_tick_as_the_last_look_is_found(tmp_path: Path) -> None:
    """A coarse clock gives a directory the same mtime before and after: only an old mtime says "no change"."""
    tree = Tree(tmp_path, 1, ".log")
    (tmp_path / "1.log").touch()
    tick = time.time_ns()
    os.utime(tmp_path, ns=(tick, tick))
    assert tree.new() == [tmp_path / "1.log"]
    (tmp_path / "2.log").touch()
    os.utime(tmp_path, ns=(tick, tick))
    assert tree.new() == [tmp_path / "2.log"]


def test_following_a_hundred_silent_streams_costs_little(paths: RunPaths) -> None:
    for number in range(100):
        with LogWriter(paths.log(Stream("g", f"algo-{number}", "0"))) as log:
            log.write_line("o", b"hello")
    got: queue.Queue[LogLine] = queue.Queue()
    done = threading.Event()

    def follow() -> None:
        for line in Run(paths).logs(follow=True):
            got.put(line)
        done.set()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        for _ in range(100):
            got.get(timeout=10)
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        assert not done.wait(2)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert used / (time.monotonic() - start) < 0.15
    finally:
        finish(paths)
        thread.join(10)
    assert done.is_set()


def test_streams_are_in_order_of_their_numbers() -> None:
    words = [
        "a/algo-1[0]",
        "a/algo-1[2]",
        "a/algo-1[10]",
        "a/algo-1[agent]",
        "a/algo-2[0]",
        "a/algo-10[0]",
        "b/algo-3[0]",
    ]
    given = [words[number] for number in (5, 6, 4, 2, 1, 3, 0)]
    parts = [(word.partition("/")[0], *word.partition("/")[2].rstrip("]").split("[")) for word in given]
    streams = [Stream(*each) for each in parts]
    assert [str(stream) for stream in sorted(streams)] == words
    assert Stream("a", "algo-01", "0") != Stream("a", "algo-1", "0")
    assert (Stream("a", "algo-01", "0") < Stream("a", "algo-1", "0")) is True
