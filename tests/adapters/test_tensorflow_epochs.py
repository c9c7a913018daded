"""Epochs over cut pipelines: with Keras, broken off, of two ranks, under a strategy, and when a worker dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    variables = dict(os.environ) | {
        "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    variables.pop("HEADRACE_TF_DATA_SERVICE", None)
    script = Path(__file__).with_name("tensorflow_epochs.py")
    done = subprocess.run(
        [sys.executable, script], env=variables, check=False, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_fit_trains_and_validates_on_every_element_once_an_epoch(found):
    assert found["fit"] == [True, True, 0]
    assert found["fit of steps"] == [240, 0]


def test_the_pass_after_one_that_was_broken_off_is_whole(found):
    assert found["fit broken off"] == [64, 64, True]
    assert found.get("broken off", not SOAK)


def test_two_ranks_share_every_element_of_a_pass_also_when_one_is_a_pass_ahead(found):
    assert found["two ranks"] == [True, True]
    assert found["two ranks, one broken off"] == 1


if SOAK:  # in every run: several, of engines (tests/engines/test_local_worlds.py)

    @pytest.mark.parametrize("strategy", ["default", "mirrored"])
    def test_a_strategy_of_one_device_reads_every_element(found, strategy):
        assert found[strategy] == [True, True]


@pytest.mark.promise(
    "tensorflow-distribute", "`headrace.tensorflow.distribute`: a pass that lost data with a worker is an error"
)
@pytest.mark.parametrize("name", ["cut", "one"])
def test_a_pass_whose_worker_of_the_whole_part_is_killed_ends_with_an_error(found, name):
    assert f"WorkersLost: pass 1 of the dataset '{name}' ended too early" in found["lost"][name]


if SOAK:  # in every run: the other worker, without which there is an error

    def test_a_killed_worker_that_made_no_whole_part_costs_what_it_held(found):
        assert found["other lost"] == [True, 1]


@pytest.mark.promise(
    "tensorflow-distribute", "`headrace.tensorflow.distribute`: a restarted training reads no rest of a pass"
)
def test_a_training_that_is_started_again_does_not_read_what_another_process_left(found):
    first, again = found["broken off first"], found["started again"]
    assert [first["staged"], first["plain"]] == [[24, 24]] * 2
    assert [first["endless"][0], again["endless"][0]] == [160, 160], "the pass without an end goes on"
    for kind in ("staged", "plain"):
        message, hint = again[kind]
        assert f"distributes the dataset '{kind} again' of which process" in message
        assert f"distribute(dataset, '{kind} again-2')" in hint
        assert "RANK and WORLD_SIZE" in hint


@pytest.mark.promise(
    "tensorflow-distribute", "`headrace.tensorflow.distribute`: a restarted training reads no rest of a pass"
)
@pytest.mark.parametrize("start", ["started by torchrun", "started again by torchrun"])
def test_each_start_by_torchrun_has_passes_of_its_own(found, start):
    assert [found[start]["staged"], found[start]["plain"]] == [[160, 160]] * 2
