"""Ends what programs leave running.

Some helpers end by themselves a moment after their program, and clean up then: Python's resource tracker unlinks
shared memory and semaphores of a parent that was killed. So they get `LINGER` seconds, then SIGKILL, again and again
until none is left, because a process may fork while it is being killed.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

from headrace.processes.process_table import Process, send

LINGER = 2.0  # on a machine that is crowded a tracker of shared memory may get no CPU for a second
KILL_SECONDS = 5.0
POLL = 0.02


async def end_leftovers(find: Callable[[], Sequence[Process]], reap: Callable[[], None]) -> int:
    """Waits for processes to end, then kills them.

    Args:
        find: returns those that are left.
        reap: waits for children that ended.

    Returns:
        How many processes were sent SIGKILL.
    """
    began = time.monotonic()
    killed: set[tuple[int, int]] = set()
    while True:
        reap()
        left = find()
        waited = time.monotonic() - began
        if not left or waited > LINGER + KILL_SECONDS:
            return len(killed)
        if waited >= LINGER:
            for process in left:
                if send(process, signal.SIGKILL):
                    killed.add((process.pid, process.start))
        await asyncio.sleep(POLL)
