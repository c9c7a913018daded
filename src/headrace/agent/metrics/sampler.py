"""What one host measures: what its processes and GPUs use, one `HostSecond` a second, and the values that its programs
print.

CPU time and resident bytes come from the process table, disk bytes from /proc/PID/io, network bytes from /proc/net/dev,
GPUs from NVML (see `gpus`). What is cheap is read every second, and nothing else: a host with 20 processes costs about
a thousandth of a core (`python -m bench.sampling`).

The agent is a child subreaper, so all that ever ran on the host descends from it or ended as its descendant. The sum
of CPU times over the living, each with those of its children that were waited for, is therefore the whole host since
its start, the agent included; the kernel adds up the bytes of /proc/PID/io in the same way. (What a parent never waits
for, because it ignores SIGCHLD, is not counted.)
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence

from headrace.agent.metrics.counters import (
    Activity,
    DiskBytes,
    busy_seconds,
    disk_share,
    has_network,
    memory_file,
    network_bytes,
    used_memory,
)
from headrace.agent.metrics.gpus import Gpus, gpus_of
from headrace.agent.metrics.log_metrics import LogValues
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.paths import base_directory
from headrace.processes.process_table import PAGE, TICKS, ProcessTree
from headrace.runs import EventWriter, MetricWriter, RunPaths, Stream
from headrace.runs.metric_records import HostSecond
from headrace.runs.run_paths import HOST, VALUES

_log = logging.getLogger(__name__)

INTERVAL = 1.0


class HostSampler:
    """Writes the host's metric files.

    Args:
        plan: the launch plan.
        host: name of the host.
        paths: the run's directory.
        activity: gets what the host uses.
        events: where it is recorded what the search for metrics left out.
    """

    def __init__(self, plan: LaunchPlan, host: str, paths: RunPaths, activity: Activity, events: EventWriter) -> None:
        me = plan.host(host)

        def writer(name: str) -> MetricWriter:
            return MetricWriter(paths.metrics(Stream(me.group, host, name)))

        self._writer = writer(HOST)
        self._gpus = Gpus(gpus_of(plan, host, os.environ))
        self._values: LogValues | None = None
        if plan.metric_definitions:
            self._values = LogValues(plan.metric_definitions, writer(VALUES), events, me.group, host)
        self._activity = activity
        self._closed = False
        self._cpus = frozenset(me.cpus or os.sched_getaffinity(0))
        self._limit = me.memory or os.sysconf("SC_PHYS_PAGES") * PAGE
        self._tree = ProcessTree(os.getpid())
        self._cpu = 0.0
        self._disk = DiskBytes()
        self._base = base_directory()
        self._has_network = has_network(plan, host)
        self._memory = memory_file() if me.memory else None

    def take(self, stream: str, lines: Sequence[bytes]) -> None:
        """Takes lines that a program wrote."""
        if self._values is not None:
            self._values.take(stream, lines)

    async def run(self) -> None:
        """Writes once a second until closed or cancelled, at full intervals from the start."""
        due = time.monotonic()
        while not self._closed:
            self.sample()
            due = max(due + INTERVAL, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    def close(self) -> None:
        """Writes for the last time; the programs have ended."""
        self._closed = True
        self.sample()
        self._writer.close()
        self._gpus.close()
        if self._values is not None:
            self._values.close()

    def sample(self) -> None:
        """Writes what the host uses, and the values since the last time."""
        family = self._tree.look()
        # A process that ends between two lines of the scan may be missing for once: the sum never goes back.
        self._cpu = max(self._cpu, sum(process.ticks for process in family) / TICKS)
        disk = self._disk.read(family)
        network = network_bytes() if self._has_network else None
        second = HostSecond(
            t=time.time(),
            cpu=self._cpu,
            cores=len(self._cpus),
            rss=sum(process.resident for process in family),
            processes=sum(process.state != "Z" for process in family),
            memory=self._limit,
            used=self._used(),
            received=network and network[0],
            sent=network and network[1],
            read=disk and disk[0],
            written=disk and disk[1],
            gpus=self._gpus.latest(),
            disk=disk_share(self._base),
            busy=busy_seconds(self._cpus),
        )
        self._writer.write(second)
        self._activity.used(second)
        if self._values is not None:
            self._values.flush()

    def _used(self) -> int | None:
        if self._memory is None:
            return None
        try:
            return used_memory(self._memory)
        except OSError as error:
            _log.warning("the memory of this host's control group cannot be read any more: %s", error)
            self._memory = None
            return None
