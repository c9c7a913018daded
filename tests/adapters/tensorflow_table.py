"""The operations of tf.data and of Keras that make datasets, each as a row; and a program that distributes them.

python tensorflow_table.py FOLDER [ROW ...]   starts a dispatcher and two workers, and prints JSON: a line for each row

A row is a function from (numbers, work, folder) to a dataset: `numbers` a dataset of 0 to N - 1, `work` a map that
stands for costly work, `folder` a directory of the row's own. TensorFlow is imported by the functions alone.
"""

from __future__ import annotations

import collections
import concurrent.futures
import ctypes
import json
import multiprocessing
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from effort import SOAK

N = 1000 if SOAK else 300  # elements; of 200, divided source by source, a zip pairs every second one wrongly
PR_SET_PDEATHSIG = 1  # of prctl(2)
BUILDING = threading.Lock()  # TensorFlow's tracing is for one thread
PASSES = 3 if SOAK else 2
EVERY_RUN = (  # of the suite, one of each kind; `make soak` tries all rows
    "map_behind_map", "zip_of_maps", "take_behind_map", "filter_take_behind_map", "take_nested", "batch_map_of_files",
    "filter_batch_map", "sparse_elements", "endless", "zip_map_with_table_and_state", "image_dataset_from_directory",
    "ragged_rows_batch", "choices_that_end_map",
)  # fmt: skip
OFF = {  # rows that are also tried with processing_mode="off", which sends the pipeline as it is
    "zip_of_maps", *(("shuffle_take_behind_map", "ragged_elements", "csv") if SOAK else ()),
}  # fmt: skip
READ_HERE = {  # no part of a pipeline that is sent; from_generator() is refused, in test_tensorflow_distribute.py
    "as_numpy_iterator", "cardinality", "element_spec", "fingerprint", "from_generator", "get_single_element",
    "options", "reduce", "save",
}  # fmt: skip
HELD: list[Any] = []  # tables and generators of rows, which live as long as the program
ROWS: dict[str, Callable[..., Any]] = {}


def row(function: Callable[..., Any]) -> Callable[..., Any]:
    ROWS[function.__name__] = function
    return function


def both(name: str, operation: Callable[[Any, Any], Any], *, nested: bool = True) -> None:
    """Adds rows with an operation before the map, behind it, and inside of interleave()."""
    ROWS[f"{name}_before_map"] = lambda numbers, work, folder: batched(work(operation(numbers, folder)))
    ROWS[f"{name}_behind_map"] = lambda numbers, work, folder: batched(operation(work(numbers), folder))
    if nested:
        ROWS[f"{name}_nested"] = lambda numbers, work, folder: batched(work(inside(operation, numbers, folder)))


def batched(dataset: Any) -> Any:
    return dataset.batch(64)


def inside(operation: Callable[[Any, Any], Any], numbers: Any, folder: Any) -> Any:
    import tensorflow as tf

    blocks = tf.data.Dataset.range(0, N, 100)

    @tf.autograph.experimental.do_not_convert
    def block(start: Any) -> Any:
        return operation(tf.data.Dataset.range(start, start + 100), folder)

    return blocks.interleave(block, 4)


def first(*element: Any) -> Any:
    import tensorflow as tf

    return tf.nest.flatten(element)[0]


def T() -> Any:
    import tensorflow as tf

    return tf


def D() -> Any:
    return T().data.Dataset


both("map", lambda d, _: d)
both("apply", lambda d, _: d.apply(lambda e: e.take(70)))
both("unbatch", lambda d, _: d.batch(7).unbatch())
both("batch_drop", lambda d, _: d.batch(7, drop_remainder=True).unbatch())
both("cache", lambda d, _: d.cache())
both("cache_repeat", lambda d, _: d.cache().repeat(2))
both("concatenate", lambda d, _: d.concatenate(d))
both("enumerate", lambda d, _: d.enumerate().map(lambda i, e: (*flat(e), i)))
both("filter", lambda d, _: d.filter(lambda *e: first(*e) % 3 == 0))
both("filter_take", lambda d, _: d.filter(lambda *e: first(*e) % 3 == 0).take(30))
both("flat_map", lambda d, _: d.flat_map(lambda *e: D().from_tensors(e if len(e) > 1 else e[0]).repeat(2)))
both("ignore_errors", lambda d, _: d.map(failing).ignore_errors())
both("interleave", lambda d, _: d.interleave(lambda *e: D().from_tensors(e if len(e) > 1 else e[0]).repeat(2), 4, 2, 4))
both("with_options", lambda d, _: d.with_options(T().data.Options()))
both("prefetch", lambda d, _: d.prefetch(3))
both("rebatch", lambda d, _: d.batch(10).rebatch(7).unbatch())
both("repeat", lambda d, _: d.repeat(2))
both("repeat_take", lambda d, _: d.repeat().take(150))
both("scan", lambda d, _: d.scan(T().constant(0, "int64"), lambda s, *e: (s + first(*e), (*flat(e), s))))
both("shard", lambda d, _: d.shard(3, 1))
both("shuffle", lambda d, _: d.shuffle(50, seed=4))
both("shuffle_take", lambda d, _: d.shuffle(50, seed=4).take(80))
both("shuffle_fixed_skip", lambda d, _: d.shuffle(50, seed=4, reshuffle_each_iteration=False).skip(80))
both("skip", lambda d, _: d.skip(80))
both("take", lambda d, _: d.take(80))
both("take_while", lambda d, _: d.take_while(lambda *e: first(*e) % 1000 < 90))
both("unique", lambda d, _: d.map(lambda *e: first(*e) // 2).unique())
both("window", lambda d, _: d.map(first).window(7, 3, drop_remainder=True).flat_map(lambda w: w.batch(7).map(sum_of)))
both("zip_same", lambda d, _: D().zip(d, d).map(lambda a, b: (*flat(a), *flat(b))))
both("zip_range", lambda d, _: D().zip((d, D().range(10**6))).map(lambda a, b: (*flat(a), b)))
both(
    "group_by_window", lambda d, _: d.map(first).group_by_window(lambda e: e % 3, lambda _, w: w.batch(9), 9).unbatch()
)
both(
    "bucket_by_sequence_length",
    lambda d, _: (
        d.map(lambda *e: T().fill([T().cast(first(*e) % 5 + 1, "int32")], first(*e)))
        .bucket_by_sequence_length(T().size, [3], [8, 6])
        .map(lambda b: T().reduce_max(b, 1))
        .unbatch()
    ),
)
both("choose_from_datasets", lambda d, _: D().choose_from_datasets([d, d.skip(50)], D().range(2).repeat(60)))
both("sample_from_datasets", lambda d, _: D().sample_from_datasets([d, d.skip(50)], [0.5, 0.5], seed=3))
both(
    "rejection_resample",
    lambda d, _: (
        d.map(first)
        .rejection_resample(lambda e: T().cast(e % 2, "int32"), [0.5, 0.5], [0.5, 0.5], seed=3)
        .map(lambda _, e: e)
    ),
    nested=False,
)
both("snapshot", lambda d, folder: d.snapshot(str(folder / "snapshot")), nested=False)
both("cache_file", lambda d, folder: d.cache(cache_in(folder)), nested=False)
both("assert_cardinality", lambda d, _: d.apply(T().data.experimental.assert_cardinality(N)), nested=False)


def cache_in(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / "cache")


def flat(element: Any) -> tuple[Any, ...]:
    return tuple(T().nest.flatten(element))


def sum_of(values: Any) -> Any:
    return T().reduce_sum(values)


def failing(*element: Any) -> Any:
    tf = T()
    number = first(*element)
    with tf.control_dependencies([tf.debugging.assert_none_equal(number % 10, T().constant(3, "int64"))]):
        return tf.identity(number)


@row
def batch(numbers: Any, work: Any, folder: Path) -> Any:
    return work(numbers).batch(32)


@row
def batch_drop_remainder(numbers: Any, work: Any, folder: Path) -> Any:
    return work(numbers).batch(33, drop_remainder=True)


@row
def batch_map(numbers: Any, work: Any, folder: Path) -> Any:
    return work(numbers).batch(33).map(lambda a, b: (a, b + 1))


@row
def batch_map_of_files(numbers: Any, work: Any, folder: Path) -> Any:
    return work(records(folder).map(lambda r: T().strings.to_number(r, "int64"))).batch(33).map(lambda a, b: (a, b + 1))


@row
def batch_repeat(numbers: Any, work: Any, folder: Path) -> Any:
    return work(numbers.shuffle(100)).batch(33).repeat(2).prefetch(2)


@row
def batch_take(numbers: Any, work: Any, folder: Path) -> Any:
    return work(numbers).batch(33).take(20)


@row
def filter_batch_map(numbers: Any, work: Any, folder: Path) -> Any:
    return work(numbers).filter(lambda a, b: a % 3 == 1).batch(32, drop_remainder=True).map(lambda a, b: (a, b + 1))


@row
def filter_batch_drop_remainder(numbers: Any, work: Any, folder: Path) -> Any:
    return work(numbers).filter(lambda a, b: a % 3 == 1).batch(33, drop_remainder=True)


@row
def zip_filter_batch(numbers: Any, work: Any, folder: Path) -> Any:
    return work(D().zip(numbers, numbers)).filter(lambda *e: e[0] % 3 == 1).batch(33)


@row
def zip_filter_batch_map(numbers: Any, work: Any, folder: Path) -> Any:
    rows = work(D().zip(numbers, numbers)).filter(lambda *e: e[0] % 3 == 1).batch(33)
    return rows.map(lambda *e: (e[0], e[1] + 1))


@row
def zip_shuffle_map_batch(numbers: Any, work: Any, folder: Path) -> Any:
    return work(D().zip(numbers, numbers).shuffle(300, seed=2)).batch(32, drop_remainder=True)


@row
def zip_of_maps(numbers: Any, work: Any, folder: Path) -> Any:
    return D().zip({"x": work(numbers), "y": numbers}).shuffle(300, seed=1).batch(32).map(lambda e: flat(e))


@row
def zip_map_with_table_and_state(numbers: Any, work: Any, folder: Path) -> Any:
    tf = T()
    keys = tf.range(N, dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 3), -1)
    generator = tf.random.Generator.from_seed(1)
    HELD.extend([table, generator])
    rows = D().zip(numbers, numbers).shuffle(100, seed=1)
    return rows.map(lambda a, b: (table.lookup(a), b + generator.uniform((), 0, 1, tf.int64))).batch(33)


@row
def concatenate_of_maps(numbers: Any, work: Any, folder: Path) -> Any:
    return work(numbers).concatenate(work(numbers.map(lambda e: -e))).batch(32)


@row
def choose_of_maps(numbers: Any, work: Any, folder: Path) -> Any:
    parts = [work(numbers), numbers.map(lambda e: (e, -e))]
    return D().choose_from_datasets(parts, D().range(2).repeat()).batch(32)


@row
def sample_of_maps(numbers: Any, work: Any, folder: Path) -> Any:
    parts = [work(numbers), numbers.map(lambda e: (e, -e))]
    return D().sample_from_datasets(parts, [0.3, 0.7], seed=5).batch(32)


@row
def padded_batch(numbers: Any, work: Any, folder: Path) -> Any:
    return numbers.map(lambda e: T().fill([T().cast(e % 7 + 1, "int32")], e + 1)).padded_batch(32)


@row
def padded_batch_of_zip(numbers: Any, work: Any, folder: Path) -> Any:
    rows = D().zip(numbers, numbers).map(lambda a, b: T().fill([T().cast(a % 7 + 1, "int32")], b + 1))
    return rows.padded_batch(32, drop_remainder=True)


@row
def ragged_batch(numbers: Any, work: Any, folder: Path) -> Any:
    return numbers.map(lambda e: T().fill([T().cast(e % 7 + 1, "int32")], e)).ragged_batch(32)


@row
def ragged_elements(numbers: Any, work: Any, folder: Path) -> Any:
    return numbers.map(lambda e: T().ragged.range([e % 3, e % 5]) + e)


@row
def choices_that_end_map(numbers: Any, work: Any, folder: Path) -> Any:
    choices = D().range(60).map(lambda e: e % 2)
    return D().choose_from_datasets([D().range(20).repeat(), numbers.take(25)], choices).map(lambda e: e * 2)


@row
def ragged_rows_batch(numbers: Any, work: Any, folder: Path) -> Any:
    rows = T().ragged.constant([[number] * (number % 4) for number in range(64)])
    return D().from_tensor_slices(rows).shuffle(8, seed=1).batch(4)


@row
def ragged_map_of_zip(numbers: Any, work: Any, folder: Path) -> Any:
    rows = D().zip(numbers, numbers.map(lambda e: T().ragged.range([e % 3, e % 5]))).map(lambda a, b: b + a)
    return rows.map(lambda e: e * 2)


@row
def sparse_elements(numbers: Any, work: Any, folder: Path) -> Any:
    return numbers.map(lambda e: T().sparse.from_dense(T().stack([e, 0 * e, e + 1]))).batch(32)


@row
def sparse_batch(numbers: Any, work: Any, folder: Path) -> Any:
    return numbers.map(lambda e: T().fill([T().cast(e % 7 + 1, "int32")], e + 1)).sparse_batch(32, [7])


@row
def from_tensor_slices(numbers: Any, work: Any, folder: Path) -> Any:
    tf = T()
    values = {"x": tf.reshape(tf.range(2 * N, dtype=tf.float32), (N, 2)), "y": tf.range(N)}
    return D().from_tensor_slices(values).map(lambda e: (e["x"], e["y"])).batch(32)


@row
def from_tensors(numbers: Any, work: Any, folder: Path) -> Any:
    return work(D().from_tensors(T().range(N, dtype="int64")).unbatch()).batch(32)


@row
def from_sparse_slices(numbers: Any, work: Any, folder: Path) -> Any:
    return D().from_tensor_slices(T().sparse.eye(60)).batch(7)


@row
def random(numbers: Any, work: Any, folder: Path) -> Any:
    return work(D().random(seed=4).take(N * 7 // 10)).batch(32)


@row
def counter(numbers: Any, work: Any, folder: Path) -> Any:
    return work(D().counter(3, 2)).take(N * 7 // 10).batch(32)


@row
def range_with_steps(numbers: Any, work: Any, folder: Path) -> Any:
    return work(D().range(3, 3 * N, 3)).batch(32)


def texts(folder: Path, header: str = "") -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for file in range(8):
        path = folder / f"{file}.txt"
        lines = "".join(f"{number}\n" for number in range(file * N // 8, (file + 1) * N // 8))
        path.write_text(header + lines)
        names.append(str(path))
    return names


@row
def list_files(numbers: Any, work: Any, folder: Path) -> Any:
    texts(folder)
    return D().list_files(str(folder / "*.txt"), seed=1).interleave(T().data.TextLineDataset).batch(32)


@row
def text_lines(numbers: Any, work: Any, folder: Path) -> Any:
    return T().data.TextLineDataset(texts(folder)).map(T().strings.length).batch(32)


@row
def text_lines_take(numbers: Any, work: Any, folder: Path) -> Any:
    return T().data.TextLineDataset(texts(folder)).take(333).map(lambda e: (e, T().strings.length(e))).batch(32)


def records(folder: Path, count: int = N) -> Any:
    tf = T()
    folder.mkdir(parents=True, exist_ok=True)
    names = [str(folder / f"{file}.tfrecord") for file in range(4)]
    for file, name in enumerate(names):
        with tf.io.TFRecordWriter(name) as writer:
            for number in range(file, count, 4):
                writer.write(str(number).encode())
    return tf.data.TFRecordDataset(names, num_parallel_reads=2)


@row
def tfrecords(numbers: Any, work: Any, folder: Path) -> Any:
    return records(folder).map(lambda e: T().strings.to_number(e, "int64")).batch(33)


@row
def tfrecords_shuffle_repeat_batch(numbers: Any, work: Any, folder: Path) -> Any:
    return records(folder).shuffle(100, seed=1).repeat(2).batch(33, drop_remainder=True)


@row
def fixed_length_records(numbers: Any, work: Any, folder: Path) -> Any:
    names = texts(folder)
    for name in names:
        Path(name).write_bytes(bytes(range(200)))
    return T().data.FixedLengthRecordDataset(names, 2).map(lambda e: T().io.decode_raw(e, "uint8")).batch(32)


@row
def csv(numbers: Any, work: Any, folder: Path) -> Any:
    return T().data.experimental.CsvDataset(texts(folder), [0]).map(lambda e: (e, e * 2)).batch(32)


@row
def make_csv_dataset(numbers: Any, work: Any, folder: Path) -> Any:
    names = texts(folder, "a\n")
    rows = T().data.experimental.make_csv_dataset(names, 32, num_epochs=1, shuffle_seed=3, column_defaults=[0])
    return rows.map(lambda e: e["a"])


@row
def load_of_saved(numbers: Any, work: Any, folder: Path) -> Any:
    if not folder.exists():
        numbers.save(str(folder))
    return work(D().load(str(folder))).batch(32)


@row
def endless(numbers: Any, work: Any, folder: Path) -> Any:
    return work(D().zip(numbers, numbers).shuffle(100).repeat()).batch(50)


@row
def timeseries_dataset_from_array(numbers: Any, work: Any, folder: Path) -> Any:
    import keras
    import numpy as np

    data = np.arange(N, dtype="int64")
    return keras.utils.timeseries_dataset_from_array(data, data * 10, sequence_length=3, batch_size=32)


@row
def timeseries_shuffled(numbers: Any, work: Any, folder: Path) -> Any:
    import keras
    import numpy as np

    data = np.arange(N, dtype="int64")
    return keras.utils.timeseries_dataset_from_array(
        data, data * 10, 3, batch_size=32, shuffle=True, seed=1, sampling_rate=2
    )


def pictures(folder: Path) -> str:
    tf = T()
    if not folder.exists():
        for number in range(4):
            (folder / f"class{number}").mkdir(parents=True)
            for picture in range(N * 3 // 10):
                value = tf.fill([4, 4, 1], tf.constant(number * 60 + picture % 60, tf.uint8))
                (folder / f"class{number}" / f"{picture:03}.png").write_bytes(tf.io.encode_png(value).numpy())
    return str(folder)


@row
def image_dataset_from_directory(numbers: Any, work: Any, folder: Path) -> Any:
    import keras

    rows = keras.utils.image_dataset_from_directory(
        pictures(folder), image_size=(4, 4), batch_size=16, color_mode="grayscale", seed=1, verbose=False
    )
    return rows.map(lambda x, y: (x[:, 0, 0, 0], y))


@row
def image_dataset_validation(numbers: Any, work: Any, folder: Path) -> Any:
    import keras

    rows = keras.utils.image_dataset_from_directory(
        pictures(folder), image_size=(4, 4), batch_size=None, color_mode="grayscale", seed=1, verbose=False,
        validation_split=0.3, subset="validation", label_mode="categorical",
    )  # fmt: skip
    return rows.map(lambda x, y: (x[0, 0, 0], y)).batch(33, drop_remainder=True)


@row
def text_dataset_from_directory(numbers: Any, work: Any, folder: Path) -> Any:
    import keras

    for number in range(3):
        (folder / f"class{number}").mkdir(parents=True, exist_ok=True)
        for text in range(200):
            (folder / f"class{number}" / f"{text}.txt").write_text(f"{number}-{text}")
    return keras.utils.text_dataset_from_directory(str(folder), batch_size=16, seed=1, verbose=False)


@row
def audio_dataset_from_directory(numbers: Any, work: Any, folder: Path) -> Any:
    import keras

    tf = T()
    for number in range(3):
        (folder / f"class{number}").mkdir(parents=True, exist_ok=True)
        for sound in range(100):
            wave = tf.fill([8, 1], (number * 100 + sound) / 400)
            data = tf.audio.encode_wav(wave, 8000).numpy()
            (folder / f"class{number}" / f"{sound}.wav").write_bytes(data)
    return keras.utils.audio_dataset_from_directory(
        str(folder), batch_size=16, output_sequence_length=8, seed=1, verbose=False
    )


def make(name: str, folder: Path) -> Any:
    numbers = D().range(N)

    def work(dataset: Any) -> Any:
        return dataset.map(lambda *e: (*flat(e), first(*e) * 2 + 1))

    return ROWS[name](numbers, work, folder / name)


def contents(dataset: Any, limit: int) -> tuple[Any, Any]:
    """Returns the rows of all batches, and the sizes of batches, each with how often it comes."""
    tf = T()
    rows: collections.Counter[Any] = collections.Counter()
    sizes: collections.Counter[int] = collections.Counter()
    for element in dataset.take(limit):
        columns = [plain(value) for value in tf.nest.flatten(element)]
        if isinstance(columns[0], list):
            sizes[len(columns[0])] += 1
            rows.update(repr(each) for each in zip(*columns, strict=True))
        else:
            rows[repr(columns)] += 1
    return rows, sizes


def plain(value: Any) -> Any:
    tf = T()
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    values = value.numpy().tolist()
    return [without_padding(each) for each in values] if isinstance(values, list) else values


def without_padding(values: Any) -> Any:
    if isinstance(values, list) and values and isinstance(values[0], int):
        while values and values[-1] == 0:
            values = values[:-1]
    return values


def difference(ours: Any, theirs: Any) -> str:
    more, fewer = ours - theirs, theirs - ours
    if not more and not fewer:
        return ""
    return f"{sum(more.values())} too many {list(more)[:3]}, {sum(fewer.values())} missing {list(fewer)[:3]}"


def times(count: Any, factor: int) -> Any:
    return collections.Counter({key: number * factor for key, number in count.items()})


def try_row(name: str, mode: str, address: str, folder: Path, passes: int) -> dict[str, Any]:
    from tensorflow.python.autograph.core import ag_ctx

    from headrace.tensorflow import distribute, plan

    folder = folder / mode
    started = time.monotonic()
    with BUILDING, ag_ctx.ControlStatusCtx(ag_ctx.Status.DISABLED):  # AutoGraph confuses lambdas of one line
        local, sent = make(name, folder / "local"), make(name, folder / "sent")
        words = str(plan(sent, processing_mode=mode))
        shared = distribute(sent, f"{name}-{mode}", processing_mode=mode, service=address)
    wrong = []
    limit = 100 if int(local.cardinality()) == -1 else 10**9
    for number in range(passes):
        theirs, ours = contents(local, limit), contents(shared, limit)
        for place, kind in enumerate(("rows", "batches")):
            expected = times(theirs[place], 2 if mode == "off" else 1)
            if kind == "rows" and name.endswith("drop_remainder"):  # which rows are dropped depends on the order
                strange = set(ours[0].values()) - {1}
                ours, expected = [{"": ours[0].total()}, ours[1]], {"": expected.total()}
                ours[0], expected = collections.Counter(ours[0]), collections.Counter(expected)
                wrong += [f"pass {number}: rows come {strange} times"] if strange else []
            if limit == 10**9 and (told := difference(ours[place], expected)):
                wrong.append(f"pass {number}: {kind}: {told}")
    spec = "" if shared.element_spec == local.element_spec else f"{shared.element_spec}, not {local.element_spec}"
    return {
        "row": name, "mode": mode, "wrong": wrong, "spec": spec, "seconds": round(time.monotonic() - started, 1),
        "plan": words,
    }  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Fork:
    """A process that waits to begin.

    It is forked from one that has imported TensorFlow and has not used it yet: the import takes longer than most tests.
    """

    def __init__(self, program: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("fork")
        self._here, there = context.Pipe()
        self._process = context.Process(target=self._run, args=(there, program, arguments), daemon=True)
        self._process.start()
        there.close()

    @staticmethod
    def _run(there: Any, program: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        there.recv()
        there.send(program(*arguments))

    def begin(self) -> Fork:
        self._here.send("begin")
        return self

    def result(self) -> Any:
        """Waits for what the program returns. Raises EOFError when it died."""
        return self._here.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def server(port: int, dispatcher: int = 0) -> Fork:
    """Prepares a server as an agent starts it: a dispatcher, or a worker of one."""
    of_worker = ["--dispatcher", f"127.0.0.1:{dispatcher}", "--address", f"127.0.0.1:{port}"] if dispatcher else []
    return Fork(serve, ["--nice", "5", "--port", str(port), *of_worker])


def serve(arguments: list[str]) -> int:
    from headrace.agent import tf_data_server

    sys.argv[1:] = arguments
    return tf_data_server.main()


def await_workers(address: str, count: int) -> None:
    """Waits until the dispatcher knows all workers: one that comes during a pass makes nothing of a small one."""
    service, end = T().data.experimental.service, time.monotonic() + 60
    each = service.distribute(service.ShardingPolicy.OFF, address)
    while sum(1 for _ in D().range(1).apply(each)) < count:
        assert time.monotonic() < end, "not all workers have come"
        time.sleep(0.05)


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(ROWS)
    ports = [free_port() for _ in range(3)]
    T()
    servers = [server(ports[0]), *(server(port, ports[0]) for port in ports[1:])]
    modes = [("dynamic", PASSES), ("off", 1)]
    public = [name for name in dir(D()) if not name.startswith("_")]
    print(json.dumps({"row": "", "mode": "public", "names": public}), flush=True)
    tasks = [(name, mode, passes) for name in names for mode, passes in modes if mode == "dynamic" or name in OFF]
    address = f"grpc://127.0.0.1:{ports[0]}"

    def work(task: tuple[str, str, int]) -> None:
        name, mode, passes = task
        try:
            result = try_row(name, mode, address, folder, passes)
        except Exception as error:  # noqa: BLE001  (a row that fails is a result)
            result = {"row": name, "mode": mode, "wrong": [f"{type(error).__name__}: {str(error)[:900]}"]}
        print(json.dumps(result) + "\n", end="", flush=True)  # whole: threads print, too

    for fork in servers:
        fork.begin()
    try:
        await_workers(address, 2)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(work, tasks))
    finally:
        for fork in servers:
            fork.kill()


if __name__ == "__main__":
    main()
