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
    values = {"python": platform.python_version(), "machine": platform.machine()}
    for library in LIBRARIES:
        try:
            values[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        values["torch"] = str(torch.__version__)
        values["cpu_capability"] = str(torch.backends.cpu.get_cpu_capability())
        values["threads"] = str(torch.get_num_threads())
    return values


def kind_of(numerics: dict[str, str]) -> bytes:
    """Returns 3 bytes that stand for a fingerprint; none for an empty one, of a trainer's own worker processes."""
    if not numerics:
        return b""
    text = repr(sorted(numerics.items())).encode()
    return hashlib.blake2b(text, digest_size=3, person=b"numerics").digest()


def differences(first: dict[str, str], second: dict[str, str]) -> list[str]:
    """Lists in words how two fingerprints differ; empty when they are equal."""
    return [
        f"{name}: {first.get(name, 'absent')} and {second.get(name, 'absent')}"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    ]
