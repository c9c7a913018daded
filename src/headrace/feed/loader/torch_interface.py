"""What users of torch's DataLoader do with the object beside iterating it: read, measure, annotate, set, pickle."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Iterable
from types import GenericAlias
from typing import Any, TypeVar

from headrace.feed.batch import pytree
from headrace.feed.client.policy import SessionStats, Skipped
from headrace.feed.loader.open_sessions import OpenSessions
from headrace.feed.metrics.step_meter import StepMeter
from headrace.feed.plan.epoch import EpochPlan, PlanBatchSampler, PlanSampler, in_sequence
from headrace.feed.plan.planner import Planner

H = TypeVar("H", bound="TorchHabits")
FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class TorchHabits(abc.ABC):
    """The loader as an object.

    Attributes:
        _sampler, _batch_sampler: torch's samplers, both None where headrace's own plan decides the order.
        _batched: whether batches are made.
        _planner: knows the next epoch.
        _sessions: those that are open.
        _meter, _stats: what is counted.
    """

    _sampler: Iterable[Any] | None
    _batch_sampler: Iterable[list[Any]] | None
    _batched: bool
    _planner: Planner
    _sessions: OpenSessions
    _meter: StepMeter
    _stats: SessionStats

    @abc.abstractmethod
    def _plan(self) -> EpochPlan: ...

    @abc.abstractmethod
    def _step_count(self) -> int: ...

    @abc.abstractmethod
    def _keep_told(self) -> None: ...

    @abc.abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch."""

    @property
    def sampler(self) -> Any:
        """The samples' order: the given sampler, torch's, or a view of headrace's own order for this rank."""
        return self._sampler if self._sampler is not None else self._own_order()

    @property
    def batch_sampler(self) -> Any:
        """The batches' order, as `sampler`; None for a loader that does not batch."""
        if self._sampler is not None or not self._batched:
            return self._batch_sampler
        return PlanBatchSampler(self.sampler, self._plan, self._next_epoch)

    @property
    def _auto_collation(self) -> bool:
        """Whether batches are made; other libraries look it up, and the next."""
        return self._batched

    @property
    def _index_sampler(self) -> Any:
        """What gives the indices: of batches, or of samples."""
        return self.batch_sampler if self._batched else self.sampler

    def _own_order(self) -> PlanSampler:
        kind = PlanSampler if self._planner.shuffle else in_sequence()
        return kind(self._plan, self._next_epoch, self.set_epoch)

    def _next_epoch(self) -> int:
        return self._planner.bookmark.epoch

    def __len__(self) -> int:
        if self._batch_sampler is not None:
            return len(self._batch_sampler)  # type: ignore[arg-type]
        if self._sampler is not None:
            return len(self._sampler)  # type: ignore[arg-type]
        return self._step_count()

    def close(self) -> None:
        """Ends the workers of this loader, and every pass over it. It can be used again: new workers start then."""
        self._keep_told()
        self._sessions.close()
        self._meter.close()

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def skipped(self) -> list[Skipped]:
        """The samples that were left out under ``on_error="skip"``."""
        return list(self._stats.skipped)

    def __class_getitem__(cls, item: object) -> GenericAlias:
        return GenericAlias(cls, item)  # `DataLoader[Batch]` in annotations

    def __setattr__(self, name: str, value: object) -> None:
        if name in FIXED and "_ready" in vars(self):
            raise ValueError(f"{name} cannot be set after the {type(self).__name__} was made")
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_sessions": OpenSessions(), "_built": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        weakref.finalize(self, self._sessions.close)


def pinned(batch: Any) -> Any:
    """Returns a batch in page-locked memory, with torch's means, also inside dataclasses; without CUDA, as it is."""
    import torch
    from torch.utils.data._utils.pin_memory import pin_memory

    return pytree.mapped(batch, pin_memory) if torch.cuda.is_available() else batch
