"""Epochs over cut pipelines: with Keras, broken off, of two ranks, under a strategy, and when a worker dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    variables = dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
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
    assert found["broken off"]
    assert found["fit broken off"] == [64, 64, True]


def test_two_ranks_share_every_element_of_a_pass_also_when_one_is_a_pass_ahead(found):
    assert found["two ranks"] == [True, True]
    assert found["two ranks, one broken off"] == 1


@pytest.mark.parametrize("strategy", ["default", "mirrored"])
def test_a_strategy_of_one_device_reads_every_element(found, strategy):
    assert found[strategy] == [True, True]


@pytest.mark.parametrize("name", ["cut", "one"])
def test_a_pass_whose_worker_of_the_whole_part_is_killed_ends_with_an_error(found, name):
    assert f"WorkersLost: pass 1 of the dataset '{name}' ended too early" in found["lost"][name]


def test_a_killed_worker_that_made_no_whole_part_costs_what_it_held(found):
    assert found["other lost"] == [True, 1]
