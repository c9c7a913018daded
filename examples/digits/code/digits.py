"""The data of the digits example: MNIST-format files, augmented at a higher resolution.

The files are those of MNIST (`train-images-idx3-ubyte.gz` and so on). `prepare.py` writes the UCI digits that come with
scikit-learn in that format, 8 x 8 pixels; the real MNIST files, 28 x 28, drop in unchanged.
"""

from __future__ import annotations

import gzip
import math
import random
import struct
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headrace import feed

SIZE = 28
SCALE = 4  # training images are rendered at 4 times the size, deformed and blurred there, and reduced
BLUR_TAPS = 11
MEAN, STD = 0.1307, 0.3081


def read_idx(path: Path) -> np.ndarray:
    """Reads an IDX file: big-endian header (two zero bytes, type 8 = uint8, dimensions, extents), then the values."""
    data = gzip.decompress(path.read_bytes())
    zeros, kind, dimensions = struct.unpack(">HBB", data[:4])
    if zeros != 0 or kind != 8:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def gaussian(taps: int, sigma: float) -> Tensor:
    """Returns a normalised one-dimensional Gaussian kernel: shape (taps,), float32."""
    x = torch.arange(taps, dtype=torch.float32) - (taps - 1) / 2
    kernel = torch.exp(-(x**2) / (2 * sigma**2))
    return kernel / kernel.sum()


def affine(degrees: float, shift: float, low: float, high: float) -> Tensor:
    """Draws a random affine map from Python's generator: rotation, scale and shift. Shape (1, 2, 3)."""
    angle = math.radians(random.uniform(-degrees, degrees))
    scale = 1.0 / random.uniform(low, high)
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    return torch.tensor([[[cos, -sin, random.uniform(-shift, shift)], [sin, cos, random.uniform(-shift, shift)]]])


class Digits(torch.utils.data.Dataset):
    """Images (1, 28, 28) float32, normalised, and labels, int.

    Args:
        directory: where the MNIST-format files are.
        train: training files and augmentation, or test files as they are.
    """

    def __init__(self, directory: Path, train: bool) -> None:
        part = "train" if train else "t10k"
        self.images = read_idx(directory / f"{part}-images-idx3-ubyte.gz")
        self.labels = read_idx(directory / f"{part}-labels-idx1-ubyte.gz")
        self.train = train
        kernel = gaussian(BLUR_TAPS, sigma=2.0)
        self.rows, self.columns = kernel.view(1, 1, -1, 1), kernel.view(1, 1, 1, -1)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.images[index].astype(np.float32)).div_(255.0)[None, None]
        if self.train:
            image = self.augment(
                F.interpolate(image, (SIZE * SCALE, SIZE * SCALE), mode="bicubic", align_corners=False)
            )
        image = F.interpolate(image, (SIZE, SIZE), mode="bicubic", align_corners=False, antialias=True)
        return (image[0] - MEAN) / STD, int(self.labels[index])

    def augment(self, image: Tensor) -> Tensor:
        """Deforms, blurs and adds noise to one large image."""
        grid = F.affine_grid(affine(12, 0.08, 0.9, 1.1), list(image.shape), align_corners=False)
        image = F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        image = F.conv2d(F.conv2d(image, self.rows, padding="same"), self.columns, padding="same")
        return (image + 0.05 * torch.randn_like(image)).clamp_(0.0, 1.0)


@feed.pipeline
def train_set(channel: str = "training") -> Digits:
    """The training digits of a channel, augmented."""
    return Digits(feed.channel(channel), train=True)
