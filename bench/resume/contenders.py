"""Loaders that can say where they are, each as its own documentation says, over the shards of `tar-small`.

Every batch holds the numbers of its samples. A loader has two methods more than an iterable: `saved()`, which returns
what is kept between two runs, and `load(it)`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from bench.shards.conversion import converted

from headrace import feed

ROW = "tar-small"
BATCH, BUFFER = 64, 1000


def number(sample: Any) -> int:
    """The number of a sample."""
    return int(sample["cls"])


def own_rows() -> int:
    """Rows of a step on each rank: the ranks share a batch."""
    return BATCH // int(os.environ.get("WORLD_SIZE", "1"))


class Loader:
    """A loader with torchdata's two methods.

    Args:
        loader: of a library.
        begin: what is called for a pass; by default the loader is iterated over.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def saved(self) -> Any:
        """Returns the state."""
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        """Goes on from a state in the next pass."""
        self.loader.load_state_dict(state)

    def joined(self, states: list[Any]) -> Any:
        """Returns the state to go on from of those of all ranks."""
        return states[0]


def headrace(folder: Path, workers: int) -> Loader:
    """Windows of runs."""
    return Loader(feed.DataLoader(
        feed.tar(folder).map(number), global_batch_size=BATCH, shuffle=feed.Window(128, 64), seed=1,
        num_workers=workers,
    ))  # fmt: skip


class _Lanes(Loader):
    def joined(self, states: list[Any]) -> Any:
        return feed.merge_states(states)


def headrace_lanes(folder: Path, workers: int) -> Loader:
    """The same behind a filter, so without a count."""
    kept = feed.tar(folder).map(number).filter(_all)
    return _Lanes(feed.DataLoader(
        kept, global_batch_size=BATCH, shuffle=feed.Window(128, 64), seed=1, num_workers=workers, num_shards=8,
        uneven=True,
    ))  # fmt: skip


def _all(value: int) -> bool:
    return value >= 0


def torchdata_over_index(folder: Path, workers: int) -> Loader:
    """torchdata's loader over our source, which is a map-style dataset."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    draw = torch.Generator().manual_seed(1)
    return Loader(
        StatefulDataLoader(feed.tar(folder).map(number), BATCH, shuffle=True, generator=draw, num_workers=workers)
    )


def datasets_stream(folder: Path, workers: int) -> Loader:
    """Hugging Face's streaming reader of tar files with its buffer, in torchdata's loader."""
    import datasets
    from torchdata.stateful_dataloader import StatefulDataLoader

    files = [str(path) for path in sorted(folder.glob("*.tar"))]
    streamed = datasets.load_dataset("webdataset", data_files=files, split="train", streaming=True)
    numbers = streamed.shuffle(seed=1, buffer_size=BUFFER).map(_number, remove_columns=streamed.column_names)
    return Loader(StatefulDataLoader(numbers, BATCH, num_workers=workers))


def _number(sample: Any) -> dict[str, int]:
    return {"number": int(sample["cls"])}


class Skipping(Loader):
    """A loader without a state: one goes on by passing over as many batches."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._given, self._skip = 0, 0

    def __iter__(self) -> Iterator[Any]:
        for at, batch in enumerate(self.loader):
            self._given = at + 1
            if at >= self._skip:
                yield batch

    def saved(self) -> int:
        return self._given

    def load(self, state: int) -> None:
        self._skip = state


def webdataset(folder: Path, workers: int) -> Loader:
    """WebDataset with its repeatable shuffles. It has no state."""
    import webdataset as library

    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    samples = library.WebDataset(urls, shardshuffle=100, detshuffle=True, seed=1)
    samples = samples.compose(library.detshuffle(BUFFER, seed=1)).map(number)
    return Skipping(torch.utils.data.DataLoader(samples, BATCH, num_workers=workers))


class _Grain(Loader):
    def __iter__(self) -> Iterator[Any]:
        return self._open()

    @functools.cache  # noqa: B019 - one pass a process
    def _open(self) -> Any:
        return iter(self.loader)

    def saved(self) -> Any:
        return self._open().get_state()

    def load(self, state: Any) -> None:
        self._open().set_state(state)


def _of_record(record: bytes) -> int:
    return number(msgspec.msgpack.decode(record))


def grain(folder: Path, workers: int) -> Loader:
    """Grain over ArrayRecord."""
    import grain as library

    there = str(converted("array_record", ROW, folder) / "all.array_record")
    dataset = library.MapDataset.source(library.sources.ArrayRecordDataSource(there)).seed(1).shuffle()
    batches = dataset.map(_of_record).batch(BATCH).to_iter_dataset()
    return _Grain(batches.mp_prefetch(library.MultiprocessingOptions(num_workers=workers)))


def litdata(folder: Path, workers: int) -> Loader:
    """LitData over its own chunks."""
    import litdata as library

    dataset = library.StreamingDataset(
        str(converted("chunks", ROW, folder)), shuffle=True, seed=1, transform=number, drop_last=False
    )
    return Loader(library.StreamingDataLoader(dataset, batch_size=own_rows(), num_workers=workers))


def mosaic(folder: Path, workers: int) -> Loader:
    """Mosaic Streaming over MDS files."""
    import streaming

    class Numbers(streaming.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> int:
            return number(super().__getitem__(at))

    dataset = Numbers(
        local=str(converted("mosaic", ROW, folder)), shuffle=True, shuffle_seed=1, batch_size=own_rows(),
        num_canonical_nodes=1,
    )  # fmt: skip
    return Loader(streaming.StreamingDataLoader(dataset, batch_size=own_rows(), num_workers=workers))


class _Energon(Loader):
    def saved(self) -> Any:
        return self.loader.save_state_rank()

    def load(self, state: Any) -> None:
        self.loader.restore_state_rank(state)


def energon(folder: Path, workers: int) -> Loader:
    """Energon over the same tar files with its index, one pass."""
    from megatron import energon as library

    class Encoder(library.TaskEncoder):  # type: ignore[misc]
        decoder = None
        cookers = (library.Cooker(lambda sample: sample),)

        @library.stateless
        def cook_crude_sample(self, sample: Any, cooker: Any, aux: Any) -> Any:
            return library.basic_sample_keys(sample) | {"number": number(sample)}  # by its keys it is read again

        @library.stateless
        def batch(self, samples: list[Any]) -> Any:
            return {"number": torch.tensor([sample["number"] for sample in samples])}

    dataset = library.get_train_dataset(
        converted("energon", ROW, folder),
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=BATCH, batch_drop_last=False, shuffle_buffer_size=BUFFER, max_samples_per_sequence=100,
        task_encoder=Encoder(), repeat=False,
    )  # fmt: skip
    return _Energon(library.get_savable_loader(dataset))


CONTENDERS: dict[str, Callable[[Path, int], Loader]] = {
    each.__name__: each
    for each in (
        headrace, headrace_lanes, torchdata_over_index, datasets_stream, webdataset, grain, litdata, mosaic, energon,
    )
}  # fmt: skip
# Whose documentation says that one can go on with another number of ranks.
RANKED = ("headrace", "headrace_lanes", "litdata", "mosaic")
