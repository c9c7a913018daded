"""Epochs over pipelines that `headrace.tensorflow.distribute` cuts: a program that prints JSON.

It starts a dispatcher, workers, ranks, and trainers that are started again.
"""

from __future__ import annotations

import collections
import json
import os
import time
import warnings
from typing import Any

import keras
import psutil
import tensorflow as tf
from effort import SOAK
from tensorflow.python.autograph.core import ag_ctx
from tensorflow_table import Fork, free_port, server

from headrace.errors import UsageError
from headrace.tensorflow import distribute

found: dict[str, Any] = {}


def pipeline(count: int, size: int = 8) -> Any:
    """Returns batches of (n, n), which are right in pairs only."""
    paths, labels = tf.data.Dataset.range(count), tf.data.Dataset.range(count)
    zipped = tf.data.Dataset.zip(paths, labels).shuffle(count)
    return zipped.map(lambda path, label: (tf.cast([path], tf.float32), tf.cast(label, tf.float32))).batch(size)


def one_part(count: int) -> Any:
    """Returns what one worker makes, and nobody after it."""
    return tf.data.Dataset.range(count).filter(lambda row: row >= 0).map(lambda row: (row, row)).take(count).batch(8)


def plain(count: int) -> Any:
    """Returns what all workers divide."""
    return tf.data.Dataset.range(count).map(lambda row: (row, row)).batch(8)


def labels_of(batches: Any) -> list[int]:
    return [label for batch in batches for label in batch[1].numpy().astype(int).tolist()]


def whole(labels: list[int], count: int, times: int = 1) -> bool:
    return collections.Counter(labels) == collections.Counter(list(range(count)) * times)


class Recorder(keras.Model):
    """Keeps the labels that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[int] = []
        self.validated: list[int] = []
        self.wrong = 0
        self.compile(run_eagerly=True)

    def _keep(self, batch: Any, labels: list[int]) -> dict[str, float]:
        self.wrong += int(tf.reduce_sum(tf.cast(batch[0][:, 0] != batch[1], tf.int32)))
        labels.extend(int(label) for label in batch[1])
        return {"loss": 0.0}

    def train_step(self, batch: Any) -> dict[str, float]:
        return self._keep(batch, self.trained)

    def test_step(self, batch: Any) -> dict[str, float]:
        return self._keep(batch, self.validated)


def fit(address: str) -> None:
    model = Recorder()
    train, validation = (
        distribute(pipeline(count), name, service=address) for count, name in ((200, "train"), (50, "validation"))
    )
    model.fit(train, epochs=3, validation_data=validation, verbose=0)
    found["fit"] = [whole(model.trained, 200, 3), whole(model.validated, 50, 3), model.wrong]
    model = Recorder()
    model.fit(distribute(pipeline(80).repeat(), "repeated", service=address), epochs=3, steps_per_epoch=10, verbose=0)
    found["fit of steps"] = [len(model.trained), model.wrong]
    model = Recorder()
    model.fit(train, epochs=2, steps_per_epoch=4, verbose=0)
    found["fit broken off"] = [len(model.trained), len(set(model.trained)), whole(labels_of(train), 200)]


def break_off(address: str) -> None:
    dataset = distribute(pipeline(800), "broken", service=address)
    for _ in range(2):
        for _batch in dataset:
            break
        labels_of(dataset.take(3))
        iterator = iter(dataset)
        next(iterator)
        del iterator
    found["broken off"] = whole(labels_of(dataset), 800)


def strategies(address: str) -> None:
    places = {"default": tf.distribute.get_strategy(), "mirrored": tf.distribute.MirroredStrategy(["/cpu:0"])}
    for name, strategy in places.items():
        dataset = strategy.experimental_distribute_dataset(distribute(pipeline(200), name, service=address))
        found[name] = [whole(labels_of(dataset), 200) for _ in range(2)]


def rank(address: str, number: int) -> list[list[int]]:
    """Reads passes; rank 1 breaks one off, and is a pass ahead of the other."""
    os.environ |= {"RANK": str(number), "WORLD_SIZE": "2"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two ranks share a dataset that ends
        dataset = distribute(pipeline(600), "two", service=address)
    passes = []
    for epoch in range(3):
        ahead = number == 1 and epoch == 1
        labels = []
        for place, batch in enumerate(dataset.take(2) if ahead else dataset):
            labels += labels_of([batch])
            time.sleep(0.01 if number == 0 and place < 25 else 0)  # rank 0 stays behind
        passes.append(labels)
    return passes


def two_ranks(ranks: list[Fork]) -> None:
    one, other = (fork.result() for fork in [fork.begin() for fork in ranks])
    both = [first + second for first, second in zip(one, other, strict=True)]
    found["two ranks"] = [whole(labels, 600) for labels in (both[0], both[2])]
    found["two ranks, one broken off"] = max(collections.Counter(both[1]).values())


def train(address: str, restarts: str, batches: int) -> dict[str, Any]:
    """A trainer that is started: what it reads, or the error, of a dataset in two stages, in one, and without end."""
    datasets = {"staged": pipeline(160), "plain": plain(160)}
    if restarts:
        os.environ |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": restarts}
    else:
        datasets["endless"] = pipeline(160).repeat()
    read: dict[str, Any] = {}
    for name, dataset in datasets.items():
        try:
            shared = distribute(dataset, f"{name} again", service=address)
            read[name] = labels_of(shared.take(20 if name == "endless" else batches))
        except UsageError as error:
            read[name] = [error.message, error.hint]
    return read


def start_again(trainers: dict[str, Fork]) -> None:
    for name, fork in trainers.items():
        read = fork.begin().result()
        for kind, labels in read.items():
            read[kind] = labels if labels and isinstance(labels[0], str) else [len(labels), len(set(labels))]
        found[name] = read


def rest_of(iterator: Any) -> str:
    try:
        labels_of(iterator)
    except tf.errors.OpError as error:
        return str(error)
    return ""


def lose_workers(address: str, workers: list[Fork], last_port: int) -> None:
    """Kills a worker that makes the parts of all in the middle of a pass."""
    workers[0].begin()
    datasets = {
        name: distribute(make(6_000), name, service=address) for name, make in (("cut", pipeline), ("one", one_part))
    }
    iterators = {name: iter(dataset) for name, dataset in datasets.items()}
    for iterator in iterators.values():
        next(iterator)
    workers[0].kill()
    workers[1].begin()
    found["lost"] = {name: rest_of(iterator) for name, iterator in iterators.items()}
    if SOAK:
        lose_another_worker(datasets["cut"], workers, last_port)


def lose_another_worker(dataset: Any, workers: list[Fork], last_port: int) -> None:
    """Kills a worker that does not make the parts of all."""
    iterator = iter(dataset)  # the first worker, again, makes the part
    labels = labels_of([next(iterator)])
    workers[2].begin()
    deadline = time.monotonic() + 60
    here = psutil.Process()
    while not any(end.raddr and end.raddr.port == last_port for end in here.net_connections()):
        assert time.monotonic() < deadline
        labels += labels_of([next(iterator)])
        time.sleep(0.1)
    for _ in range(100):
        labels += labels_of([next(iterator)])
    workers[2].kill()
    workers[3].begin()
    labels += labels_of(iterator)
    found["other lost"] = [len(labels) > 3_000, max(collections.Counter(labels).values())]


def main() -> None:
    ports = [free_port() for _ in range(3)]
    address = f"grpc://127.0.0.1:{ports[0]}"
    dispatcher = server(ports[0])
    workers = [server(port, ports[0]) for port in (ports[1], ports[1], ports[2], ports[2])]
    ranks = [Fork(rank, address, number) for number in range(2)]
    trainers = {
        "broken off first": Fork(train, address, "", 3),
        "started again": Fork(train, address, "", 1000),
        "started by torchrun": Fork(train, address, "0", 1000),
        "started again by torchrun": Fork(train, address, "1", 1000),
    }
    dispatcher.begin()
    try:
        lose_workers(address, workers, ports[2])
        start_again(trainers)
        fit(address)
        two_ranks(ranks)
        if SOAK:
            break_off(address)
            strategies(address)
    finally:
        for fork in (dispatcher, *workers, *ranks, *trainers.values()):
            fork.kill()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    with ag_ctx.ControlStatusCtx(ag_ctx.Status.DISABLED):  # what it would convert is all TensorFlow's already
        main()
