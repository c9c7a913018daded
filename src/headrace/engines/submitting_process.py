"""The process that submits a run, by which others tell whether a submission is still going on."""

from __future__ import annotations

import os
import socket
import time

from headrace.runs import process_start_time


def this_process() -> tuple[int, float, str]:
    """Returns pid, start and node of this process, as a ticket has them."""
    pid = os.getpid()
    return pid, process_start_time(pid) or 0.0, socket.gethostname()


def may_live(pid: int, start: float, node: str, until: float) -> bool:
    """Tells whether a process may still be there.

    Args:
        pid, start, node: as `this_process` told of it.
        until: seconds since the epoch to which a process of another machine, which cannot be seen from here, may live.
    """
    if node != socket.gethostname():
        return time.time() < until
    return process_start_time(pid) == start
