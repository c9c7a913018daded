"""The generators of the trainer's own process, which are as they were when something was made there.

To read and to set the state of NumPy's legacy generator takes 25 microseconds each; a batch of small samples takes no
more. So a state is read only if the generator's memory is not what it was when it was last read, and set only if it has
changed since. One that keeps the second number of a normal pair may change without its memory: it is always read and
set.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random import mtrand

from headrace.feed.pipelines.twister_memory import TwisterMemory, numpy_memory, python_memory


class _Kept:
    """The state of one generator, as it was last read.

    Args:
        generator: returns the object that `memory` is of, which may be replaced.
        memory: finds where its state lies.
        read, write: that state; a tuple.
        second: of a state, whether it has the second number of a normal pair.
    """

    def __init__(
        self,
        generator: Callable[[], object],
        memory: Callable[[], TwisterMemory | None],
        read: Callable[[], Any],
        write: Callable[[Any], None],
        second: Callable[[Any], bool],
    ) -> None:
        self._generator, self._find = generator, memory
        self._read, self._write, self._second = read, write, second
        self._of: object = None  # held, so that its memory stays
        self._memory: TwisterMemory | None = None
        self._state: Any = None
        self._seen = b""

    def read(self) -> tuple[Any, bool]:
        """Returns the state, and whether its memory tells all of it."""
        if self._generator() is not self._of:
            self._of, self._memory, self._seen = self._generator(), self._find(), b""
        if self._memory is None:
            return self._read(), False
        seen = self._memory.whole.tobytes()
        if seen != self._seen or self._second(self._state):
            self._state, self._seen = self._read(), seen
        return self._state, not self._second(self._state)

    def restore(self, state: Any, *, told: bool) -> None:
        """Sets what `read` returned."""
        unmoved = told and state is self._state and self._generator() is self._of
        if self._memory is None or not unmoved or self._memory.whole.tobytes() != self._seen:
            self._write(state)


_python = _Kept(lambda: random._inst, python_memory, random.getstate, random.setstate, lambda state: bool(state[2]))
_numpy = _Kept(
    lambda: mtrand._rand._bit_generator, numpy_memory, np.random.get_state, np.random.set_state, lambda state: state[3]
)


@contextmanager
def preserved_generators() -> Iterator[bool]:
    """Restores the generators of this process on exit: for loading inside the trainer's own process.

    Yields:
        Whether NumPy's has, or may have, the second number of a normal pair.
    """
    torch = sys.modules.get("torch")
    python, python_told = _python.read()
    legacy, legacy_told = _numpy.read()
    cpu = torch.default_generator.get_state() if torch is not None else None
    try:
        yield not legacy_told
    finally:
        _python.restore(python, told=python_told)
        _numpy.restore(legacy, told=legacy_told)
        if torch is not None and cpu is not None:
            torch.default_generator.set_state(cpu)
