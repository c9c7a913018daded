"""The log of a feed server harms nobody: not when it cannot be written, not when strangers shout."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.feed.worker.feed_server import BURST, LONGEST, RATE, ServerLog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def test_a_flood_is_told_up_to_a_limit_and_then_counted(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock()
    descriptor = opened(path)
    log = ServerLog("h", descriptor, clock)
    for number in range(10_000):
        log.tell_of_connection(f"line {number}")
    assert path.read_text().splitlines() == [f"feed server h: line {number}" for number in range(BURST)]
    clock.now += 1 / RATE
    log.catch_up()
    assert path.read_text().splitlines()[BURST:] == [
        f"feed server h: {10_000 - BURST} more lines about connections were left out"
    ]
    log.tell_of_connection("again")
    assert len(path.read_text().splitlines()) == BURST + 1
    log.tell("an executor was lost")
    assert path.read_text().endswith("feed server h: an executor was lost\n"), "the server's own lines are always told"
    clock.now += 10 * BURST / RATE
    for _ in range(2 * BURST):
        log.tell_of_connection("later")
    assert path.read_text().count("later") == BURST - 1, "one line says what was left out before"
    os.close(descriptor)


def test_a_peer_s_words_stay_in_their_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    descriptor = opened(path)
    ServerLog("h", descriptor).tell("a\nfeed server h: forged\x1b[2J" + "x" * 10_000 + "\udcff")
    [line] = path.read_text().splitlines()
    assert line.startswith("feed server h: a\\nfeed server h: forged\\x1b[2Jxxx")
    assert len(line) < LONGEST + 100
    os.close(descriptor)


def test_a_log_that_cannot_be_written_raises_nothing() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    ServerLog("h", full).tell("lost")
    os.close(full)
    reading, writing = os.pipe()
    os.close(reading)
    ServerLog("h", writing).tell("lost")
    os.close(writing)
