"""An open lane of a dataset that is not headrace's own: an `IterableDataset`, a function that makes an iterable.

Where it can be opened again is told by torchdata's protocol `Stateful`: `state_dict()` and `load_state_dict()` of the
dataset, and of its iterator. The state is encoded at once, because a dataset may go on changing what it returned. As
with torchdata, `__iter__` is called once, and a dataset that is its own iterator is given its state behind that call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from headrace.feed.batch import pytree
from headrace.feed.pipelines.lane_datasets import opened
from headrace.feed.streams.steps import BEGINNING, Lane, Restart


class DatasetLane(Lane):
    """See the module.

    Args:
        dataset: the lane's own copy.
        start: a `restart` of this lane.
    """

    def __init__(self, dataset: Any, start: Restart) -> None:
        states = unpacked(start.place) if start.place else [None, None]
        if states[0] is not None:
            dataset.load_state_dict(states[0])
        self._made = start.made
        self._iterator: Iterator[Any] = opened(dataset)
        if states[1] is not None:
            self._iterator.load_state_dict(states[1])  # type: ignore[attr-defined]
        own = None if self._iterator is dataset else dataset
        self._stateful: list[Any] = [thing if _is_stateful(thing) else None for thing in (own, self._iterator)]
        self._outputs = map(next, itertools.repeat(self._iterator))  # `iter` of this calls no `__iter__` of the user's

    def __next__(self) -> Any:
        output = next(self._iterator)
        self._made += 1
        return output

    def extend(self, outputs: list[Any], count: int) -> None:
        """Puts the next `count` outputs to the others, or as many as there are."""
        before = len(outputs)
        try:
            outputs.extend(itertools.islice(self._outputs, count))
        finally:
            self._made += len(outputs) - before

    @property
    def restart(self) -> Restart:  # type: ignore[override]
        """Where it can be opened again: behind the latest output, or at the beginning if the dataset has no state.

        Raises:
            PipelineError: the state holds what cannot be kept; names its place.
        """
        states = [thing.state_dict() if thing is not None else None for thing in self._stateful]
        return BEGINNING if all(state is None for state in states) else Restart(packed(states), self._made)


def packed(state: Any) -> bytes:
    """Encodes plain data, arrays and tensors. Raises PipelineError if there is anything else."""
    node, leaves, size = pytree.describe(state, "state_dict()")
    return msgspec.msgpack.encode([node, pytree.packed(leaves, size)])


def unpacked(token: bytes) -> Any:
    """Returns what `packed` was given."""
    node, block = msgspec.msgpack.decode(token)
    whole = np.frombuffer(bytearray(block), np.uint8)
    return pytree.rebuild(node, whole, pytree.copied(whole))


def _is_stateful(thing: Any) -> bool:
    """Returns whether a dataset or iterator follows torchdata's protocol `Stateful`.

    A dataset of Hugging Face's that has a shuffle buffer does not: the buffer is not in its state.
    """
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict") and not _has_buffer(thing)


def _has_buffer(dataset: Any) -> bool:
    part = getattr(dataset, "_ex_iterable", None)
    while part is not None:
        if type(part).__name__.startswith("BufferShuffled"):
            return True
        part = getattr(part, "ex_iterable", None)
    return False
