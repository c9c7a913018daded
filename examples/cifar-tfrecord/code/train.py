"""Trains the residual network: the one script of the job, on every host of the dnn group, whatever its distribution.

It takes the place of the notebook's three (launcher, data service, trainer): headrace starts the dispatcher and the
workers of tf.data service, and `headrace.tensorflow.distribute` finds them. In a job without them it changes nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import tensorflow as tf
from images import test_set, train_set

import headrace
import headrace.keras
import headrace.tensorflow
from model import resnet


def arguments() -> argparse.Namespace:
    """Parses the hyperparameters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps_per_epoch", type=int, default=36)
    parser.add_argument("--batch_size", type=int, default=64, help="rows of one rank's step")
    parser.add_argument("--learning_rate", type=float, default=0.02)
    parser.add_argument("--enlarge", type=int, default=3, help="the images are deformed at so many times their size")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--distribution", choices=["none", "horovod", "multi_worker_mirrored"], default="none")
    return parser.parse_args()


def make_optimizer(options: argparse.Namespace) -> tf.keras.optimizers.Optimizer:
    """Returns SGD whose learning rate falls to 0 at the end."""
    rate = tf.keras.optimizers.schedules.CosineDecay(options.learning_rate, options.epochs * options.steps_per_epoch)
    return tf.keras.optimizers.SGD(rate, momentum=0.9)


def train(options: argparse.Namespace, images: tf.data.Dataset) -> tf.keras.Model:
    """Trains with Keras's own loop."""
    model, optimizer, callbacks, verbose = resnet(), make_optimizer(options), [headrace.keras.MeterCallback()], 2
    if options.distribution == "horovod":
        import horovod.tensorflow.keras as hvd

        optimizer = hvd.DistributedOptimizer(optimizer)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *callbacks]
        verbose = 2 if hvd.rank() == 0 else 0
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(
        images,
        epochs=options.epochs,
        steps_per_epoch=options.steps_per_epoch,
        callbacks=callbacks,
        shuffle=False,  # the dataset is shuffled
        verbose=verbose,
    )
    return model


def train_mirrored(
    options: argparse.Namespace, images: tf.data.Dataset, strategy: tf.distribute.Strategy
) -> tf.keras.Model:
    """Trains on several hosts. The loop is written out: Keras 3's `fit` does not run under this strategy."""
    with strategy.scope():
        model, optimizer = resnet(), make_optimizer(options)
        optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ranks = strategy.num_replicas_in_sync

    def replica_step(pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(pixels, training=True)) / ranks  # the gradients are added up
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    @tf.function
    def step(pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(replica_step, (pixels, labels)), axis=None)

    # This host's batches: it has one replica. The dataset ends with the training, so that its last step is measured.
    batches = headrace.track(images.take(options.epochs * options.steps_per_epoch))
    losses = []
    for pixels, labels in batches:
        losses.append(float(step(pixels, labels)))
        if len(losses) % options.steps_per_epoch == 0:
            latest = losses[-options.steps_per_epoch :]
            epoch = len(losses) // options.steps_per_epoch
            print(f"epoch {epoch}/{options.epochs}: loss {sum(latest) / len(latest):.4f}", flush=True)
    return model


def accuracy(model: tf.keras.Model, images: tf.data.Dataset) -> float:
    """Returns the share of the images that are classified right."""
    right = [tf.argmax(model(pixels, training=False), 1) == labels for pixels, labels in images]
    return float(tf.reduce_mean(tf.cast(tf.concat(right, 0), tf.float32)))


def main() -> None:
    """Trains, prints the accuracy, and writes the model and the accuracy."""
    options = arguments()
    env = headrace.Environment()
    rank, strategy = 0, None
    if options.distribution == "horovod":
        import horovod.tensorflow.keras as hvd

        hvd.init()
        rank = hvd.rank()
    elif options.distribution == "multi_worker_mirrored":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
        rank = strategy.cluster_resolver.task_id
    tf.keras.utils.set_random_seed(options.seed)
    channels = env.channel_input_dirs
    images = train_set(Path(channels["train"]), options.batch_size, options.enlarge, options.seed)
    images = headrace.tensorflow.distribute(images)  # the one line
    model = train(options, images) if strategy is None else train_mirrored(options, images, strategy)
    if rank == 0:
        right = accuracy(model, test_set(Path(channels["test"]), 100, options.enlarge))
        print(f"held-out accuracy {right:.4f}", flush=True)
        model.save(Path(env.model_dir) / "model.keras")
        (Path(env.output_data_dir) / "result.json").write_text(json.dumps({"accuracy": right}))


if __name__ == "__main__":
    main()
