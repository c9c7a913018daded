"""The six pipelines, each with its batch size."""

from __future__ import annotations

import io
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 1 << 30


class Made:
    """A dataset without an end worth mentioning; `make` makes a sample."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


def jpeg(folder: Path) -> tuple[Made, int]:
    from PIL import Image

    del folder
    noise = np.random.default_rng(1).normal(0, 12, (320, 320, 3)).cumsum(0).cumsum(1)
    pixels = np.uint8(255 * (noise - noise.min()) / np.ptp(noise))
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=85)
    data = out.getvalue()

    def make(index: int) -> Any:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        left = index % 90
        return np.asarray(image.crop((left, left, left + 224, left + 224)))

    return Made(make), 32


def tokens(folder: Path) -> tuple[Made, int]:
    del folder
    chance = random.Random(1)
    words = ["".join(chance.choice("abcdefghijklmnop") for _ in range(chance.randrange(2, 9))) for _ in range(5000)]
    vocabulary = {word: number for number, word in enumerate(words)}
    texts = [", ".join(chance.choice(words) for _ in range(400)) for _ in range(64)]
    cut = re.compile(r"[a-z]+|,")

    def make(index: int) -> Any:
        ids = [vocabulary.get(word, 0) for word in cut.findall(texts[index % 64])]
        return np.array((ids + [0] * 1024)[:1024], dtype=np.int64)

    return Made(make), 32


def mapped(folder: Path) -> tuple[Made, int]:
    path = folder / "rows.npy"
    np.save(path, np.random.default_rng(1).random((8192, 2048), dtype=np.float32))
    rows = np.load(path, mmap_mode="r")
    return Made(lambda index: np.array(rows[(index * 7919) % 8192])), 64


def sleepy(folder: Path) -> tuple[Made, int]:
    del folder

    def make(index: int) -> Any:
        time.sleep(0.005)
        return np.int64(index)

    return Made(make), 16


def augment(folder: Path) -> tuple[Made, int]:
    del folder
    images = np.random.default_rng(1).integers(0, 255, (64, 96, 96, 3), dtype=np.uint8)

    def make(index: int) -> Any:
        image = images[index % 64].astype(np.float32) / 255
        image = np.roll(image[:, ::-1] if index % 2 else image, index % 9, axis=(0, 1))
        image = image + np.random.normal(0, 0.02, image.shape).astype(np.float32)
        return (image - image.mean((0, 1))) / (image.std((0, 1)) + 1e-6)

    return Made(make), 32


def arrays(folder: Path) -> tuple[Made, int]:
    del folder
    array = np.random.default_rng(1).random((1200, 1000), dtype=np.float32)
    return Made(lambda index: array + np.float32(index % 7)), 4


PIPELINES = {"jpeg": jpeg, "tokens": tokens, "mapped": mapped, "sleepy": sleepy, "augment": augment, "arrays": arrays}
