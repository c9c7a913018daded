"""Figures of what hosts use: CPU, memory, network, disk, GPUs; of one host, or of all hosts of a group together.

Instance groups and their hosts have these figures in a report.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.insight.figures.figure import Figure, Window, missing, spread_of
from headrace.insight.figures.noise import as_noisy, confidence_of_ratio, share_range
from headrace.runs import GpuUse, HostSecond, Stream

Hosts = Sequence[Sequence[HostSecond]]
"""The records of some hosts, those of each in the order of time; none is empty."""

Stretches = list[list[tuple[HostSecond, float]]]
"""Records of one host with a counter, split where it began anew; each of two or more, over some time."""

_NO_METRICS = "no metrics of its hosts"
_NO_WINDOW = "no training window"
_TOO_FEW = "fewer than two metric seconds of a host in the training window"
_NO_NETWORK = "a host has no network of its own: it is an address of this machine (isolation none or shared_network)"
_NO_DISK = "the disk bytes of a host's processes were not counted"
_NO_GPU = "no GPU was measured; a host that has one says why in its agent's log"


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


def usage_figures(
    hosts: Hosts, window: Window | None, note: str = "", beside: Sequence[float] = ()
) -> dict[str, Figure]:
    """Returns the figures of `UseFigures`, by its fields. Pure.

    Args:
        hosts: their records.
        window: the training window, None if there is none.
        note: what to know about every figure, e.g. which hosts are missing.
        beside: CPU seconds a second that the run's other hosts used of the cores of each; 0 by default.
    """
    return {
        "cpu": _cpu(hosts, window, note),
        "others": _others(hosts, window, note, beside or [0.0] * len(hosts)),
        "max_rss": _largest("max_rss", "bytes", hosts, lambda second: second.rss, _NO_METRICS, note),
        "memory": _largest(
            "memory", "%", hosts, _memory_share, "the memory of its hosts is not known", _beside(note, hosts)
        ),
        "network_received": _rate("network_received", hosts, window, lambda second: second.received, _NO_NETWORK, note),
        "network_sent": _rate("network_sent", hosts, window, lambda second: second.sent, _NO_NETWORK, note),
        "disk_read": _rate("disk_read", hosts, window, lambda second: second.read, _NO_DISK, note),
        "disk_written": _rate("disk_written", hosts, window, lambda second: second.written, _NO_DISK, note),
        "gpu_use": _gpu_use(hosts, window, note),
        "gpu_memory": _largest("gpu_memory", "%", hosts, _gpu_memory_share, _NO_GPU, note),
        "gpu_power": _gpu_power(hosts, window, note),
    }


def _within(found: Sequence[HostSecond], window: Window) -> list[HostSecond]:
    return [second for second in found if window.start <= second.t <= window.end]


def _unbroken(seconds: Sequence[HostSecond], count: Callable[[HostSecond], float | None]) -> Stretches:
    """Splits the records of a host where a counter began anew, as it does with the agent of another attempt.

    Returns:
        Stretches of records with their counts, each of two or more, over some time.
    """
    stretches: Stretches = []
    for second in seconds:
        if (value := count(second)) is not None:
            if not stretches or value < stretches[-1][-1][1]:
                stretches.append([])
            stretches[-1].append((second, value))
    return [stretch for stretch in stretches if stretch[-1][0].t > stretch[0][0].t]


def _growth(stretches: Stretches) -> float:
    return sum(last - first for (_, first), *_, (_, last) in stretches)


def _seconds(stretches: Stretches) -> float:
    return sum(last.t - first.t for (first, _), *_, (last, _) in stretches)


def _span(seconds: Sequence[HostSecond]) -> Window:
    return Window(min(second.t for second in seconds), max(second.t for second in seconds))


def _cpu(hosts: Hosts, window: Window | None, note: str) -> Figure:
    if not hosts:
        return missing("cpu", "%", _NO_METRICS)
    if window is None:
        return missing("cpu", "%", _NO_WINDOW)
    used = capacity = 0.0
    inside: list[HostSecond] = []
    parts: list[list[tuple[float, float]]] = []  # of each host: CPU seconds used and available, second by second
    for found in hosts:
        within = _within(found, window)
        stretches = _unbroken(within, lambda second: second.cpu)
        if not stretches:
            return missing("cpu", "%", _TOO_FEW)
        used += _growth(stretches)
        capacity += sum((last.t - first.t) * last.cores for (first, _), *_, (last, _) in stretches)
        inside += within
        parts.append(
            [
                (after.cpu - before.cpu, (after.t - before.t) * after.cores)
                for stretch in stretches
                for (before, _), (after, _) in itertools.pairwise(stretch)
                if after.t > before.t
            ]
        )
    spread = spread_of([100 * busy / cores for seconds in parts for busy, cores in seconds])
    value = 100 * used / capacity
    busy, cores = ([[pair[n] for pair in seconds] for seconds in parts] for n in (0, 1))
    return Figure("cpu", "%", value, _span(inside), spread, note, share_range(busy, cores, value))


def cpu_rate(found: Sequence[HostSecond], window: Window | None) -> float:
    """Returns the CPU seconds a second that a host's programs used in a window; 0 where that was not measured."""
    within = found if window is None else _within(found, window)
    stretches = _unbroken(within, lambda second: second.cpu)
    return _growth(stretches) / _seconds(stretches) if stretches else 0.0


def _others(hosts: Hosts, window: Window | None, note: str, beside: Sequence[float]) -> Figure:
    if not hosts or window is None:
        return missing("others", "%", _NO_WINDOW if hosts else _NO_METRICS)
    taken = cores = 0.0
    inside: list[HostSecond] = []
    for found, known in zip(hosts, beside, strict=True):
        within = [second for second in _within(found, window) if second.busy is not None]
        stretches = _unbroken(within, lambda second: second.cpu)
        if not stretches:
            return missing(
                "others", "%", "the host's records do not tell how busy its cores were" if not within else _TOO_FEW
            )
        ends = [(first, last) for (first, _), *_, (last, _) in stretches]
        busy = sum((last.busy or 0.0) - (first.busy or 0.0) - last.cpu + first.cpu for first, last in ends)
        taken += max(0.0, busy / _seconds(stretches) - known)
        cores += ends[-1][1].cores
        inside += within
    return Figure("others", "%", min(100.0, 100 * taken / cores), _span(inside), note=note)


def _rate(
    name: str, hosts: Hosts, window: Window | None, count: Callable[[HostSecond], int | None], absent: str, note: str
) -> Figure:
    """Growth of a counter a second, added over the hosts."""
    if not hosts:
        return missing(name, "bytes/s", _NO_METRICS)
    if window is None:
        return missing(name, "bytes/s", _NO_WINDOW)
    total = 0.0
    inside: list[HostSecond] = []
    rows: list[list[float]] = []
    for found in hosts:
        counted = [second for second in _within(found, window) if count(second) is not None]
        if not counted and all(count(second) is None for second in found):
            return missing(name, "bytes/s", absent)
        stretches = _unbroken(counted, count)
        if not stretches:
            return missing(name, "bytes/s", _TOO_FEW)
        total += _growth(stretches) / _seconds(stretches)
        inside += counted
        pairs = itertools.chain.from_iterable(map(itertools.pairwise, stretches))
        rows.append([(new - old) / (after.t - before.t) for (before, old), (after, new) in pairs if after.t > before.t])
    # Hosts are sampled once a second from about the same start: their n-th seconds belong together.
    per_second = [sum(row) for row in zip(*rows, strict=False)]
    return Figure(name, "bytes/s", total, _span(inside), spread_of(per_second), note)


def _largest(
    name: str, unit: str, hosts: Hosts, measure: Callable[[HostSecond], float | None], absent: str, note: str
) -> Figure:
    """Greatest value of one host, whole run."""
    seconds = [second for found in hosts for second in found]
    values = [value for second in seconds if (value := measure(second)) is not None]
    if not seconds:
        return missing(name, unit, _NO_METRICS)
    if not values:
        return missing(name, unit, absent)
    return Figure(name, unit, max(values), _span(seconds), spread_of(values), note)


def _memory_share(second: HostSecond) -> float | None:
    used = second.rss if second.used is None else second.used
    return 100 * used / second.memory if second.memory else None


def _beside(note: str, hosts: Hosts) -> str:
    counted_twice = any(second.used is None for found in hosts for second in found)
    more = "a host without a control group: pages that processes share are counted for each" if counted_twice else ""
    return "; ".join(part for part in (note, more) if part)


def _gpu_memory_share(second: HostSecond) -> float | None:
    return max((100 * gpu.memory / gpu.memory_total for gpu in second.gpus if gpu.memory_total), default=None)


def _gpu_use(hosts: Hosts, window: Window | None, note: str) -> Figure:
    return _of_gpus("gpu_use", "%", hosts, window, lambda gpu: gpu.use, lambda values: sum(values) / len(values), note)


def _gpu_power(hosts: Hosts, window: Window | None, note: str) -> Figure:
    return _of_gpus("gpu_power", "W", hosts, window, lambda gpu: gpu.power, sum, note)


def _of_gpus(
    name: str,
    unit: str,
    hosts: Hosts,
    window: Window | None,
    read: Callable[[GpuUse], float | None],
    together: Callable[[list[float]], float],
    note: str,
) -> Figure:
    """Mean over the window of what all GPUs of the hosts show together.

    Every GPU has a mean of its own first: one that failed for some seconds does not count as idle in them.
    """
    if not any(second.gpus for found in hosts for second in found):
        return missing(name, unit, _NO_GPU)
    if window is None:
        return missing(name, unit, _NO_WINDOW)
    means: list[float] = []
    rows: list[list[float]] = []
    inside: list[HostSecond] = []
    for found in hosts:
        within = [second for second in _within(found, window) if second.gpus]
        inside += within
        for index in sorted({gpu.index for second in within for gpu in second.gpus}):
            shown = [read(gpu) for second in within for gpu in second.gpus if gpu.index == index]
            values = [value for value in shown if value is not None]
            if values:
                means.append(sum(values) / len(values))
                rows.append(values)
    if not means:
        why = "its GPUs do not tell it" if inside else "no GPU was measured in the training window"
        return missing(name, unit, why)
    seconds = itertools.zip_longest(*rows)  # a GPU whose host ended sooner is absent from the last ones, not idle
    per_second = [together([value for value in row if value is not None]) for row in seconds]
    value, mean = together(means), sum(per_second) / len(per_second)
    known = as_noisy(value, mean, confidence_of_ratio(per_second, [1.0] * len(per_second)))
    return Figure(name, unit, value, _span(inside), spread_of(per_second), note, known)


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
    seconds: Mapping[Stream, Sequence[HostSecond]],
    window: Window | None,
    beside: Mapping[str, float] | None = None,
) -> GroupReport:
    """Returns the figures of one group. Pure.

    Args:
        name: group name.
        hosts: its hosts.
        seconds: metrics of its hosts.
        window: the training window, None if there is none.
        beside: CPU seconds a second that the run's other hosts used of the cores of a host, by its name.
    """
    beside = beside or {}
    records = {stream.host: found for stream, found in sorted(seconds.items()) if found}
    unmeasured = [host for host in hosts if host not in records]
    note = f"without {', '.join(unmeasured)}, which wrote no metrics" if unmeasured else ""
    measured = list(records.values())
    return GroupReport(
        name=name,
        hosts=tuple(hosts),
        cores=sum(found[-1].cores for found in measured) if measured and not unmeasured else None,
        by_host=tuple(_host_report(name, host, records.get(host, ()), window, beside) for host in hosts),
        **usage_figures(measured, window, note, [beside.get(host, 0.0) for host in records]),
    )


def _host_report(
    group: str, host: str, found: Sequence[HostSecond], window: Window | None, beside: Mapping[str, float]
) -> HostReport:
    return HostReport(
        group=group,
        host=host,
        cores=found[-1].cores if found else None,
        gpus=tuple(sorted({f"{gpu.index}: {gpu.name}" for second in found for gpu in second.gpus})),
        **usage_figures([found] if found else [], window, beside=[beside.get(host, 0.0)] if found else []),
    )
