"""The shards of every row, and what is made of their samples: the same functions for all contenders."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch


class Row(NamedTuple):
    """One row of the table: shards, samples of each, epochs, of which the first is not counted, and the function of a
    sample."""

    shards: int
    samples: int
    epochs: int
    decode: Callable[[Mapping[str, Any]], Any]
    payload: int = 0


def payload(sample: Mapping[str, Any]) -> tuple[torch.Tensor, int]:
    """Bytes as a tensor, and a class: no work to speak of."""
    return torch.from_numpy(np.frombuffer(sample["bin"], np.uint8).copy()), int(sample["cls"])


def photograph(sample: Mapping[str, Any]) -> tuple[torch.Tensor, int]:
    """A decoded photograph, cropped at random."""
    from bench.feed.photographs import random_resized_crop
    from PIL import Image

    image = random_resized_crop(Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()), int(sample["cls"])


def tokenised(sample: Mapping[str, Any]) -> list[int]:
    """Token numbers of a text, by a tokeniser in plain Python."""
    return [2 + hash(word) % 50_000 for word in sample["text"].split()]


def words(sample: Mapping[str, Any]) -> torch.Tensor:
    """128 token numbers of a text."""
    tokens = tokenised(sample)[:128]
    return torch.tensor(tokens + [0] * (128 - len(tokens)))


ROWS = {
    "tar-small": Row(20, 2000, 3, payload, 300),
    "tar-20k": Row(20, 500, 5, payload, 20_000),
    "tar-jpeg": Row(8, 256, 3, photograph),
    "parquet-text": Row(8, 5000, 3, words),
    "mix-text": Row(8, 5000, 3, words),
    "pack-text": Row(8, 5000, 3, words),
}
TEXTS = ("parquet-text", "mix-text", "pack-text")
WORDS = 150


def prepare(row: str, folder: Path) -> Path:
    """Writes the shards of a row, once."""
    there = folder / row
    if not there.exists():
        there.mkdir(parents=True)
        (_write_parquet if row in TEXTS else _write_tars)(ROWS[row], there)
    return there


def _contents(row: Row, folder: Path) -> Iterator[tuple[str, bytes]]:
    if row.payload:
        draw = np.random.default_rng(1)
        return (("bin", draw.bytes(row.payload)) for _ in itertools.count())
    from bench.feed import photographs

    images = folder / "images"
    images.mkdir()
    photographs.prepare(images)
    return itertools.cycle([("jpg", path.read_bytes()) for path in sorted(images.iterdir())])


def _write_tars(row: Row, folder: Path) -> None:
    contents = _contents(row, folder)
    for shard in range(row.shards):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
            for sample in range(row.samples):
                for field, content in (next(contents), ("cls", b"%d" % (shard * row.samples + sample))):
                    member = tarfile.TarInfo(f"{shard:03}{sample:06}.{field}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def _write_parquet(row: Row, folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    draw = np.random.default_rng(2)
    for shard in range(row.shards):
        texts = [" ".join(f"w{word}" for word in draw.integers(50_000, size=WORDS)) for _ in range(row.samples)]
        parquet.write_table(pyarrow.table({"text": texts}), folder / f"{shard:03}.parquet", row_group_size=1000)
