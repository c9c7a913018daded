"""What this machine has for a job, and whether limits can be set here."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from headrace.catalog.instance_types import shape
from headrace.engines.local.limits.assign import Machine
from headrace.engines.local.limits.cgroups import CPU, MEMORY, Places, available_memory, find_places
from headrace.instance.machine import VISIBLE_GPUS

if TYPE_CHECKING:
    from headrace.job import Job

_TOOL_SECONDS = 30.0


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
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TOOL_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ()
    known: dict[str, int] = {}
    for line in done.stdout.splitlines():
        index, _, uuid = (part.strip() for part in line.partition(","))
        if index.isdigit():
            known[index] = known[uuid] = int(index)
    visible = os.environ.get(VISIBLE_GPUS)
    if visible is None:
        return tuple(sorted(set(known.values())))
    ids: list[int] = []
    for name in visible.split(","):
        if name.strip() not in known:  # CUDA too stops at the first that it does not know
            break
        ids.append(known[name.strip()])
    return tuple(ids)
