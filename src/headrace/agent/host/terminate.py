"""Ends programs: SIGTERM to each, time to save, SIGKILL. The time may be cut short while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from headrace.agent.host.process import Running

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
