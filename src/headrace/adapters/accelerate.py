"""Accelerate: a DataLoader that is what `accelerator.prepare` makes of torch's.

`accelerator.prepare` makes a new torch DataLoader from the attributes of the given one, with a sampler for its rank,
and returns all other objects unchanged. This loader needs no `prepare`, and may be passed to it: it takes its rank's
part, once; puts batches on the rank's device; and tells Accelerate which batch is the last and how many of its rows
are real, which gradient accumulation and `gather_for_metrics` need.

What is passed to `prepare` is also in the checkpoints of `save_state`: there the loader counts as one of Accelerate's
own, which is prepared already and has a state.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NoReturn

from accelerate.data_loader import BatchSamplerShard
from accelerate.state import GradientState, PartialState
from accelerate.utils import send_to_device, synchronize_rng_states
from torch import Generator
from torch.utils.data import BatchSampler, DistributedSampler
from torch.utils.data import DataLoader as TorchLoader

from headrace import feed
from headrace.errors import FeedError, PositionError
from headrace.feed.pipelines.lane_datasets import is_uncounted
from headrace.feed.plan.epoch import PlanBatchSampler

_END = object()


class _Prepared:
    """What has `accelerator.prepare` take a loader for one of Accelerate's own: prepared already, with a state.

    Attributes:
        prepared: whether it was passed to `prepare`.
    """

    prepared = False
    _planner: Any
    _sought: bool = False  # whether `load_state` has looked for its state, and found none

    @property  # type: ignore[misc]  # isinstance, by which Accelerate's own loaders say that they are torch's
    def __class__(self) -> Any:
        return TorchLoader

    @property
    def _is_accelerate_prepared(self) -> bool:
        self.prepared = True
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self.prepared = prepared

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether `save_state` and `load_state` are to ask for the state.

        Raises:
            PositionError: they keep one state for all ranks, and those of lanes differ.
        """
        planner = self._planner
        if planner.ranks_differ:
            raise PositionError(
                f"save_state and load_state keep one state of a loader, and each of the {planner.world_size} ranks has "
                "lanes of its own",
                "do not pass this loader to accelerator.prepare; save loader.state_dict() of every rank beside the "
                "checkpoint, and load it, or feed.merge_states(the states of all ranks)",
            )
        self._sought = True
        return True


class DataLoader(_Prepared, feed.DataLoader):
    """`headrace.feed.DataLoader` for a loop with an Accelerator; make it after the Accelerator.

    `batch_size` is per rank, as with `accelerator.prepare`. A sampler or batch_sampler is divided among the ranks as
    Accelerate does it, except a DistributedSampler, which has done so.

    Args:
        dataset, batch_size, shuffle, sampler, batch_sampler, drop_last: as `headrace.feed.DataLoader`.
        even_batches: whether the last batch is filled up so that all ranks have as many rows, which
            `gather_for_metrics` needs (and takes off again); ``"full"``: up to `batch_size`, as Accelerate does. By
            default a shuffled loader, for training, gives every index exactly once, and another one is filled up.
        device_placement: whether batches are put on the rank's device.
        **options: as `headrace.feed.DataLoader`.

    Attributes:
        end_of_dataloader, remainder: what Accelerate reads: whether the last batch is out, and how many of the rows of
            all ranks are real in it (0: all).
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        *,
        drop_last: bool = False,
        even_batches: bool | Literal["full"] | None = None,
        device_placement: bool = True,
        **options: Any,
    ) -> None:
        state = PartialState()
        ranks, rank = state.num_processes, state.process_index
        given: dict[str, Any]
        self.end_of_dataloader, self.remainder = False, -1
        self._gradient_state = GradientState()
        self._device = state.device if device_placement else None
        self._skip = 0
        self._reached: int | None = None  # steps that were handed out, where one is held ahead
        self._given: Any = sampler if sampler is not None else getattr(batch_sampler, "sampler", batch_sampler)
        self._generator: Generator | None = None
        self._total = 0  # rows of the given sampler over all ranks, where the last batch is filled up
        divided = isinstance(self._given, DistributedSampler) or isinstance(batch_sampler, BatchSamplerShard)
        if self._given is None:
            counted = not is_uncounted(dataset) and options.get("num_shards") is None
            even = (not shuffle and counted) if even_batches is None else even_batches
            given = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, "even_batches": even}
            given |= {"rank": rank, "world_size": ranks}
        elif ranks == 1 or divided or batch_size is None:
            given = {"batch_size": batch_size, "sampler": sampler, "batch_sampler": batch_sampler}
            given |= {"drop_last": drop_last}
        else:
            whole: Any = BatchSampler(sampler, batch_size, drop_last) if sampler is not None else batch_sampler
            fills = even_batches is None or bool(even_batches)
            given = {"batch_sampler": BatchSamplerShard(whole, ranks, rank, even_batches=fills)}
            if sampler is not None and fills and not drop_last:
                self._total = batch_size * ranks
            self._generator = _generator_of(self._given)
        super().__init__(dataset, **given, **options)

    @property
    def batch_sampler(self) -> Any:
        """The batches' order; headrace's own cannot be iterated here: see `skip_first_batches`."""
        ours = super().batch_sampler
        if not isinstance(ours, PlanBatchSampler):
            return ours
        return _Unskippable(ours.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, also in a given sampler."""
        super().set_epoch(epoch)
        self._sought = False
        if hasattr(self._given, "set_epoch"):
            self._given.set_epoch(epoch)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Returns the position; by default that behind the batches which the loop was given."""
        self._sought = False
        if batches is None and self._reached is not None:
            batches = self._planner.bookmark.behind(self._reached)
        return super().state_dict(batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begins the next pass where a state was taken."""
        super().load_state_dict(state)
        self._sought = False

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.__getstate__())  # its class is not what it says

    def skip_first_batches(self, batches: int) -> None:
        """Lets the next pass begin after so many batches, to resume in the middle of an epoch."""
        self._skip, self._sought = batches, False

    def __iter__(self) -> Iterator[Any]:
        self._check_place()
        if hasattr(self._given, "set_epoch"):
            self._given.set_epoch(self._next_epoch())
        if self._generator is not None:
            synchronize_rng_states(["generator"], self._generator)
        skip, self._skip, self._reached = self._skip, 0, None
        first, end = self._steps()
        self.remainder, self.end_of_dataloader = self._remainder(), False
        self._gradient_state._add_dataloader(self)
        try:
            for step, batch, last in self._with_end(super().__iter__(), first, end):
                if step < skip:
                    continue
                self.end_of_dataloader = last
                yield batch if self._device is None else send_to_device(batch, self._device)
        finally:
            self._gradient_state._remove_dataloader(self)

    def _check_place(self) -> None:
        """Raises PositionError if the place was looked for in a checkpoint that does not hold it."""
        if self._sought:
            self._sought = False
            raise PositionError(
                f"load_state found no state of the loader {self.name!r} in the checkpoint: it would begin at the "
                "beginning",
                "pass the loader to accelerator.prepare before save_state; to go on from a checkpoint without, say "
                "where: loader.set_epoch(epoch), loader.skip_first_batches(n)",
            )
        if not self.prepared:
            self.prepared = True  # it is said once
            warnings.warn(
                f"the loader {self.name!r} was not passed to accelerator.prepare: save_state does not keep its place",
                stacklevel=3,
            )

    def _with_end(self, batches: Iterator[Any], first: int, end: int | None) -> Iterator[tuple[int, Any, bool]]:
        """Iterates over steps, batches and whether they are the last; one is held ahead where nobody knows the end."""
        if end is not None:
            for step, batch in enumerate(batches, first):
                yield step, batch, step + 1 == end
            return
        held, step = next(batches, _END), first
        while held is not _END:
            batch, held = held, next(batches, _END)
            self._reached = step + 1
            yield step, batch, held is _END
            step += 1
        self._reached = None

    def _steps(self) -> tuple[int, int | None]:
        """Returns the number of the next pass's first step, and the number after its last one if that is known."""
        loaded = self._planner.bookmark.loaded
        if loaded is None or loaded.order != "headrace":
            end = len(self) if self._planner.end_is_known else None
            return loaded.step if loaded is not None else 0, end
        plan = dataclasses.replace(self._plan(), offset=loaded.samples, first_step=loaded.step)
        return plan.first_step, plan.end_step

    def _remainder(self) -> int:
        if self._given is not None:
            return len(self._given) % self._total if self._total else 0
        if not self._options.even_batches or self.drop_last:
            return 0
        plan = self._plan()
        return (plan.samples or 0) % plan.global_batch


def _unpickled(kind: type[DataLoader], state: dict[str, Any]) -> DataLoader:
    loader = kind.__new__(kind)
    loader.__setstate__(state)
    return loader


class _Unskippable(PlanBatchSampler):
    """Raises where `accelerate.skip_first_batches` would silently turn this loader into a torch DataLoader."""

    def __iter__(self) -> NoReturn:
        raise FeedError(
            "Accelerate has made a torch DataLoader of this headrace loader",
            hint="use loader.skip_first_batches(n), which keeps it headrace's; `list(loader.sampler)` shows the order",
        )


def _generator_of(sampler: Any) -> Generator | None:
    """Returns the generator of a sampler's order, the same on all ranks; gives the sampler one if it has none."""
    if not hasattr(sampler, "generator"):
        return None
    if sampler.generator is None:
        sampler.generator = Generator()
        sampler.generator.seed()
    return sampler.generator  # type: ignore[no-any-return]
