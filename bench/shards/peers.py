"""Peers with pipelines of their own, each at the settings that are given: see bench.shards.settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from bench.feed.photographs import CROP, SIZE, random_box
from bench.shards.conversion import converted
from bench.shards.settings import Settings
from bench.shards.work import ROWS, words

BATCH, BUFFER = 64, 1000
Opened = AbstractContextManager[Iterable[Any]]


def torch_loader(dataset: Any, settings: Settings, batch_size: int = BATCH, **options: Any) -> Iterable[Any]:
    """Returns torch's loader, whose workers stay."""
    loader: Iterable[Any] = torch.utils.data.DataLoader(
        dataset, batch_size, num_workers=settings.workers, persistent_workers=True, prefetch_factor=settings.prefetch,
        **options,
    )  # fmt: skip
    return loader


def _decoded(record: bytes, decode: Callable[[Any], Any]) -> Any:
    return decode(msgspec.msgpack.decode(record))


def grain(row: str, folder: Path, settings: Settings) -> Opened:
    """Grain over ArrayRecord, which it reads by number; the conversion is not counted."""
    import grain as library

    there = str(converted("array_record", row, folder) / "all.array_record")
    dataset = library.MapDataset.source(library.sources.ArrayRecordDataSource(there)).seed(1).shuffle()
    options = library.ReadOptions(num_threads=settings.threads, prefetch_buffer_size=4 * settings.threads)
    batches = (
        dataset.map(functools.partial(_decoded, decode=ROWS[row].decode))
        .repeat(ROWS[row].epochs)
        .batch(BATCH, batch_fn=torch.utils.data.default_collate)
        .to_iter_dataset(options)
        .mp_prefetch(
            library.MultiprocessingOptions(num_workers=settings.workers, per_worker_buffer_size=settings.prefetch)
        )
    )
    return nullcontext(batches)


def litdata(row: str, folder: Path, settings: Settings) -> Opened:
    """LitData over its own chunks; the conversion is not counted."""
    import litdata as library

    dataset = library.StreamingDataset(
        str(converted("chunks", row, folder)), shuffle=True, seed=1, transform=ROWS[row].decode
    )
    return nullcontext(
        library.StreamingDataLoader(
            dataset,
            batch_size=BATCH,
            num_workers=settings.workers,
            persistent_workers=True,
            prefetch_factor=settings.prefetch,
        )
    )


def mosaic(row: str, folder: Path, settings: Settings) -> Opened:
    """Mosaic Streaming over MDS files; the conversion is not counted."""
    import streaming

    class Decoding(streaming.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> Any:
            return ROWS[row].decode(super().__getitem__(at))

    dataset = Decoding(
        local=str(converted("mosaic", row, folder)), shuffle=True, batch_size=BATCH, num_canonical_nodes=1
    )
    return nullcontext(torch_loader(dataset, settings))


def energon(row: str, folder: Path, settings: Settings) -> Opened:
    """Energon over the same tar files with its index, which is not counted."""
    from megatron import energon as library

    class Encoder(library.TaskEncoder):  # type: ignore[misc]
        decoder = None
        cookers = (library.Cooker(lambda sample: sample),)

        @library.stateless
        def cook_crude_sample(self, sample: Any, cooker: Any, aux: Any) -> Any:
            return ROWS[row].decode(sample)

        @library.stateless
        def batch(self, samples: list[Any]) -> Any:
            return torch.utils.data.default_collate(samples)

    length = ROWS[row].shards * ROWS[row].samples
    dataset = library.get_train_dataset(
        converted("energon", row, folder),
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=settings.workers),
        batch_size=BATCH, shuffle_buffer_size=BUFFER, max_samples_per_sequence=100, task_encoder=Encoder(),
        virtual_epoch_length=-(-length // BATCH),
    )  # fmt: skip
    return nullcontext(library.get_loader(dataset, prefetch_factor=settings.prefetch))


def _spdl(folder: Path, settings: Settings, decode: Callable[[Any], Any]) -> Opened:
    from spdl.pipeline import PipelineBuilder
    from webdataset import WebDataset

    urls = [str(path) for path in sorted(folder.glob("*.tar"))]

    class Pass:
        def __iter__(self) -> Iterator[Any]:
            samples = WebDataset(urls, shardshuffle=100).shuffle(BUFFER)
            built = (
                PipelineBuilder()
                .add_source(samples)
                .pipe(decode, concurrency=settings.workers)
                .aggregate(BATCH)
                .pipe(torch.utils.data.default_collate)
                .add_sink(settings.prefetch)
                .build(num_threads=settings.workers + 1)
            )
            with built.auto_stop():
                yield from built

    return nullcontext(Pass())


def spdl(row: str, folder: Path, settings: Settings) -> Opened:
    """SPDL's threads, with WebDataset's reader as its source and Pillow."""
    return _spdl(folder, settings, ROWS[row].decode)


def by_ffmpeg(sample: Any) -> Any:
    """A photograph by SPDL's own decoder, which leaves Python's lock, cropped as the others are."""
    import spdl.io

    left, top, right, bottom = random_box(*CROP)
    cut = f"crop={right - left}:{bottom - top}:{left}:{top}"
    steps = f"{cut},scale={SIZE}:{SIZE}:flags=bilinear,format=pix_fmts=rgb24"
    frames = spdl.io.load_image(sample["jpg"], filter_desc=steps)
    pixels = torch.from_numpy(np.ascontiguousarray(spdl.io.to_numpy(frames).transpose(2, 0, 1)))
    return pixels, int(sample["cls"])


def spdl_own_decoder(row: str, folder: Path, settings: Settings) -> Opened:
    """SPDL's threads and its own decoder."""
    return _spdl(folder, settings, by_ffmpeg)


@contextmanager
def ray(row: str, folder: Path, settings: Settings) -> Iterator[Iterable[Any]]:
    """Ray Data with as many CPUs as workers, with a local shuffle buffer."""
    import ray as library

    library.init(num_cpus=settings.workers, log_to_driver=False, include_dashboard=False)
    library.data.DataContext.get_current().enable_progress_bars = False

    def decode(sample: dict[str, Any]) -> dict[str, Any]:
        if row == "parquet-text":
            return {"tokens": words(sample).numpy()}
        pixels, label = ROWS[row].decode(sample)
        return {"pixels": pixels.numpy(), "label": label}

    class Passes:
        def __iter__(self) -> Iterator[Any]:
            if row == "parquet-text":
                read = library.data.read_parquet(str(folder))
            else:
                read = library.data.read_webdataset([str(path) for path in folder.glob("*.tar")], decoder=None)
            batches = read.map(decode).iter_torch_batches(
                batch_size=BATCH, local_shuffle_buffer_size=BUFFER, prefetch_batches=settings.prefetch
            )
            for batch in batches:
                yield batch if row == "parquet-text" else (batch["pixels"], batch["label"])

    try:
        yield Passes()
    finally:
        library.shutdown()
