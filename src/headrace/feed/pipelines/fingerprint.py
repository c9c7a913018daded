"""The numerics fingerprint: what must be equal for two workers to compute the same bits.

Library versions, the instruction set that torch's CPU kernels were chosen for, the machine and the number of threads.
Executors report it when they open a pipeline; workers with different fingerprints may differ in the last bits.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys

LIBRARIES = ("numpy", "torch", "torchvision", "pillow", "scipy", "opencv-python", "opencv-python-headless")


def numerics() -> dict[str, str]:
    """Returns this process's numerics fingerprint: name to value."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        found["cpu_capability"] = str(torch.backends.cpu.get_cpu_capability())
        found["threads"] = str(torch.get_num_threads())
    return found


def kind_of(numerics: dict[str, str]) -> bytes:
    """Returns 3 bytes that stand for a fingerprint; none for an empty one, of a trainer's own worker processes."""
    if not numerics:
        return b""
    told = repr(sorted(numerics.items())).encode()
    return hashlib.blake2b(told, digest_size=3, person=b"numerics").digest()


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Lists in words how two fingerprints differ; empty when they are equal."""
    return [
        f"{name}: {one.get(name, 'absent')} and {other.get(name, 'absent')}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
