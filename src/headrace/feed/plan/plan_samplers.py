"""headrace's own order as the samplers that torch's users look for: `loader.sampler` and `loader.batch_sampler`.

They are views: nothing is stored but where the loader's plan comes from, and reading them does not advance the loader.
Frameworks use it too: Lightning sets the epoch with `loader.sampler.set_epoch`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from headrace.feed.plan.epoch import EpochPlan


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
        self._plan = plan
        self._epoch = epoch
        self.set_epoch = set_epoch

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
        plan: returns the loader's plan.
        epoch: returns the number of the next epoch.

    Attributes:
        sampler: the samples.
        batch_size: rows of a batch of this rank.
        drop_last: whether an incomplete last global batch is left out.
    """

    def __init__(self, sampler: PlanSampler, plan: Callable[[], EpochPlan], epoch: Callable[[], int]) -> None:
        self.sampler = sampler
        self._plan = plan
        self._epoch = epoch

    @property
    def batch_size(self) -> int:
        """Rows of a batch of this rank."""
        return self._plan().batch_size

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last global batch is left out."""
        return self._plan().drop_last

    def __len__(self) -> int:
        return self._plan().steps

    def __iter__(self) -> Iterator[list[Any]]:
        return (list(batch.keys) for batch in self._plan().epoch(self._epoch()))
