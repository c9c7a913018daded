"""One of two ranks that share a dispatcher; prints JSON with what `distribute` said of its pipelines.

python sharing.py RANK WORK_DIR   rank 0 has the dispatcher and prints its address; rank 1 reads it from its input
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import tensorflow as tf

from headrace.errors import HeadraceError
from headrace.tensorflow import distribute

rank = int(sys.argv[1])
service = tf.data.experimental.service
Dataset = tf.data.Dataset
numbers = Dataset.range(10)
said: dict[str, list[str]] = {}


def attempt(name: str, dataset: tf.data.Dataset, **options: object) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            distribute(dataset, name, service=address, wait=20.0, **options)
            said[name] = [str(each.message) for each in caught if each.filename == __file__]
        except HeadraceError as error:
            said[name] = [type(error).__name__, error.message, error.hint]


def dispatch(port: int = 0) -> object:
    config = service.DispatcherConfig(port=port, work_dir=sys.argv[2], fault_tolerant_mode=True)
    return service.DispatchServer(config)


if rank:  # has made functions and layers that the other has not
    for _ in range(3):
        numbers.shuffle(2).map(lambda row: row * 2)
        tf.keras.layers.RandomFlip()
    tf.random.uniform(())
    address = sys.stdin.readline().strip()
else:
    dispatcher = dispatch()
    address = dispatcher.target.replace("localhost", "127.0.0.1")

layers = [tf.keras.layers.RandomFlip(), tf.keras.layers.RandomRotation(0.1)]  # without a seed
words = [f"word-{number}" for number in range(300)]
table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, list(range(300))), 0)
variable = tf.Variable(3, dtype=tf.int64)
files = [f"/host-{rank}/data/{name}" for name in ("a", "b", "c")]


def deform(images: tf.Tensor) -> tf.Tensor:
    for layer in layers:
        images = layer(images, training=True)
    return images


# Equal pipelines.
attempt("functions", numbers.map(lambda row: row + 1).shuffle(5).cache().batch(2).prefetch(2).repeat())
attempt("keras", Dataset.from_tensor_slices(tf.zeros((4, 8, 8, 3))).batch(2).repeat().map(deform))
attempt("table", Dataset.from_tensor_slices(["word-1"]).repeat().map(table.lookup))
attempt("variable", numbers.repeat().map(lambda row: row + variable), freeze_variables=True)
attempt(
    "speed",
    numbers.shuffle(4 + rank, seed=1).map(lambda row: row, num_parallel_calls=2 + rank).prefetch(1 + rank).repeat(),
)
attempt("random", numbers.repeat().map(lambda row: (row, tf.random.uniform(()))))
attempt("order", Dataset.from_tensor_slices(["b", "a"] if rank else ["a", "b"]).repeat())
# Other data.
attempt("shard", numbers.shard(2, rank).repeat())
attempt("inner-shard", numbers.repeat().interleave(lambda _: Dataset.range(4).shard(2, rank)))
attempt("range", Dataset.range(rank, 10, 2).repeat())
attempt("files", Dataset.from_tensor_slices(["a", "b", "c", "d"][rank::2]).repeat())
attempt("labels", Dataset.from_tensor_slices((np.zeros((4, 3)), np.arange(8)[rank::2])).repeat())
floats = np.arange(8, dtype="float32")
attempt("floats", Dataset.from_tensor_slices(floats[rank::2]).repeat())
attempt("images", Dataset.from_tensor_slices(np.arange(48, dtype="uint8").reshape(4, 4, 3)[rank::2]).repeat())
attempt("halves", Dataset.from_tensor_slices({"x": floats[rank::2].reshape(2, 2), "y": [0, 1]}).repeat())
attempt("tensors", Dataset.from_tensors(floats[rank::2]).unbatch().repeat())
attempt("half", Dataset.from_tensor_slices(tf.constant(floats[rank::2], tf.bfloat16)).repeat())
attempt("rows", Dataset.from_tensor_slices(np.array([[b"a", b"b"], [b"c", b"d"]][:: 1 - 2 * rank])).repeat())
attempt("other-rows", Dataset.from_tensor_slices(np.array([[b"a", b"b"], [b"c", b"d"]][rank])).repeat())
attempt("take", numbers.take(5) if not rank else numbers.skip(5))
attempt("skip", numbers.repeat().skip(5 * rank))
attempt("filter", numbers.filter(lambda row: row % 2 == rank).repeat())
attempt("count", Dataset.range(5 + rank))
attempt("structure", numbers.repeat().batch(2 + rank, drop_remainder=True))
attempt("rounds", numbers.shard(2, rank).repeat(), consumer_index=rank, num_consumers=2)
# What need not be other data.
attempt("seed", numbers.shuffle(4, seed=1 + rank).repeat())
attempt("constant", numbers.map(lambda row: row + rank).repeat())
attempt("directory", Dataset.from_tensor_slices(files).repeat())
attempt("same-constant", numbers.map(lambda row: row + rank).repeat(), same_data=True)
if not rank:  # what is known of rank 0 is in the journal
    port = int(address.rpartition(":")[2])
    dispatcher._stop()
    del dispatcher
    dispatcher = dispatch(port)
    print(address, flush=True)
    sys.stdin.readline()
print(json.dumps(said), flush=True)
