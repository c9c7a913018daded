"""What works in an engine here and now, and what does not and why: for `headrace doctor --engine`.

Standard library only, as `headrace.engines` is.
"""

from __future__ import annotations

from typing import NamedTuple


class Capability(NamedTuple):
    """One thing that an engine does for jobs, where what it needs is there.

    Attributes:
        name: what it is, e.g. ``mpi``.
        works: whether it works here.
        detail: what was found, or why it does not work.
        hint: what to install or to do, when it does not work.
        needed: whether no job can run without it.
    """

    name: str
    works: bool
    detail: str
    hint: str = ""
    needed: bool = False
