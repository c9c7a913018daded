"""The CPU-heavy work: JPEG photographs, decoded, randomly cropped, flipped and jittered with Pillow.

The photographs are the two that scikit-learn ships (china.jpg, flower.jpg, 640 x 427), cut into overlapping crops of
500 x 375, the usual size of ImageNet's, and encoded again as JPEG of quality 90.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance

from headrace.feed import pipeline

SIZE = 224
CROP = (500, 375)
FILES = 64


def prepare(directory: Path) -> None:
    """Writes the photographs, `FILES` JPEG files."""
    from sklearn.datasets import load_sample_images

    draw = np.random.default_rng(8)
    sources = [Image.fromarray(image) for image in load_sample_images().images]
    for number in range(FILES):
        source = sources[number % len(sources)]
        left = int(draw.integers(source.width - CROP[0] + 1))
        top = int(draw.integers(source.height - CROP[1] + 1))
        crop = source.crop((left, top, left + CROP[0], top + CROP[1]))
        crop.save(directory / f"{number:03d}.jpg", quality=90)


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def random_box(full_width: int, full_height: int) -> tuple[int, int, int, int]:
    """Draws left, top, right and bottom of 8 to 100 % of the area at an aspect of 3/4 to 4/3, as torchvision does."""
    for _ in range(10):
        area = full_width * full_height * _uniform(0.08, 1.0)
        aspect = math.exp(_uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if width <= full_width and height <= full_height:
            left = int(_uniform(0, full_width - width + 1))
            top = int(_uniform(0, full_height - height + 1))
            return left, top, left + width, top + height
    return 0, 0, full_width, full_height


def random_resized_crop(image: Image.Image) -> Image.Image:
    """Cuts a random box, and scales it: torchvision's RandomResizedCrop."""
    return image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, random_box(image.width, image.height))


class Photographs:
    """Augmented photographs as uint8 tensors of (3, 224, 224), with a label."""

    def __init__(self, directory: str, count: int) -> None:
        self.files = sorted(str(path) for path in Path(directory).glob("*.jpg"))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        data = Path(self.files[index % len(self.files)]).read_bytes()
        image: Image.Image = Image.open(io.BytesIO(data)).convert("RGB")
        image = random_resized_crop(image)
        if _uniform(0, 1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = change(image).enhance(_uniform(0.6, 1.4))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels, index % 1000


@pipeline
def photographs(directory: str, count: int) -> Photographs:
    """`Photographs` on a feed server."""
    return Photographs(directory, count)
