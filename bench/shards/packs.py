"""Packing to sequences of 4,096 tokens. What is counted are the tokens of documents: padding is worth nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from bench.shards.conversion import converted
from bench.shards.peers import BUFFER, Opened, torch_loader
from bench.shards.settings import Settings
from bench.shards.work import ROWS, tokenised

from headrace import feed

LENGTH, SEQUENCES = 4096, 8


class _Counted:
    """Batches as runs of as many samples as they hold tokens of documents."""

    def __init__(self, batches: Iterable[Any], name: str) -> None:
        self._batches, self._name = batches, name

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield range(int((np.asarray(batch[self._name]) != 0).sum()))


@contextmanager
def _headrace(folder: Path, settings: Settings, method: str) -> Iterator[Iterable[Any]]:
    packed = feed.parquet(folder).map(tokenised).pack(LENGTH, method=method, separator=1)
    with feed.DataLoader(
        packed,
        SEQUENCES,
        feed.Window(128, 64),
        seed=1,
        num_workers=settings.workers,
        num_shards=8,
        persistent_workers=True,
    ) as loader:
        yield _Counted(loader, "tokens")


def headrace_best_fit(row: str, folder: Path, settings: Settings) -> Opened:
    return _headrace(folder, settings, "best_fit")


def headrace_concat(row: str, folder: Path, settings: Settings) -> Opened:
    return _headrace(folder, settings, "concat")


def _joined(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    tokens = list(itertools.chain.from_iterable([*tokenised({"text": text}), 1] for text in rows["text"]))
    whole = len(tokens) // LENGTH * LENGTH
    return {"tokens": [np.asarray(tokens[at : at + LENGTH]) for at in range(0, whole, LENGTH)]}


def datasets_concat(row: str, folder: Path, settings: Settings) -> Opened:
    """Hugging Face's idiom: 1,000 rows are joined and cut; what is left of them is dropped."""
    import datasets as library

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    stream = library.load_dataset("parquet", data_files=files, split="train", streaming=True)
    cut = stream.shuffle(seed=1, buffer_size=BUFFER).map(
        _joined, batched=True, batch_size=1000, remove_columns=["text"]
    )
    return nullcontext(_Counted(torch_loader(cut.with_format("torch"), settings, SEQUENCES), "tokens"))


def _document(record: bytes) -> dict[str, Any]:
    return {"tokens": np.asarray([*tokenised(msgspec.msgpack.decode(record)), 1])}


def grain_first_fit(row: str, folder: Path, settings: Settings) -> Opened:
    """Grain's packing over ArrayRecord, in its workers; the conversion is not counted."""
    import grain as library

    there = str(converted("array_record", row, folder) / "all.array_record")
    documents = library.MapDataset.source(library.sources.ArrayRecordDataSource(there)).seed(1).shuffle()
    rows = (
        documents.map(_document)
        .repeat(ROWS[row].epochs)
        .to_iter_dataset(library.ReadOptions(num_threads=settings.threads, prefetch_buffer_size=32 * settings.threads))
    )
    packed = library.experimental.FirstFitPackIterDataset(
        rows, length_struct={"tokens": LENGTH}, num_packing_bins=SEQUENCES
    ).map(lambda sequence: sequence.get("tokens", sequence))
    batches = packed.batch(SEQUENCES, batch_fn=lambda parts: {"tokens": np.stack(parts)}).mp_prefetch(
        library.MultiprocessingOptions(num_workers=settings.workers, per_worker_buffer_size=settings.prefetch)
    )
    return nullcontext(_Counted(batches, "tokens"))


CONTENDERS: dict[str, Callable[[str, Path, Settings], Opened]] = {
    each.__name__: each for each in (headrace_best_fit, headrace_concat, datasets_concat, grain_first_fit)
}
