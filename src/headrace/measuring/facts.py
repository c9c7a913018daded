"""Facts about the script's process: its loaders, its rank, its device, its cores, its children.

Reading them changes nothing in the script.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from headrace.control_group import granted_cores
from headrace.feed.torch_ranks import this_rank

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
