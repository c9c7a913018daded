"""Which CPUs the processes of a host may use, when all hosts are on one machine.

Pure: the ids of the machine's CPUs come in as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.errors import JobInvalid, Problem
from headrace.job import Job
from headrace.job.model.field_types import format_cpu_set, parse_cpu_set


def apportion(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Shares out `total` CPUs in proportion, at least one each (Sainte-Laguë's method, which is exact when it can be).

    Args:
        total: at least as many as there are weights.
        weights: each above 0.

    Returns:
        One number for each weight; their sum is `total`.

    Raises:
        ValueError: fewer CPUs than weights.
    """
    if total < len(weights):
        raise ValueError(f"{total} CPUs for {len(weights)} groups")
    seats = [1] * len(weights)
    for _ in range(total - len(weights) if weights else 0):
        winner = max(range(len(weights)), key=lambda index: weights[index] / (2 * seats[index] + 1))
        seats[winner] += 1
    return tuple(seats)


def divide(cpus: Sequence[int], hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Divides CPUs evenly among hosts, the first hosts getting one more. With fewer CPUs than hosts all share all."""
    if len(cpus) < len(hosts):
        return {host: tuple(cpus) for host in hosts}
    bounds = [-(-len(cpus) * index // len(hosts)) for index in range(len(hosts) + 1)]
    return {host: tuple(cpus[bounds[index] : bounds[index + 1]]) for index, host in enumerate(hosts)}


def assign_cpus(job: Job, available: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Gives every host of a job its CPUs.

    A group's set is divided evenly among its hosts; when it has fewer CPUs than hosts, they share it. With shares,
    groups get disjoint runs of `available` in proportion to their weights; with fewer CPUs than groups, all share all.

    Args:
        job: with `cpu_sets`, `cpu_shares` or neither.
        available: ids of the CPUs that this machine lets us use.

    Returns:
        For every host the ids that its processes may use; empty means all.

    Raises:
        JobInvalid: a set names a CPU that does not exist.
    """
    machine = tuple(sorted(available))
    if job.local.cpu_sets:
        groups = given_ids(job, "cpu_sets", "CPU", machine)
    elif job.local.cpu_shares and len(machine) >= len(job.groups):
        groups = _from_shares({name: job.local.cpu_shares[name] for name in job.hosts}, machine)
    else:
        groups = {}
    return {
        host: cpus for group, hosts in job.hosts.items() for host, cpus in divide(groups.get(group, ()), hosts).items()
    }


def given_ids(job: Job, option: str, what: str, machine: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Returns the ids that the job gives to its groups.

    Args:
        job: the job.
        option: ``cpu_sets`` or ``gpus``.
        what: ``CPU`` or ``GPU``.
        machine: the ids that this machine has.

    Raises:
        JobInvalid: an id that it does not have.
    """
    texts: dict[str, str] = getattr(job.local, option)
    groups = {group: parse_cpu_set(text) for group, text in texts.items()}
    problems: list[Problem] = []
    for group, ids in groups.items():
        absent = tuple(each for each in ids if each not in machine)
        if absent:
            there = format_cpu_set(machine) or "none"
            message = f"{what} {format_cpu_set(absent)} does not exist; this machine has {there}"
            problems.append(job.problem(("engines", "local", option, group), message, seen=repr(texts[group])))
    if problems:
        raise JobInvalid(tuple(problems))
    return groups


def _from_shares(weights: Mapping[str, float], machine: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    groups: dict[str, tuple[int, ...]] = {}
    start = 0
    for group, count in zip(weights, apportion(len(machine), tuple(weights.values())), strict=True):
        groups[group] = machine[start : start + count]
        start += count
    return groups
