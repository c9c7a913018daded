"""`headrace.tensorflow.distribute`: what reaches the workers, and what is refused before it could hang or be lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def found() -> dict[str, object]:
    """What one process found out: importing TensorFlow takes longer than all of it."""
    script = Path(__file__).with_name("distributing.py")
    # without Keras, which is a third of the import
    variables = {
        **os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "TF_USE_LEGACY_KERAS": "1",
    }  # fmt: skip
    variables.pop("HEADRACE_TF_DATA_SERVICE", None)
    done = subprocess.run(
        [sys.executable, script], env=variables, check=False, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_a_service_the_data_set_stays_local(found):
    assert found["local"] == [0, 1, 2]


def test_every_iteration_is_an_epoch_with_each_element_once(found):
    assert found["epochs"] == [list(range(0, 20, 2))] * 2


def test_what_tensorflow_offers_can_be_reached(found):
    assert found["options"] == found["cache"] == "taken"
    assert found["rounds"] == 4


def test_a_name_is_used_once_because_tensorflow_would_give_the_rest_of_the_first(found):
    kind, message, hint = found["train"]
    assert kind == "UsageError"
    assert "'train' is distributed already" in message
    assert "distribute(dataset, 'train-2')" in hint


@pytest.mark.parametrize(
    ("name", "operation"), [("py_function", "EagerPyFunc"), ("nested", "PyFunc"), ("generator", "PyFunc")]
)
def test_python_in_a_pipeline_is_refused_with_what_to_use_instead(found, name, operation):
    kind, message, hint = found[name]
    assert kind == "PipelineError"
    assert f"Python functions ({operation} in " in message
    assert "TFRecordDataset" in hint
    assert "after distribute()" in hint


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("refused", "no tf.data.service answers at grpc://127.0.0.1:1 within 0.5 s: Connection refused"),
        ("mute", "within 0.5 s: timed out"),
        ("worker", "is not a dispatcher of tf.data.service"),
    ],
)
def test_a_wrong_address_is_named_in_time(found, name, why):
    kind, message, _ = found[name]
    assert kind == "WorkersLost"
    assert why in message


def test_what_is_no_address_and_no_mode_is_refused(found):
    assert found["form"][:2] == ["UsageError", "'127.0.0.1:5000' is not an address of a tf.data.service"]
    assert found["mode"][:2] == ["UsageError", "processing_mode must be one of dynamic, off, not 'data'"]


def test_tensorflow_s_own_words_for_the_modes_are_taken(found):
    assert [found["policy"], found["older"]] == ["taken", "taken"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("here-mode", "UsageError", "not 'data'"),
        ("here-policy", "UsageError", "not <ShardingPolicy.FILE: 2>"),
        ("here-python", "PipelineError", "EagerPyFunc"),
        ("here-consumer", "UsageError", "not 2 with num_consumers 2"),
        ("here-finite", "PipelineError", "this one has 3 elements"),
        ("here-list", "UsageError", "distribute takes a tf.data.Dataset, not list"),
        ("here-graph", "UsageError", "inside a graph"),
        ("finite", "PipelineError", "this one has 3 elements"),
        ("here-cache-kind", "UsageError", "a CrossTrainerCache or None, not 'x'"),
        ("here-cache-end", "PipelineError", "cross_trainer_cache needs a dataset without an end; this one has 3"),
        ("here-cache-rounds", "UsageError", "coordinated reads (consumer_index, num_consumers) exclude each other"),
        (
            "here-requests",
            "UsageError",
            "max_outstanding_requests must be a whole number of at least 1, or None, not 0",
        ),
        ("here-service", "UsageError", "service must be an address, grpc://host:port, or None, not ''"),
        ("here-window", "PipelineError", "the elements that window makes cannot be sent: they hold datasets"),
        ("here-variable", "PipelineError", "map (function at distributing.py:"),
        ("here-variable", "PipelineError", "reads or writes the variable 'rate': workers have a copy"),
        ("here-variable-in-function", "PipelineError", "reads or writes the variable 'rate'"),
        ("here-variable-inside", "PipelineError", "reads or writes the variable 'rate'"),
        ("here-variable-counts", "PipelineError", "reads or writes the variable 'rate'"),
        (
            "there-requests",
            "UsageError",
            "max_outstanding_requests must be a whole number of at least 1, or None, not 0",
        ),
        ("there-service", "UsageError", "service must be an address, grpc://host:port, or None, not ''"),
        ("there-cache-end", "PipelineError", "cross_trainer_cache needs a dataset without an end; this one has 3"),
    ],
)
def test_without_a_service_or_before_the_dispatcher_is_asked_the_same_mistakes_are_found(found, name, kind, words):
    assert found[name][0] == kind
    assert words in found[name][1]


def test_what_tensorflow_cannot_divide_is_made_whole(found):
    names = ["here-snapshot", "snapshot", "here-csv", "snapshot-off", "snapshot-inside"]
    assert [found[name] for name in names] == ["taken"] * len(names)


def test_random_state_and_variables_that_may_be_frozen_are_taken(found):
    assert "freeze_variables=True" in found["here-variable"][2]
    assert [found["here-variable-frozen"], found["here-random"]] == ["taken", "taken"]


def test_ranks_that_share_a_data_set_that_ends_are_warned_once_there_is_a_service(found):
    assert [text.split(":")[0] for text in found["warned"]] == [
        "4 ranks share the 3 elements of this dataset, and each goes to the rank that asks first"
    ]


def test_importing_it_does_not_import_tensorflow():
    code = "import headrace.tensorflow, sys; print('tensorflow' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]
