"""Starts one process in a session of its own, through `bootstrap`. Standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from headrace.processes import bootstrap

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
