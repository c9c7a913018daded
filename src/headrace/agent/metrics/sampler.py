"""What one host measures: what its processes and GPUs use, and the values that its programs print."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from headrace.agent.metrics.activity import Activity
from headrace.agent.metrics.gpus import Gpus, gpus_of
from headrace.agent.metrics.log_metrics import LogValues
from headrace.agent.metrics.usage import UsageSampler
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import EventWriter, MetricWriter, RunPaths, Stream
from headrace.runs.run_paths import HOST, VALUES

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
        def writer(name: str) -> MetricWriter:
            return MetricWriter(paths.metrics(Stream(plan.host(host).group, host, name)))

        self._gpus = Gpus(gpus_of(plan, host, os.environ))
        self._usage = UsageSampler(writer(HOST), plan, host, self._gpus)
        definitions = plan.metric_definitions
        self._values: LogValues | None = None
        if definitions:
            self._values = LogValues(definitions, writer(VALUES), events, plan.host(host).group, host)
        self._activity = activity
        self._closed = False

    def take(self, stream: str, lines: Sequence[bytes]) -> None:
        """Takes lines that a program wrote."""
        if self._values is not None:
            self._values.take(stream, lines)

    async def run(self) -> None:
        """Writes once a second until closed or cancelled, at full intervals from the start."""
        due = time.monotonic()
        while not self._closed:
            self._write()
            due = max(due + INTERVAL, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    def close(self) -> None:
        """Writes for the last time; the programs have ended."""
        self._closed = True
        self._write()
        self._usage.close()
        self._gpus.close()
        if self._values is not None:
            self._values.close()

    def _write(self) -> None:
        self._activity.used(self._usage.sample())
        if self._values is not None:
            self._values.flush()
