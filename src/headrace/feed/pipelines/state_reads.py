"""Counts how often a dataset reads the state of a global generator, which tells as much as a draw and moves nothing.

The functions of `random` and torch that read it get other code, as modules may hold the functions themselves. NumPy's
is compiled, so the module gets another function in its place. All return what they returned before.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from typing import Any

import numpy as np


class Reads:
    """A count. Attributes: count: of the reads."""

    def __init__(self) -> None:
        self.count = 0


of_python, of_numpy, of_torch = Reads(), Reads(), Reads()
_COUNTED = "_headrace_counted"  # in the globals of the functions whose code was replaced


class _Own:
    """Its function refers to its class, as that of `random.Random` does: only then can it take its code."""

    def getstate(self) -> Any:
        __class__  # type: ignore[name-defined]  # noqa: B018
        return _headrace_counted["getstate"](self)  # type: ignore[name-defined]  # noqa: F821


def _initial_seed() -> int:
    return _headrace_counted["initial_seed"]()  # type: ignore[name-defined,no-any-return]  # noqa: F821


def _get_rng_state() -> Any:
    return _headrace_counted["get_rng_state"]()  # type: ignore[name-defined]  # noqa: F821


def count_reads() -> None:
    """Begins to count, in a process that makes samples: also those of torch if that is imported by now."""
    places = vars(random)
    if _COUNTED not in places:
        places[_COUNTED] = {"getstate": _counted(random.Random.getstate, of_python)}
        random.Random.getstate.__code__ = _Own.getstate.__code__
        np.random.get_state = _counting(np.random.get_state, of_numpy)
    torch = sys.modules.get("torch")
    if torch is not None and _COUNTED not in vars(torch.random):
        places = vars(torch.random)
        names = {"initial_seed": _initial_seed, "get_rng_state": _get_rng_state}
        places[_COUNTED] = {name: _counted(places[name], of_torch) for name in names}
        for name, own in names.items():
            places[name].__code__ = own.__code__


def counts_torch() -> bool:
    """Whether torch is imported, and reads of its generator are counted."""
    torch = sys.modules.get("torch")
    return torch is not None and _COUNTED in vars(torch.random)


def _counted(function: Any, reads: Reads) -> Any:
    """Returns a function of the same code as a Python function has now, which counts its calls."""
    kept = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return _counting(kept, reads)


def _counting(function: Any, reads: Reads) -> Any:
    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        reads.count += 1
        return function(*arguments, **named)

    return counted
