"""Numbered rows: each holds its number first, so that what came, and in what order, can be told from batches."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GROUP = 10_000  # rows of a row group


def number(sample: Mapping[str, Any]) -> int:
    """Returns the number of a row: the function that every contender maps."""
    return int.from_bytes(sample["bin"][:8], "little")


def tars(folder: Path, shards: int, rows: int, size: int) -> None:
    """Writes tar files of `rows` rows of `size` bytes each."""
    folder.mkdir(parents=True)
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
            for row in range(shard * rows, (shard + 1) * rows):
                member = tarfile.TarInfo(f"{row:09}.bin")
                member.size = size
                tar.addfile(member, io.BytesIO(row.to_bytes(8, "little").ljust(size, b"\0")))


def parquet(folder: Path, samples: int, shards: int) -> None:
    """Writes Parquet files of numbers, `samples` rows in all."""
    import numpy as np
    import pyarrow
    from pyarrow import parquet as files

    folder.mkdir(parents=True)
    for shard, numbers in enumerate(np.array_split(np.arange(samples, dtype=np.int64), shards)):
        files.write_table(pyarrow.table({"number": numbers}), folder / f"{shard:03}.parquet", row_group_size=GROUP)
