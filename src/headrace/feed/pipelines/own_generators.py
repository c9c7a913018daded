"""The generators of the trainer's own process, which are as they were when something was made there.

To read and to set the state of NumPy's legacy generator takes 25 microseconds each; a batch of small samples takes no
more. So it is copied where it lies, except with the second number of a normal pair, which lies elsewhere.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random import mtrand

from headrace.feed.pipelines.twister_memory import TwisterMemory, numpy_memory, python_memory


class _Python:
    """The generator of `random`."""

    def __init__(self) -> None:
        self._memory = python_memory()

    def read(self) -> Callable[[], None]:
        """Returns what sets the present state again."""
        if self._memory is None or self._memory.second():
            state = random.getstate()
            return lambda: random.setstate(state)
        return _copied(self._memory, lambda: random.seed(0))


class _Numpy:
    """NumPy's legacy generator, whose twister can be replaced."""

    def __init__(self) -> None:
        self._of: object = None  # held, so that its memory stays
        self._memory: TwisterMemory | None = None

    def read(self) -> Callable[[], None]:
        """Returns what sets the present state again."""
        own: Any = mtrand._rand._bit_generator
        if own is not self._of:
            self._of, self._memory = own, numpy_memory()
        write: Callable[[], None]
        if self._memory is None or self._memory.second():
            write = functools.partial(np.random.set_state, np.random.get_state())
        else:
            write = _copied(self._memory, lambda: np.random.seed(0))

        def restore() -> None:
            if mtrand._rand._bit_generator is not own:
                mtrand.set_bit_generator(own)
            write()

        return restore


def _copied(memory: TwisterMemory, reset: Callable[[], None]) -> Callable[[], None]:
    """Returns what sets the present state again where it lies; `reset` discards the second number of a pair."""
    state = memory.whole.tobytes()

    def restore() -> None:
        if memory.second():
            reset()
        if memory.whole.tobytes() != state:
            memory.whole[:] = state

    return restore


_python, _numpy = _Python(), _Numpy()


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restores the generators of this process on exit: for loading inside the trainer's own process."""
    torch = sys.modules.get("torch")
    restore_python, restore_numpy = _python.read(), _numpy.read()
    cpu = torch.default_generator.get_state() if torch is not None else None
    try:
        yield
    finally:
        restore_python()
        restore_numpy()
        if torch is not None and cpu is not None:
            torch.default_generator.set_state(cpu)
