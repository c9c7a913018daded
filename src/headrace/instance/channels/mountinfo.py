"""The mounts that a process sees, as /proc/self/mountinfo lists them (proc_pid_mountinfo(5)).

The first process of every isolated host reads them: this module imports little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOUNTS_FILE = "/proc/self/mountinfo"


class Mount(NamedTuple):
    """One mount: what is shown (`root`, a path inside its file system), where (`point`), its type and super options."""

    root: str
    point: str
    kind: str
    options: str


def read_mounts(text: str | None = None) -> Iterator[Mount]:
    """Yields the mounts of this process, or those of such a text. Raises OSError."""
    text = Path(MOUNTS_FILE).read_text(errors="surrogateescape") if text is None else text
    for line in filter(None, text.split("\n")):  # of what ends a line the kernel escapes the newline only
        before, _, after = line.partition(" - ")
        _, _, _, root, point, *_ = before.split(" ")
        kind, _, options = after.split(" ", 2)  # options of WSL's drvfs have blanks
        yield Mount(_unescape(root), _unescape(point), kind, options)


def _unescape(text: str) -> str:
    """Blanks and the like are written as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
