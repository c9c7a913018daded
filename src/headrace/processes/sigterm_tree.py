"""Asks a program to end: SIGTERM to those of its processes that must get it. Standard library only.

SIGTERM to the main process alone does not reach the script that a shell runs: a shell without a trap just dies, and
one with a trap runs it only after the script has ended. SIGTERM to every process would reach too much: a trainer that
saves its work on SIGTERM still needs its data-loading processes, and PyTorch raises an error in a trainer whose
worker was killed by a signal. So:

* every process of the tree gets SIGTERM once,
* except what descends from a program that has a handler for SIGTERM: that one tells its children itself (mpirun,
  torchrun) or still needs them. A shell is no such program, whatever it traps.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from headrace.processes.process_table import Process, look, scan, send

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "busybox", "fish", "tini", "dumb-init"})
_TERM = 1 << (signal.SIGTERM - 1)


def ask_to_end(pid: int) -> list[Process]:
    """Sends SIGTERM to the processes of a program that must get it, see the module.

    Args:
        pid: its main process, a child of the caller that was not waited for yet.

    Returns:
        The processes that were signalled, parents before children.
    """
    main = look(pid)
    if main is None:
        return []
    children: dict[int, list[Process]] = {}
    for process in scan():
        children.setdefault(process.parent, []).append(process)
    todo, asked = [main], []  # parents before children, so that a shell does not start its next command
    while todo:
        process = todo.pop()
        asked.append(process)
        if not _tells_its_children(process.pid):
            todo += children.get(process.pid, [])
    return [process for process in asked if send(process, signal.SIGTERM)]


def _tells_its_children(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        lines = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        )
        catches = int(lines["SigCgt"], 16) & _TERM
        return bool(catches) and lines["Name"].strip() not in SHELLS
    return False
