"""Which host gets what, and in which order an epoch delivers it. Pure.

`ShardedByS3Key` deals objects as cards are dealt: the objects, sorted by key, go round robin to the hosts that have
the channel, in the order in which the job lists them. So the shares depend on keys and hosts only, differ by one
object at most, and with fewer objects than hosts the last hosts get none.

With a shuffle seed, epoch e has the order that `random.Random(seed + e)` gives; it is dealt after that, so that a host
of a sharded channel sees other objects in another epoch, as on SageMaker.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def share(items: Sequence[T], place: int, hosts: int) -> list[T]:
    """Returns what one host gets of the items.

    >>> share(["a", "b", "c"], 0, 2), share(["a", "b", "c"], 1, 2)
    (['a', 'c'], ['b'])

    Args:
        items: in order.
        place: the host's place among those that share, from 0.
        hosts: how many share; 1 means that the host gets all.
    """
    if not 0 <= place < hosts:
        raise ValueError(f"place {place} is none of {hosts}")
    return list(items[place::hosts])


def shuffled(items: Sequence[T], seed: int | None, epoch: int) -> list[T]:
    """Returns the items in the order of an epoch; without a seed in their own."""
    order = list(items)
    if seed is not None:
        random.Random(seed + epoch).shuffle(order)
    return order
