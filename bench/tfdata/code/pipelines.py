"""The two rows of the measurement, each as a tf.data pipeline and as a NumPy dataset that do the same.

`images`: a file of 256 x 256 x 3 bytes is read, cropped at random to 224 x 224, flipped at random and normalised to
float32; 32 a batch, 19.3 MB. `bytes`: 19.3 MB of uint8 are copied, 128 rows a batch: a batch that takes no work.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from headrace import feed

FILES, SIDE, CROP = 64, 256, 224
ROWS = {"images": 32, "bytes": 128}  # of a batch
BATCH_BYTES = {"images": 32 * CROP * CROP * 3 * 4, "bytes": 128 * CROP * CROP * 3}
MEAN, SCALE = 0.45, 1 / 0.225
ENDLESS = 1 << 40


def write_files(directory: Path) -> None:
    """Writes the files that `images` reads."""
    rng = np.random.default_rng(1)
    for number in range(FILES):
        (directory / f"{number:03d}.raw").write_bytes(rng.integers(0, 256, SIDE * SIDE * 3, np.uint8).tobytes())


def tf_pipeline(row: str, directory: str) -> Any:
    """Returns a row as a tf.data pipeline without end."""
    import tensorflow as tf

    if row == "bytes":
        source = tf.ones((ROWS[row], CROP, CROP, 3), tf.uint8)
        return tf.data.Dataset.range(ENDLESS).map(lambda _: tf.raw_ops.DeepCopy(x=source))

    def image(path: Any) -> Any:
        pixels = tf.reshape(tf.io.decode_raw(tf.io.read_file(path), tf.uint8), (SIDE, SIDE, 3))
        pixels = tf.image.random_flip_left_right(tf.image.random_crop(pixels, (CROP, CROP, 3)))
        return (tf.cast(pixels, tf.float32) * (1 / 255) - MEAN) * SCALE

    files = [str(Path(directory) / f"{number:03d}.raw") for number in range(FILES)]
    ds = tf.data.Dataset.from_tensor_slices(files).repeat().map(image, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.batch(ROWS[row], drop_remainder=True)


class Images:
    """The row `images`, sample by sample."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> np.ndarray:
        path = self.directory / f"{index % FILES:03d}.raw"
        pixels = np.fromfile(path, np.uint8).reshape(SIDE, SIDE, 3)
        top, left = random.randrange(SIDE - CROP + 1), random.randrange(SIDE - CROP + 1)
        pixels = pixels[top : top + CROP, left : left + CROP]
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        made = pixels.astype(np.float32)
        made *= 1 / 255
        made -= MEAN
        made *= SCALE
        return made


class Bytes:
    """The row `bytes`, sample by sample; the batch's slab gets the copy."""

    def __init__(self) -> None:
        self.source = np.ones((CROP, CROP, 3), np.uint8)

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> np.ndarray:
        return self.source


@feed.pipeline
def numpy_pipeline(row: str, directory: str) -> Images | Bytes:
    """Returns a row as a dataset."""
    return Bytes() if row == "bytes" else Images(directory)
