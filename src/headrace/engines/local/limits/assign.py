"""What every instance may use of this machine: the shape of its type, scaled down when the shapes are more than it has.

CPUs. An instance may use as many CPUs as its type has vCPUs, at most all of the machine, and that is its `num_cpus`.
When the types have no more vCPUs together than the machine has CPUs, every instance has CPUs of its own. Otherwise
the instances overlap, and a weight says who gets how much *while they compete*: in proportion to the vCPUs, but never
less than half of an equal part (`parts`). A weight, and no quota: what one group leaves idle the others can use, and
96 vCPUs beside 4 do not starve the 4 on a laptop. For hard limits there are `cpu_sets` and `cpu_shares`, which take
precedence over all of this.

Memory. An instance gets the memory of its type when all fit; otherwise parts of what is there, divided in the same
way, never less than `LEAST_MEMORY` (an interpreter with torch or TensorFlow must fit) and never more than the type.

GPUs. The machine's GPUs go to the groups whose type has some, in proportion, and within a group to its hosts in turn.
Programs of a group whose type has none see none.

Pure: what the machine has comes in as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.catalog.instance_types import InstanceShape, shape
from headrace.engines.local.limits.cpu_shares import apportion, assign_cpus, divide, given_ids

if TYPE_CHECKING:
    from headrace.job import Job

MIB = 1 << 20
GIB = 1 << 30
LEAST_MEMORY = GIB
SYSTEM_PART = 0.1  # of the machine's memory, left to everything else on it


@dataclass(frozen=True)
class Machine:
    """What this machine has for the instances.

    Attributes:
        cpus: ids of the CPUs that this process may use.
        memory: bytes that can be limited; 0 when no limit can be set here.
        gpus: ids of the GPUs.
        weights: whether CPU time can be weighted here.
    """

    cpus: tuple[int, ...]
    memory: int = 0
    gpus: tuple[int, ...] = ()
    weights: bool = False


@dataclass(frozen=True)
class HostLimits:
    """What the processes of one instance may use.

    Attributes:
        cpus: CPU ids; empty means all.
        cpu_weight: its part of the CPU time while all instances compete, 1 is all of it; 0 means that nothing is
            set, because it has its CPUs alone, the user has divided them, or this machine has no way to do it.
        memory: bytes; 0 means no limit.
        gpus: GPU ids; None means whatever is there.
    """

    cpus: tuple[int, ...] = ()
    cpu_weight: float = 0.0
    memory: int = 0
    gpus: tuple[int, ...] | None = None


def assign_limits(job: Job, machine: Machine) -> dict[str, HostLimits]:
    """Returns the limits of every host of a job.

    Raises:
        JobInvalid: a CPU or GPU that this machine does not have.
    """
    hosts = [host for names in job.hosts.values() for host in names]
    types = {group.instance_group_name: shape(group.instance_type) for group in job.groups}
    shapes = [types[group] for group, names in job.hosts.items() for _ in names]
    cpus, weights = assign_cpus(job, machine.cpus), dict.fromkeys(hosts, 0.0)
    memory = dict.fromkeys(hosts, 0)
    automatic = job.local.limits == "auto"
    if automatic:
        memory = dict(zip(hosts, share_memory(shapes, machine.memory), strict=True))
        if not (job.local.cpu_sets or job.local.cpu_shares):
            shared = zip(hosts, *share_cpus(shapes, machine.cpus), strict=True)
            for host, ids, weight in shared:
                cpus[host], weights[host] = ids, weight if machine.weights else 0.0
    gpus = _gpus(job, types, machine.gpus) if automatic or job.local.gpus else {}
    return {host: HostLimits(cpus[host], weights[host], memory[host], gpus.get(host)) for host in hosts}


def share_cpus(
    shapes: Sequence[InstanceShape | None], machine: tuple[int, ...]
) -> tuple[list[tuple[int, ...]], list[float]]:
    """Divides CPUs among instances.

    Args:
        shapes: of every instance; None counts as a type as large as the machine.
        machine: ids of the CPUs.

    Returns:
        For every instance its CPU ids (empty means all), and its weight; the weights add up to 1, and all are 0
        when no instance has to share.
    """
    wanted = [shape.vcpus if shape else len(machine) for shape in shapes]
    sets: list[tuple[int, ...]] = []
    start = 0
    for vcpus in wanted:
        if vcpus >= len(machine):
            sets.append(())
        else:  # side by side, and round again: neighbours overlap as little as possible
            sets.append(tuple(sorted(machine[(start + step) % len(machine)] for step in range(vcpus))))
            start += vcpus
    if sum(wanted) <= len(machine):
        return sets, [0.0] * len(wanted)
    return sets, list(parts(wanted))


def share_memory(shapes: Sequence[InstanceShape | None], memory: int) -> list[int]:
    """Divides memory among instances.

    Args:
        shapes: of every instance; None means that it gets no limit.
        memory: bytes of the machine; 0 when no limit can be set.

    Returns:
        Bytes for every instance, whole MiB; 0 is no limit. They add up to at most ``memory * (1 - SYSTEM_PART)``,
        except that no instance gets less than `LEAST_MEMORY`.
    """
    limits = [0] * len(shapes)
    if not memory:
        return limits
    types = {place: int(shape.memory_gib * GIB) for place, shape in enumerate(shapes) if shape}
    rest = int(memory * (1 - SYSTEM_PART))
    while types:
        if sum(types.values()) <= rest:
            full = dict(types)
        else:
            share = dict(zip(types, parts(list(types.values())), strict=True))
            full = {place: size for place, size in types.items() if size <= share[place] * rest}
            if not full:
                for place, part in share.items():
                    limits[place] = min(types[place], max(LEAST_MEMORY, int(part * rest) // MIB * MIB))
                break
        for place, size in full.items():  # what these do not take is shared among the others
            limits[place] = types.pop(place)
            rest -= size
    return limits


def parts(sizes: Sequence[float]) -> tuple[float, ...]:
    """Returns fractions that add up to 1: in proportion to the sizes, but none below half of an equal part.

    >>> parts([36, 16, 16])
    (0.5294117647058824, 0.23529411764705882, 0.23529411764705882)
    >>> parts([96, 4])
    (0.75, 0.25)
    """
    least = 0.5 / len(sizes)
    small: set[int] = set()
    while True:  # raising the small ones lowers the others, of which one may become too small
        rest = 1.0 - least * len(small)
        total = sum(size for place, size in enumerate(sizes) if place not in small)
        found = {place for place, size in enumerate(sizes) if place not in small and size / total * rest < least}
        if not found:
            break
        small |= found
    return tuple(least if place in small else size / total * rest for place, size in enumerate(sizes))


def _gpus(job: Job, types: Mapping[str, InstanceShape | None], machine: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """GPU ids of every host: those that the user gave to its group, else a part of the machine's."""
    if job.local.gpus:
        groups = dict.fromkeys(job.hosts, ()) | given_ids(job, "gpus", "GPU", machine)
    else:
        groups = _shared_gpus({name: known.gpus if known else 0 for name, known in types.items()}, job, machine)
    return {host: ids for group, names in job.hosts.items() for host, ids in _deal(groups[group], names).items()}


def _shared_gpus(have: Mapping[str, int], job: Job, machine: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """With fewer GPUs than groups that want one, these groups share all of them."""
    wanted = {name: have[name] * len(names) for name, names in job.hosts.items() if have[name]}
    groups: dict[str, tuple[int, ...]] = dict.fromkeys(job.hosts, ())
    if len(machine) < len(wanted):
        return groups | dict.fromkeys(wanted, machine)
    total = min(len(machine), sum(wanted.values()))
    start = 0
    for name, count in zip(wanted, apportion(total, tuple(wanted.values())), strict=True):
        groups[name] = machine[start : start + min(count, wanted[name])]
        start += len(groups[name])
    return groups


def _deal(ids: tuple[int, ...], hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """A group's GPUs for its hosts; with fewer than hosts every host gets one, some of them the same."""
    if ids and len(ids) < len(hosts):
        return {host: (ids[place % len(ids)],) for place, host in enumerate(hosts)}
    return divide(ids, hosts)
