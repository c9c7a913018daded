"""What one host measures: what its processes and GPUs use, one `HostSecond` a second, and the values that its programs
print.

CPU time and resident bytes come from the process table, disk bytes from /proc/PID/io, network bytes from /proc/net/dev,
GPUs from NVML (see `Gpus`). What is cheap is read every second, and nothing else: a host with 20 processes costs about
a thousandth of a core (`python -m bench.sampling`).

The agent is a child subreaper, so all that ever ran on the host descends from it or ended as its descendant. The sum
of CPU times over the living, each with those of its children that were waited for, is therefore the whole host since
its start, the agent included; the kernel adds up the bytes of /proc/PID/io in the same way. (What a parent never waits
for, because it ignores SIGCHLD, is not counted.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

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
from headrace.agent.metrics.log_metrics import LogValues
from headrace.install_hint import install_hint
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.machine import VISIBLE_GPUS, visible_gpus
from headrace.instance.paths import base_directory
from headrace.processes.process_table import PAGE, TICKS, ProcessTree
from headrace.runs import EventWriter, MetricWriter, RunPaths, Stream
from headrace.runs.metric_records import GpuUse, HostSecond
from headrace.runs.run_paths import HOST, VALUES

_log = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds
SILENT = 5.0  # seconds after which a reading is too old to count
_CLOSE_SECONDS = 1.0


def gpus_of(plan: LaunchPlan, host: str, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Returns the GPUs that the programs of a host see, as CUDA_VISIBLE_DEVICES names them; None means all.

    Args:
        plan: the launch plan.
        host: name of the host.
        environ: variables of its agent.
    """
    me = plan.host(host)
    visible = plan.environment_of(me.group).get(VISIBLE_GPUS)
    if visible is None and me.gpus is not None:
        return tuple(map(str, me.gpus))
    visible = environ.get(VISIBLE_GPUS) if visible is None else visible
    return None if visible is None else visible_gpus(visible)


class Gpus:
    """The GPUs of a host. When `names` is empty NVML is not loaded.

    Args:
        names: numbers, or beginnings of UUIDs; None means all of the machine.
        interval: seconds between two readings.
    """

    def __init__(self, names: Sequence[str] | None, interval: float = INTERVAL) -> None:
        self._names = names
        self._interval = interval
        self._told: set[str] = set()
        self._reading: tuple[float, tuple[GpuUse, ...]] = (time.monotonic(), ())
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        if names is None or names:
            self._thread.start()

    def latest(self) -> tuple[GpuUse, ...]:
        """Returns the last reading; nothing when it is too old."""
        at, reading = self._reading
        if not self._thread.is_alive():
            return ()
        if time.monotonic() - at > max(SILENT, 2 * self._interval):
            self._log_once("driver", f"the GPU driver has not answered for {SILENT:g} s; its figures are left out")
            return ()
        return reading

    def close(self) -> None:
        """Stops asking. A driver that hangs is not waited for."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError:
            self._log_once("nvml", f"no GPU figures: nvidia-ml-py is not installed ({install_hint('gpu')})")
            return
        try:
            pynvml.nvmlInit()
            devices = self._devices(pynvml)
        except pynvml.NVMLError as error:
            self._log_once("nvml", f"no GPU figures: NVML: {error}")
            return
        while True:
            uses = [self._ask(pynvml, index, device) for index, device in devices.items()]
            self._reading = (time.monotonic(), tuple(use for use in uses if use is not None))
            if not devices or self._done.wait(self._interval):
                break
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _devices(self, nvml: ModuleType) -> dict[int, object]:
        """Handles of the host's devices, by number."""
        count = nvml.nvmlDeviceGetCount()
        names = list(map(str, range(count))) if self._names is None else self._names
        if not names:
            self._log_once("nvml", "no GPU figures: NVML finds no device")
        handles: dict[int, object] = {}
        for name in names:
            try:
                index = int(name) if name.isdecimal() else _number_of(nvml, name, count)
                handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            except (nvml.NVMLError, LookupError) as error:
                self._log_once(name, f"no figures of GPU {name}: {error}")
        return handles

    def _ask(self, nvml: ModuleType, index: int, device: object) -> GpuUse | None:
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
            use = _if_supported(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu)
            milliwatts = _if_supported(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(device))
            return GpuUse(
                index=index,
                name=nvml.nvmlDeviceGetName(device),
                use=None if use is None else float(use),
                memory=int(memory.used),
                memory_total=int(memory.total),
                power=None if milliwatts is None else milliwatts / 1000,
            )
        except nvml.NVMLError as error:
            self._log_once(str(index), f"no figures of GPU {index} while it fails: {error}")
            return None

    def _log_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _log.warning("%s", text)


def _number_of(nvml: ModuleType, uuid: str, count: int) -> int:
    """Number of the device whose UUID begins so. Raises LookupError."""
    for index in range(count):
        if nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)).startswith(uuid):
            return index
    raise LookupError("NVML finds no device of this UUID")


def _if_supported(nvml: ModuleType, ask: Callable[[], int]) -> int | None:
    """The answer of a device; None when its model or driver has no such figure."""
    try:
        return ask()
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None


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
