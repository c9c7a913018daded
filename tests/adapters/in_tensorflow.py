"""A TensorFlow process without torch that trains from the feed and prints what it saw (see test_tensorflow_feed.py).

python in_tensorflow.py SERVERS SECRET KILL_ONCE PID
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any


class NoTorch:
    """Refuses to import torch, as if it were not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)


def in_slab(tensor: Any) -> bool:
    """Says whether a tensor's memory is one of the feed's slabs."""
    import numpy as np

    address = np.from_dlpack(tensor).ctypes.data
    spans = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:headrace" in line]
    return any(int(span.split("-")[0], 16) <= address < int(span.split("-")[1], 16) for span in spans)


def main(servers: str, secret: str, kill_once: str, pid: str) -> dict[str, Any]:
    """Returns what was seen."""
    import array_data
    import psutil
    import tensorflow as tf

    import headrace.tensorflow
    from headrace.errors import FeedError
    from headrace.feed import DataLoader, Window, stack_arrays

    here = {"shuffle": True, "seed": 3, "drop_last": True}
    there = here | {"workers": servers, "secret_file": secret}
    saw: dict[str, Any] = {}

    # What one process makes, and what two hosts make of which one is lost, with a worker that is killed once.
    large = [40, 32]  # smaller leaves are copied out of their slab
    alone = DataLoader(array_data.pictures(shape=large), 8, collate_fn=stack_arrays, **here)
    plain = [batch[0]["image"].tobytes() for batch in alone]
    killed = array_data.pictures(kill_once=kill_once, shape=large)
    ds = headrace.tensorflow.feed(killed, 8, prefetch_factor=1, **there)
    saw["spec"] = str(ds.element_spec)
    saw["length"] = len(ds)
    got, slabs = [], []
    for step, (fields, _) in enumerate(ds):
        got.append(fields["image"].numpy().tobytes())
        slabs.append(in_slab(fields["image"]))
        if step == 3:
            os.kill(int(pid), signal.SIGKILL)
    saw["same"], saw["in slabs"] = got == plain, all(slabs)
    stats = ds.loader.stats()
    saw["killed"] = [stats["workers_lost"], stats["retries"], Path(kill_once).exists()]
    saw["copied"] = stats["bytes_copied"]
    ds.close()

    # A position in the middle of the second epoch, while TensorFlow reads ahead.
    ds = headrace.tensorflow.feed(array_data.pictures(), 8, num_workers=2, **here)
    list(ds)
    ahead = iter(ds.prefetch(4))
    second = [next(ahead)[1].numpy().tolist() for _ in range(5)]
    state = ds.state_dict(5)
    second += [labels.numpy().tolist() for _, labels in ahead]
    saw["ahead of the training"] = ds.state_dict()["step"] != 5
    ds.close()
    resumed = headrace.tensorflow.feed(array_data.pictures(), 8, state=json.loads(json.dumps(state)), **here)
    saw["resumed"] = [labels.numpy().tolist() for _, labels in resumed] == second[5:]
    saw["every sample once"] = sorted(label for labels in second for label in labels) == list(range(96))

    # Keras, over two epochs, from a position.
    model = tf.keras.Sequential([tf.keras.layers.Input((4, 3)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    resumed.load_state_dict(state)
    places: list[Any] = []
    note = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: places.append(resumed.state_dict(batch + 1))
    )
    images = resumed.map(lambda fields, label: (fields["image"] / 96, label))
    model.fit(images, epochs=2, initial_epoch=1, verbose=0, callbacks=[note])  # the rest: shorter than an epoch
    model.fit(images, epochs=3, initial_epoch=2, verbose=0, callbacks=[note])
    saw["places"] = [(place["epoch"], place["step"]) for place in places]

    # Keras, directly: the dataset says how long an epoch is.
    fields = {"image": tf.keras.layers.Input((4, 3)), "noise": tf.keras.layers.Input(())}
    direct = tf.keras.Model(fields, tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(fields["image"])))
    direct.compile("sgd", "mse", jit_compile=False)
    saw["batches"] = int(resumed.cardinality())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        direct.fit(resumed, epochs=2, verbose=0)
    saw["warned"] = [str(each.message) for each in caught if "ran out of data" in str(each.message)]
    steps: dict[int, int] = {}
    count = tf.keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: steps.update({epoch: 0}),
        on_train_batch_end=lambda batch, logs: steps.update({max(steps): batch + 1}),
    )
    resumed.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first of them is shorter, and Keras says so
        direct.fit(resumed, epochs=4, initial_epoch=1, verbose=0, callbacks=[count])
    saw["steps of epochs"] = list(steps.values())
    skipping = headrace.tensorflow.feed(array_data.pictures(), 8, on_error="skip")
    saw["batches with skipping"] = int(skipping.cardinality())
    skipping.close()

    # Shards, and rows without a count, which two lanes hold.
    folder = Path(kill_once).parent / "lines"
    folder.mkdir()
    array_data.write_lines(folder)
    shards = headrace.tensorflow.feed(array_data.lines(str(folder)), 8, shuffle=Window(8, 2), num_workers=1)
    saw["rows of shards"] = sorted(label for _, labels in shards for label in labels.numpy().tolist())
    shards.close()
    lanes = {"shuffle": True, "seed": 3, "num_shards": 2}
    plain = DataLoader(array_data.some_lines(str(folder)), 8, collate_fn=stack_arrays, **lanes)
    want = [(vectors.tolist(), labels.tolist()) for vectors, labels in plain]
    ds = headrace.tensorflow.feed(array_data.some_lines(str(folder)), 8, num_workers=1, **lanes)
    got = [(vectors.numpy().tolist(), labels.numpy().tolist()) for vectors, labels in ds]
    saw["lanes"] = [got == want, sum(len(labels) for _, labels in got), int(ds.cardinality())]
    ahead = iter(ds.prefetch(3))
    first = [next(ahead)[1].numpy().tolist() for _ in range(2)]
    state = ds.state_dict(2)
    rest = [labels.numpy().tolist() for _, labels in ahead]
    ds.close()
    resumed = headrace.tensorflow.feed(array_data.some_lines(str(folder)), 8, state=state, **lanes)
    saw["lanes resumed"] = [[labels.numpy().tolist() for _, labels in resumed] == rest, len(first), len(rest)]
    whole = headrace.tensorflow.feed(array_data.some_lines(str(folder)), 8, **lanes)
    epochs = [[labels.numpy().tolist() for _, labels in whole] for _ in range(2)]
    last = headrace.tensorflow.feed(array_data.some_lines(str(folder)), 8, **lanes)
    list(last)
    behind = last.state_dict(len(epochs[0]))
    again = headrace.tensorflow.feed(array_data.some_lines(str(folder)), 8, state=behind, **lanes)
    saw["behind the last batch"] = [[labels.numpy().tolist() for _, labels in again] == epochs[1]]
    again.load_state_dict(behind)
    saw["behind the last batch"].append([labels.numpy().tolist() for _, labels in again] == epochs[1])
    counted = headrace.tensorflow.feed(array_data.some_lines(str(folder)), 8, steps_per_epoch=5, **lanes)
    trained = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    trained.compile("sgd", "mse", jit_compile=False)
    steps = {}
    trained.fit(counted, epochs=2, verbose=0, callbacks=[count])
    saw["lanes in Keras"] = [int(counted.cardinality()), list(steps.values())]

    # A part of a global batch for each of two ranks, of rows by number and of rows without a count.
    saw["global batches"] = []
    for data, more in (
        (array_data.lines(str(folder)), {}),
        (array_data.some_lines(str(folder)), {"num_shards": 2, "steps_per_epoch": 4}),
    ):
        options = {"global_batch_size": 8, "shuffle": True, "seed": 3, "drop_last": True, **more}
        whole = headrace.tensorflow.feed(data, **options)
        ranks = [headrace.tensorflow.feed(data, rank=rank, world_size=2, **options) for rank in range(2)]
        parts = zip(*ranks, strict=True)
        found = [[label for _, labels in part for label in labels.numpy().tolist()] for part in parts]
        same = found == [labels.numpy().tolist() for _, labels in whole]
        saw["global batches"].append([same, len(found), ranks[0].element_spec[1].shape[0]])

    # Mistakes.
    refused = []
    for data, rows in ((array_data.pictures(), None), (tf.data.Dataset.range(10), 4)):
        try:
            headrace.tensorflow.feed(data, rows)
        except FeedError as error:
            refused.append(str(error))
    saw["refused"] = refused
    before = psutil.Process().children(recursive=True)
    try:
        headrace.tensorflow.feed(array_data.words(), 8, num_workers=2)
    except FeedError as error:
        saw["words"] = str(error)
        _, left = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - set(before), timeout=5)
        saw["left"] = [" ".join(process.cmdline()) for process in left]
    raising = headrace.tensorflow.feed(array_data.raising(), 8)
    try:
        list(raising)
    except tf.errors.OpError as error:
        saw["raising"] = str(error)
    other = headrace.tensorflow.feed(array_data.mixed(), 8)
    found = iter(other)
    saw["of the first dtype"] = [next(found)["x"][0].numpy().tolist() for _ in range(6)]
    try:
        next(found)
    except tf.errors.OpError as error:
        saw["of another dtype"] = str(error)

    # Datasets that nobody holds any more, whose passes were broken off, and were not.
    gc.collect()
    opened = []
    for number in range(6):
        passed = headrace.tensorflow.feed(array_data.pictures(), 8, num_workers=1).map(lambda x, y: y).prefetch(2)
        batches = iter(passed)
        for _ in range(1 if number % 2 else 13):
            next(batches, None)
        del passed, batches
        gc.collect()
        opened.append((psutil.Process().num_fds(), len(psutil.Process().children(recursive=True))))
    saw["opened"] = opened
    held = iter(headrace.tensorflow.feed(array_data.pictures(), 8, num_workers=1))
    gc.collect()
    saw["held by its iterator"] = sum(1 for _ in held)
    saw["torch"] = "torch" in sys.modules
    return saw


if __name__ == "__main__":
    sys.meta_path.insert(0, NoTorch())  # type: ignore[arg-type]
    print(json.dumps(main(*sys.argv[1:])))
