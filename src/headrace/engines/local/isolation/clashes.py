"""Lines of a job's code that will clash, or not work, when all hosts are one machine (isolation ``none``).

It searches the text for what hosts then share. Code outside source_dir is not searched, and ports and names that are
computed are not found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.job import Job

SUFFIXES = (".py", ".sh")
SKIPPED = ("__pycache__", ".git", ".headrace")
LARGEST = 1 << 20  # bytes of a file that is read
_PORT = re.compile(r"""(?:0\.0\.0\.0|\[::\]|\*):\d{2,5}|(?:["'](?:0\.0\.0\.0|::)?["'])\s*,\s*\d{2,5}""")
_KINDS = {
    "port": (_PORT, "listens on all addresses of the machine: only one host can have the port", True),
    "name": (re.compile(r"\balgo-\d+\b"), "host names do not resolve: use the addresses of SM_* and headrace", False),
    "tree": (re.compile(r"/opt/ml\b"), "there is no /opt/ml: use SM_CHANNEL_*, SM_MODEL_DIR, ...", False),
    "file": (re.compile(r"""["'\s=]/(?:tmp|dev/shm)/"""), "all hosts share the file", True),
    "host": (
        re.compile(r"gethostname\(\)|\$\(hostname\)"),
        "all hosts have the machine's name: use SM_CURRENT_HOST",
        True,
    ),
}


class Clash(msgspec.Struct, frozen=True):
    """One line of code.

    Attributes:
        kind: ``port``, ``name``, ``tree``, ``file`` or ``host``.
        place: file below source_dir, and line: ``train.py:12``.
        text: the line.
        why: what goes wrong, in words.
    """

    kind: str
    place: str
    text: str
    why: str


def clashes(job: Job) -> tuple[Clash, ...]:
    """Returns the lines of a job's code that count on hosts being machines of their own. Raises OSError."""
    source = job.base_path / job.source_dir
    hosts = sum(len(names) for group, names in job.hosts.items() if group in job.entry_point_groups)
    return tuple(clash for path in _files(source) for clash in _of_file(path, source, several=hosts > 1))


def _files(source: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(source):
        names[:] = sorted(name for name in names if name not in SKIPPED and not name.startswith(".venv"))
        for name in sorted(files):
            path = Path(folder) / name
            if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size <= LARGEST:
                yield path


def _of_file(path: Path, source: Path, several: bool) -> Iterator[Clash]:
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        code = line.split("#", 1)[0]
        for kind, (pattern, why, only_several) in _KINDS.items():
            if (several or not only_several) and pattern.search(code):
                yield Clash(kind, f"{path.relative_to(source)}:{number}", line.strip()[:120], why)
