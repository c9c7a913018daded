"""What a platform measured of hosts, from outside: the second source, where their own records do not tell it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean

import msgspec

from headrace.catalog.instance_types import shape
from headrace.insight.figures.columns import Columns, Key, Table
from headrace.insight.figures.figure import Figure, Window, missing


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


def platform_uses(columns: Columns, types: Mapping[str, str]) -> tuple[PlatformUse, ...]:
    """Returns what the platform measured, a host each.

    Args:
        columns: the metrics of the run.
        types: instance type of each group, which tells how many CPUs and GPUs a sum is of.
    """
    return tuple(_host(key, rows, types.get(key.stream.group, "")) for key, rows in columns.tables("platform").items())


def _host(key: Key, rows: Table, instance_type: str) -> PlatformUse:
    known = shape(instance_type)
    cpus, gpus = (None, None) if known is None else (known.vcpus, known.gpus)

    def figure(field: str, together: Callable[[list[float]], float], parts: int | None = 1) -> Figure:
        """A figure of the minutes, divided by the number of parts that its values are the sum of, if that is known."""
        name, measured = f"platform_{field}", rows.measured(field)
        if not len(measured):
            return missing(name, "%", f"{key.source} has none of this host")
        unit = "%" if parts else "% of one"  # without the shape of its type, how many were added up is not known
        t, seconds, values = (measured[column].tolist() for column in ("t", "seconds", field))
        return Figure(name, unit, together(values) / (parts or 1), Window(t[0], t[-1] + seconds[-1]))

    return PlatformUse(
        group=key.stream.group,
        host=key.stream.host,
        source=key.source,
        cpu=figure("cpu", fmean, cpus),
        memory=figure("memory", max),
        gpu_use=msgspec.structs.replace(figure("gpu", fmean, gpus), name="platform_gpu_use"),
        gpu_memory=figure("gpu_memory", max, gpus),
        disk=figure("disk", max),
    )
