"""The images of the example: TFRecord files, and the work that makes a training batch of them.

All of it is TensorFlow's own operations, so a worker of tf.data service on another host can do it: the dataset's graph
travels there, and no Python.
"""

from __future__ import annotations

import math
from pathlib import Path

import tensorflow as tf

SIZE, CLASSES = 32, 6
BLUR_TAPS = 11


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads a record: an image, uint8 (32, 32, 3), and its label."""
    found = tf.io.parse_single_example(
        record, {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    )
    return tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (SIZE, SIZE, 3)), found["label"]


def gaussian(taps: int, sigma: float) -> tf.Tensor:
    """Returns a Gaussian filter for the three colours, (taps, taps, 3, 1)."""
    line = [math.exp(-((i - (taps - 1) / 2) ** 2) / (2 * sigma**2)) for i in range(taps)]
    line = [value / sum(line) for value in line]
    return tf.tile(tf.constant([[a * b for b in line] for a in line])[:, :, None, None], (1, 1, 3, 1))


class Prepare:
    """Enlarges a batch of images, deforms it at random and blurs it there, and brings it back to its size.

    Args:
        enlarge: whole factor; the work grows with its square.
    """

    def __init__(self, enlarge: int) -> None:
        self.large = SIZE * enlarge
        self.blur = gaussian(BLUR_TAPS, sigma=enlarge)
        self.random = [
            tf.keras.layers.RandomFlip("horizontal"),
            tf.keras.layers.RandomRotation(0.05),
            tf.keras.layers.RandomZoom(0.1),
        ]
        self.rescale = tf.keras.layers.Rescaling(1 / 255)

    def __call__(self, images: tf.Tensor, labels: tf.Tensor, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Maps images uint8 (n, 32, 32, 3) to float32 in 0 to 1; only training images are deformed."""
        x = tf.image.resize(images, (self.large, self.large))
        if training:
            x = tf.cond(tf.random.uniform(()) < 0.5, lambda: self.dilate(x), lambda: x)
        x = tf.nn.depthwise_conv2d(x, self.blur, (1, 1, 1, 1), "SAME")
        if training:
            for layer in self.random:
                x = layer(x, training=True)
        return self.rescale(tf.image.resize(x, (SIZE, SIZE), antialias=True)), labels

    def dilate(self, x: tf.Tensor) -> tf.Tensor:
        """Grows the bright parts by one pixel in each direction."""
        x = tf.nn.dilation2d(x, tf.zeros((3, 3, 3)), (1, 1, 1, 1), "SAME", "NHWC", (1, 1, 1, 1))
        return tf.ensure_shape(x, (None, self.large, self.large, 3))


def train_set(directory: Path, batch_size: int, enlarge: int, seed: int) -> tf.data.Dataset:
    """Returns batches without end: images float32 (batch_size, 32, 32, 3) in 0 to 1, and labels int64.

    It repeats before the random layers: their state is part of the graph that is sent to the workers, so every new
    pass would begin with the same random numbers.
    """
    files = sorted(str(path) for path in directory.glob("*.tfrecord"))
    prepare = Prepare(enlarge)
    ds = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files), seed=seed).repeat()
    ds = ds.interleave(tf.data.TFRecordDataset, cycle_length=2)
    ds = ds.map(parse).shuffle(1000, seed=seed).batch(batch_size, drop_remainder=True)
    return ds.map(lambda images, labels: prepare(images, labels, training=True))


def test_set(directory: Path, batch_size: int, enlarge: int) -> tf.data.Dataset:
    """Returns the held-out images once, in the same form, not deformed."""
    files = sorted(str(path) for path in directory.glob("*.tfrecord"))
    prepare = Prepare(enlarge)
    ds = tf.data.TFRecordDataset(files).map(parse).batch(batch_size)
    return ds.map(lambda images, labels: prepare(images, labels, training=False))
