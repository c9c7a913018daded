"""Writing log lines for people: a colour a group, a progress line below them, no control characters."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from headrace.runs import LogLine

COLOURS = (36, 35, 33, 32, 34)
"""ANSI colours of groups, in the order of their first line."""

_CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b-\x1f\x7f]")
_ERASE = "\r\x1b[2K"


def plain(text: str) -> str:
    """Removes what would move the cursor; colours of the program stay.

    >>> plain("a\\x1b[2Kb\\rc")
    'a[2Kbc'
    """
    return _CONTROL.sub(lambda match: match[0] if match[0].endswith("m") else "", text)


@dataclass
class Terminal:
    """Where a command writes.

    Attributes:
        out: the stream.
        interactive: it is a terminal, so there may be a progress line.
        colour: groups have colours.
    """

    out: TextIO
    interactive: bool
    colour: bool
    _groups: dict[str, int] = field(default_factory=dict)
    _below: str = ""

    @classmethod
    def standard(cls, err: bool = False) -> Terminal:
        """Returns the terminal on standard output, or on standard error; respects NO_COLOR and TERM=dumb."""
        out = sys.stderr if err else sys.stdout
        interactive = out.isatty() and os.environ.get("TERM", "") != "dumb"
        return cls(out, interactive, interactive and not os.environ.get("NO_COLOR"))

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
        text = plain(line.text)
        if self.colour and "\x1b[" in text:
            text += "\x1b[0m"
        self.write(f"{when}{self.paint(line.stream.group, str(line.stream))} {text}")

    def write(self, text: str) -> None:
        """Writes one line above the progress line."""
        self.out.write(f"{_ERASE if self._below else ''}{text}\n{self._below}")
        if not self.interactive:
            return
        self.out.flush()

    def below(self, text: str) -> None:
        """Shows the progress line, on a terminal only; an empty text removes it."""
        if not self.interactive:
            return
        width = shutil.get_terminal_size().columns or 80  # Python 3.10 says 0 for a terminal of unknown size
        cut = text if len(text) < width else text[: max(0, width - 1)]
        if cut != self._below:
            self.out.write(f"{_ERASE}{cut}")
            self._below = cut
            self.out.flush()

    def flush(self) -> None:
        """Hands what was written to the reader."""
        self.out.flush()
