"""What `headrace plan` says about limits: what this machine has, how the types were scaled, and what cannot be limited.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.catalog.instance_types import shape
from headrace.engines.local.limits.assign import GIB, LEAST_MEMORY, Machine, share_cpus
from headrace.engines.local.limits.cgroups import CPU, MEMORY, Places
from headrace.processes.oom import format_bytes

if TYPE_CHECKING:
    from headrace.job import Job


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
