"""`headrace.tensorflow.feed`: the feed's promises hold in TensorFlow, which gets the slabs and needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from feed_servers import Server

from needs import require

HERE = Path(__file__).parent
SRC = HERE.parent.parent / "src"


@pytest.fixture(scope="module")
def saw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a TensorFlow process saw; two feed servers served it, and it killed one of them."""
    require("tensorflow")
    directory = tmp_path_factory.mktemp("tensorflow-feed")
    servers = [Server(directory, name, code=HERE.parent / "feed") for name in ("host-a", "host-b")]
    for server in servers:
        server.wait_ready()
    addresses = ",".join(server.tcp for server in servers)
    arguments = [addresses, str(servers[0].secret), str(directory / "killed"), str(servers[1].process.pid)]
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([str(SRC), str(HERE.parent / "feed")]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "in_tensorflow.py"), *arguments],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    for server in servers:
        server.stop()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_shapes_are_static_and_the_epoch_has_a_length(saw: dict[str, Any]) -> None:
    assert "shape=(8, 40, 32), dtype=tf.float32" in saw["spec"]
    assert "shape=(8,), dtype=tf.float64" in saw["spec"]
    assert "shape=(8,), dtype=tf.int64" in saw["spec"]
    assert saw["length"] == 12


@pytest.mark.promise(
    "feed-tensorflow", "`headrace.tensorflow.feed`: the same batches while workers are killed; it resumes"
)
def test_batches_are_the_same_in_order_while_workers_are_killed(saw: dict[str, Any]) -> None:
    assert saw["same"]
    hosts, retries, worker = saw["killed"]
    assert hosts == 1
    assert retries >= 1
    assert worker


def test_tensors_are_the_slabs_themselves(saw: dict[str, Any]) -> None:
    assert saw["in slabs"]
    assert saw["copied"] == 0


@pytest.mark.promise(
    "feed-tensorflow", "`headrace.tensorflow.feed`: the same batches while workers are killed; it resumes"
)
def test_training_goes_on_where_it_was_though_tensorflow_reads_ahead(saw: dict[str, Any]) -> None:
    assert saw["ahead of the training"]
    assert saw["resumed"]
    assert saw["every sample once"]


def test_keras_trains_from_a_position_on(saw: dict[str, Any]) -> None:
    rest, epoch = [[1, step] for step in range(6, 12)], [[2, step] for step in range(1, 12)]
    assert saw["places"] == [*rest, [2, 0], *epoch, [3, 0]]


def test_keras_knows_how_long_an_epoch_is_also_after_a_shorter_one(saw: dict[str, Any]) -> None:
    assert saw["batches"] == 12
    assert saw["warned"] == []
    assert saw["steps of epochs"] == [7, 12, 12]
    assert saw["batches with skipping"] == -2, "nobody knows"


def test_shards_and_rows_without_a_count_are_datasets_too(saw: dict[str, Any]) -> None:
    assert saw["rows of shards"] == list(range(120))
    assert saw["lanes"] == [True, 40, -2], "the same as one process makes; nobody knows how many batches"
    assert saw["lanes resumed"] == [True, 2, 4]
    assert saw["behind the last batch"] == [True, True], "nothing is left of that epoch: the next one"
    assert saw["lanes in Keras"] == [5, [5, 5]]


def test_ranks_take_their_part_of_a_global_batch(saw: dict[str, Any]) -> None:
    assert saw["global batches"] == [[True, 15, 4], [True, 4, 4]]


def test_samples_that_are_no_tensors_are_refused(saw: dict[str, Any]) -> None:
    assert "a batch holds a str, which is no tensor" in saw["words"]
    assert "NumPy arrays" in saw["words"]
    [whole, graph] = saw["refused"]
    assert "batch_size=None has no meaning" in whole
    assert "headrace.tensorflow.distribute" in graph
    assert saw["left"] == [], "workers of a feed that was refused"


def test_an_error_of_the_dataset_ends_the_pass_with_its_traceback(saw: dict[str, Any]) -> None:
    assert "KeyError: 'thirteen'" in saw["raising"]
    assert "array_data.py" in saw["raising"]


def test_a_batch_of_another_dtype_is_an_error_and_not_cast(saw: dict[str, Any]) -> None:
    assert [label for labels in saw["of the first dtype"] for label in labels] == list(range(48))
    told = "batch 6 of the pass has float64 in ['x'][0], and the first batch had int64"
    assert told in saw["of another dtype"]


def test_a_dataset_that_nobody_holds_leaves_nothing_open(saw: dict[str, Any]) -> None:
    assert len({tuple(each) for each in saw["opened"]}) == 1, saw["opened"]
    assert saw["held by its iterator"] == 12


def test_there_was_no_torch(saw: dict[str, Any]) -> None:
    assert not saw["torch"]
