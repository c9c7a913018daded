"""The work: datasets that torch's loader and headrace's read alike, and their pipelines for feed servers.

A `Shaped` dataset gives whole batches, to be read with `batch_size=None`: each item is a fresh copy (one memcpy) of a
batch that lies in memory, so nothing but the loader itself is measured.
"""

from __future__ import annotations

import random
import string
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from headrace.feed import pipeline

ENDLESS = 1_000_000_000  # samples: more than any window takes
IMAGE = (224, 224, 3)
IMAGE_BYTES = 224 * 224 * 3  # 150,528: one uint8 image
BATCH_IMAGES = 128  # 19,267,584 bytes


@dataclass
class Labelled:
    """A batch as users write it."""

    images: torch.Tensor
    labels: torch.Tensor
    names: list[str]


def _one_tensor(size: int) -> Any:
    return torch.ones(size // 4, dtype=torch.float32)


def _dict_of_20(size: int) -> Any:
    return {f"feature_{number:02d}": torch.ones(size // 80, dtype=torch.float32) for number in range(20)}


def _ragged(size: int) -> Any:
    draw = random.Random(5)
    weights = [draw.randint(50, 150) for _ in range(64)]
    return [torch.ones(max(1, size * weight // sum(weights)), dtype=torch.uint8) for weight in weights]


def _strings(size: int) -> Any:
    draw = random.Random(6)
    letters = "".join(draw.choices(string.ascii_letters, k=max(1, size // 128)))
    return [letters[number:] + letters[:number] for number in range(128)]


def _images(size: int) -> Any:
    return torch.ones((max(1, size // IMAGE_BYTES), *IMAGE), dtype=torch.uint8)


def _dataclass(size: int) -> Any:
    images = _images(size)
    return Labelled(images, torch.zeros(len(images), dtype=torch.int64), [f"{n:08d}.jpg" for n in range(len(images))])


SHAPES: dict[str, Callable[[int], Any]] = {
    "one tensor": _one_tensor,
    "dict of 20": _dict_of_20,
    "ragged list": _ragged,
    "strings": _strings,
    "uint8 NHWC": _images,
    "dataclass": _dataclass,
}


def copied(batch: Any) -> Any:
    """Returns a fresh copy of a batch: a memcpy of each tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if isinstance(batch, dict):
        return {key: item.clone() for key, item in batch.items()}
    if isinstance(batch, list):
        return [item.clone() if isinstance(item, torch.Tensor) else item for item in batch]
    assert isinstance(batch, Labelled)
    return replace(batch, images=batch.images.clone(), labels=batch.labels.clone(), names=list(batch.names))


def payload(batch: Any) -> int:
    """Returns the bytes of a batch: of its tensors, arrays and strings."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return int(batch.nbytes)
    if isinstance(batch, str):
        return len(batch)
    if isinstance(batch, dict):
        return sum(payload(item) for item in batch.values())
    if isinstance(batch, (list, tuple)):
        return sum(payload(item) for item in batch)
    if is_dataclass(batch):
        return sum(payload(getattr(batch, field.name)) for field in fields(batch))
    raise TypeError(f"a batch holds a {type(batch).__name__}")


class Shaped:
    """Whole batches of one shape, `size` bytes each, fresh at each call."""

    def __init__(self, shape: str, size: int, count: int = ENDLESS) -> None:
        self.source = SHAPES[shape](size)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return copied(self.source)


@pipeline
def shaped(shape: str, size: int) -> Shaped:
    """`Shaped` on a feed server."""
    return Shaped(shape, size)


class Small:
    """Small samples, as of MNIST: 28 x 28 bytes and a label."""

    def __init__(self, count: int) -> None:
        self.images = torch.ones((1024, 28, 28), dtype=torch.uint8)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.images[index % 1024], index % 10


class MappedRows:
    """Rows of 40 floats of a memory-mapped file, as of a table or of embeddings. Nothing is drawn."""

    def __init__(self, count: int) -> None:
        with tempfile.TemporaryFile() as file:
            self.rows = np.memmap(file, np.float32, "w+", shape=(200_000, 40))
        self.rows[:] = 1
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % 200_000]


class Chats:
    """Whole batches of conversations as they are read from JSON lines: 6 messages of 70 letters, and 200 token ids."""

    def __init__(self, rows: int) -> None:
        draw = random.Random(8)
        self.chats = [
            {
                "messages": [
                    {"role": role, "content": "".join(draw.choices(string.ascii_letters, k=70))}
                    for role in ("user", "assistant") * 3
                ],
                "tokens": [draw.randrange(50_000) for _ in range(200)],
            }
            for _ in range(rows)
        ]

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> Any:
        return self.chats
