"""What this machine has for a job, and whether limits can be set here."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from headrace.catalog.instance_types import shape
from headrace.engines.local.limits.assign import Machine
from headrace.engines.local.limits.cgroups import CPU, MEMORY, Places, available_memory, find_places
from headrace.instance.machine import VISIBLE_GPUS, tool_output

if TYPE_CHECKING:
    from headrace.job import Job


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
