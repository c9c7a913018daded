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

What is divided is pure: what the machine has comes in as an argument (`look_at_machine`). `headrace plan` says in
sentences how types were scaled, and what cannot be limited here.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.catalog.instance_types import InstanceShape, shape
from headrace.engines.local.cgroups import CPU, MEMORY, Places, available_memory, find_places
from headrace.errors import JobInvalid, Problem
from headrace.instance.machine import VISIBLE_GPUS, tool_output
from headrace.job import Job
from headrace.job.model.field_types import format_cpu_set, parse_cpu_set
from headrace.processes.oom import format_bytes

if TYPE_CHECKING:
    from headrace.job import Job


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
        shares = [job.local.cpu_shares[name] for name in job.hosts]
        groups = _runs(machine, dict(zip(job.hosts, apportion(len(machine), shares), strict=True)))
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


def _runs(ids: Sequence[int], counts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Gives each group the next of some ids, as many as it gets."""
    rest = iter(ids)
    return {name: tuple(itertools.islice(rest, count)) for name, count in counts.items()}


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
    counts = apportion(min(len(machine), sum(wanted.values())), tuple(wanted.values()))
    most = {name: min(count, wanted[name]) for name, count in zip(wanted, counts, strict=True)}
    return groups | _runs(machine, most)


def _deal(ids: tuple[int, ...], hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """A group's GPUs for its hosts; with fewer than hosts every host gets one, some of them the same."""
    if ids and len(ids) < len(hosts):
        return {host: (ids[place % len(ids)],) for place, host in enumerate(hosts)}
    return divide(ids, hosts)


def explain_limits(job: Job, machine: Machine, places: Places) -> tuple[str, ...]:
    """Returns sentences about the limits of a job's instances, the general ones first.

    Args:
        job: the job.
        machine: what it runs on.
        places: where control groups can be made.
    """
    if job.local.limits == "none":
        return ("limits: none (engines.local.limits)",)
    types = [shape(group.instance_type) for group in job.groups for _ in job.hosts[group.instance_group_name]]
    known = [each for each in types if each]
    vcpus, memory = sum(each.vcpus for each in known), sum(int(each.memory_gib * GIB) for each in known)
    has = f"this machine: {len(machine.cpus)} CPUs"
    has += f", {format_bytes(machine.memory)} of memory" if machine.memory else ""
    has += f", GPUs {','.join(map(str, machine.gpus))}" if machine.gpus else ""
    said = [f"limits: {has}; the instance types have {vcpus} vCPUs and {format_bytes(memory)} together"]
    said += _of_cpus(job, machine, places)
    said += _of_memory(job, machine, places, memory)
    gpus = sum(each.gpus for each in known)
    if gpus > len(machine.gpus) and not job.local.gpus:
        there = f"has {len(machine.gpus)}" if machine.gpus else "has none (nvidia-smi lists none)"
        said.append(f"GPUs: the types have {gpus}, this machine {there}")
    return tuple(said)


def _of_cpus(job: Job, machine: Machine, places: Places) -> list[str]:
    if job.local.cpu_sets or job.local.cpu_shares:
        return ["CPU time: as engines.local.cpu_sets or cpu_shares say"]
    types = [shape(group.instance_type) for group in job.groups for _ in job.hosts[group.instance_group_name]]
    if not any(share_cpus(types, machine.cpus)[1]):
        return ["CPU time: every instance has CPUs of its own"]
    if CPU not in places.found:
        return [f"CPU time: not weighted, the system shares it out by programs: {places.missing[CPU]}"]
    return [
        "CPU time: by weight while instances compete, in proportion to their vCPUs and never less than half of an "
        "equal part; what one leaves idle the others use"
    ]


def _of_memory(job: Job, machine: Machine, places: Places, wanted: int) -> list[str]:
    if MEMORY not in places.found:
        return [f"memory: no limit can be set here: {places.missing[MEMORY]}"]
    said = []
    if wanted > machine.memory:
        said.append(f"memory: scaled down, at least {format_bytes(LEAST_MEMORY)} each")
    unknown = sorted({group.instance_type for group in job.groups if shape(group.instance_type) is None})
    return said + [f"memory: no limit for {name}: its shape is not known" for name in unknown]


def describe_host(cpu_weight: float, memory: int, gpus: tuple[int, ...] | None) -> str:
    """Returns the limits of one host beside its CPUs, in words; empty when there are none.

    >>> describe_host(0.25, 3 << 29, (0, 1)), describe_host(0.0, 0, None)
    ('25 % of busy CPUs, memory 1.5 GiB, GPUs 0,1', '')
    """
    words = [f"{cpu_weight:.0%}".replace("%", " % of busy CPUs")] if cpu_weight else []
    words += [f"memory {format_bytes(memory)}"] if memory else []
    words += [f"GPUs {','.join(map(str, gpus))}"] if gpus else []
    return ", ".join(words)


def look_at_machine(job: Job) -> tuple[Machine, Places]:
    """Returns what there is of what the job asks for, and where control groups can be made for it."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    places = find_places() if job.local.limits == "auto" else Places({}, {})
    memory = available_memory(places) if MEMORY in places.found else 0
    return Machine(cpus, memory, gpu_ids() if _wants_gpus(job) else (), CPU in places.found), places


def _wants_gpus(job: Job) -> bool:
    """Asking for GPUs takes seconds on some machines, so that is done for types that have some only."""
    return bool(job.local.gpus) or any(
        known.gpus for group in job.groups if (known := shape(group.instance_type)) is not None
    )


def gpu_ids() -> tuple[int, ...]:
    """Returns the ids of the NVIDIA GPUs that this process may use: those of nvidia-smi that CUDA_VISIBLE_DEVICES does
    not hide. Empty without nvidia-smi, or when it fails."""
    known: dict[str, int] = {}
    for line in tool_output("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader").splitlines():
        index, _, uuid = (part.strip() for part in line.partition(","))
        if index.isdigit():
            known[index] = known[uuid] = int(index)
    visible = os.environ.get(VISIBLE_GPUS)
    if visible is None:
        return tuple(sorted(set(known.values())))
    # CUDA too stops at the first name that it does not know.
    names = itertools.takewhile(known.__contains__, (name.strip() for name in visible.split(",")))
    return tuple(known[name] for name in names)
