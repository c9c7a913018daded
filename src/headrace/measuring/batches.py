"""Copies, sizes and descriptions of batches, of any type that a loader hands out.

A batch that is kept for the replay must not change when the script changes its own in place, so it is copied when it
is kept and again when it is handed out. Pinned tensors are handed out as they are: to pin a copy takes longer than the
step that is to be measured, and what is pinned is there to be copied to a device.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from headrace.feed.batch.tensors import is_tensor

MAX_DEPTH = 32
_PLAIN = (str, bytes, int, float, complex, bool, type(None))


class Uncopyable(Exception):
    """A batch holds something that cannot be copied."""


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def keep(batch: Any) -> Any:
    """Returns a copy to keep. Raises Uncopyable."""
    return _copy(batch, lambda tensor: _copied(tensor).pin_memory() if tensor.is_pinned() else _copied(tensor), 0)


def hand_out(kept: Any) -> Any:
    """Returns a copy for the script; tensors in pinned memory are not copied. Raises Uncopyable."""
    return _copy(kept, lambda tensor: tensor if tensor.is_pinned() else _copied(tensor), 0)


def _copied(tensor: Any) -> Any:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _copy(value: Any, tensor: Callable[[Any], Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise Uncopyable(f"nested deeper than {MAX_DEPTH} levels")
    if is_tensor(value):
        return tensor(value)
    if type(value) in _PLAIN:
        return value
    if type(value) is dict:
        return {key: _copy(item, tensor, depth + 1) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy(item, tensor, depth + 1) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copy(item, tensor, depth + 1) for item in value))
    try:
        return copy.deepcopy(value)
    except Exception as error:  # the user's own class may raise anything
        raise Uncopyable(f"a {type(value).__module__}.{type(value).__qualname__} cannot be copied: {error}") from error


def _children(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, Mapping):
        return [(str(key), value[key]) for key in value]
    if isinstance(value, (list, tuple)):
        return [(str(index), item) for index, item in enumerate(value)]
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return None


def bytes_of(value: Any, depth: int = 0) -> int:
    """Returns the payload bytes: tensors, arrays, strings, bytes, and 8 for a number."""
    if is_tensor(value) or _is_array(value):
        return int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if type(value) in (int, float, complex):
        return 8
    children = _children(value)
    if children is None:
        children = list(vars(value).items()) if hasattr(value, "__dict__") else []
    return 0 if depth > MAX_DEPTH else sum(bytes_of(item, depth + 1) for _, item in children)


def rows_of(value: Any) -> int:
    """Returns the length of the first axis of the first tensor or array; 0 without one."""
    if is_tensor(value) or _is_array(value):
        return int(value.shape[0]) if value.ndim else 0
    return next((rows for _, item in _children(value) or () if (rows := rows_of(item))), 0)


def describe(value: Any, depth: int = 0) -> list[Any]:
    """Describes dtypes, shapes and nesting, as JSON; `headrace.measuring.transfer` makes such a batch again.

    Forms: ["t", dtype, shape] tensor, ["a", dtype, shape] array, ["s", n] string, ["b", n] bytes, ["v", value] other
    plain value, ["d", {key: node}], ["l", [node]], ["o", class] anything else.
    """
    if is_tensor(value):
        return ["t", str(value.dtype).removeprefix("torch."), list(value.shape)]
    if _is_array(value):
        return ["a", value.dtype.str, list(value.shape)]
    if isinstance(value, str):
        return ["s", len(value)]
    if isinstance(value, bytes):
        return ["b", len(value)]
    if type(value) is float:
        return ["v", 0.5]  # JSON has no NaN
    if value is None or type(value) in (bool, int):
        return ["v", value]
    children = _children(value) if depth < MAX_DEPTH else None
    if children is None:
        return ["o", f"{type(value).__module__}.{type(value).__qualname__}"]
    if isinstance(value, (list, tuple)):
        return ["l", [describe(item, depth + 1) for _, item in children]]
    return ["d", {key: describe(item, depth + 1) for key, item in children}]
