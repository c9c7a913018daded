"""MNIST-format files, and the batches that are made of them."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np


def read_idx(path: Path) -> np.ndarray:
    """Reads a gzipped IDX file of unsigned bytes."""
    data = gzip.decompress(path.read_bytes())
    zeros, kind, dimensions = struct.unpack(">HBB", data[:4])
    if zeros != 0 or kind != 8:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


class Digits:
    """The digits of one part of a channel.

    Args:
        part: ``train`` or ``t10k``.
        channel: name of the input channel.
    """

    def __init__(self, part: str, channel: str = "training") -> None:
        folder = Path(os.environ[f"SM_CHANNEL_{channel.upper()}"])
        self.images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
        self.labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, seed: int, epoch: int, batch_size: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns one batch of a shuffled epoch: images moved by up to one pixel, with noise, uint8; labels uint8."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self))
        rows = order[number * batch_size : (number + 1) * batch_size]
        rng = np.random.default_rng([seed, epoch, number])
        moved = [np.roll(self.images[row], rng.integers(-1, 2, 2), (0, 1)) for row in rows]
        noisy = np.stack(moved).astype(np.float32) + rng.normal(0.0, 8.0, (len(rows), *self.images.shape[1:]))
        return np.clip(noisy, 0, 255).astype(np.uint8), self.labels[rows]
