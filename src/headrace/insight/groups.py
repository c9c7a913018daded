"""Figures of instance groups: CPU use of their own cores, and memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from headrace.insight.figures import Figure, Window, missing, spread_of
from headrace.insight.noise import confidence_of_ratio
from headrace.runs import HostSecond, Stream


class GroupReport(msgspec.Struct, frozen=True):
    """One instance group.

    Attributes:
        name: group name.
        hosts: its hosts.
        cores: CPUs that its hosts may use, together; None if unknown.
        cpu: share of these cores that was busy in the training window.
        max_rss: largest memory of one of its hosts.
    """

    name: str
    hosts: tuple[str, ...]
    cores: int | None
    cpu: Figure
    max_rss: Figure


def group_report(
    name: str, hosts: Sequence[str], seconds: Mapping[Stream, Sequence[HostSecond]], window: Window | None
) -> GroupReport:
    """Returns the figures of one group. Pure.

    Args:
        name: group name.
        hosts: its hosts.
        seconds: metrics of its hosts.
        window: the training window, None if there is none.
    """
    records = [list(found) for stream, found in sorted(seconds.items()) if found]
    heard = {stream.host for stream, found in seconds.items() if found}
    silent = [host for host in hosts if host not in heard]
    return GroupReport(
        name=name,
        hosts=tuple(hosts),
        cores=sum(found[-1].cores for found in records) if records and not silent else None,
        cpu=_cpu(records, silent, window),
        max_rss=_max_rss(records, silent),
    )


def _cpu(records: list[list[HostSecond]], silent: list[str], window: Window | None) -> Figure:
    if not records:
        return missing("cpu", "%", "no metrics of its hosts")
    if window is None:
        return missing("cpu", "%", "no training window")
    used = capacity = 0.0
    inside: list[HostSecond] = []
    hosts: list[list[tuple[float, float]]] = []  # of each host: CPU seconds used and available, second by second
    for found in records:
        within = [second for second in found if window.start <= second.t <= window.end]
        if len(within) < 2 or within[-1].t <= within[0].t:
            return missing("cpu", "%", "fewer than two metric seconds of a host in the training window")
        used += within[-1].cpu - within[0].cpu
        capacity += (within[-1].t - within[0].t) * within[-1].cores
        inside += within
        hosts.append(
            [
                (after.cpu - before.cpu, (after.t - before.t) * after.cores)
                for before, after in itertools.pairwise(within)
                if after.t > before.t
            ]
        )
    measured = Window(min(second.t for second in inside), max(second.t for second in inside))
    spread = spread_of([100 * busy / cores for parts in hosts for busy, cores in parts])
    rows = list(zip(*hosts, strict=False))  # the n-th seconds of all hosts belong together
    known = confidence_of_ratio(
        [sum(busy for busy, _ in row) for row in rows], [sum(cores for _, cores in row) for row in rows], scale=100
    )
    return Figure("cpu", "%", 100 * used / capacity, measured, spread, _without(silent), known)


def _max_rss(records: list[list[HostSecond]], silent: list[str]) -> Figure:
    if not records:
        return missing("max_rss", "bytes", "no metrics of its hosts")
    seconds = [second for found in records for second in found]
    window = Window(min(second.t for second in seconds), max(second.t for second in seconds))
    return Figure("max_rss", "bytes", max(second.rss for second in seconds), window, note=_without(silent))


def _without(silent: list[str]) -> str:
    return f"without {', '.join(silent)}, which wrote no metrics" if silent else ""
