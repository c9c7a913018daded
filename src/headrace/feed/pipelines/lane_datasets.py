"""What has no count: `IterableDataset`, functions that make an iterable, iterables, and streams over shards.

They are read in lanes, so they must be openable, several times and side by side. Where ranks share the lanes, a dataset
that divides its data among ranks by itself would lose data: workers show it one rank, and libraries' are refused.

A dataset that divides its data by `torch.utils.data.get_worker_info()` divides it among lanes: `id` is the lane,
`num_workers` the number of lanes. Without torch it asks `feed.lane()`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import PipelineError
from headrace.feed.identifiers import ranks_of_torch
from headrace.feed.sources.source import Source
from headrace.feed.streams.mixed_stream import MixedStream
from headrace.feed.streams.packing import Packed
from headrace.feed.streams.stream import Stream

_ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} | {
    "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1",
}  # fmt: skip
_LIBRARIES = {
    "webdataset": "read the shards with feed.tar, which knows their rows",
    "streaming": "read shards with feed.parquet, feed.jsonl or feed.tar",
    "litdata": "read shards with feed.parquet, feed.jsonl or feed.tar",
    "megatron": "read the shards with feed.tar, which knows their rows",
}
_DEPTH = 4


def is_uncounted(dataset: Any) -> bool:
    """Returns whether a dataset is read in lanes, as it has no rows that can be asked for by number."""
    torch_data = sys.modules.get("torch.utils.data")  # without it there is no such dataset
    if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
        return True
    if hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__"):
        return False
    return hasattr(dataset, "__iter__") or callable(dataset)


def leaves_of(dataset: Any) -> list[Any]:
    """Returns the datasets that a dataset without a count is made of: what it packs or mixes, or itself."""
    if isinstance(dataset, Packed):
        return leaves_of(dataset.documents)
    if isinstance(dataset, MixedStream):
        return [leaf for part in dataset.parts for leaf in leaves_of(part)]
    return [dataset]


def require_openable(dataset: Any) -> None:
    """Raises PipelineError if a dataset can be iterated once only, or not at all."""
    packs = isinstance(dataset, Packed)
    for leaf in leaves_of(dataset):
        _require_openable(leaf, packs=packs)


def _require_openable(dataset: Any, *, packs: bool) -> None:
    if isinstance(dataset, types.GeneratorType):
        raise PipelineError(
            "this generator can be read once: a lane that is lost could not be opened again",
            hint="pass the function that makes it, without calling it: DataLoader(rows), not DataLoader(rows())",
        )
    if not is_uncounted(dataset) and packs:
        raise PipelineError(
            f"feed.pack takes a source or a dataset without a count, and {_told(dataset)} has rows by number",
            hint="pass feed.hf(dataset), or a function that yields the documents of its lane",
        )
    if not is_uncounted(dataset):
        raise PipelineError(
            f"num_shards= is for datasets without a count, and {_told(dataset)} has rows by number",
            hint="leave num_shards out: rows that have numbers need no lanes",
        )


def _told(dataset: Any) -> str:
    """Names a dataset; those of headrace by what they are, not by their class."""
    return "a source" if isinstance(dataset, Source) else f"a {type(dataset).__name__}"


def own_copy(dataset: Any) -> Any:
    """Returns a dataset that a lane may change as it likes. Raises PipelineError if it cannot be copied."""
    if isinstance(dataset, (Stream, types.FunctionType)):
        return dataset
    try:
        return copy.deepcopy(dataset)
    except Exception as error:
        raise PipelineError(
            f"each lane works on a copy of its own, and this {type(dataset).__name__} cannot be copied: {error}",
            hint="open files, connections and generators in __iter__, not in __init__",
        ) from error


def opened(dataset: Any) -> Iterator[Any]:
    """Returns an iterator over a dataset, or over what a function makes."""
    iterable: Iterable[Any] = dataset if hasattr(dataset, "__iter__") else dataset()
    return iter(iterable)


def show_one_rank() -> None:
    """Has this process, a worker, look as if there were one rank: what divides its data by rank gives all of it then.

    The lanes are divided among the ranks already. A trainer's worker inherits its variables, and its process group of
    torch.distributed, which no fork could use.
    """
    _set_one_rank()
    if ranks_of_torch() is not None:
        group: Any = sys.modules["torch.distributed"].GroupMember
        group.WORLD = None


def _set_one_rank() -> dict[str, str]:
    """Sets the variables of a rank to those of one alone. Returns what they were."""
    before = {name: os.environ[name] for name in _ONE_RANK if name in os.environ}
    os.environ.update({name: _ONE_RANK[name] for name in before})
    return before


@contextlib.contextmanager
def one_rank_shown() -> Iterator[None]:
    """Meanwhile the variables of this process, a rank, are those of one alone, for what it makes without workers."""
    before = _set_one_rank()
    try:
        yield
    finally:
        os.environ.update(before)


def refuse_own_ranks(dataset: Any) -> None:
    """Raises PipelineError if a dataset divides its data among ranks by itself."""
    for leaf in leaves_of(dataset):
        reason = _own_ranks(leaf, _DEPTH, set())
        if reason:
            raise PipelineError(
                f"{reason[0]}, and the loader divides the lanes among the ranks: data would be lost", hint=reason[1]
            )


def _own_ranks(dataset: Any, depth: int, seen: set[int]) -> tuple[str, str] | None:
    """Returns how a dataset, or one that it holds, knows its rank, and what to do about it."""
    if depth == 0 or id(dataset) in seen:
        return None
    seen.add(id(dataset))
    kind = dataset if isinstance(dataset, types.FunctionType) else type(dataset)
    module = str(getattr(kind, "__module__", "")).partition(".")[0]
    if module in _LIBRARIES:
        return f"a {kind.__name__} of {module} divides its shards among ranks by itself", _LIBRARIES[module]
    if module == "datasets":
        split = getattr(dataset, "_distributed", None) is not None
        text = "this dataset was divided with split_dataset_by_node"
        return (text, "leave that out") if split else None
    if module in ("torch", "builtins", "numpy", "headrace"):
        return None
    values = vars(dataset).values() if hasattr(dataset, "__dict__") else ()
    inner = (value for value in values if hasattr(value, "__iter__") or isinstance(value, types.FunctionType))
    return next(filter(None, (_own_ranks(value, depth - 1, seen) for value in inner)), None)


@dataclass
class LaneInfo:
    """A lane.

    Attributes:
        num_workers: number of lanes.
        seed: of this lane in this epoch.
        dataset: this lane's own copy of it.
        asked: whether somebody wanted to know which lane it is.
        shown: whether torch's `get_worker_info()` names it.
    """

    number: int
    num_workers: int
    seed: int
    dataset: Any
    asked: bool = False
    shown: bool = True

    @property
    def id(self) -> int:
        """Number of the lane, from 0."""
        self.asked = True
        return self.number


_current: list[LaneInfo] = []


def lane() -> LaneInfo | None:
    """Returns the lane that this code works for, as `get_worker_info()` does with torch; None outside of lanes."""
    return _current[-1] if _current else None


@functools.cache
def _worker_info() -> type:
    from torch.utils.data._utils import worker

    class LaneOfTorch(worker.WorkerInfo):
        """torch's own type, that notes when it is asked which lane it is."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name == "id" and _current:
                _current[-1].asked = True
            return super().__getattribute__(name)

    return LaneOfTorch


class WorkingFor:
    """Lets the code inside see which lane it works for."""

    def __init__(self, info: LaneInfo) -> None:
        self._info = info
        self._worker: Any = None
        self._before: Any = None

    def __enter__(self) -> None:
        info = self._info
        _current.append(info)
        self._worker = sys.modules.get("torch.utils.data._utils.worker")
        if self._worker is not None:
            self._before, self._worker._worker_info = self._worker._worker_info, None
            if info.shown:
                data = {"id": info.number, "num_workers": info.num_workers, "seed": info.seed, "dataset": info.dataset}
                self._worker._worker_info = _worker_info()(**data)

    def __exit__(self, *raised: object) -> None:
        if self._worker is not None:
            self._worker._worker_info = self._before
        _current.pop()
