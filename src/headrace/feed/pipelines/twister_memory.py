"""Where the states of `random`'s and NumPy's Mersenne twisters lie in memory: looking there costs next to nothing.

Both are found by what they are documented to hold, and compared with what the modules say; one that is not found
there, in another Python say, is None.
"""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass

from numpy.random import mtrand

_WORD = 4
_WORDS = 624 * _WORD


@dataclass(frozen=True)
class TwisterMemory:
    """The state of a twister: 624 words and a position, views of where they lie.

    Attributes:
        whole: all of it.
        telling: the parts that tell a draw: position and first words.
    """

    whole: memoryview
    telling: tuple[memoryview, ...]


def python_memory() -> TwisterMemory | None:
    """Finds the state of the module `random`: CPython keeps the position and then the words behind the object."""
    generator = random._inst
    whole = _memory(id(generator) + object.__basicsize__, _WORD + _WORDS)
    *words, position = generator.getstate()[1]
    return TwisterMemory(whole, (whole[: 3 * _WORD],)) if _words(whole) == [position, *words] else None


def numpy_memory() -> TwisterMemory | None:
    """Finds the state of NumPy's legacy generator: the words, then the position."""
    generator = mtrand._rand._bit_generator
    if type(generator).__name__ != "MT19937":
        return None
    whole = _memory(generator.ctypes.state_address, _WORDS + _WORD)
    state = generator.state["state"]
    if _words(whole) != [*state["key"].tolist(), state["pos"]]:
        return None
    return TwisterMemory(whole, (whole[: 2 * _WORD], whole[_WORDS:]))


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _words(part: memoryview) -> list[int]:
    return part.cast("I").tolist()
