"""Where the states of `random`'s and NumPy's Mersenne twisters lie in memory: looking there costs next to nothing.

They are found by what they are documented to hold, and compared with what the modules say; one that is not found
there, in another Python say, is None. The second number of a normal pair lies apart from the twister, and goes with it.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import mtrand

_WORD = 4
_WORDS = 624 * _WORD


@dataclass(frozen=True)
class TwisterMemory:
    """The state of a twister: 624 words and a position, views of where they lie.

    Attributes:
        whole: all of it, without the second number of a normal pair.
        telling: the parts that tell a draw: position and first words.
        second: whether there is such a number.
    """

    whole: memoryview
    telling: tuple[memoryview, ...]
    second: Callable[[], bool]


def python_memory() -> TwisterMemory | None:
    """Finds the state of the module `random`: CPython keeps the position and then the words behind the object."""
    generator = random._inst
    whole = _memory(id(generator) + object.__basicsize__, _WORD + _WORDS)
    *words, position = generator.getstate()[1]
    if _words(whole) != [position, *words]:
        return None
    return TwisterMemory(whole, (whole[: 3 * _WORD],), lambda: generator.gauss_next is not None)  # type: ignore[attr-defined]


def numpy_memory() -> TwisterMemory | None:
    """Finds the state of NumPy's legacy generator: the words, then the position."""
    generator = mtrand._rand._bit_generator
    if type(generator).__name__ != "MT19937":
        return None
    whole = _memory(generator.ctypes.state_address, _WORDS + _WORD)
    state = generator.state["state"]
    second = _numpy_second()
    if second is None or _words(whole) != [*state["key"].tolist(), state["pos"]]:
        return None
    return TwisterMemory(whole, (whole[: 2 * _WORD], whole[_WORDS:]), lambda: bool(second[0]))


def _numpy_second() -> memoryview | None:
    """Finds where NumPy keeps whether there is a second number: behind a pointer into the legacy generator itself."""
    legacy = mtrand._rand
    size = type(legacy).__basicsize__
    words = _memory(id(legacy), size - size % 8).cast("Q")
    inside = range(id(legacy), id(legacy) + size)
    places = [_memory(id(legacy) + 8 * (at + 1), 16) for at, word in enumerate(words) if word in inside]
    kept: Any = np.random.get_state(legacy=True)
    try:
        for has, value in ((1, 0.2109375), (0, 0.0), (1, -1.375)):
            np.random.set_state((*kept[:3], has, value))
            places = [place for place in places if place.cast("i")[0] == has and place.cast("d")[1] == value]
    finally:
        np.random.set_state(kept)
    return places[0].cast("i") if len(places) == 1 else None


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _words(part: memoryview) -> list[int]:
    return part.cast("I").tolist()
