"""Who reads the shards, each as its own documentation says for shuffled training, in batches of 64.

The first epoch is not counted: in it processes start, import and fill their buffers.

python -m bench.shards.contenders NAME ROW SETTINGS FOLDER EPOCHS   prints one JSON object: samples, seconds, CPU s
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from bench.shards import mixtures, packs, peers
from bench.shards.clock import now
from bench.shards.peers import BATCH, BUFFER, Opened, torch_loader
from bench.shards.remote import headrace_tcp
from bench.shards.settings import Settings
from bench.shards.work import ROWS, WORDS, words

from headrace import feed


def _source(row: str, folder: Path) -> feed.Source:
    opened = feed.parquet(folder) if row == "parquet-text" else feed.tar(folder)
    return opened.map(ROWS[row].decode)


def headrace(row: str, folder: Path, settings: Settings) -> Opened:
    return feed.DataLoader(
        _source(row, folder), BATCH, feed.Window(128, 64), seed=1, num_workers=settings.workers, persistent_workers=True
    )


def headrace_full(row: str, folder: Path, settings: Settings) -> Opened:
    return feed.DataLoader(
        _source(row, folder), BATCH, True, seed=1, num_workers=settings.workers, persistent_workers=True
    )


def headrace_in_order(row: str, folder: Path, settings: Settings) -> Opened:
    return feed.DataLoader(_source(row, folder), BATCH, seed=1, num_workers=settings.workers, persistent_workers=True)


def torch_over_index(row: str, folder: Path, settings: Settings) -> Opened:
    """torch's own loader over our source, which is a map-style dataset."""
    return nullcontext(torch_loader(_source(row, folder), settings, shuffle=True))


def _webdataset(row: str, folder: Path, settings: Settings, shards: int | bool, buffer: int) -> Opened:
    import webdataset

    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    dataset = webdataset.WebDataset(urls, shardshuffle=shards)
    samples = (dataset.shuffle(buffer) if buffer else dataset).map(ROWS[row].decode)
    return nullcontext(torch_loader(samples, settings))


def webdataset(row: str, folder: Path, settings: Settings) -> Opened:
    return _webdataset(row, folder, settings, 100, BUFFER)


def webdataset_in_order(row: str, folder: Path, settings: Settings) -> Opened:
    return _webdataset(row, folder, settings, False, 0)


def _texts(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": words(sample)}


def datasets_stream(row: str, folder: Path, settings: Settings) -> Opened:
    """Hugging Face's streaming reader of the same Parquet files, with its shuffle buffer."""
    import datasets

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    streamed = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    tokens = streamed.shuffle(seed=1, buffer_size=BUFFER).map(_texts, remove_columns=["text"]).with_format("torch")
    return nullcontext(torch_loader(tokens, settings))


class _Tokens:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> torch.Tensor:
        return words(self._dataset[index])


def datasets_on_disk(row: str, folder: Path, settings: Settings) -> Opened:
    """The same rows after Hugging Face's conversion to Arrow files, which is not counted here."""
    import datasets

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    rows = datasets.load_dataset("parquet", data_files=files, split="train")
    return nullcontext(torch_loader(_Tokens(rows), settings, shuffle=True))


_SHUFFLED = (headrace, torch_over_index, webdataset, peers.energon, peers.grain, peers.litdata, peers.mosaic, peers.ray)
_BY_ROW = {
    "tar-small": (*_SHUFFLED, headrace_full, headrace_in_order, headrace_tcp, webdataset_in_order),
    "tar-20k": (*_SHUFFLED, headrace_full, headrace_in_order, headrace_tcp, webdataset_in_order),
    "tar-jpeg": (*_SHUFFLED, headrace_tcp, peers.spdl, peers.spdl_own_decoder),
    "parquet-text": (
        headrace, headrace_full, headrace_in_order, torch_over_index, datasets_stream, datasets_on_disk,
        peers.grain, peers.litdata, peers.mosaic, peers.ray,
    ),
}  # fmt: skip
CONTENDERS = {row: {each.__name__: each for each in those} for row, those in _BY_ROW.items()} | {
    "mix-text": mixtures.CONTENDERS,
    "pack-text": packs.CONTENDERS,
}
# Who reads a form of its own, made beforehand.
FORMS = {"grain": "array_record", "litdata": "chunks", "mosaic": "mosaic", "energon": "energon"}
# Who need not give every sample once an epoch: mixtures take some again, packing drops and counts separators, and
# batches of Energon and Grain reach over the end of an epoch.
LOOSE = ("mix-text", "pack-text", "energon", "grain")


def _rounds(loader: Iterable[Any]) -> Iterator[int]:
    """Goes through a loader without end. Yields the samples of each batch."""
    while True:
        for batch in loader:
            first = batch[0] if isinstance(batch, (list, tuple)) else batch
            yield len(first["tokens"] if isinstance(first, dict) else first)


def main() -> None:
    name, row, settings, folder, epochs = sys.argv[1:]
    torch.set_num_threads(1)
    epoch = ROWS[row].shards * ROWS[row].samples * (WORDS if row == "pack-text" else 1)
    total = int(epochs) * epoch
    samples, warm, began = 0, 0, None
    with CONTENDERS[row][name](row, Path(folder), Settings(**json.loads(settings))) as loader:
        for taken in _rounds(loader):
            samples += taken
            if began is None and samples >= epoch:  # processes have started, libraries are loaded
                began, warm = now(), samples
            if samples >= total:
                break
        ended = now()
    assert samples == total or {name, row} & set(LOOSE), f"{samples} samples, expected {total}"
    assert began is not None
    used = {"seconds": ended.seconds - began.seconds, "cpu": ended.cpu - began.cpu}
    print(json.dumps({"samples": samples - warm} | used))


if __name__ == "__main__":
    main()
