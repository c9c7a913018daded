"""The examples of docs/frameworks.md run with two real ranks, and every index is seen once an epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_runs import epochs_of, examples, notes, run

ALL = list(range(101))


def test_lightning_sees_every_index_once_an_epoch_in_training_and_validation(tmp_path: Path) -> None:
    run(tmp_path, examples()["with_lightning.py"], torchrun=False)
    trained = notes(tmp_path, "train")
    assert epochs_of(trained, 2) == [ALL, ALL]
    steps = len(trained[0]) // 2
    assert trained[0][:steps] != trained[0][steps:], "the second epoch has another order"
    validated = [rank[2:] for rank in notes(tmp_path, "eval")]  # the first two steps are Lightning's sanity check
    assert epochs_of(validated, 2) == [ALL, ALL]


def test_accelerate_sees_every_index_once_an_epoch_and_gathers_each_row_once(tmp_path: Path) -> None:
    printed = run(tmp_path, examples()["with_accelerate.py"], torchrun=True)
    trained = notes(tmp_path, "train")
    assert epochs_of(trained, 2) == [ALL, ALL]
    assert trained[0][:7] != trained[0][7:]
    assert printed.count("rows seen in the test: 101") == 2
    assert epochs_of(notes(tmp_path, "eval"), 2) == [sorted([*ALL, 0])] * 2, "one row fills up the last step"


def test_the_trainer_sees_every_index_once_an_epoch_and_predicts_each_row_once(tmp_path: Path) -> None:
    printed = run(tmp_path, examples()["with_trainer.py"], torchrun=True)
    trained = notes(tmp_path, "train")
    assert epochs_of(trained, 2) == [ALL, ALL]
    assert trained[0][:7] != trained[0][7:]
    assert printed.count("rows predicted: 101") == 1
    (predicted,) = epochs_of(notes(tmp_path, "eval"), 1)
    assert sorted(set(predicted)) == ALL


@pytest.mark.parametrize("name", ["data.py", "with_lightning.py", "with_accelerate.py", "with_trainer.py"])
def test_every_example_is_one_that_is_run(name: str) -> None:
    assert name in examples()
    assert len(examples()) == 4
