"""Starts a process in a session of its own, through `bootstrap`, and reads what it reports. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from headrace.processes import bootstrap


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


UTF8 = ("-X", "utf8")
"""Options of the interpreter for headrace's own processes: names and variables are UTF-8 whatever the locale says.
The programs that they start do not inherit them."""

_BOOTSTRAP = str(Path(bootstrap.__file__).resolve())


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    tied: bool,
    cpus: Sequence[int] = (),
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    groups: Sequence[Path] = (),
) -> subprocess.Popen[bytes]:
    """Starts a program. When `tied`, call it from a thread that outlives the program (see `bootstrap`).

    Args:
        argv: the program and its arguments; it is looked up in PATH.
        env: all its variables.
        cwd: its directory.
        tied: SIGKILL it when this process dies.
        cpus: CPUs that it may use; empty for all of this process.
        stdin, stdout, stderr: as in `subprocess.Popen`.
        pass_fds: descriptors that it gets besides.
        groups: directories of the control groups in which it runs.

    Raises:
        OSError: no process could be made. That the program itself cannot be started shows as exit code 127.
    """
    usable = [str(cpu) for cpu in sorted(set(cpus) & os.sched_getaffinity(0))] if cpus else []
    before = [str(os.getpid()), str(int(tied)), ",".join(usable) or "-", "0"]
    before.append("\n".join(map(str, groups)) or "-")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", _BOOTSTRAP, *before, *argv],
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
    )
