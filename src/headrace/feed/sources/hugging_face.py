"""A dataset of the Hugging Face library `datasets` as a source: it is on disk in Arrow files, and has a count."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from headrace.errors import PipelineError, ShardError
from headrace.feed.sources.source import Source
from headrace.install_hint import install_hint


def require_datasets() -> Any:
    """Returns the module datasets. Raises PipelineError if it is not installed."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise PipelineError("feed.hf needs the library datasets", hint=install_hint("datasets")) from error
    return datasets


class HuggingFaceRows(Source):
    """Rows of a dataset, as its own features and format give them.

    Args:
        dataset: a `datasets.Dataset`, or the folder that `save_to_disk` wrote.

    Raises:
        PipelineError: it is something else, or the library is not installed.
        ShardError: the folder holds no dataset.
    """

    def __init__(self, dataset: Any) -> None:
        datasets = require_datasets()
        folder = None
        if isinstance(dataset, (str, os.PathLike)):
            folder = Path(dataset)
            try:
                dataset = datasets.load_from_disk(folder)
            except (OSError, ValueError) as error:
                hint = "write one with dataset.save_to_disk(folder), or pass the dataset itself"
                raise ShardError(f"{folder} holds no dataset of save_to_disk: {error}", hint) from error
        if isinstance(dataset, dict):
            names = ", ".join(map(str, dataset))
            first = next(iter(dataset), "train")
            one = repr(str(folder / str(first))) if folder is not None else f"dataset[{first!r}]"
            raise PipelineError(f"this is a dict of the splits {names}", hint=f"pass one: {one}")
        if not isinstance(dataset, datasets.Dataset):
            raise PipelineError(
                f"feed.hf takes a datasets.Dataset, got one of type {type(dataset).__name__}: "
                "a plan needs the number of rows",
                hint="load it without streaming=True, and save it with save_to_disk; or give it to the loader as it "
                "is, with num_shards=",
            )
        self._dataset = dataset
        digest = _digest_of(dataset)
        super().__init__([("", len(dataset))], declared=False, digests=[digest])  # every host has all of it

    def read(self, shard: int, row: int) -> Any:
        """See `Source.read`."""
        del shard
        return self._dataset[row]


def _digest_of(dataset: Any) -> str:
    """Returns a digest of the columns, and of the first, middle and last row as they are stored."""
    stored, rows = dataset.with_format("arrow"), len(dataset)
    digest = hashlib.blake2b(repr(dataset.features).encode(), digest_size=8, person=b"shard")
    for row in sorted({0, rows // 2, rows - 1}) if rows else ():
        digest.update(repr(stored[row].to_pylist()).encode())
    return digest.hexdigest()
