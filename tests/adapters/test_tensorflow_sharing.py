"""Ranks under one name: other pipelines are found out, equal ones are not; a dispatcher's restart forgets none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What `distribute` said of each name on rank 0, which came first, and on rank 1."""
    directory = tmp_path_factory.mktemp("sharing")

    def start(rank: int) -> subprocess.Popen[str]:
        variables = dict(os.environ) | {
            "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONHASHSEED": str(rank), "RANK": str(rank),
            "WORLD_SIZE": "2", "SM_CURRENT_HOST": f"algo-{2 + rank}", "SM_CURRENT_INSTANCE_GROUP": "dnn",
            "SAGEMAKER_BASE_DIR": f"/host-{rank}" if rank else "",
        }  # fmt: skip
        script = [sys.executable, str(Path(__file__).with_name("sharing.py")), str(rank), str(directory / "journal")]
        errors = (directory / f"errors-{rank}").open("w")
        with errors:
            return subprocess.Popen(
                script, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    ranks = [start(rank) for rank in range(2)]
    try:
        assert ranks[0].stdout is not None
        address = ranks[0].stdout.readline()
        outputs = [ranks[1].communicate(address, timeout=100)[0], ranks[0].communicate("end\n", timeout=60)[0]]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
    wrong = [(directory / f"errors-{rank}").read_text() for rank in range(2)]
    assert [process.returncode for process in ranks] == [0, 0], wrong
    second, first = (json.loads(output.splitlines()[-1]) for output in outputs)
    return first, second


def test_who_comes_first_is_told_nothing(said):
    shares = "2 ranks share the 5 elements"
    assert {name: words for name, words in said[0].items() if words and not words[0].startswith(shares)} == {}


@pytest.mark.parametrize(
    "name", ["functions", "keras", "table", "variable", "random", "order", "rows", "speed", "same-constant"]
)
def test_equal_pipelines_are_equal_whatever_the_process_did_before(said, name):
    assert said[1][name] == []


@pytest.mark.promise("tensorflow-distribute", "`headrace.tensorflow.distribute`: ranks with other data are refused")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shard", "shard 1 of 2, there 0 of 2"),
        ("inner-shard", "shard 1 of 2, there 0 of 2"),
        ("rounds", "shard 1 of 2, there 0 of 2"),
        ("range", "made from other files or numbers"),
        ("files", "made from other files or numbers"),
        ("labels", "made from other files or numbers"),
        ("floats", "made from other files or numbers"),
        ("images", "made from other files or numbers"),
        ("halves", "made from other files or numbers"),
        ("tensors", "made from other files or numbers"),
        ("half", "made from other files or numbers"),
        ("other-rows", "made from other files or numbers"),
        ("take", "skip(5), there take(5)"),
        ("skip", "skip(5), there skip(0)"),
        ("count", "6 elements, there 5"),
        ("structure", "shape=(3,)"),
    ],
)
def test_a_rank_with_other_data_is_refused_and_both_are_named(said, name, words):
    kind, message, hint = said[1][name]
    assert kind == "UsageError"
    assert message.startswith(f"rank 1 (dnn/algo-3) distributes another dataset under the name {name!r} than rank 0")
    assert "rank 0 (dnn/algo-2): " in message
    assert words in message
    assert "do not shard by rank" in hint
    assert f"distribute(dataset, '{name}-2')" in hint


@pytest.mark.promise("tensorflow-distribute", "`headrace.tensorflow.distribute`: ranks with other data are refused")
@pytest.mark.parametrize("name", ["filter", "constant", "directory"])
def test_what_may_be_other_data_is_refused_with_the_argument_that_takes_it(said, name):
    kind, message, hint = said[1][name]
    assert kind == "UsageError"
    assert message.startswith(
        f"rank 1 (dnn/algo-3) and rank 0 (dnn/algo-2) distribute pipelines under the name {name!r} that differ in "
        "operations or constants"
    )
    assert "distribute(..., same_data=True)" in hint


def test_other_seeds_are_another_order_and_a_warning(said):
    (message,) = said[1]["seed"]
    assert message.startswith(
        "rank 1 (dnn/algo-3) and rank 0 (dnn/algo-2) distribute pipelines under the name 'seed' "
        "that differ in random seeds"
    )
