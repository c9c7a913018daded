"""How samples become a batch: torch's own collate functions, and NumPy's counterpart for those who have no torch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.feed.batch.row_layout import join_arrays, stacks_at_once
from headrace.feed.batch.tensors import is_tensor

_NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)


def standard_collate(*, batched: bool) -> Callable[[Any], Any]:
    """Returns torch's `default_collate`, or `default_convert` for a loader that does not batch.

    They are taken where torch's loader takes them; somebody may have put another function there.
    """
    from torch.utils.data._utils import collate

    return collate.default_collate if batched else collate.default_convert


def stack_arrays(samples: list[Any]) -> Any:
    """Makes a batch of NumPy arrays of a list of samples; what `collate_fn=` takes where batches are not for torch.

    Arrays and numbers are stacked along a new first axis. Mappings become a dict of such batches, lists, tuples and
    namedtuples one of their own type. Everything else, as strings, becomes the list of the samples' values.

    Args:
        samples: all of the same structure.

    Raises:
        ValueError: arrays of different shapes, or samples of different structures.
        TypeError: masked arrays, matrices, or arrays of another subclass, whose meaning would be lost.
    """
    first = samples[0]
    if isinstance(first, _NUMBERS):
        for kind in {*map(type, samples)}:
            if issubclass(kind, np.ndarray) and kind not in (np.ndarray, np.memmap):
                raise TypeError(
                    f"a {kind.__module__}.{kind.__qualname__} would be stacked as an ordinary array: return np.asarray "
                    "of it, and what else belongs to it (as a mask) as another field"
                )
        return np.stack([np.asarray(sample) for sample in samples])
    if isinstance(first, Mapping):
        return {key: stack_arrays([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (list, tuple)):
        parts = [stack_arrays(list(column)) for column in zip(*samples, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return list(samples)


def uneven_field(samples: list[Any], collate: Callable[[list[Any]], Any]) -> str:
    """Says which field keeps samples from being stacked, and how they differ; empty if that is not seen.

    Args:
        samples: of one batch.
        collate: what stacks them. A field is the culprit if the field alone cannot be stacked, whatever it looks like.

    Raises:
        BaseException: the user's objects may do anything when they are looked at.
    """
    return _uneven_field(samples, collate, "batch") if _fails(samples, collate) else ""


def _fails(samples: list[Any], collate: Callable[[list[Any]], Any]) -> bool:
    try:
        collate(samples)
    except Exception:  # noqa: BLE001 - that it fails is the answer
        return True
    return False


def _uneven_field(samples: list[Any], collate: Callable[[list[Any]], Any], place: str) -> str:
    first = samples[0]
    columns: Iterable[tuple[Any, list[Any]]] = ()
    if all(isinstance(sample, Mapping) for sample in samples):
        missing = next(filter(None, ([key for key in first if key not in sample] for sample in samples)), [])
        if missing:
            return f"{place}[{min(map(repr, missing))}] is not in every sample"
        columns = ((key, [sample[key] for sample in samples]) for key in first)
    elif all(isinstance(sample, (list, tuple)) and len(sample) == len(first) for sample in samples):
        columns = enumerate(map(list, zip(*samples, strict=True)))
    for key, column in columns:
        if _fails(column, collate):
            return _uneven_field(column, collate, f"{place}[{key!r}]")
    if first is None:
        return f"{place} is None"
    types = {type(sample) for sample in samples}
    if len(types) > 1 and not all(map(is_tensor, samples)):
        return f"{place} holds {' and '.join(sorted(kind.__name__ for kind in types))}"
    shapes = [_shape_of(sample) for sample in samples]
    other = next((shape for shape in shapes if shape != shapes[0]), None)  # of the row that torch's error names too
    return "" if other is None or isinstance(first, (str, bytes)) else f"{place} has the shapes {shapes[0]} and {other}"


def reworded(error: Exception, text: str) -> Exception | None:
    """Returns an exception of the same type with another text; None if its type takes no text."""
    made = type(error)(text)
    return made if text in str(made) or isinstance(made, KeyError) else None


def _shape_of(value: Any) -> tuple[int, ...]:
    shape = getattr(value, "shape", None)  # also of what has no axes, and so no length
    return tuple(shape) if shape is not None else (len(value),) if hasattr(value, "__len__") else ()


def collate_as_torch(samples: list[Any]) -> Any:
    """Makes what torch's `default_collate` makes, which makes a tensor of each NumPy array first: here one of all.

    Args:
        samples: of one batch.

    Raises:
        Exception: what `default_collate` raises.
    """
    from torch.utils.data._utils import collate

    known = collate.default_collate_fn_map
    if known.get(np.ndarray) is not collate.collate_numpy_array_fn:  # the user's own
        return collate.default_collate(samples)  # type: ignore[no-untyped-call]
    return collate.collate(samples, collate_fn_map={**known, np.ndarray: _stacked_arrays})


def _stacked_arrays(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    import torch
    from torch.utils.data._utils import collate

    if stacks_at_once(batch):
        made = np.empty((len(batch), *batch[0].shape), batch[0].dtype)
        join_arrays(batch, made)
        with contextlib.suppress(TypeError):  # of a dtype that torch does not have
            return torch.from_numpy(made)
    return collate.collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)


def stacks_rows(collate: Callable[[Any], Any], *, batched: bool) -> bool:
    """Returns whether rows of the batches that a function makes may be written one by one: torch's, and NumPy's."""
    if collate is stack_arrays:
        return True
    if "torch.utils.data" not in sys.modules or collate is not standard_collate(batched=batched):
        return False
    return getattr(collate, "__module__", "") == "torch.utils.data._utils.collate"


def stack_in_ordinary_memory() -> None:
    """Keeps `default_collate` from stacking into torch's shared memory in this process.

    In a worker (`get_worker_info()` is set) it makes a file in /dev/shm for every tensor, to hand it to the trainer.
    Here results go into slabs, so that is a copy too many, and a worker that is killed between making and unlinking
    such a file leaves it behind forever. The change is made where torch lets collate functions be added: its map by
    type.
    """
    import torch
    from torch.utils.data._utils import collate, worker

    def stack(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
        info, worker._worker_info = worker._worker_info, None
        try:
            return collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        finally:
            worker._worker_info = info

    collate.default_collate_fn_map[torch.Tensor] = stack
