"""What `distribute` makes of every operation of tf.data and Keras: the elements, pairs and batches of one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK
from tensorflow_table import EVERY_RUN, OFF, READ_HERE, ROWS

pytestmark = pytest.mark.timeout(3000 if SOAK else 600)
TRIED = list(ROWS) if SOAK else list(EVERY_RUN)
HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "tensorflow-operations.md"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """What each row gave, of a dispatcher and two workers in processes of their own."""
    variables = dict(os.environ) | {
        "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    variables.pop("HEADRACE_TF_DATA_SERVICE", None)
    done = subprocess.run(
        [sys.executable, str(HERE / "tensorflow_table.py"), str(tmp_path_factory.mktemp("table")), *TRIED],
        env=variables, check=False, capture_output=True, text=True, timeout=2900 if SOAK else 560,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(line["row"], line["mode"]): line for line in lines}


@pytest.mark.promise(
    "tensorflow-operations", "`headrace.tensorflow.distribute`: a pass has the elements of one process"
)
@pytest.mark.parametrize("name", TRIED)
def test_divided_over_two_hosts_it_is_what_one_process_makes_in_every_pass(results, name):
    row = results[name, "dynamic"]
    assert row["wrong"] == [], row["plan"]
    assert row["spec"] == ""


@pytest.mark.parametrize("name", sorted(OFF))
def test_with_off_each_host_makes_what_one_process_makes(results, name):
    row = results[name, "off"]
    assert row["wrong"] == [], row["plan"]


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("map_behind_map", "1. all workers, divided: range, map"),
        ("zip_of_maps", "1. one worker, once: range, zip, shuffle, batch\n2. all workers, divided: map"),
        ("take_behind_map", "1. one worker, once: range, take, batch\n2. all workers, divided: map"),
        (
            "image_dataset_from_directory",
            "1. one worker, once: from_tensor_slices, zip, shuffle, batch\n2. all workers",
        ),
    ],
)
def test_the_plan_says_where_the_cut_lies(results, name, plan):
    assert re.sub(r" \(function at [^)]*\)", "", results[name, "dynamic"]["plan"]).startswith(plan)


def test_what_one_worker_makes_alone_is_told_with_what_to_do(results):
    plan = results["filter_take_behind_map", "dynamic"]["plan"]
    assert "one worker alone runs map (function at tensorflow_table.py:" in plan
    assert "put take, skip, enumerate, zip and the like before them" in plan


@pytest.mark.promise(
    "tensorflow-operations", "`headrace.tensorflow.distribute`: a pass has the elements of one process"
)
def test_no_public_operation_is_missing_in_rows_and_on_the_page(results):
    public = set(results["", "public"]["names"])
    page = PAGE.read_text()
    assert {name for name in public if name not in READ_HERE and not any(row.startswith(name) for row in ROWS)} == set()
    assert {name for name in public if f"`{name}`" not in page} == set()
