"""Keras, and a loop of one's own, on TensorFlow: batches that take 20 ms, a validation that takes long."""

import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import headrace
from headrace.feed.metrics.track import extent
from headrace.keras import MeterCallback

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
ROWS = np.random.RandomState(0).rand(18, 8).astype("f")


def dataset(seconds=0.02, batch=4):
    def slow(x, y):
        time.sleep(seconds)
        return x, y

    def mapped(x, y):
        made = tf.numpy_function(slow, [x, y], (tf.float32, tf.float32))
        for one, like in zip(made, (x, y), strict=True):
            one.set_shape(like.shape)
        return made

    return tf.data.Dataset.from_tensor_slices((ROWS, ROWS.sum(1))).batch(batch).map(mapped)


def model(**options):
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    net.compile("sgd", "mse", jit_compile=False, **options)  # XLA would compile a second for every training
    return net


def trained(callbacks, data=None, **options):
    settings = {"epochs": 3, "verbose": 0, "validation_data": dataset(0.1), "callbacks": callbacks}
    return model(**options).fit(data or dataset(), **settings).history


# The results are those without the callback, also in the second training of the same model, which has none.
plain = trained([])
assert trained([MeterCallback("keras")]) == plain
assert trained([MeterCallback("eager")], run_eagerly=True)["loss"] == pytest.approx(plain["loss"])
again = model()
again.fit(dataset(), epochs=1, verbose=0, callbacks=[MeterCallback("endless")])
assert again.fit(dataset(), epochs=2, verbose=0).history["loss"] == pytest.approx(plain["loss"][1:])
again.fit(dataset().repeat(), epochs=2, steps_per_epoch=3, verbose=0, callbacks=[MeterCallback("endless")])
again.fit(ROWS, ROWS.sum(1), batch_size=6, epochs=1, verbose=0, callbacks=[MeterCallback("arrays")])


# A training that was broken off, and then the next one with the same callback
class Breaking(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


broken, kept = model(), MeterCallback("again")
with pytest.raises(KeyboardInterrupt):
    broken.fit(dataset(), epochs=1, verbose=0, callbacks=[kept, Breaking()])
broken.fit(dataset(), epochs=1, verbose=0, callbacks=[kept])

# Several replicas
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    mirrored = model()
mirrored.fit(dataset(batch=6), epochs=1, verbose=0, callbacks=[MeterCallback("mirrored")])

# What cannot be measured is told, and trains all the same
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    trained([MeterCallback("several")], steps_per_execution=2)
assert any("steps_per_execution=2" in str(warning.message) for warning in caught)

# A loop of one's own
tracked = headrace.track(dataset(), name="loop")
assert len(tracked) == 5
for _ in range(2):
    assert sum(x.shape[0] for x, _ in tracked) == 18

assert [extent(x)[0] for x in tf.data.Dataset.range(3)] == [1, 1, 1]
assert [extent(x)[0] for x in tf.data.Dataset.range(6).batch(4)] == [4, 2]
assert extent((tf.constant(0.5), tf.zeros((3, 2))))[0] == 3
assert extent(tf.ragged.constant([[1], [2, 3]]))[0] == 2
assert extent(tf.sparse.eye(3))[0] == 3


@tf.function
def compiled():
    for x, _ in tracked:
        tf.print(x)


with pytest.raises(Exception, match="one is being made a graph"):  # in an error of TensorFlow's
    compiled()
