"""Log lines: their form on disk, the selector that names some of them, reading and following them by time."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from headrace.errors import UsageError
from headrace.runs.run_paths import RunPaths, Stream, decode
from headrace.runs.tail import TailSet, Told, Tree

_STAMP = len("2026-11-20T19:01:02.123456Z")
KINDS = {"o": "stdout", "e": "stderr", "h": "headrace"}
"""What the letter of a line's kind means."""
_HOLD = 0.02  # seconds between taking a line's time and its being on disk, generously


class LogLine(NamedTuple):
    """One line of a program.

    Attributes:
        t: seconds since the epoch.
        stream: whose line it is.
        kind: ``o`` standard output, ``e`` standard error, ``h`` a note by headrace.
        text: the line; bytes that are no UTF-8 are replacement characters.
    """

    t: float
    stream: Stream
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.stream} {self.text}"


def parse_line(stream: Stream, line: bytes) -> LogLine:
    """Reads one line of a log file. Raises ValueError if it has not the form of `LogWriter`."""
    kind = line[_STAMP + 1 : _STAMP + 2]
    if line[_STAMP : _STAMP + 1] != b" " or kind not in {b"o", b"e", b"h"} or line[_STAMP + 2 : _STAMP + 3] != b" ":
        raise ValueError("not a log line")
    when = datetime.fromisoformat(line[: _STAMP - 1].decode("ascii") + "+00:00")
    return LogLine(when.timestamp(), stream, kind.decode(), line[_STAMP + 3 :].decode("utf-8", "replace"))


@dataclass(frozen=True)
class Selector:
    """Which streams of a run: all, those of a group, of a host, or one.

    Attributes:
        group: group name, None for all.
        host: host name, None for all.
        name: rank, ``feed`` or ``agent``; None for all.
    """

    group: str | None = None
    host: str | None = None
    name: str | None = None

    def matches(self, stream: Stream) -> bool:
        """Returns whether the stream is among those selected."""
        wanted = ((self.group, stream.group), (self.host, stream.host), (self.name, stream.name))
        return all(want is None or want == have for want, have in wanted)

    def __str__(self) -> str:
        return "/".join(part for part in (self.group, self.host, self.name) if part is not None)


def parse_selector(text: str) -> tuple[str, Selector]:
    """Splits ``RUN[/group[/host[/rank]]]`` into the run and a selector.

    ``group/host[rank]``, the form in which logs name a stream, is understood too. A slash or percent sign inside a
    group's name is written as %2F or %25.

    Raises:
        UsageError: if it has another form.

    >>> parse_selector("digits/dnn/algo-1[0]")
    ('digits', Selector(group='dnn', host='algo-1', name='0'))
    """
    match = re.fullmatch(r"(.*/.*/.*)\[([^/\[\]]+)\]", text)
    run, *parts = (f"{match[1]}/{match[2]}" if match else text).rstrip("/").split("/")
    if not run or len(parts) > 3 or not all(parts):
        raise UsageError(
            f"{text!r} does not name logs: expected RUN[/group[/host[/rank]]]",
            hint="for example `headrace logs my-job/dnn/algo-1/0`",
        )
    return run, Selector(*(decode(part) for part in parts))


def stream_of(path: Path) -> Stream:
    """Returns the stream of a file ``.../<group>/<host>/<stream>.<suffix>``."""
    return Stream(decode(path.parent.parent.name), decode(path.parent.name), decode(path.stem))


class LogFollower:
    """The lines of some streams of a run, merged by time, as they come.

    `poll` never waits. Lines of several streams come in the order of their times, as far as the clock of the writers
    allows: the newest lines are kept back until the following poll.

    Args:
        paths: the run.
        selector: which streams.
        on_damage: told of what is left out.
        last: of the lines that a stream has at first, give the last so many only; None for all.
    """

    def __init__(self, paths: RunPaths, selector: Selector, on_damage: Told, last: int | None = None) -> None:
        self._selector = selector
        self._set = TailSet(Tree(paths.root / "logs", 3, ".log"), self._decoder, on_damage, last)
        self._held: list[LogLine] = []

    def _decoder(self, path: Path) -> Callable[[bytes], LogLine] | None:
        stream = stream_of(path)
        return (lambda line: parse_line(stream, line)) if self._selector.matches(stream) else None

    @property
    def streams(self) -> list[Stream]:
        """The streams seen so far."""
        return sorted(stream_of(path) for path in self._set.paths)

    def poll(self, final: bool = False) -> Iterator[LogLine]:
        """Yields the lines that are new since the last poll.

        Args:
            final: keep nothing back.
        """
        limit = time.time() - _HOLD
        self._set.discover()
        old, self._held = self._held, []
        seen = {id(line) for line in old}
        for line in heapq.merge(old, *self._set.iterators(), key=lambda line: line.t):
            if final or line.t <= limit or id(line) in seen:
                yield line
            else:
                self._held.append(line)
