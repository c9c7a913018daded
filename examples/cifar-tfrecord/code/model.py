"""A small residual network for 32 x 32 images (He et al., 2016, section 4.2, with one block a stage)."""

from __future__ import annotations

import tensorflow as tf
from images import CLASSES, SIZE

layers = tf.keras.layers


def normalised(x: tf.Tensor) -> tf.Tensor:
    """Normalises a batch; the averages for the test follow within some tens of steps."""
    return layers.BatchNormalization(momentum=0.9)(x)


def block(x: tf.Tensor, filters: int, stride: int) -> tf.Tensor:
    """Two 3 x 3 convolutions, and the way around them."""
    around = x
    if stride != 1 or x.shape[-1] != filters:
        around = normalised(layers.Conv2D(filters, 1, stride, use_bias=False)(x))
    x = layers.Conv2D(filters, 3, stride, "same", use_bias=False)(x)
    x = layers.ReLU()(normalised(x))
    x = normalised(layers.Conv2D(filters, 3, 1, "same", use_bias=False)(x))
    return layers.ReLU()(layers.Add()([x, around]))


def resnet() -> tf.keras.Model:
    """Maps images (n, 32, 32, 3) to logits (n, CLASSES)."""
    image = layers.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(16, 3, 1, "same", use_bias=False)(image)
    x = layers.ReLU()(normalised(x))
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        x = block(x, filters, stride)
    return tf.keras.Model(image, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))
