"""How headrace starts its own modules as processes, what these report, how they die with who started them,
and how it names a Python.

Standard library only. `die_with_parent` asks the kernel for a SIGKILL when the thread that made this process ends: for
children of single-threaded processes. `watch_parent` watches the parent's pidfd in a thread.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple

UTF8 = ("-X", "utf8")
"""Options of the interpreter for headrace's own processes: names and variables are UTF-8 whatever the locale says.
The programs that they start do not inherit them."""

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent dies; kills it now if that has already happened.

    Args:
        parent: the parent's process id, as the parent knows it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def watch_parent(parent: int) -> None:
    """Starts a thread that kills this process when the process `parent` ends."""
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def wait() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="headrace-parent-watch", daemon=True).start()


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


class ChildReport(NamedTuple):
    """One report.

    Attributes:
        ready: it does its work from here on.
        pid: process that it started in its place; 0 for none.
        error: why it failed, in one line; empty if it did not.
        of_service: `error` is worded as SageMaker words the reason of such a failure, and stands alone.
    """

    ready: bool = False
    pid: int = 0
    error: str = ""
    of_service: bool = False

    def line(self) -> str:
        """Returns the report as it is written, without the newline. What UTF-8 cannot hold is escaped."""
        error = self.error.encode(errors="backslashreplace").decode()
        return json.dumps({"child_report": self._replace(error=error)._asdict()})

    def send(self, descriptor: int = 1) -> None:
        """Writes the report to a descriptor, at once: reports of several threads do not mix."""
        os.write(descriptor, f"{self.line()}\n".encode())


def read_report(line: bytes | str) -> ChildReport | None:
    """Returns the report that a line holds; None when it holds none."""
    try:
        return ChildReport(**json.loads(line)["child_report"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
