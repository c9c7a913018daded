"""How headrace starts its own modules as processes, and how it names a Python. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_NO_FOLDER = "import sys; del sys.path[0]; import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
"""For an interpreter without ``-P``."""


def module_command(module: str, *arguments: str, options: Sequence[str] = (), python: str = "") -> list[str]:
    """Returns the command of a module that is looked for where packages are installed, and not in the current folder:
    a folder `headrace` or `pip` that lies there may be anybody's.

    Args:
        module: its name.
        arguments: its arguments.
        options: of the interpreter.
        python: an interpreter of this one's version; this one if empty.
    """
    where = ["-P", "-m", module] if sys.version_info >= (3, 11) else ["-c", _NO_FOLDER.format(module)]
    return [python or sys.executable, *options, *where, *arguments]


def runs_in(image: str, python: str = "", version: str = "") -> str:
    """Returns what to say of a job whose programs run in a Python of this machine, whatever image it names.

    Args:
        image: that the job names; empty for none.
        python: the interpreter; that which runs if empty.
        version: of it, if that is known.
    """
    if not python:
        python, version = sys.executable, ".".join(map(str, sys.version_info[:3]))
    return f"image {image or 'none'}: programs run in {python}{version and f' (Python {version})'}"
