"""A mixture of three: the Parquet files of a row as three sources, half of the rows from the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch
from bench.shards.conversion import converted
from bench.shards.peers import BATCH, BUFFER, Opened, torch_loader
from bench.shards.settings import Settings
from bench.shards.work import ROWS, words

from headrace import feed

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


def _three(everything: Sequence[Any]) -> list[Sequence[Any]]:
    """Divides files, or rows, into three parts: a half, and two quarters."""
    half, more = len(everything) // 2, len(everything) * 3 // 4
    return [everything[:half], everything[half:more], everything[more:]]


def headrace(row: str, folder: Path, settings: Settings) -> Opened:
    numbers = _three(sorted(path.stem[-1] for path in folder.glob("*.parquet")))
    sources = {
        name: feed.parquet(folder, f"*[{''.join(last)}].parquet") for name, last in zip(WEIGHTS, numbers, strict=True)
    }
    rows = ROWS[row].shards * ROWS[row].samples
    mixed = feed.mix(sources, weights=WEIGHTS, rows=rows).map(words)
    return feed.DataLoader(
        mixed, BATCH, feed.Window(128, 64), seed=1, num_workers=settings.workers, persistent_workers=True
    )


def _texts(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": words(sample)}


def datasets(row: str, folder: Path, settings: Settings) -> Opened:
    """Hugging Face's streams, interleaved; a source that is used up begins again."""
    import datasets as library

    streams = [
        library.load_dataset(
            "parquet", data_files=[str(file) for file in files], split="train", streaming=True
        ).shuffle(seed=1, buffer_size=BUFFER)
        for files in _three(sorted(folder.glob("*.parquet")))
    ]
    mixed = library.interleave_datasets(
        streams, probabilities=list(WEIGHTS.values()), seed=1, stopping_strategy="all_exhausted"
    )
    tokens = mixed.map(_texts, remove_columns=["text"]).with_format("torch")
    return nullcontext(torch_loader(tokens, settings))


def _tokens(record: bytes) -> torch.Tensor:
    return words(msgspec.msgpack.decode(record))


def grain(row: str, folder: Path, settings: Settings) -> Opened:
    """Grain's mixture over ArrayRecord; the conversion is not counted."""
    import grain as library

    there = str(converted("array_record", row, folder) / "all.array_record")
    every = library.MapDataset.source(library.sources.ArrayRecordDataSource(there))
    parts = [part.seed(1).shuffle().repeat() for part in _three(every)]
    mixed = library.MapDataset.mix(parts, weights=list(WEIGHTS.values())).map(_tokens)
    batches = (
        mixed.batch(BATCH, batch_fn=torch.utils.data.default_collate)
        .to_iter_dataset(library.ReadOptions(num_threads=settings.threads, prefetch_buffer_size=4 * settings.threads))
        .mp_prefetch(
            library.MultiprocessingOptions(num_workers=settings.workers, per_worker_buffer_size=settings.prefetch)
        )
    )
    return nullcontext(batches)


CONTENDERS: dict[str, Callable[[str, Path, Settings], Opened]] = {
    "headrace": headrace,
    "datasets_stream": datasets,
    "grain": grain,
}
