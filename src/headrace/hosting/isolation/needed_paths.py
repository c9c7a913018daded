"""Paths that a host needs whatever its job is: one with a /tmp of its own must see them, where they lie below /tmp."""

from __future__ import annotations

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
    yield from (sys.prefix, sys.base_prefix, sys.executable, plan.python, str(Path(headrace.__file__).parents[1]))
    yield from (entry for entry in sys.path if entry)
    values = [value for name, value in os.environ.items() if name not in TEMPORARY]
    for group in plan.groups:
        values += plan.environment_of(group.name).values()
    for value in values:
        yield from value.split(os.pathsep)
