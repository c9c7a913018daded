"""Ends programs: SIGTERM to each, time to save, SIGKILL. The time may be cut short while it runs.

Then what they leave running. Some helpers end by themselves a moment after their program, and clean up then: Python's
resource tracker unlinks shared memory and semaphores of a parent that was killed. So they get `LINGER` seconds, then
SIGKILL, again and again until none is left, because a process may fork while it is being killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Sequence

from headrace.agent.host.process import Running
from headrace.processes.process_table import Process, send

_log = logging.getLogger(__name__)

GONE_SECONDS = 5.0  # for a process to go after SIGKILL
POLL = 0.05


async def end_programs(programs: Sequence[Running], rest: Callable[[], float], changed: asyncio.Event) -> None:
    """Ends programs, and what of their processes was asked to end with them.

    Args:
        programs: they run.
        rest: returns the seconds that they still have.
        changed: set when those have become fewer.
    """
    if not programs:
        return
    for program in programs:
        program.terminate()
    ended = asyncio.ensure_future(all_ended(programs))
    while not ended.done():
        changed.clear()
        seconds = rest()
        if seconds <= 0:
            break
        sooner = asyncio.ensure_future(changed.wait())
        await asyncio.wait({ended, sooner}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        sooner.cancel()
    for program in programs:
        if program.still_running:
            _log.warning("%s did not end in time: SIGKILL", program.stream)
            program.kill()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(ended, GONE_SECONDS)


async def all_ended(programs: Sequence[Running]) -> None:
    """Waits until the programs, and what was asked to end with them, have ended."""
    for program in programs:
        await program.ended.wait()
        while program.still_running:  # a process that is no child of ours sends no signal when it ends
            await asyncio.sleep(POLL)


LINGER = 2.0  # on a machine that is crowded a tracker of shared memory may get no CPU for a second
KILL_SECONDS = 5.0
LEFT_POLL = 0.02


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
        await asyncio.sleep(LEFT_POLL)
