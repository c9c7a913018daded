"""Lines of a job's code that will clash, or not work, when hosts share the files or the network of one machine.

It searches the text for what hosts then share. Only the job's code on this machine is searched, and ports and names
that are computed are not found. When such a job fails, these lines may be why, and `explain` says so.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.instance.isolation_level import NO_ISOLATION, Isolation
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import Cause, CauseKind

if TYPE_CHECKING:  # the supervisor does without it
    from headrace.job import Job

_log = logging.getLogger(__name__)

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
        place: file inside the code, and line: ``train.py:12``.
        text: the line.
        why: what goes wrong, in words.
    """

    kind: str
    place: str
    text: str
    why: str


_FALLBACK = re.compile(r"\bSM_[A-Z]")  # what the line names besides is for the case that the variable is not set
SHARED_FILES = frozenset({"name", "tree", "file", "host"})  # kinds that hosts with files of their own do not know
NAMED = 3  # clashes that a cause names
_OWN_FAILURES = frozenset({CauseKind.PROGRAM_EXITED, CauseKind.STALLED, CauseKind.GROUP_NOT_READY})


def clashes(job: Job, level: str = NO_ISOLATION) -> tuple[Clash, ...]:
    """Returns the lines of a job's code that count on more than a level of isolation gives. Raises OSError.

    Args:
        job: the job.
        level: the level.
    """
    hosts = sum(len(names) for group, names in job.hosts.items() if group in job.entry_point_groups)
    files = [(path, path.parent) for script in job.scripts if os.path.isfile(path := job.base_path / script)]
    if job.source_dir:
        files = list(_files(job.base_path / job.source_dir))
    return _clashes(files, Isolation(level), several=hosts > 1)


def explain(cause: Cause, plan: LaunchPlan, code: Path) -> Cause:
    """Returns the cause of a failure with what the level of isolation has to do with it, if anything is known.

    Args:
        cause: why the job failed.
        plan: its launch plan.
        code: its code.
    """
    if cause.kind not in _OWN_FAILURES or cause.signal is not None:
        return cause
    hosts = sum(len(group.hosts) for group in plan.groups if group.entry_point)
    try:
        found = _clashes(_files(code), plan.isolation, several=hosts > 1)
    except OSError as error:
        _log.warning("the code is not searched for what isolation %s does not give: %s", plan.isolation.level, error)
        return cause
    if not found:
        return cause
    named = "; ".join(f"{clash.place}: {clash.why}" for clash in found[:NAMED])
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    note = f"the code counts on more than its level of isolation gives ({named}{more})"
    return msgspec.structs.replace(cause, note=f"{note}; {plan.isolation.words()}")


def _clashes(files: Iterable[tuple[Path, Path]], isolation: Isolation, several: bool) -> tuple[Clash, ...]:
    if isolation.own_network:
        return ()
    known = SHARED_FILES if isolation.own_files else frozenset()
    found = (clash for path, folder in files for clash in _of_file(path, folder, several))
    return tuple(clash for clash in found if clash.kind not in known)


def _files(source: Path) -> Iterator[tuple[Path, Path]]:
    """Yields each file of code with the folder of the code."""
    for folder, names, files in os.walk(source):
        names[:] = sorted(name for name in names if name not in SKIPPED and not name.startswith(".venv"))
        for name in sorted(files):
            path = Path(folder) / name
            if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size <= LARGEST:
                yield path, source


def _of_file(path: Path, source: Path, several: bool) -> Iterator[Clash]:
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        code = line.split("#", 1)[0]
        told = _FALLBACK.search(code) is not None
        for kind, (pattern, why, only_several) in _KINDS.items():
            if (several or not only_several) and not (told and kind in SHARED_FILES) and pattern.search(code):
                yield Clash(kind, f"{path.relative_to(source)}:{number}", line.strip()[:120], why)
