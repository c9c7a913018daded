"""Bytes of a program become lines of its log."""

import random

import pytest

from headrace.agent.host.process import LineSplitter


def lines_of(data: bytes, step: int = 0, **options: object) -> list[bytes]:
    splitter = LineSplitter(**options)  # type: ignore[arg-type]
    pieces = [data[at : at + step] for at in range(0, len(data), step)] if step else [data]
    lines = [line for piece in pieces for line in splitter.feed(piece, now=0.0)]
    return lines + splitter.end()


@pytest.mark.parametrize("step", [0, 1, 2, 3, 7])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"one\n", [b"one"]),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"\n\n", [b"", b""]),
        (b"one\n\ntwo", [b"one", b"", b"two"]),
        (b"no newline at the end", [b"no newline at the end"]),
        (b"dos\r\nunix\n", [b"dos", b"unix"]),
        (b"\xff\x00\xfe\n", [b"\xff\x00\xfe"]),
    ],
)
def test_lines_are_the_same_however_the_bytes_are_cut(data, expected, step):
    assert lines_of(data, step) == expected


@pytest.mark.parametrize("step", [0, 1, 2, 5])
@pytest.mark.promise("sagemaker-differences", "absent here: progress bars wreck the log")
def test_of_a_redrawn_line_the_last_state_is_kept(step):
    assert lines_of(b"before\n\r 10%|#\r 50%|##\r100%|###\nafter\n", step) == [b"before", b"100%|###", b"after"]


@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_bar_that_erases_itself_keeps_its_last_visible_state(step):
    assert lines_of(b"\r 10%\r 90%\r     \r\nafter\n", step) == [b" 90%", b"after"]


@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_bar_without_a_newline_keeps_its_last_state(step):
    assert lines_of(b"\r 10%\r 90%", step) == [b" 90%"]


def test_text_after_an_erased_bar_is_kept_whole():
    assert lines_of(b"\r 10%\r     \rdone in 3 s\n") == [b"done in 3 s"]


def test_a_long_bar_leaves_one_line_every_ten_seconds_and_needs_little_memory():
    splitter = LineSplitter()
    lines = []
    for step in range(10_000):  # 100 seconds, a hundred redraws a second
        lines += splitter.feed(b"\r%5d of 10000" % step, now=step / 100)
    assert 9 <= len(lines) <= 10
    assert len(splitter._part) < 100
    assert splitter.feed(b"\n", now=100.0) == [b" 9999 of 10000"]


@pytest.mark.promise("sagemaker-differences", "absent here: long lines are cut at 64 KiB")
def test_a_long_line_is_not_split():
    line = bytes(random.Random(1).choices(b"abcdefgh", k=3 * 2**20))
    assert lines_of(line + b"\nnext\n", 65_536) == [line, b"next"]


@pytest.mark.parametrize("step", [0, 7, 64])
def test_a_line_over_the_limit_is_cut_and_says_how_much_is_missing(step):
    first, second = lines_of(b"x" * 150 + b"\nshort\n", step, limit=100)
    assert first == b"x" * 100 + b" [headrace: line cut here, 50 bytes more]"
    assert second == b"short"


def test_a_bar_over_the_limit_is_cut_too():
    assert lines_of(b"\rbar\r" + b"y" * 130 + b"\n", limit=100) == [
        b"y" * 100 + b" [headrace: line cut here, 30 bytes more]"
    ]
