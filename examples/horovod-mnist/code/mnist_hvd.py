"""Horovod trains Keras's MNIST network: every rank on its share of the data, rank 0 saves the model.

Runs on SageMaker and under headrace unchanged: all that it reads is SM_CHANNEL_TRAIN, SM_CHANNEL_TEST and --model_dir.
"""

import argparse
import os
from pathlib import Path

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

CLASSES = 10


def load(path):
    """Images as float32 of shape (n, height, width, 1) in 0 to 1, and labels, of this rank's share: every size-th one.

    All ranks have equally many, so that none waits in a gradient exchange for one that is done.
    """
    with np.load(path) as file:
        images, labels = file["data"], file["labels"]
    share = len(images) // hvd.size()
    mine = np.arange(hvd.rank(), share * hvd.size(), hvd.size())
    return images[mine, ..., None].astype(np.float32) / 255.0, labels[mine].astype(np.int64)


def network(shape):
    """Two convolutions and two dense layers."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input(shape),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Conv2D(64, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Dropout(0.25),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_dir", default=os.environ.get("SM_MODEL_DIR", "/opt/ml/model"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=32, help="of one rank")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="of one rank; it grows with their number")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    hvd.init()
    tf.keras.utils.set_random_seed(args.seed + hvd.rank())
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    images, labels = load(Path(os.environ["SM_CHANNEL_TRAIN"], "train.npz"))
    test_images, test_labels = load(Path(os.environ["SM_CHANNEL_TEST"], "test.npz"))
    print(f"rank {hvd.rank()} of {hvd.size()}, local rank {hvd.local_rank()}: {len(images)} images", flush=True)

    rate = args.learning_rate * hvd.size()
    model = network(images.shape[1:])
    model.compile(
        optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(rate)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # all ranks begin with the weights of rank 0
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3),
    ]
    model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )

    right = np.sum(model.predict(test_images, verbose=0).argmax(axis=1) == test_labels)
    right, seen = hvd.allreduce(np.array([right, len(test_labels)], np.float64), average=False, name="test")
    if hvd.rank() == 0:
        print(f"test accuracy {right / seen:.4f} over {seen:.0f} images", flush=True)
        Path(args.model_dir).mkdir(parents=True, exist_ok=True)
        model.save(Path(args.model_dir, "model.keras"))


if __name__ == "__main__":
    main()
