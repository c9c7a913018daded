"""Tries `headrace.tensorflow.distribute` against a dispatcher and a worker in this process; prints JSON."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import warnings

import tensorflow as tf

from headrace.errors import HeadraceError
from headrace.tensorflow import distribute

service = tf.data.experimental.service
found: dict[str, object] = {}


def attempt(name: str, dataset: tf.data.Dataset, **options: object) -> None:
    try:
        distribute(dataset, name, **options)
        found[name] = "taken"
    except HeadraceError as error:
        found[name] = [type(error).__name__, error.message, error.hint]


def numbers(count: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(count)


def python(row: object) -> object:
    return row


def generate() -> object:
    yield 1


found["local"] = [int(row) for row in distribute(numbers(3))]
dispatcher = service.DispatchServer()
worker = service.WorkerServer(service.WorkerConfig(dispatcher._address))
address = dispatcher.target.replace("localhost", "127.0.0.1")
shared = distribute(numbers(10).map(lambda row: row * 2), service=address)
found["epochs"] = [sorted(int(row) for row in shared) for _ in range(2)]
attempt("train", numbers(3), service=address)
offered = {"max_outstanding_requests": 2, "compression": None, "target_workers": "ANY", "processing_mode": "off"}
attempt("options", numbers(3), service=address, **offered)
rounds = distribute(
    numbers(2).repeat(), "rounds", service=address, consumer_index=0, num_consumers=1, max_outstanding_requests=1
)
found["rounds"] = len([row for row, _ in zip(rounds, range(4), strict=False)])
attempt("cache", numbers(3).repeat(), service=address, cross_trainer_cache=service.CrossTrainerCache(trainer_id="a"))
attempt("py_function", numbers(3).map(lambda row: tf.py_function(python, [row], tf.int64)), service=address)
inner = numbers(3).map(lambda row: tf.numpy_function(python, [row], tf.int64))
attempt("nested", numbers(3).flat_map(lambda _: inner), service=address)
made = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((), tf.int64))
attempt("generator", made, service=address)
attempt("refused", numbers(3), service="grpc://127.0.0.1:1", wait=0.5)
with socket.create_server(("127.0.0.1", 0)) as mute:
    attempt("mute", numbers(3), service=f"grpc://127.0.0.1:{mute.getsockname()[1]}", wait=0.5)
attempt("worker", numbers(3), service=f"grpc://127.0.0.1:{worker._address.rpartition(':')[2]}", wait=0.5)
attempt("form", numbers(3), service="127.0.0.1:5000")
attempt("mode", numbers(3), service=address, processing_mode="data")
attempt("policy", numbers(3), service=address, processing_mode=service.ShardingPolicy.DYNAMIC)
attempt("older", numbers(3), service=address, processing_mode="parallel_epochs")
nobody = "grpc://127.0.0.1:1"  # with the default wait, so that only a check before it ends in time
attempt("finite", numbers(3), service=nobody, consumer_index=0, num_consumers=2)
attempt("here-mode", numbers(3), processing_mode="data")
attempt("here-policy", numbers(3), processing_mode=service.ShardingPolicy.FILE)
attempt("here-python", numbers(3).map(lambda row: tf.py_function(python, [row], tf.int64)))
attempt("here-consumer", numbers(3).repeat(), consumer_index=2, num_consumers=2)
attempt("here-finite", numbers(3), consumer_index=0, num_consumers=2)
attempt("here-list", [1, 2, 3])
cache = service.CrossTrainerCache(trainer_id="a")
attempt("here-cache-kind", numbers(3).repeat(), cross_trainer_cache="x")
attempt("here-cache-end", numbers(3), cross_trainer_cache=cache)
attempt("here-cache-rounds", numbers(3).repeat(), cross_trainer_cache=cache, consumer_index=0, num_consumers=1)
attempt("here-requests", numbers(3), max_outstanding_requests=0)
attempt("here-service", numbers(3), service="")
with tempfile.TemporaryDirectory() as folder:
    snapshot = numbers(3).snapshot(folder)
    attempt("here-snapshot", snapshot.map(lambda row: row + 1))
    attempt("snapshot", snapshot.map(lambda row: row + 1), service=address)
    attempt("snapshot-off", snapshot, service=address, processing_mode="off")
    attempt("snapshot-inside", numbers(3).interleave(lambda row: numbers(2).snapshot(folder)), service=address)
attempt("here-csv", tf.data.experimental.CsvDataset([__file__], [tf.string]))
attempt("here-window", numbers(9).window(3))
rate = tf.Variable(3, dtype=tf.int64, name="rate")
draws = tf.random.Generator.from_seed(1)


@tf.function
def scaled(row: tf.Tensor) -> tf.Tensor:
    return row * rate


attempt("here-variable", numbers(3).map(lambda row: row + rate))
attempt("here-variable-in-function", numbers(3).map(scaled).batch(2))
attempt("here-variable-inside", numbers(3).flat_map(lambda _: numbers(3).map(scaled)))
attempt("here-variable-counts", numbers(3).map(lambda row: row + rate.assign_add(1)))
attempt("here-variable-frozen", numbers(3).map(scaled), freeze_variables=True)
attempt("here-random", numbers(3).map(lambda row: draws.uniform((), 0, 9, tf.int64) + row))
os.environ["HEADRACE_TF_DATA_SERVICE"] = nobody  # with a service the same is said, before anybody waits for it
attempt("there-requests", numbers(3), max_outstanding_requests=0)
attempt("there-service", numbers(3), service="")
attempt("there-cache-end", numbers(3), cross_trainer_cache=cache)
del os.environ["HEADRACE_TF_DATA_SERVICE"]
with tf.Graph().as_default():
    attempt("here-graph", numbers(3))
os.environ["WORLD_SIZE"] = "4"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    attempt("warned-local", numbers(3))
    attempt("warned-endless", numbers(3).repeat(), service=address)
    attempt("warned-finite", numbers(3), service=address)
    attempt("warned-rounds", numbers(3).repeat(), service=address, consumer_index=0, num_consumers=4)
found["warned"] = [str(each.message) for each in caught if each.filename == __file__]
print(json.dumps(found))
sys.stdout.flush()
