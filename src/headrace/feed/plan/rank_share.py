"""Which part of every global batch a rank takes."""

from __future__ import annotations

from typing import NamedTuple


class Shard(NamedTuple):
    """Which part of every global batch a rank takes."""

    rank: int
    world_size: int
