"""The order of torch's RandomSampler, without a wait before its first keys.

`torch.randperm(n)` shuffles from the front (Fisher and Yates): its first k keys follow from its generator's first k
numbers. Those of a large dataset are computed here one by one, the whole permutation only when they are used up; torch
itself makes a list of it before the first batch, 60 ms for a million samples. Torch does not promise how it shuffles,
so a small permutation is compared first, and the beginning of the large one when it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

LEAST = 1 << 16  # samples; the whole permutation of fewer takes no time worth saving
MOST = 1 << 27  # from 2^32 / 20 on torch draws other numbers
_HEAD = 64  # 1 / share of the keys that are computed one by one; each takes 20 times as long
_TRIED = 257  # samples of the permutation that is compared
_CHUNK = 4096


def shuffled(length: int, seed: int) -> Iterator[int]:
    """Iterates over ``torch.randperm(length)`` of a generator with this seed.

    Args:
        length: at least `LEAST`.
        seed: of any size.

    Raises:
        RuntimeError: this torch shuffles large datasets in another way than small ones.
    """
    done = 0
    if length < MOST and list(head(_TRIED, seed)) == _permutation(_TRIED, seed).tolist():
        seen = []
        for key in islice(head(length, seed), length // _HEAD):
            seen.append(key)
            yield key
        done = len(seen)
    keys = _permutation(length, seed)
    if done and keys[:done].tolist() != seen:
        raise RuntimeError("torch.randperm shuffles in a way that headrace does not know: give the loader seed=")
    for start in range(done, length, _CHUNK):
        yield from keys[start : start + _CHUNK].tolist()


def head(length: int, seed: int) -> Iterator[int]:
    """Iterates over the same keys, computed one by one."""
    twister = np.random.MT19937()
    twister._legacy_seeding(seed % 2**32)  # as torch seeds its own
    moved: dict[int, int] = {}
    for start in range(0, length, _CHUNK):
        for place, number in enumerate(twister.random_raw(min(_CHUNK, length - start)).tolist(), start):
            other = place + number % (length - place)
            yield moved.get(other, other)
            moved[other] = moved.pop(place, place)


def _permutation(length: int, seed: int) -> torch.Tensor:
    import torch

    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(length, generator=generator)
