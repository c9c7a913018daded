"""`feed.tar`, `feed.jsonl`, `feed.parquet`, `feed.arrow` and `feed.hf`: shards as map-style datasets.

@feed.pipeline
def train(channel: str = "training") -> feed.Source:
    return feed.tar(feed.channel(channel), "*.tar").map(decode)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from headrace.errors import ShardError
from headrace.feed.sources.arrow_rows import require_pyarrow
from headrace.feed.sources.arrow_shards import ArrowFormat
from headrace.feed.sources.hugging_face import HuggingFaceRows
from headrace.feed.sources.json_lines import JsonLinesFormat
from headrace.feed.sources.object_stores import SCHEMES
from headrace.feed.sources.parquet_shards import ParquetFormat
from headrace.feed.sources.shard_files import ShardFiles
from headrace.feed.sources.source import Source
from headrace.feed.sources.tar_shards import TarFormat

Folder = str | os.PathLike[str]
_MEMORY = 256 << 20


def tar(folder: Folder, pattern: str = "*.tar") -> Source:
    """Opens tar files in WebDataset's naming. A row is a dict of field (``"jpg"``) to bytes, and `__key__`.

    Args:
        folder: of the shards, or ``s3://bucket/prefix/``; likewise ``gs``, ``az``, ``https``.
        pattern: that their names match, as in a shell: hidden files only by a dot.

    Raises:
        ShardError: no shard matches, or one is broken or compressed.
    """
    return ShardFiles(folder, pattern, "tar", TarFormat())


def jsonl(folder: Folder, pattern: str = "*.jsonl") -> Source:
    """Opens files of JSON lines. A row is the value of a line; empty lines are none.

    Args:
        folder: of the shards, or ``s3://bucket/prefix/``; likewise ``gs``, ``az``, ``https``.
        pattern: that their names match, as in a shell: hidden files only by a dot.

    Raises:
        ShardError: no shard matches, or one is compressed. A line that is no JSON is an error when it is read.
    """
    return ShardFiles(folder, pattern, "jsonl", JsonLinesFormat())


def parquet(
    folder: Folder, pattern: str = "*.parquet", *, columns: Sequence[str] | None = None, memory: int = _MEMORY
) -> Source:
    """Opens Parquet files. A row is a dict of column to value; lists of numbers are NumPy arrays, times NumPy's too.

    The columns are those in the files: folders `year=2024/` of a partitioned dataset give none.

    Args:
        folder: of the shards, or ``s3://bucket/prefix/``; likewise ``gs``, ``az``, ``https``.
        pattern: that their names match, as in a shell: hidden files only by a dot.
        columns: those that are read; None for all.
        memory: limit of the row groups that a process keeps decoded, bytes.

    Raises:
        ShardError: no shard matches, or one is broken.
        PipelineError: pyarrow is not installed.
    """
    require_pyarrow()
    return ShardFiles(folder, pattern, "parquet", ParquetFormat(columns, memory))


def arrow(folder: Folder, pattern: str = "*.arrow") -> Source:
    """Opens Arrow files, of the file or the stream form. A row is a dict of column to value, as with `parquet`.

    Args:
        folder: of the shards, on a disk: they are mapped into memory.
        pattern: that their names match, as in a shell: hidden files only by a dot.

    Raises:
        ShardError: no shard matches, or one is broken, or they are objects.
        PipelineError: pyarrow is not installed.
    """
    require_pyarrow()
    _refuse_objects("feed.arrow", folder)
    return ShardFiles(folder, pattern, "arrow", ArrowFormat())


def hf(dataset: Any) -> Source:
    """Opens a dataset of Hugging Face's library. A row is what the dataset's features and format make of it.

    Args:
        dataset: a `datasets.Dataset`, or the folder that `save_to_disk` wrote.

    Raises:
        PipelineError: it has no count (`streaming=True`), or the library is not installed.
        ShardError: the folder holds no dataset, or is none of a disk.
    """
    _refuse_objects("feed.hf", dataset)
    return HuggingFaceRows(dataset)


def _refuse_objects(what: str, folder: Any) -> None:
    if isinstance(folder, str) and folder.startswith(SCHEMES):
        raise ShardError(
            f"{what} maps Arrow files of a disk, and {folder} is an object",
            hint="bring them to the hosts by a channel in File mode, or write Parquet, which is read there",
        )
