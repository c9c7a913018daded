"""What the GPUs of a host do, read from NVML (the library of nvidia-smi; here through nvidia-ml-py, `headrace[gpu]`).

A thread asks once a second, because a driver may take seconds to answer and the agent must go on meanwhile. A library
or driver that is missing, a device that fails and a driver that falls silent are each logged once;
the figures are then absent, and come back when the device does.

NVML numbers devices by PCI bus, as nvidia-smi does. CUDA does so with CUDA_DEVICE_ORDER=PCI_BUS_ID, and on a machine
whose GPUs are all of one model.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from headrace.install_hint import install_hint
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.machine import VISIBLE_GPUS, visible_gpus
from headrace.runs.metric_records import GpuUse

_log = logging.getLogger(__name__)

INTERVAL = 1.0
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
