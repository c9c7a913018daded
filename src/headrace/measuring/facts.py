"""Facts about the script's process (its loaders, rank, device, cores, children) and about its batches.

Reading them changes nothing in the script. A batch, of any type that a loader hands out, is described, and copied: one
that is kept for the replay must not change when the script changes its own in place, so it is copied when it is kept
and again when it is handed out. Pinned tensors are handed out as they are: to pin a copy takes longer than the step
that is to be measured, and what is pinned is there to be copied to a device.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from headrace.control_group import granted_cores
from headrace.feed.batch.tensors import is_tensor
from headrace.feed.identifiers import this_rank

QUIET_SECONDS = 0.1
QUIET_LIMIT = 5.0


def synchronize() -> None:
    """Waits for the CUDA device if the script uses it."""
    if cuda():
        sys.modules["torch"].cuda.synchronize()


def is_data_worker() -> bool:
    """Whether this process is a worker of torch's DataLoader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None


def training() -> bool:
    """Whether the caller's loop computes gradients."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.is_grad_enabled())


def _is_iterable(loader: Any) -> bool:
    """Whether a loader's data have no rows by number: an IterableDataset, or what headrace reads in lanes."""
    module = sys.modules.get("torch.utils.data.dataset")
    if module is not None and isinstance(loader.dataset, module.IterableDataset):
        return True
    return not getattr(getattr(loader, "_planner", None), "counted", True)


def _name(dataset: Any) -> str:
    """What the user would call a dataset: of a function and of a pipeline its own name, of an object its class."""
    factory = getattr(dataset, "factory", None)
    if isinstance(factory, str):
        return factory.rpartition(":")[2]
    return str(getattr(dataset, "__qualname__", type(dataset).__qualname__))


def _length(of: Any) -> int | None:
    try:
        return len(of)
    except (TypeError, NotImplementedError):
        return None


def sizes(loader: Any) -> tuple[int | None, int, int]:
    """Returns batches of a pass (None if unknown), rows of a batch, rows of the last one (0: look at the batch)."""
    size = loader.batch_size
    rows = int(size) if isinstance(size, int) else 1 if getattr(loader, "batch_sampler", None) is None else 0
    if _is_iterable(loader):
        return None, rows, rows  # to ask for its length has an effect in torch
    length, samples = _length(loader), _length(getattr(loader, "sampler", None))
    if length is None or samples is None:
        return length, rows, rows
    rest = samples - rows * (length - 1)
    return length, rows, rest if 0 < rest <= rows else rows


def facts(loader: Any) -> dict[str, Any]:
    """Returns what a loader is: the fields of a `loader` record."""
    dataset = loader.dataset
    iterable = _is_iterable(loader)
    context = getattr(loader, "multiprocessing_context", None)
    method = context if isinstance(context, str) else getattr(context, "_name", None)
    if method is None:
        import multiprocessing  # torch has done so; other processes of the command need not

        usual = "forkserver" if sys.version_info >= (3, 14) else "fork"
        method = multiprocessing.get_start_method(allow_none=True) or usual
    return {
        "type": f"{type(loader).__module__}.{type(loader).__qualname__}",
        "dataset": _name(dataset),
        "samples": None if iterable else _length(dataset),
        "map_style": not iterable,
        "batch_size": loader.batch_size if isinstance(loader.batch_size, int) else None,
        "workers": int(loader.num_workers),
        "auto": bool(own_stats(loader).get("tuning")),
        "persistent": bool(getattr(loader, "persistent_workers", False)),
        "start_method": method,
        "remote": getattr(loader, "_places", None) is not None,
        "training": training(),
    }


def own_stats(loader: Any) -> dict[str, Any]:
    """Returns what headrace's own loader tells of itself; nothing of another one."""
    return dict(loader.stats()) if type(loader).__module__.startswith("headrace.") else {}


def rank() -> dict[str, Any]:
    """Returns which rank this process is, and the cores that it may use: the fields of a `rank` record."""
    number, world = this_rank()
    return {"rank": number, "world_size": world, "cores": granted_cores()}


def cuda() -> bool:
    """Whether the script uses CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def wait_until_children_are_quiet() -> None:
    """Waits, for a limited time, until workers have filled their queues: that would disturb the replay."""
    deadline = time.monotonic() + QUIET_LIMIT
    before = _ticks_of_children()
    while before and time.monotonic() < deadline:
        time.sleep(QUIET_SECONDS)
        now = _ticks_of_children()
        if sum(now.values()) - sum(before.get(pid, 0) for pid in now) <= 1:
            return
        before = now


def _ticks_of_children() -> dict[str, int]:
    found: dict[str, int] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            for pid in (task / "children").read_text(encoding="ascii").split():
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
                found[pid] = sum(int(ticks) for ticks in fields.split()[11:13])
        except OSError:
            continue  # it has just ended
    return found


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
