"""Random numbers as a function of the plan, not of the worker.

Every sample gets the CPU generators of `random`, NumPy and torch set from a 128-bit hash of (seed, epoch, plan
position) just before it is loaded, and every batch gets them set again before a custom `collate_fn`. So what a
sample holds does not depend on which worker loads it, on what that worker did before, or on how many there are.

torch's CPU generator is a 32-bit-seeded Mersenne twister, so it takes 63 bits of the hash and uses the lower half. Like
torch's own seeds, they fit into a tensor: datasets write `torch.tensor(torch.initial_seed())`.

Setting `random` and NumPy costs some 14 microseconds, more than many samples. So they are set only for pipelines that
draw from them: `SampleSeeds` notices the first draw from a generator that was not set, the sample is loaded again with
it set, and from then on it always is. What a sample holds is the same either way.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

_SAMPLE = b"sample"
_COLLATE = b"collate"
_PACK = struct.Struct("<QQQ")
_WORDS = struct.Struct("<4I")
_MASK = (1 << 64) - 1
_TORCH = (1 << 63) - 1


def stream_key(seed: int, epoch: int, position: int, purpose: bytes = _SAMPLE) -> bytes:
    """Returns the 16-byte hash of (seed, epoch, position) for one purpose."""
    packed = _PACK.pack(seed & _MASK, epoch & _MASK, position & _MASK)
    return hashlib.blake2b(packed, digest_size=16, person=purpose).digest()


def collate_key(seed: int, epoch: int, position: int) -> bytes:
    """Returns the key for the collate of the batch whose first row has this plan position."""
    return stream_key(seed, epoch, position, _COLLATE)


def set_generators(key: bytes) -> None:
    """Sets all generators from a key."""
    _set_python(key)
    _set_numpy(key)
    _set_torch(key)


def seed_worker(seed: int) -> int:
    """Sets the generators of a worker before the user's `worker_init_fn`. Returns the seed of `get_worker_info()`."""
    seed &= _TORCH
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
    return seed


def _set_python(key: bytes) -> None:
    random.seed(int.from_bytes(key, "little"))


def _set_numpy(key: bytes) -> None:
    np.random.seed(_WORDS.unpack(key))


def _set_torch(key: bytes) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        # The generator's own manual_seed: torch.manual_seed also visits every accelerator and takes 100 times as long.
        torch.default_generator.manual_seed(int.from_bytes(key[:8], "little") & _TORCH)


Memory = tuple[memoryview, ...]


class _Twister:
    """A Mersenne twister that is looked at in memory: position and first words of its state.

    Every draw moves the position, and every 624th draw changes the words. `memory` is None when the state cannot be
    found; then nothing can be noticed, and the generator must be set always.
    """

    def __init__(self, seed: Callable[[bytes], None], memory: Memory | None) -> None:
        self.seed = seed
        self.needed = memory is None
        self._memory = memory or ()
        self._seen: tuple[bytes, ...] = ()

    def mark(self) -> None:
        """Remembers the state."""
        self._seen = tuple(part.tobytes() for part in self._memory)

    def drawn(self) -> bool:
        """Whether something was drawn since `mark`."""
        for part, seen in zip(self._memory, self._seen):  # noqa: B905, SIM110 - in the path of every sample
            if part != seen:
                return True
        return False


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _words(part: memoryview) -> list[int]:
    return part.cast("I").tolist()


def _python_memory() -> Memory | None:
    """Finds the state of the module `random`: CPython keeps the position and then the words behind the object."""
    generator = random._inst
    found = _memory(id(generator) + object.__basicsize__, 12)
    state = generator.getstate()[1]
    return (found,) if _words(found) == [state[-1], state[0], state[1]] else None


def _numpy_memory() -> Memory | None:
    """Finds the state of NumPy's legacy generator: 624 words, then the position."""
    generator = np.random.mtrand._rand._bit_generator
    if type(generator).__name__ != "MT19937":
        return None
    address = generator.ctypes.state_address
    words, position = _memory(address, 8), _memory(address + 4 * 624, 4)
    state = generator.state["state"]
    found = _words(words) + _words(position) == [*state["key"][:2].tolist(), state["pos"]]
    return (words, position) if found else None


class SampleSeeds:
    """Sets the generators for samples, those that are drawn from.

    Use: `clean()` before a slice; then for each sample `begin(key)`, load, and if `missed()`, begin and load again.
    """

    def __init__(self) -> None:
        self._needed: list[_Twister] = []
        self._watched: list[_Twister] = []
        self._set_torch = _set_torch
        self._find()

    def _find(self) -> None:
        self._numpy = np.random.mtrand._rand._bit_generator  # held, so that its memory stays
        self._twisters = (_Twister(_set_python, _python_memory()), _Twister(_set_numpy, _numpy_memory()))
        self._sort()

    def _sort(self) -> None:
        self._needed = [twister for twister in self._twisters if twister.needed]
        self._watched = [twister for twister in self._twisters if not twister.needed]

    def clean(self) -> None:
        """Discards the second number of a normal pair, left from an earlier draw: drawing it changes no state."""
        random.seed(0)
        np.random.seed(0)
        if np.random.mtrand._rand._bit_generator is not self._numpy:  # by numpy.random.set_bit_generator
            self._find()
        for twister in self._watched:
            twister.mark()
        torch = sys.modules.get("torch")
        if torch is not None:
            seed = torch.default_generator.manual_seed
            self._set_torch = lambda key: seed(int.from_bytes(key[:8], "little") & _TORCH)

    def begin(self, key: bytes) -> None:
        """Sets the generators from the key of a sample or batch."""
        for twister in self._needed:
            twister.seed(key)
        self._set_torch(key)

    def missed(self) -> bool:
        """Whether a generator that was not set was drawn from. From now on it is set."""
        missed = False
        for twister in self._watched:
            if twister.drawn():
                twister.needed = missed = True
        if missed:
            self._sort()
        return missed


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
