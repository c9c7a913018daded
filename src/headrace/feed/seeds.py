"""Random numbers as a function of the plan, not of the worker.

Every sample gets the CPU generators of `random`, NumPy and torch set from a 128-bit hash of (seed, epoch, plan
position) just before it is loaded, and every batch gets them set again before a custom `collate_fn`. So what a
sample holds does not depend on which worker loads it, on what that worker did before, or on how many there are.

torch's CPU generator is a 32-bit-seeded Mersenne twister, so it takes 64 bits of the hash and uses the lower half.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_SAMPLE = b"sample"
_COLLATE = b"collate"
_PACK = struct.Struct("<QQQ")
_WORDS = struct.Struct("<4I")
_MASK = (1 << 64) - 1


def stream_key(seed: int, epoch: int, position: int, purpose: bytes = _SAMPLE) -> bytes:
    """Returns the 16-byte hash of (seed, epoch, position) for one purpose."""
    packed = _PACK.pack(seed & _MASK, epoch & _MASK, position & _MASK)
    return hashlib.blake2b(packed, digest_size=16, person=purpose).digest()


def seed_sample(seed: int, epoch: int, position: int) -> None:
    """Sets the generators for the sample at a plan position."""
    _set_generators(stream_key(seed, epoch, position))


def seed_collate(seed: int, epoch: int, position: int) -> None:
    """Sets the generators for the collate of the batch whose first row has this plan position."""
    _set_generators(stream_key(seed, epoch, position, _COLLATE))


def _set_generators(key: bytes) -> None:
    random.seed(int.from_bytes(key, "little"))
    np.random.seed(_WORDS.unpack(key))
    torch = sys.modules.get("torch")
    if torch is not None:
        # The generator's own manual_seed: torch.manual_seed also visits every accelerator and takes 100 times as long.
        torch.default_generator.manual_seed(int.from_bytes(key[:8], "little"))


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restores the generators of this process on exit: for loading inside the trainer's own process."""
    torch = sys.modules.get("torch")
    python, legacy = random.getstate(), np.random.get_state()
    cpu = torch.default_generator.get_state() if torch is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        if torch is not None and cpu is not None:
            torch.default_generator.set_state(cpu)
