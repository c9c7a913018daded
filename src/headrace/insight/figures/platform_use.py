"""What a platform measured of hosts, from outside: the second source, where their own records do not tell it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.catalog.instance_types import shape
from headrace.insight.figures.figure import Figure, Window, missing
from headrace.runs import Stream
from headrace.runs.metric_records import PlatformMinute


class PlatformUse(msgspec.Struct, frozen=True):
    """One host, as the platform measured it.

    Attributes:
        group, host: which one.
        source: who measured it, e.g. ``CloudWatch``.
        cpu: share of its CPUs that was busy, mean of the minutes, %.
        memory: largest share of its memory that was used, %.
        gpu_use: share of its GPUs, likewise as `cpu`.
        gpu_memory: largest share of the memory of its GPUs.
        disk: largest share of its disk.
    """

    group: str
    host: str
    source: str
    cpu: Figure
    memory: Figure
    gpu_use: Figure
    gpu_memory: Figure
    disk: Figure


def platform_uses(
    minutes: Mapping[Stream, Sequence[PlatformMinute]], types: Mapping[str, str]
) -> tuple[PlatformUse, ...]:
    """Returns what the platform measured, a host each.

    Args:
        minutes: its records.
        types: instance type of each group, which tells how many CPUs and GPUs a sum is of.
    """
    return tuple(_host(stream, minutes[stream], types.get(stream.group, "")) for stream in sorted(minutes))


def _host(stream: Stream, found: Sequence[PlatformMinute], instance_type: str) -> PlatformUse:
    known = shape(instance_type)
    cpus, gpus = (None, None) if known is None else (known.vcpus, known.gpus)
    return PlatformUse(
        group=stream.group,
        host=stream.host,
        source=found[0].source,
        cpu=_figure("platform_cpu", found, lambda minute: minute.cpu, _mean, cpus),
        memory=_figure("platform_memory", found, lambda minute: minute.memory, max),
        gpu_use=_figure("platform_gpu_use", found, lambda minute: minute.gpu, _mean, gpus),
        gpu_memory=_figure("platform_gpu_memory", found, lambda minute: minute.gpu_memory, max, gpus),
        disk=_figure("platform_disk", found, lambda minute: minute.disk, max),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _figure(
    name: str,
    found: Sequence[PlatformMinute],
    measure: Callable[[PlatformMinute], float | None],
    together: Callable[[list[float]], float],
    parts: int | None = 1,
) -> Figure:
    """A figure of the minutes, divided by the number of parts that its values are the sum of, if that is known."""
    measured = [(minute, value) for minute in found if (value := measure(minute)) is not None]
    if not measured:
        return missing(name, "%", f"{found[0].source} has none of this host")
    unit = "%" if parts else "% of one"  # without the shape of its type, how many were added up is not known
    window = Window(measured[0][0].t, measured[-1][0].t + measured[-1][0].seconds)
    return Figure(name, unit, together([value for _, value in measured]) / (parts or 1), window)
