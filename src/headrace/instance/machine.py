"""CPUs, GPUs and Neuron cores of this instance.

SageMaker's toolkit uses the same tools. The CPUs are those that this process may use, because a host of the local
engine may own only some of the machine's; the toolkit counts all of them. So are the GPUs: CUDA_VISIBLE_DEVICES says
which of the machine's a host owns.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_TOOL_SECONDS = 30.0


def num_cpus() -> int:
    """Returns the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def num_gpus() -> int:
    """Returns the number of NVIDIA GPUs that this process may use: those of the machine that are visible."""
    visible = os.environ.get(VISIBLE_GPUS)
    if visible is None:
        return installed_gpus()
    seen = len(visible_gpus(visible))
    return min(seen, installed_gpus()) if seen else 0


def visible_gpus(text: str) -> tuple[str, ...]:
    """Returns the GPUs that a value of CUDA_VISIBLE_DEVICES names, as CUDA reads it: up to an empty name or -1."""
    names = (name.strip() for name in text.split(","))
    return tuple(itertools.takewhile(lambda name: name not in {"", "-1"}, names))


@functools.cache
def installed_gpus() -> int:
    """Returns the number of NVIDIA GPUs that `nvidia-smi` lists, 0 without it. Asked once a process."""
    return sum(line.startswith("GPU ") for line in tool_output("nvidia-smi", "--list-gpus").splitlines())


@functools.cache
def num_neurons(instance_type: str) -> int:
    """Returns the number of Neuron cores that `neuron-ls` lists, 0 without it. Asked once a process."""
    if "trn2.48xlarge" in instance_type:  # a constant in the toolkit too
        return 64
    try:
        devices = json.loads(tool_output("neuron-ls", "-j") or "[]")
    except ValueError:
        return 0
    return sum(int(device.get("nc_count", 0)) for device in devices)


def is_installed(tool: str) -> bool:
    """Whether a command of that name is on the PATH."""
    return shutil.which(tool) is not None


def tool_output(tool: str, *arguments: str) -> str:
    """Returns the standard output of a tool; empty if it is not installed, fails or hangs."""
    path = shutil.which(tool)
    if path is None:
        return ""
    import subprocess  # slow to import, and rarely needed

    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, check=True, timeout=_TOOL_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
