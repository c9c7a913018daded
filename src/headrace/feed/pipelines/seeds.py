"""Random numbers as a function of the plan, not of the worker.

Every sample gets the CPU generators of `random`, NumPy and torch set from a 128-bit hash of (seed, epoch, plan
position) just before it is loaded, and every batch gets them set again before a custom `collate_fn`. So what a
sample holds does not depend on which worker loads it, on what that worker did before, or on how many there are.

torch's CPU generator is a 32-bit-seeded Mersenne twister, so it takes 63 bits of the hash and uses the lower half. Like
torch's own seeds, they fit into a tensor: datasets write `torch.tensor(torch.initial_seed())`.

Setting `random` and NumPy costs some 14 microseconds, more than many samples. So they are set only for pipelines that
draw from them: `SampleSeeds` notices the first draw from a generator that was not set, the sample is loaded again with
it set, and from then on it always is. What a sample holds is the same either way.

Setting torch's, and the hash, cost 3 microseconds. They are left out too, once some samples drew nothing: samples are
then loaded in runs, with no generator set, and the states are compared when a run ends. If anything was drawn, the
whole run is loaded again with seeds, and from then on every sample is. A state can also be read without a draw
(`random.getstate`, `numpy.random.get_state`, `torch.initial_seed`, `fork_rng`), so these functions are counted. Only
methods of the generators themselves (`torch.default_generator`, `numpy.random.mtrand._rand`) read it unseen; then
samples differ among workers, which the check for purity tells.

Generators that are not set are in a state of ours, that no dataset sets. One that draws and then seeds is noticed.

An output of a lane cannot be loaded again by itself (`LaneSeeds`). So for the first ones all generators are set, and
looked at; behind them outputs are made in runs too, and a lane that draws then for the first time is opened again.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import mtrand  # here, once: NumPy would load it in every worker, before its first batch

from headrace.feed.pipelines import state_reads
from headrace.feed.pipelines.state_reads import Reads, count_reads
from headrace.feed.pipelines.twister_memory import TwisterMemory, numpy_memory, python_memory

if TYPE_CHECKING:
    import torch

_SAMPLE = b"sample"
_COLLATE = b"collate"
_PACK = struct.Struct("<QQQ")
_WORDS = struct.Struct("<4I")
_MASK = (1 << 64) - 1
_TRIALS = 16  # samples that must draw nothing before they are loaded in runs
_TORCH = (1 << 63) - 1


def stream_key(seed: int, epoch: int, position: int, purpose: bytes = _SAMPLE) -> bytes:
    """Returns the 16-byte hash of (seed, epoch, position) for one purpose."""
    packed = _PACK.pack(seed & _MASK, epoch & _MASK, position & _MASK)
    return hashlib.blake2b(packed, digest_size=16, person=purpose).digest()


_UNSET = stream_key(0, 0, 0, b"unset")


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


class _Twister:
    """A Mersenne twister that is looked at in memory: position and first words of its state.

    Every draw moves the position, and every 624th draw changes the words. `memory` is None when the state cannot be
    found; then nothing can be noticed, and the generator must be set always.
    """

    def __init__(self, seed: Callable[[bytes], None], memory: TwisterMemory | None, reads: Reads) -> None:
        self.seed = seed
        self.needed = memory is None
        self._memory, self._reads = memory, reads
        self._telling = memory.telling if memory is not None else ()
        self._unset = b""
        self._seen: tuple[bytes, ...] = ()
        self._count = 0

    def clear(self) -> None:
        """Sets it to the state of generators that are not set, without the second number of a normal pair."""
        memory = self._memory
        if memory is None or not self._unset or memory.second():
            self.seed(_UNSET)
            self._unset = memory.whole.tobytes() if memory is not None else b""
        elif memory.whole.tobytes() != self._unset:
            memory.whole[:] = self._unset

    def mark(self) -> None:
        """Remembers the state."""
        self._seen = tuple(part.tobytes() for part in self._telling)
        self._count = self._reads.count

    def drawn(self) -> bool:
        """Whether something was drawn, or the state read, since `mark`."""
        for part, seen in zip(self._telling, self._seen):  # noqa: B905 - in the path of every sample
            if part != seen:
                return True
        return self._count != self._reads.count


class _TorchWatch:
    """Notices whether torch's CPU generator is drawn from, or its state read.

    Attributes:
        needed: whether it must be set for every sample.
        loaded: whether torch was imported when it was last asked for.
    """

    def __init__(self) -> None:
        self.needed = False
        self.loaded = "torch" in sys.modules
        self._seen: tuple[torch.Tensor | None, int] = (None, 0)

    def appeared(self) -> bool:
        """Whether torch was imported since this was asked: nobody has set its generator. It is set from now on."""
        if self.loaded or "torch" not in sys.modules:
            return False
        self.loaded = self.needed = True
        return True

    def mark(self) -> None:
        """Remembers the state."""
        self._seen = self._look()

    def touched(self) -> bool:
        """Whether something was drawn or read since `mark`; also if it cannot be known."""
        (before, count), (after, count_now) = self._seen, self._look()
        if before is None or after is None:
            return before is not after
        return count != count_now or not before.equal(after)

    def _look(self) -> tuple[torch.Tensor | None, int]:
        torch = sys.modules.get("torch")
        if torch is None:
            return None, 0
        if not state_reads.counts_torch():
            self.needed = True
            return None, 0
        return torch.default_generator.get_state(), state_reads.of_torch.count


class SampleSeeds:
    """Sets the generators for samples, those that are drawn from.

    Use: `clean()` before a slice; then for each sample `begin(key)`, load, and if `missed()`, begin and load again.
    While `quiet`, many samples may be loaded between `begin_run()` and `missed_in_run()`, and again if that is so.
    """

    def __init__(self) -> None:
        self._needed: list[_Twister] = []
        self._watched: list[_Twister] = []
        self._set_torch = _set_torch
        self._torch = _TorchWatch()
        self._trials = _TRIALS
        self._find()

    @property
    def quiet(self) -> bool:
        """Whether nothing was ever drawn, in some samples at least."""
        return not (self._trials or self._needed or self._torch.needed)

    def begin_run(self) -> None:
        """Begins a run of samples for which nothing is set."""
        self._torch.mark()

    def missed_in_run(self) -> bool:
        """Whether something was drawn in a run. From now on it is set."""
        missed = self.missed()
        if self._torch.touched():
            self._torch.needed = missed = True
        return missed

    def _find(self) -> None:
        self._numpy = mtrand._rand._bit_generator  # held, so that its memory stays
        self._twisters = (
            _Twister(_set_python, python_memory(), state_reads.of_python),
            _Twister(_set_numpy, numpy_memory(), state_reads.of_numpy),
        )
        self._sort()

    def _sort(self) -> None:
        self._needed = [twister for twister in self._twisters if twister.needed]
        self._watched = [twister for twister in self._twisters if not twister.needed]

    def clean(self) -> None:
        """Makes a slice's samples independent of what was drawn before it, whatever their datasets do.

        That is also the second number of a normal pair: drawing it changes no state.
        """
        if mtrand._rand._bit_generator is not self._numpy:  # by numpy.random.set_bit_generator
            self._find()
        for twister in self._twisters:
            twister.clear()
        for twister in self._watched:
            twister.mark()
        torch = sys.modules.get("torch")
        if torch is not None:
            seed = torch.default_generator.manual_seed
            self._set_torch = lambda key: seed(int.from_bytes(key[:8], "little") & _TORCH)
            self._set_torch(_UNSET)

    def begin(self, key: bytes) -> None:
        """Sets the generators from the key of a sample or batch."""
        for twister in self._needed:
            twister.seed(key)
        self._set_torch(key)
        if self._trials and not self._torch.needed:
            self._torch.mark()

    def missed(self) -> bool:
        """Whether a generator that was not set was drawn from. From now on it is set."""
        missed = self._torch.appeared()
        if missed:
            count_reads()
        for twister in self._watched:
            if twister.drawn():
                twister.needed = missed = True
        if missed:
            self._sort()
        if self._trials and not self._torch.needed:
            self._trials -= 1
            self._torch.needed = self._torch.touched() or self._torch.needed
        return missed


class LaneSeeds(SampleSeeds):
    """Sets the generators for outputs of lanes, those that are drawn from.

    Use: `clean()` before some outputs; then for each `begin(key)`, make it, and if `missed()`, open the lane again.
    While `quiet`, they may be made between `begin_run()` and `missed_in_run()`, with the same consequence.
    """

    def __init__(self) -> None:
        super().__init__()
        self._first = _TRIALS

    def begin(self, key: bytes) -> None:
        """See SampleSeeds."""
        if self._first:
            for twister in self._watched:
                twister.seed(key)
                twister.mark()
        super().begin(key)

    def missed(self) -> bool:
        """Whether a generator that was not set was drawn from. What is drawn from is set from now on."""
        first, self._first = self._first, max(0, self._first - 1)
        imported = not self._torch.loaded
        return super().missed() and (not first or (imported and self._torch.loaded))
