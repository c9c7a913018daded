"""Figures of what hosts use: CPU, memory, network, disk, GPUs; of one host, or of all hosts of a group together.

Instance groups and their hosts have these figures in a report. What a platform measured of hosts from outside is the
second source, where their own records do not tell it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import msgspec
import numpy as np

from headrace.catalog.instance_types import shape
from headrace.insight.figures.columns import (
    CORES_BUSY,
    CPU,
    DISK_READ,
    DISK_WRITTEN,
    GPU_MEMORY,
    GPU_POWER,
    GPU_USE,
    MAX_RSS,
    MEMORY,
    NETWORK_RECEIVED,
    NETWORK_SENT,
    Columns,
    Key,
    Quantity,
    Table,
    at_once,
    span,
    total,
)
from headrace.insight.figures.figure import Figure, Window, as_noisy, confidence_of_ratio, figure_of, missing, spread_of

_NO_METRICS = "no metrics of its hosts"
_NO_WINDOW = "no training window"
_TOO_FEW = "fewer than two metric seconds of a host in the training window"
_NO_NETWORK = "a host has no network of its own: it is an address of this machine (isolation none or shared_network)"
_NO_DISK = "the disk bytes of a host's processes were not counted"
_NO_GPU = "no GPU was measured; a host that has one says why in its agent's log"
_NO_MEMORY = "the memory of its hosts is not known"
_SHARED = "a host without a control group: pages that processes share are counted for each"


class Host(msgspec.Struct, frozen=True):
    """The rows of one host, at least one.

    Attributes:
        rows: its own.
        gpus: those of its GPUs.
        beside: CPU seconds a second that the run's other hosts used of its cores.
    """

    rows: Table
    gpus: dict[Key, Table] = {}
    beside: float = 0.0


class UseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What some hosts use. Rates and CPU are of the training window, the greatest memory is of the whole run.

    Attributes:
        cpu: share of their own cores that was busy, %.
        others: share of their cores that other programs than the run's had, %.
        max_rss: largest sum of resident bytes of one host.
        memory: largest share of its memory that one host used, %.
        network_received, network_sent: bytes/s through their network devices, all hosts together.
        disk_read, disk_written: bytes/s that their processes moved from and to disks, all hosts together.
        gpu_use: share of the time in which a kernel ran, mean over their GPUs, %.
        gpu_memory: largest share of its memory that one GPU used, %.
        gpu_power: of all their GPUs together, W.
    """

    cpu: Figure
    others: Figure
    max_rss: Figure
    memory: Figure
    network_received: Figure
    network_sent: Figure
    disk_read: Figure
    disk_written: Figure
    gpu_use: Figure
    gpu_memory: Figure
    gpu_power: Figure


def usage_figures(hosts: Sequence[Host], window: Window | None, note: str = "") -> dict[str, Figure]:
    """Returns the figures of `UseFigures`, by its fields. Pure.

    Args:
        hosts: their rows.
        window: the training window, None if there is none.
        note: what to know about every figure, e.g. which hosts are missing.
    """
    rows = [host.rows for host in hosts]
    gpus = [gpu for host in hosts for gpu in host.gpus.values()]
    shared = _SHARED if any(np.isnan(table["used"]).any() for table in rows) else ""
    lasting, nothing = span(rows), "" if hosts else _NO_METRICS
    fullest = [at_once(map(GPU_MEMORY.each, host.gpus.values()), np.maximum) for host in hosts if host.gpus]
    return {
        "cpu": _cpu(rows, window, note),
        "others": _others(hosts, window, note),
        "max_rss": MAX_RSS.greatest(map(MAX_RSS.each, rows), lasting, _NO_METRICS, note),
        "memory": MEMORY.greatest(
            map(MEMORY.each, rows), lasting, nothing or _NO_MEMORY, "; ".join(filter(None, (note, shared)))
        ),
        "network_received": _rate(NETWORK_RECEIVED, rows, window, _NO_NETWORK, note),
        "network_sent": _rate(NETWORK_SENT, rows, window, _NO_NETWORK, note),
        "disk_read": _rate(DISK_READ, rows, window, _NO_DISK, note),
        "disk_written": _rate(DISK_WRITTEN, rows, window, _NO_DISK, note),
        "gpu_use": _of_gpus(GPU_USE, gpus, window, lambda values: math.fsum(values) / len(values), note),
        "gpu_memory": GPU_MEMORY.greatest(fullest, lasting, nothing or _NO_GPU, note),
        "gpu_power": _of_gpus(GPU_POWER, gpus, window, math.fsum, note),
    }


def _cpu(hosts: Sequence[Table], window: Window | None, note: str) -> Figure:
    if not hosts or window is None:
        return missing("cpu", _NO_WINDOW if hosts else _NO_METRICS)
    inside = [host.within(window) for host in hosts]
    measured = all(len(CPU.rows(host).t) for host in inside)
    return CPU.figure(inside if measured else [], span(inside), _TOO_FEW, note)


def cpu_rate(host: Table, window: Window | None) -> float:
    """Returns the CPU seconds a second that a host's programs used in a window; 0 where that was not measured."""
    return CORES_BUSY.of([host if window is None else host.within(window)]) or 0.0


def _others(hosts: Sequence[Host], window: Window | None, note: str) -> Figure:
    if not hosts or window is None:
        return missing("others", _NO_WINDOW if hosts else _NO_METRICS)
    taken = cores = 0.0
    inside = [host.rows.within(window).measured("busy") for host in hosts]
    for host, rows in zip(hosts, inside, strict=True):
        grown = rows.grown("cpu", "busy")
        if not len(grown):
            why = _TOO_FEW if len(rows) else "the host's records do not tell how busy its cores were"
            return missing("others", why)
        busy = total([grown["busy"], -grown["cpu"]]) / total([grown["seconds"]])
        taken += max(0.0, busy - host.beside)
        cores += grown["cores"].tolist()[-1]
    return figure_of("others", min(100.0, 100 * taken / cores), span(inside), note=note)


def _rate(quantity: Quantity, hosts: Sequence[Table], window: Window | None, absent: str, note: str) -> Figure:
    """Growth of a counter a second, added over the hosts."""
    if not hosts or window is None:
        return missing(quantity.name, _NO_WINDOW if hosts else _NO_METRICS)
    inside = [host.within(window).measured(quantity.over) for host in hosts]
    rates = [quantity.of([rows]) for rows in inside]
    for host, rate in zip(hosts, rates, strict=True):
        if rate is None:
            return missing(quantity.name, _TOO_FEW if len(host.measured(quantity.over)) else absent)
    # Hosts are sampled once a second from about the same start: their n-th seconds belong together.
    seconds = [math.fsum(row) for row in zip(*(quantity.each(rows).over.tolist() for rows in inside), strict=False)]
    value = math.fsum(rate for rate in rates if rate is not None)
    return figure_of(quantity.name, value, span(inside), spread_of(seconds), note)


def _of_gpus(
    quantity: Quantity,
    gpus: Sequence[Table],
    window: Window | None,
    together: Callable[[list[float]], float],
    note: str,
) -> Figure:
    """Mean over the window of what all GPUs of the hosts show together.

    Every GPU has a mean of its own first: one that failed for some seconds does not count as idle in them.
    """
    if not gpus or window is None:
        return missing(quantity.name, _NO_WINDOW if gpus else _NO_GPU)
    inside = [gpu.within(window) for gpu in gpus]
    rows = [values for gpu in inside if (values := quantity.each(gpu).over.tolist())]
    if not rows:
        why = "its GPUs do not tell it" if any(map(len, inside)) else "no GPU was measured in the training window"
        return missing(quantity.name, why)
    value = together([math.fsum(values) / len(values) for values in rows])
    seconds = itertools.zip_longest(*rows)  # a GPU whose host ended sooner is absent from the last ones, not idle
    per_second = [together([value for value in row if value is not None]) for row in seconds]
    known = confidence_of_ratio(per_second, [1.0] * len(per_second))
    mean = math.fsum(per_second) / len(per_second)
    return Figure(
        quantity.name, quantity.unit, value, span(inside), spread_of(per_second), note, as_noisy(value, mean, known)
    )


class HostReport(UseFigures, frozen=True, kw_only=True):
    """One host.

    Attributes:
        group, host: which.
        cores: CPUs that it may use; None if unknown.
        gpus: its GPUs that were measured, e.g. ``0: NVIDIA H200``.
    """

    group: str
    host: str
    cores: int | None
    gpus: tuple[str, ...]


class GroupReport(UseFigures, frozen=True, kw_only=True):
    """One instance group: the figures of its hosts together.

    Attributes:
        name: group name.
        hosts: its hosts.
        cores: CPUs that its hosts may use, together; None if unknown.
        by_host: every host alone.
    """

    name: str
    hosts: tuple[str, ...]
    cores: int | None
    by_host: tuple[HostReport, ...]


def group_report(
    name: str,
    hosts: Sequence[str],
    columns: Columns,
    window: Window | None,
    beside: Mapping[str, float] | None = None,
) -> GroupReport:
    """Returns the figures of one group. Pure.

    Args:
        name: group name.
        hosts: its hosts.
        columns: the metrics of the run.
        window: the training window, None if there is none.
        beside: CPU seconds a second that the run's other hosts used of the cores of a host, by its name.
    """
    gpus = columns.tables("gpu")
    measured = {
        stream.host: Host(
            rows, {key: gpu for key, gpu in gpus.items() if key.stream == stream}, (beside or {}).get(stream.host, 0.0)
        )
        for stream, rows in columns.streams("host").items()
        if stream.group == name
    }
    unmeasured = [host for host in hosts if host not in measured]
    note = f"without {', '.join(unmeasured)}, which wrote no metrics" if unmeasured else ""
    return GroupReport(
        name=name,
        hosts=tuple(hosts),
        cores=sum(map(_cores, measured.values())) if measured and not unmeasured else None,
        by_host=tuple(_host_report(name, host, measured.get(host), window) for host in hosts),
        **usage_figures(list(measured.values()), window, note),
    )


def _cores(host: Host) -> int:
    return int(host.rows["cores"][-1])


def _host_report(group: str, name: str, host: Host | None, window: Window | None) -> HostReport:
    return HostReport(
        group=group,
        host=name,
        cores=None if host is None else _cores(host),
        gpus=() if host is None else tuple(sorted(key.source for key in host.gpus)),
        **usage_figures([] if host is None else [host], window),
    )


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

    def figure(field: str, together: Callable[[list[float]], float], parts: int | None = 1, name: str = "") -> Figure:
        """A figure of the minutes, divided by the number of parts that its values are the sum of, if that is known."""
        name, measured = f"platform_{name or field}", rows.measured(field)
        if not len(measured):
            return missing(name, f"{key.source} has none of this host")
        unit = "%" if parts else "% of one"  # without the shape of its type, how many were added up is not known
        t, seconds, values = (measured[column].tolist() for column in ("t", "seconds", field))
        return Figure(name, unit, together(values) / (parts or 1), Window(t[0], t[-1] + seconds[-1]))

    return PlatformUse(
        group=key.stream.group,
        host=key.stream.host,
        source=key.source,
        cpu=figure("cpu", fmean, cpus),
        memory=figure("memory", max),
        gpu_use=figure("gpu", fmean, gpus, "gpu_use"),
        gpu_memory=figure("gpu_memory", max, gpus),
        disk=figure("disk", max),
    )
