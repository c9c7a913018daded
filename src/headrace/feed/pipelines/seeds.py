"""Random numbers as a function of the plan, not of the worker.

Every sample gets the CPU generators of `random`, NumPy and torch set from a 128-bit hash of (seed, epoch, plan
position) just before it is loaded, and every batch gets them set again before a custom `collate_fn`. So what a
sample holds does not depend on which worker loads it, on what that worker did before, or on how many there are.

torch's CPU generator is a 32-bit-seeded Mersenne twister, so it takes 63 bits of the hash and uses the lower half. Like
torch's own seeds, they fit into a tensor: datasets write `torch.tensor(torch.initial_seed())`.

Setting them takes some 20 microseconds, more than many samples. So only those are set that are drawn from. Of the first
samples of a pipeline (`_TRIALS`) all are set, their states compared before and behind, and calls noted that read a
state (as a profiler would, if there is none). From then on the others are at rest while a batch's samples are made:
each is in a state that is known, so behind the batch it is seen whether anything was drawn. If it was, the batch is
made again with that generator set, and it is set for good. What a sample holds is the same either way. Nothing is
patched, and only public functions are used, but for a copy of NumPy's state (see `_NumPy.keep`).

Not noticed is a state that is read, or put back, by no sample but later ones, where nothing is drawn from it
(`torch.initial_seed`, `random.getstate`, `fork_rng`; NumPy's by none). `feed.rng()` gives generators of the sample's
own, and is one of those that are set here.

An output of a lane cannot be made again by itself: a lane that begins to draw is opened again (see `lane_reader`).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import random
import struct
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import numpy as np
from numpy.random import mtrand  # np.random's own functions, which its stubs leave out there

from headrace.errors import INTERRUPTIONS

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_SAMPLE = b"sample"
_COLLATE = b"collate"
_PACK = struct.Struct("<QQQ")
_WORDS = struct.Struct("<4I")
_MASK = (1 << 64) - 1
_TRIALS = 16  # samples that must not draw from a generator before it is at rest
_TORCH = (1 << 63) - 1
_MT19937_BYTES = 625 * 4  # 624 words and the place of the next one


def stream_key(seed: int, epoch: int, position: int, purpose: bytes = _SAMPLE) -> bytes:
    """Returns the 16-byte hash of (seed, epoch, position) for one purpose."""
    packed = _PACK.pack(seed & _MASK, epoch & _MASK, position & _MASK)
    return hashlib.blake2b(packed, digest_size=16, person=purpose).digest()


_REST = stream_key(0, 0, 0, b"unset")


def collate_key(seed: int, epoch: int, position: int) -> bytes:
    """Returns the key for the collate of the batch whose first row has this plan position."""
    return stream_key(seed, epoch, position, _COLLATE)


def seed_worker(seed: int) -> int:
    """Sets the generators of a worker before the user's `worker_init_fn`. Returns the seed of `get_worker_info()`."""
    seed &= _TORCH
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
    return seed


class _Generator(Protocol):
    """A generator of this process that samples draw from."""

    def set(self, key: bytes) -> None:
        """Sets it from a key."""

    def rest(self) -> None:
        """Sets it to a state that no dataset sets."""

    def moved(self) -> bool:
        """Whether anything was drawn since `rest`; may draw a number itself."""

    def state(self) -> Any:
        """Returns what differs when something was drawn."""


class _Python:
    """The module `random`."""

    def __init__(self) -> None:
        kept = random.Random(int.from_bytes(_REST, "little"))
        self._resting = kept.getstate()
        self._next = kept.getrandbits(64)

    def set(self, key: bytes) -> None:
        random.seed(int.from_bytes(key, "little"))

    def rest(self) -> None:
        random.setstate(self._resting)

    def moved(self) -> bool:
        return random.getrandbits(64) != self._next

    def state(self) -> Any:
        return random.getstate()


class _NumPy:
    """NumPy's global generator, on bit generators of ours: to put one in its place takes less than to set its state.

    That also discards the second number of a normal pair, which lies apart from the state. At rest there is a twin,
    which makes the same numbers.
    """

    def __init__(self) -> None:
        self._own = np.random.MT19937(0)
        self._resting = self._twin = np.random.MT19937(0)

    def set(self, key: bytes) -> None:
        mtrand.set_bit_generator(self._own)
        np.random.seed(_WORDS.unpack(key))

    def rest(self) -> None:
        if self._resting is self._twin:
            self._resting, self._twin = (np.random.MT19937(np.random.SeedSequence(_WORDS.unpack(_REST))) for _ in "12")
        mtrand.set_bit_generator(self._resting)

    def moved(self) -> bool:
        resting = self._resting
        if mtrand.get_bit_generator() is resting and resting.random_raw() == self._twin.random_raw():
            return False
        self._twin = resting
        return True

    def state(self) -> Any:
        return mtrand.get_bit_generator() is self._own, _flat(np.random.get_state(legacy=False))

    def keep(self) -> tuple[Any, Any, Any]:
        """Puts a copy in the place of the process's bit generator. Returns what `put_back` takes.

        To copy its memory takes a fiftieth of reading `state`, and it is copied only where it is what `state` says. No
        function tells whether a second number of a normal pair is kept beside it: a draw does, which moves the bit
        generator only if there is none.
        """
        process, own, state = mtrand.get_bit_generator(), None, None
        if type(process) is not np.random.MT19937 or not _memory_is_state():
            return process, own, np.random.get_state(legacy=False)
        if process in (self._own, self._resting, self._twin):  # a loader in a sample of another one
            own = self._own, self._resting, self._twin
            self._own, self._resting = np.random.MT19937(0), self._twin
        address = process.ctypes.state_address
        memory = ctypes.string_at(address, _MT19937_BYTES)
        second = mtrand.standard_normal()
        if ctypes.string_at(address, _MT19937_BYTES) == memory:
            state = {**process.state, "has_gauss": 1, "gauss": second}
        ctypes.memmove(address, memory, _MT19937_BYTES)
        ctypes.memmove(self._own.ctypes.state_address, memory, _MT19937_BYTES)
        mtrand.set_bit_generator(self._own)
        return process, own, state

    def put_back(self, kept: tuple[Any, Any, Any]) -> None:
        """Puts the process's bit generator back, where it stood."""
        process, own, state = kept
        if own is not None:
            self._own, self._resting, self._twin = own
        mtrand.set_bit_generator(process)
        if state is not None:
            np.random.set_state(state)


@functools.cache
def _memory_is_state() -> bool:
    """Whether the memory of NumPy's twister is its public state: the words, and the place of the next one."""
    twister = np.random.MT19937(0)
    state = twister.state["state"]
    packed = state["key"].tobytes() + struct.pack("=i", state["pos"])
    return len(packed) == _MT19937_BYTES and ctypes.string_at(twister.ctypes.state_address, _MT19937_BYTES) == packed


def _flat(state: object) -> bytes:
    """Returns the bytes of a state of NumPy's, to be compared."""
    if isinstance(state, Mapping):
        return b",".join(str(key).encode() + b":" + _flat(value) for key, value in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else repr(state).encode()


class _Torch:
    """torch's CPU generator, as soon as torch is imported."""

    def __init__(self) -> None:
        self._resting: torch.Tensor | None = None
        self._state: Any = None

    def set(self, key: bytes) -> None:
        torch = sys.modules.get("torch")
        if torch is not None:
            # The generator's own manual_seed: torch.manual_seed also visits every accelerator, in 100 times as long.
            torch.default_generator.manual_seed(int.from_bytes(key[:8], "little") & _TORCH)

    def rest(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        if self._resting is None:
            self.set(_REST)
            self._resting = torch.default_generator.get_state()
            self._state = self.state()
        torch.default_generator.set_state(self._resting)

    def moved(self) -> bool:
        if self._resting is None:  # if a sample has imported torch, nobody has set its generator
            return "torch" in sys.modules
        return bool(self.state() != self._state)

    def state(self) -> Any:
        torch = sys.modules.get("torch")
        return None if torch is None else torch.default_generator.get_state().numpy().tobytes()


class _Explicit:
    """What `rng` gives; at rest it only notices that it was asked."""

    def __init__(self) -> None:
        self.key: bytes | None = None
        self.made: dict[str, Any] = {}
        self.asked = False

    def set(self, key: bytes | None) -> None:
        self.key, self.made, self.asked = key, {}, False

    def rest(self) -> None:
        self.set(_REST)

    def moved(self) -> bool:
        return self.asked

    def state(self) -> Any:
        return self.asked


_python, _numpy, _torch, _explicit = _Python(), _NumPy(), _Torch(), _Explicit()
_GENERATORS: tuple[_Generator, ...] = (_python, _numpy, _torch, _explicit)


def _readers() -> dict[CodeType, _Generator]:
    """Returns the code of the functions that tell a generator's state, which moves nothing."""
    readers: dict[CodeType, _Generator] = {random.Random.getstate.__code__: _python}
    torch = sys.modules.get("torch")
    if torch is not None:
        readers |= dict.fromkeys((torch.initial_seed.__code__, torch.get_rng_state.__code__), _torch)
    return readers


@overload
def rng(kind: Literal["numpy"] = "numpy") -> np.random.Generator: ...
@overload
def rng(kind: Literal["torch"]) -> torch.Generator: ...
@overload
def rng(kind: Literal["random"]) -> random.Random: ...
def rng(kind: str = "numpy") -> Any:
    """Returns a generator of the sample that is being made, seeded from (seed, epoch, plan position).

    It is the same one for every call within a sample (an output of a lane, a `collate_fn`), so two transforms draw
    different numbers. Where no loader makes a sample, as when you try a dataset by hand, it is a new one, of any seed.

    Args:
        kind: "numpy", "torch" or "random".
    """
    if kind not in ("numpy", "torch", "random"):
        raise ValueError(f'feed.rng: kind must be "numpy", "torch" or "random", got {kind!r}')
    _explicit.asked = True
    if kind not in _explicit.made or _explicit.key is None:
        _explicit.made[kind] = _made(kind, _explicit.key)
    return _explicit.made[kind]


def _made(kind: str, key: bytes | None) -> Any:
    person = f"rng {kind}".encode()  # or it would repeat the numbers of the global generator
    digest = hashlib.blake2b(key, digest_size=16, person=person).digest() if key is not None else os.urandom(16)
    number = int.from_bytes(digest, "little")
    if kind == "numpy":
        return np.random.Generator(np.random.PCG64(number))
    if kind == "random":
        return random.Random(number)
    import torch

    return torch.Generator().manual_seed(number & _TORCH)


def process_states() -> dict[str, Any]:
    """Returns the states of the generators of this process that are set before every sample, by their names."""
    states = {"random": _python.state(), "numpy.random": _numpy.state(), "torch": _torch.state()}
    return {name: state for name, state in states.items() if state is not None}


def set_generators(key: bytes) -> None:
    """Sets all generators from a key."""
    for generator in _GENERATORS:
        generator.set(key)


class PreservedGenerators:
    """Restores the generators of this process on exit: for loading inside the trainer's own process."""

    def __enter__(self) -> None:
        torch = sys.modules.get("torch")
        self._explicit = _explicit.key, _explicit.made, _explicit.asked
        self._python = random.getstate()
        self._torch = torch.default_generator.get_state() if torch is not None else None
        self._numpy = _numpy.keep()

    def __exit__(self, *raised: object) -> None:
        _numpy.put_back(self._numpy)
        _explicit.key, _explicit.made, _explicit.asked = self._explicit
        random.setstate(self._python)
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)


class DrewUnset(Exception):
    """Samples were made with random numbers of a generator that was not set."""


class SampleSeeds:
    """Sets the generators for the samples of a pipeline: those that they draw from.

    Attributes:
        quiet: whether none has to be set, so that `call` is a mere call.
    """

    def __init__(self) -> None:
        self.quiet = False
        self._needed: list[_Generator] = []
        self._others = list(_GENERATORS)
        self._trials = _TRIALS
        self._late = False

    def __enter__(self) -> None:
        """Samples are made within it, each with `call`."""
        self._rest()

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """Raises DrewUnset if they drew from a generator that was not set. From now on it is set."""
        if kind is None or not issubclass(kind, INTERRUPTIONS):
            missed, self._late = self._late, False
            if not self._trials:
                for generator in tuple(self._others):
                    if generator.moved():
                        self._need(generator)
                        missed = True
            if missed:
                raise DrewUnset from None

    def _rest(self) -> None:
        """Puts to rest what is not drawn from, whatever was drawn before."""
        if not self._trials:
            self.quiet = not self._needed
            for generator in self._others:
                generator.rest()

    def made(self, make: Callable[[], T]) -> T:
        """Makes something of some samples; makes it again if they drew from a generator that was not set.

        Args:
            make: loads them, each with `call`.
        """
        while True:
            try:
                with self:
                    return make()
            except DrewUnset:  # each generator once
                continue

    def call(self, key: bytes, function: Callable[[Any], T], argument: Any) -> T:
        """Calls the user's code with its generators set from the key of a sample or batch."""
        if not self._trials:
            for generator in self._needed:
                generator.set(key)
            return function(argument)
        set_generators(key)
        before = [generator.state() for generator in self._others]
        readers, watched = _readers(), sys.getprofile() is None
        read = set() if watched else set(readers.values())  # somebody else measures: it may have been read

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code in readers:
                read.add(readers[frame.f_code])

        if watched:
            sys.setprofile(note)
        try:
            return function(argument)
        finally:
            if watched:
                sys.setprofile(None)
            self._compare(before, read)

    def _compare(self, before: list[Any], read: set[_Generator]) -> None:
        for generator, state in zip(tuple(self._others), before, strict=True):
            if generator in read or generator.state() != state:
                self._late = self._late or state is None  # the sample imported torch: its generator was not set
                self._need(generator)
        self._trials -= 1
        self._rest()

    def _need(self, generator: _Generator) -> None:
        self._others.remove(generator)
        self._needed.append(generator)
        self.quiet = False
