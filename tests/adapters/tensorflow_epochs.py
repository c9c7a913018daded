"""Epochs over pipelines that `headrace.tensorflow.distribute` cuts: a program that prints JSON.

python tensorflow_epochs.py                 starts a dispatcher, workers, and the ranks below
python tensorflow_epochs.py ADDRESS RANK    one of two ranks that read one pipeline
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import time
from typing import Any

import keras
import psutil
import tensorflow as tf
from tensorflow_table import free_port, serve

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


def labels_of(batches: Any) -> list[int]:
    return [int(label) for batch in batches for label in batch[1].numpy()]


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
    dataset = distribute(pipeline(4000), "broken", service=address)
    for _ in range(2):
        for _batch in dataset:
            break
        labels_of(dataset.take(3))
        iterator = iter(dataset)
        next(iterator)
        del iterator
    found["broken off"] = whole(labels_of(dataset), 4000)


def strategies(address: str) -> None:
    places = {"default": tf.distribute.get_strategy(), "mirrored": tf.distribute.MirroredStrategy(["/cpu:0"])}
    for name, strategy in places.items():
        dataset = strategy.experimental_distribute_dataset(distribute(pipeline(200), name, service=address))
        found[name] = [whole(labels_of(dataset), 200) for _ in range(2)]


def rank(address: str, number: int) -> None:
    """Reads passes; rank 1 breaks one off, and is a pass ahead of the other."""
    dataset = distribute(pipeline(2000), "two", service=address)
    print("ready", flush=True)
    sys.stdin.readline()
    passes = []
    for epoch in range(3):
        ahead = number == 1 and epoch == 1
        labels = []
        for place, batch in enumerate(dataset.take(2) if ahead else dataset):
            labels += labels_of([batch])
            time.sleep(0.01 if number == 0 and place < 50 else 0)  # rank 0 stays behind
        passes.append(labels)
    print(json.dumps(passes), flush=True)


def two_ranks(address: str) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, address, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(2)
    ]
    for process in ranks:
        process.stdout.readline()
    for process in ranks:
        process.stdin.write("begin\n")
        process.stdin.flush()
    one, other = (json.loads(process.communicate()[0].splitlines()[-1]) for process in ranks)
    both = [first + second for first, second in zip(one, other, strict=True)]
    found["two ranks"] = [whole(labels, 2000) for labels in (both[0], both[2])]
    found["two ranks, one broken off"] = max(collections.Counter(both[1]).values())


def rest_of(iterator: Any) -> str:
    try:
        labels_of(iterator)
    except tf.errors.OpError as error:
        return str(error)
    return ""


def lose_workers(address: str, servers: list[subprocess.Popen[bytes]], ports: list[int]) -> None:
    """Kills a worker that makes the parts of all, and one that does not, in the middle of a pass."""

    def begin(number: int) -> None:
        place = f"127.0.0.1:{ports[number]}"
        arguments = ("--dispatcher", address.partition("://")[2], "--address", place)
        servers[number:] = [serve(ports[number], *arguments)]

    def kill(number: int) -> None:
        servers[number].kill()
        servers[number].wait()
        begin(number)

    begin(1)
    datasets = {
        name: distribute(make(40_000), name, service=address) for name, make in (("cut", pipeline), ("one", one_part))
    }
    iterators = {name: iter(dataset) for name, dataset in datasets.items()}
    for iterator in iterators.values():
        next(iterator)
    kill(1)
    found["lost"] = {name: rest_of(iterator) for name, iterator in iterators.items()}
    iterator = iter(datasets["cut"])  # worker 1 makes the part again
    labels = labels_of([next(iterator)])
    begin(2)
    deadline = time.monotonic() + 60
    here = psutil.Process()
    while not any(end.raddr and end.raddr.port == ports[2] for end in here.net_connections()):
        assert time.monotonic() < deadline
        labels += labels_of([next(iterator)])
        time.sleep(0.1)
    for _ in range(100):
        labels += labels_of([next(iterator)])
    kill(2)
    labels += labels_of(iterator)
    found["other lost"] = [len(labels) > 30_000, max(collections.Counter(labels).values())]


def main() -> None:
    ports = [free_port() for _ in range(3)]
    address = f"grpc://127.0.0.1:{ports[0]}"
    servers = [serve(ports[0])]
    try:
        lose_workers(address, servers, ports)
        fit(address)
        break_off(address)
        strategies(address)
        two_ranks(address)
    finally:
        for server in servers:
            server.kill()
            server.wait()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank(sys.argv[1], int(sys.argv[2]))
    else:
        main()
