"""The plan: which sample stands where in an epoch, as a pure function.

A plan position is a place in the order of the whole epoch, over all ranks. With `world_size` ranks, step s covers
the positions [s * G, (s + 1) * G) of the global batch G, and rank r takes its r-th part. So position, sample and
random numbers do not depend on the number of ranks as long as the global batch stays the same.

Invariants, for every n, batch, world size and `drop_last`:
* every position of the epoch is taken by exactly one rank and step (with `drop_last`: of the full global batches);
* every rank has the same number of steps, so that collectives meet: a last global batch with fewer rows than ranks is
  joined to the one before it.

A plan may begin at any position (`offset`), so an epoch that was begun with one global batch and number of ranks can be
ended with others: what is left is cut anew, and every sample of it is still taken once.

`PlanSampler` and `PlanBatchSampler` show the plan as the samplers that torch's users look for: `loader.sampler` and
`loader.batch_sampler`. They are views: nothing is stored but where the loader's plan comes from, and reading them does
not advance the loader. Frameworks use it too: Lightning sets the epoch with `loader.sampler.set_epoch`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.feed.plan.orders.order import Order, RowOrder, Window

if TYPE_CHECKING:
    from headrace.feed.plan.lane_pass import LaneDraw

_BLOCK_ROWS = 4096


class Shard(NamedTuple):
    """Which part of every global batch a rank takes."""

    rank: int
    world_size: int


class BatchPlan(NamedTuple):
    """One batch of one rank.

    Attributes:
        epoch: number of the epoch.
        step: number of the batch in the epoch, from 0.
        position: plan position of its first row; the rows' positions follow without a gap.
        keys: what is passed to the dataset's `__getitem__`, one a row.
        seed: seed of the epoch's random numbers.
        batched: False when the loader does not batch (`batch_size=None`): one sample, not stacked.
        draw: what is asked of a lane, when the batch comes from one; `keys` are the numbers of its outputs then.
    """

    epoch: int
    step: int
    position: int
    keys: Sequence[Any]
    seed: int
    batched: bool = True
    draw: LaneDraw | None = None

    @property
    def rows(self) -> int:
        """Number of samples."""
        return len(self.keys)


@dataclass(frozen=True)
class EpochPlan:
    """headrace's own plan of one rank: how the positions of an epoch are cut into its batches.

    Attributes:
        length: samples of the epoch.
        batch_size: rows a rank and step.
        seed: seed of order and random numbers; the epoch is mixed in.
        shuffle: whether the order is permuted, or the windows that it is permuted by.
        drop_last: whether an incomplete last global batch is left out.
        rank, world_size: which part is taken.
        batched: False for a loader that does not batch.
        samples: samples in the dataset, when `length` is more: the positions beyond them hold the first ones again.
        offset: plan position where it begins.
        first_step: number of its first step.
        order: which row stands at a position; by default that of one dataset, of `shuffle` and `seed`.
    """

    length: int
    batch_size: int
    seed: int
    shuffle: bool | Window = False
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    batched: bool = True
    samples: int | None = None
    offset: int = 0
    first_step: int = 0
    order: Order | None = None

    def __post_init__(self) -> None:
        if 0 < self.length < self.world_size:
            raise ValueError(f"{self.world_size} ranks cannot share {self.length} samples: each needs at least one")
        left = self.length - self.offset
        if 0 < left < self.world_size and not self.drop_last:
            raise ValueError(f"{self.world_size} ranks cannot share the {left} samples that are left of the epoch")

    @property
    def global_batch(self) -> int:
        """Rows a step over all ranks."""
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Steps of every rank, from the plan's offset on."""
        full, rest = divmod(self.length - self.offset, self.global_batch)
        if self.drop_last or rest == 0:
            return full
        return full + 1 if rest >= self.world_size or full == 0 else full

    @property
    def end_step(self) -> int:
        """Number of the step after the last one."""
        return self.first_step + self.steps

    def consumed(self, step: int) -> int:
        """Returns the plan position that the ranks together have reached when `step` is the next step."""
        if step < self.end_step or self.drop_last:
            return self.begins_at(step)
        return self.length

    def batch(self, epoch: int, step: int) -> BatchPlan:
        """Returns this rank's batch. Raises IndexError beyond the epoch's end."""
        if not self.first_step <= step < self.end_step:
            raise IndexError(f"step must lie in [{self.first_step}, {self.end_step}), got {step}")
        return self._batches(epoch, step, step + 1)[0]

    def _batches(self, epoch: int, start: int, end: int) -> list[BatchPlan]:
        """Returns the batches of some steps; to permute them together costs little more than to permute one."""
        runs = [self._rows(step) for step in range(start, end)]
        places = np.concatenate([np.arange(first, last, dtype=np.int64) for first, last in runs])
        samples = self.samples or self.length
        if samples < self.length:
            places %= samples
        keys = self._order.rows_at(epoch, places).tolist()
        batches, taken = [], 0
        for step, (first, last) in enumerate(runs, start):
            rows = keys[taken : taken + last - first]
            taken += last - first
            batches.append(BatchPlan(epoch, step, first, rows, self.seed, self.batched))
        return batches

    @property
    def _order(self) -> Order:
        return self.order or RowOrder(self.samples or self.length, self.seed, self.shuffle)

    def begins_at(self, step: int) -> int:
        """Returns the plan position of the first row of a step, over all ranks."""
        return self.offset + (step - self.first_step) * self.global_batch

    def _rows(self, step: int) -> tuple[int, int]:
        start = self.begins_at(step)
        full = start + self.global_batch
        end = full if self.drop_last or step < self.end_step - 1 else self.length
        if end == full:
            return start + self.rank * self.batch_size, start + (self.rank + 1) * self.batch_size
        count = end - start
        return start + self.rank * count // self.world_size, start + (self.rank + 1) * count // self.world_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[BatchPlan]:
        """Iterates over this rank's batches of an epoch, from a step on."""
        step = max(start, self.first_step)
        count = 1  # the first batch is there at once, later ones come by the block
        while step < self.end_step:
            end = min(step + count, self.end_step)
            yield from self._batches(epoch, step, end)
            step = end
            count = min(2 * count, max(1, _BLOCK_ROWS // self.batch_size))


class PlanSampler:
    """The samples of this rank, in the order of the next epoch.

    Args:
        plan: returns the loader's plan.
        epoch: returns the number of the next epoch.
        set_epoch: sets it.
    """

    def __init__(
        self, plan: Callable[[], EpochPlan], epoch: Callable[[], int], set_epoch: Callable[[int], None]
    ) -> None:
        self._plan, self._epoch, self.set_epoch = plan, epoch, set_epoch

    def __len__(self) -> int:
        plan = self._plan()
        return (plan.steps - 1) * plan.batch_size + plan.batch(0, plan.steps - 1).rows if plan.steps else 0

    def __iter__(self) -> Iterator[Any]:
        return (key for batch in self._plan().epoch(self._epoch()) for key in batch.keys)


@functools.cache
def in_sequence() -> type[PlanSampler]:
    """Returns the class of a `PlanSampler` that does not shuffle: where torch is, it is a SequentialSampler as well.

    By that, Lightning and others know that a loader does not shuffle.
    """
    if "torch" not in sys.modules:
        return PlanSampler
    from torch.utils.data import SequentialSampler

    return type("SequentialPlanSampler", (PlanSampler, SequentialSampler), {})


class PlanBatchSampler:
    """The batches of this rank, in the order of the next epoch.

    Args:
        sampler: the samples.

    Attributes:
        sampler: the samples.
        batch_size: rows of a batch of this rank.
        drop_last: whether an incomplete last global batch is left out.
    """

    def __init__(self, sampler: PlanSampler) -> None:
        self.sampler = sampler

    @property
    def batch_size(self) -> int:
        """Rows of a batch of this rank."""
        return self.sampler._plan().batch_size

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last global batch is left out."""
        return self.sampler._plan().drop_last

    def __len__(self) -> int:
        return self.sampler._plan().steps

    def __iter__(self) -> Iterator[list[Any]]:
        return (list(batch.keys) for batch in self.sampler._plan().epoch(self.sampler._epoch()))
