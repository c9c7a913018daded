"""Paths that a host needs whatever its job is: one with a /tmp of its own must see them, where they lie below /tmp."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import headrace
from headrace.instance.launch_plan import LaunchPlan

TEMPORARY = ("TMPDIR", "TEMP", "TMP")  # of the machine: an instance has its own


def needed_paths(plan: LaunchPlan, root: Path) -> Iterator[str]:
    """Yields the run, Python, and the values of variables of this process and of the programs. Some are no paths.

    Args:
        plan: the launch plan.
        root: the run's directory.
    """
    yield str(root)
    yield from (sys.prefix, sys.base_prefix, sys.executable, str(Path(headrace.__file__).parents[1]))
    for python in {plan.python, *(group.python for group in plan.groups)} - {""}:
        yield from environment_of(python)
    yield from (entry for entry in sys.path if entry)
    values = [value for name, value in os.environ.items() if name not in TEMPORARY]
    for group in plan.groups:
        values += plan.environment_of(group.name).values()
    for value in values:
        yield from value.split(os.pathsep)


def environment_of(python: str) -> Iterator[str]:
    """Yields the files and folders of an interpreter: each environment that it is of, and those that these are made of.

    Args:
        python: its path: in a virtual environment, of conda, pyenv, uv, or a link to one of these.
    """
    seen: set[Path] = set()
    open_paths = [Path(python)]
    while open_paths:
        path = open_paths.pop()
        if path in seen:
            continue
        seen.add(path)
        yield str(path)
        prefix, config = path.parent.parent, ""
        with contextlib.suppress(OSError):  # what is only looked at may fail
            open_paths.append(Path(os.path.normpath(path.parent / path.readlink())))
        with contextlib.suppress(OSError):
            config = (prefix / "pyvenv.cfg").read_text(errors="surrogateescape")
        if config or os.path.lexists(prefix / "conda-meta") or any(prefix.glob("lib/python3*/os.py")):
            yield str(prefix)
        homes = (line.partition("=")[2].strip() for line in config.split("\n") if line.split("=")[0].strip() == "home")
        open_paths += [Path(os.path.realpath(path.parent), path.name), *(Path(home, path.name) for home in homes)]
