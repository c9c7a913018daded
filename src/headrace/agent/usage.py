"""What the processes of a host use: one `HostSecond` a second, from the process table.

The agent is a child subreaper, so all that ever ran on the host descends from it or ended as its descendant. The sum
of CPU times over the living, each with those of its children that were waited for, is therefore the whole host since
its start, the agent included. (What a parent never waits for, because it ignores SIGCHLD, is not counted.)
"""

from __future__ import annotations

import asyncio
import os
import time

from headrace.processes.table import TICKS, descendants, look
from headrace.runs import MetricWriter
from headrace.runs.metrics import HostSecond

INTERVAL = 1.0


class UsageSampler:
    """Writes what the host uses.

    Args:
        writer: metric file of the host.
        cores: CPUs that the host may use.
    """

    def __init__(self, writer: MetricWriter, cores: int) -> None:
        self._writer = writer
        self._cores = cores
        self._cpu = 0.0

    def sample(self) -> None:
        """Writes one record."""
        me = look(os.getpid())
        family = [process for process in [me, *descendants(os.getpid())] if process is not None]
        # A process that ends between two lines of the scan may be missing for once: the sum never goes back.
        self._cpu = max(self._cpu, sum(process.ticks for process in family) / TICKS)
        self._writer.write(
            HostSecond(
                t=time.time(),
                cpu=self._cpu,
                cores=self._cores,
                rss=sum(process.resident for process in family),
                processes=sum(process.state != "Z" for process in family),
            )
        )

    async def run(self) -> None:
        """Samples until cancelled, at full intervals from the start."""
        due = time.monotonic()
        while True:
            self.sample()
            due = max(due + INTERVAL, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
