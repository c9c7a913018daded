"""Instance groups and their hosts, with the figures of what they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.insight.figures.figure import Window
from headrace.insight.figures.host_usage import UseFigures, usage_figures
from headrace.runs import HostSecond, Stream


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
