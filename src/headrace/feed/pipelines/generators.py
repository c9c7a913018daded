"""Random generators that a dataset holds: found by walking its attributes, and watched for whether they move.

Looked into: instances' attributes, dict, list, tuple, set, partial objects, and functions' closures; of modules only
the generators that stand at the top of the one where a class of the dataset is. The walk is bounded in depth and
number.
"""

from __future__ import annotations

import collections
import functools
import random
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

MAX_DEPTH = 12
MAX_OBJECTS = 50_000
MAX_ITEMS = 1_000  # of one container that are looked at: a list of a million file names holds no generator

_DULL = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType, np.ndarray, np.generic)


def find(root: object, name: str) -> dict[str, object]:
    """Returns the generators that can be reached from an object: names as a user would write them, and kinds."""
    found: dict[str, object] = {}
    seen: set[int] = set()
    own = {id(generator) for generator in process_generators().values()}
    queue = collections.deque([(name, root, 0)])
    while queue and len(seen) < MAX_OBJECTS:
        path, value, depth = queue.popleft()
        if id(value) in seen or isinstance(value, _DULL) or id(value) in own:
            continue
        seen.add(id(value))
        if _is_generator(value):
            kind = type(value)
            module = "numpy.random" if kind.__module__.startswith("numpy.random") else kind.__module__
            module = "torch" if module.startswith("torch") else module
            found[f"{path} ({module}.{kind.__qualname__})"] = value
        elif depth < MAX_DEPTH:
            queue.extend((path + place, child, depth + 1) for place, child in _children(value))
    return found


def process_generators() -> dict[str, object]:
    """Returns the generators of this process that headrace sets before every sample."""
    torch = sys.modules.get("torch")
    found: dict[str, object] = {"random": random._inst, "numpy.random": np.random.mtrand._rand}
    return found | ({"torch": torch.default_generator} if torch is not None else {})


def state_of(generator: Any) -> bytes | None:
    """Returns a generator's state, None if it has none that could be set again (`random.SystemRandom`)."""
    if isinstance(generator, random.SystemRandom):
        return None
    if isinstance(generator, random.Random):
        return repr(generator.getstate()).encode()
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    if isinstance(generator, np.random.RandomState):
        return flat(generator.get_state(legacy=False))
    if isinstance(generator, np.random.BitGenerator):
        return flat(generator.state)
    state: bytes = generator.get_state().numpy().tobytes()
    return state


def flat(state: object) -> bytes:
    """Returns the bytes of a state of NumPy's, to be compared."""
    if isinstance(state, Mapping):
        return b",".join(str(key).encode() + b":" + flat(value) for key, value in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else repr(state).encode()


def _is_generator(value: object) -> bool:
    torch = sys.modules.get("torch")
    kinds = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    return isinstance(value, kinds) or (torch is not None and isinstance(value, torch.Generator))


def _children(value: Any) -> Iterator[tuple[str, object]]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return
    if isinstance(value, dict):
        pairs = zip(range(MAX_ITEMS), dict.items(value), strict=False)
        yield from ((f"[{key!r}]" if isinstance(key, (str, int)) else "[...]", item) for _, (key, item) in pairs)
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        yield from ((f"[{i}]", item) for i, item in zip(range(MAX_ITEMS), value, strict=False))
    if isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), ("", value.__func__))
    elif isinstance(value, types.FunctionType):
        closure = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((f".<{name}>", cell.cell_contents) for name, cell in closure if _is_set(cell))
        yield from _of_module(value.__module__)
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from ((f".{name}", item) for name, item in list(attributes.items())[:MAX_ITEMS])
        for name in _slots(type(value)):
            try:
                yield f".{name}", object.__getattribute__(value, name)
            except AttributeError:
                continue  # a slot that was never filled
        yield from _of_module(type(value).__module__)


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that has no value yet
        return False


def _slots(kind: type) -> Iterator[str]:
    for parent in kind.__mro__:
        slots = parent.__dict__.get("__slots__", ())
        yield from (name for name in ((slots,) if isinstance(slots, str) else slots) if not name.startswith("__"))


def _of_module(name: str | None) -> Iterator[tuple[str, object]]:
    module = sys.modules.get(name or "")
    if module is not None and (name or "").partition(".")[0] not in ("builtins", "numpy", "torch", "random"):
        yield from (
            (f" -> {name}.{own}", item) for own, item in list(vars(module).items()) if _is_generator(item)
        )  # fmt: skip
