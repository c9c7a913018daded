"""Writing for people: log lines with a colour a group, a progress line below them, and no control characters.

What a command shows comes from records, names and messages that anybody may have written. One function makes their
control characters visible, wherever they are written: standard output and error are a `VisibleStream`, and what
headrace itself paints goes around it (`painted`). Colours of a program's own lines stay.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from headrace.runs import LogLine

COLOURS = (36, 35, 33, 32, 34)
"""ANSI colours of groups, in the order of their first line."""

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ERASE = "\r\x1b[2K"


def visible(text: str) -> str:
    """Returns text in which control characters (but tab and newline), and those that turn the direction of a text,
    stand as their escapes. Those are JSON's, so a document stays what it is.

    >>> visible("a\\x1b[2Kb\\rc")
    'a\\\\u001b[2Kb\\\\u000dc'
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def coloured(text: str) -> str:
    """Returns text as `visible` does, but for its colours."""
    parts = _COLOUR.split(text)
    return "".join(part if at % 2 else visible(part) for at, part in enumerate(parts))


class VisibleStream:
    """Standard output or error, on which control characters are visible.

    Args:
        painted: the stream itself, on which headrace writes its own colours and progress lines.
        lossy: what cannot be written is discarded, as all that follows.
    """

    def __init__(self, painted: TextIO, *, lossy: bool = False) -> None:
        self.painted = painted
        self._lossy = lossy

    def write(self, text: str) -> int:
        """Writes text."""
        with self._as_told():
            self.painted.write(visible(text))
        return len(text)

    def flush(self) -> None:
        """Hands what was written to the reader."""
        with self._as_told():
            self.painted.flush()

    @contextlib.contextmanager
    def _as_told(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            if not self._lossy:
                raise
            discard(self.painted.fileno())

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        if name in {"buffer", "raw"}:  # whoever writes bytes would go around it
            raise AttributeError(name)
        return getattr(self.painted, name)


def discard(descriptor: int) -> None:
    """Discards from now on what is written to a descriptor that cannot be written. Python flushes its streams once more
    at its end, and would fail there."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def painted(stream: TextIO) -> TextIO:
    """Returns where headrace writes its own colours for what a stream shows: text from elsewhere is made visible before
    it gets there."""
    return stream.painted if isinstance(stream, VisibleStream) else stream


@dataclass
class Terminal:
    """Where a command writes.

    Attributes:
        out: the stream.
        interactive: it is a terminal, so there may be a progress line.
        colour: groups have colours.
        on_failure: called when the stream cannot be written, once: what is written from then on is discarded. None:
            the error is raised.
    """

    out: TextIO
    interactive: bool
    colour: bool
    on_failure: Callable[[OSError], None] | None = None
    _groups: dict[str, int] = field(default_factory=dict)
    _below: str = ""

    @classmethod
    def standard(cls, err: bool = False) -> Terminal:
        """Returns the terminal on standard output, or on standard error, which may fail; respects NO_COLOR and
        TERM=dumb."""
        out = painted(sys.stderr if err else sys.stdout)
        interactive = out.isatty() and os.environ.get("TERM", "") != "dumb"
        colour = interactive and not os.environ.get("NO_COLOR")
        return cls(out, interactive, colour, (lambda _: None) if err else None)

    def paint(self, group: str, text: str) -> str:
        """Returns text in the colour of a group."""
        if not self.colour:
            return text
        number = self._groups.setdefault(group, len(self._groups))
        return f"\x1b[{COLOURS[number % len(COLOURS)]}m{text}\x1b[0m"

    def log(self, line: LogLine, timestamps: bool = False) -> None:
        """Writes one line of a program as ``group/host[rank] line``."""
        when = ""
        if timestamps:
            fraction = f"{line.t % 1:.6f}"[1:] if line.t % 1 < 0.9999995 else ".999999"
            when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(int(line.t))) + fraction + "Z "
        text = coloured(line.text)
        if self.colour and "\x1b[" in text:
            text += "\x1b[0m"
        self.write(f"{when}{self.paint(line.stream.group, visible(str(line.stream)))} {text}")

    def write(self, text: str) -> None:
        """Writes one line above the progress line."""
        self._put(f"{_ERASE if self._below else ''}{coloured(text)}\n{self._below}", flush=self.interactive)

    def below(self, text: str) -> None:
        """Shows the progress line, on a terminal only; an empty text removes it."""
        if not self.interactive:
            return
        width = shutil.get_terminal_size().columns or 80  # Python 3.10 says 0 for a terminal of unknown size
        text = visible(text)
        cut = text if len(text) < width else text[: max(0, width - 1)]
        if cut != self._below:
            self._put(f"{_ERASE}{cut}")
            self._below = cut

    def flush(self) -> None:
        """Hands what was written to the reader."""
        self._put("")

    def _put(self, text: str, flush: bool = True) -> None:
        try:
            self.out.write(text)
            if flush:
                self.out.flush()
        except OSError as error:
            if self.on_failure is None:
                raise
            discard(self.out.fileno())
            self.on_failure(error)
