"""The examples of docs/frameworks.md, and what they do not show, in two real ranks.

Every index is seen once an epoch; samplers, accumulation, resuming, refusals and warnings. The scripts of a framework
run one after the other in the same ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from framework_runs import epochs_of, examples, notes, run

HERE = Path(__file__).parent
ALL = list(range(101))

pytestmark = pytest.mark.timeout(660)


class Done(NamedTuple):
    """What scripts left.

    Attributes:
        directory: has one for each script.
        printed: what they wrote.
    """

    directory: Path
    printed: str


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Accelerate's and the Trainer's."""
    directory = tmp_path_factory.mktemp("hugging")
    scripts = {
        "with_accelerate": examples()["with_accelerate.py"],
        "with_trainer": examples()["with_trainer.py"],
        "details": (HERE / "hugging_face.py").read_text(),
    }
    return Done(directory, run(directory, scripts, ranks_with="accelerate,transformers.trainer,torch._dynamo,pytest"))


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Lightning's, whose example starts its ranks itself."""
    directory = tmp_path_factory.mktemp("lightning")
    scripts = {
        "with_lightning": examples()["with_lightning.py"],
        "details": (HERE / "in_lightning.py").read_text(),
    }
    return Done(directory, run(directory, scripts))


@pytest.mark.promise("frameworks", "under Lightning, Accelerate and the Trainer every index is seen once an epoch")
def test_lightning_sees_every_index_once_an_epoch_in_training_and_validation(lightning: Done) -> None:
    trained = notes(lightning.directory / "with_lightning", "train")
    assert epochs_of(trained, 2) == [ALL, ALL]
    steps = len(trained[0]) // 2
    assert trained[0][:steps] != trained[0][steps:], "the second epoch has another order"
    # the first two steps are Lightning's sanity check
    validated = [rank[2:] for rank in notes(lightning.directory / "with_lightning", "eval")]
    assert epochs_of(validated, 2) == [ALL, ALL]


def test_lightning_with_a_plain_loader_that_is_told_or_warned(lightning: Done) -> None:
    assert "rank 0 is content" in lightning.printed
    assert "rank 1 is content" in lightning.printed
    assert epochs_of(notes(lightning.directory / "details", "train"), 2) == [ALL] * 2


def test_lightning_combines_loaders_as_torch_s_and_goes_on_in_them(lightning: Done) -> None:
    assert "rank 0 has combined" in lightning.printed
    assert "rank 1 has combined" in lightning.printed


@pytest.mark.promise("frameworks", "under Lightning, Accelerate and the Trainer every index is seen once an epoch")
@pytest.mark.slow
def test_accelerate_sees_every_index_once_an_epoch_and_gathers_each_row_once(hugging_face: Done) -> None:
    trained = notes(hugging_face.directory / "with_accelerate", "train")
    assert epochs_of(trained, 2) == [ALL, ALL]
    assert trained[0][:7] != trained[0][7:]
    assert hugging_face.printed.count("rows seen in the test: 101") == 2
    validated = notes(hugging_face.directory / "with_accelerate", "eval")
    assert epochs_of(validated, 2) == [sorted([*ALL, 0])] * 2, "one row fills up the last step"


@pytest.mark.promise("frameworks", "under Lightning, Accelerate and the Trainer every index is seen once an epoch")
@pytest.mark.slow
def test_the_trainer_sees_every_index_once_an_epoch_and_predicts_each_row_once(hugging_face: Done) -> None:
    trained = notes(hugging_face.directory / "with_trainer", "train")
    assert epochs_of(trained, 2) == [ALL, ALL]
    assert trained[0][:7] != trained[0][7:]
    assert hugging_face.printed.count("rows predicted: 101") == 1
    (predicted,) = epochs_of(notes(hugging_face.directory / "with_trainer", "eval"), 1)
    assert sorted(set(predicted)) == ALL


@pytest.mark.slow
def test_accelerate_and_the_trainer_with_samplers_accumulation_and_checkpoints(hugging_face: Done) -> None:
    assert "rank 0 is content" in hugging_face.printed
    assert "rank 1 is content" in hugging_face.printed


@pytest.mark.parametrize("name", ["data.py", "with_lightning.py", "with_accelerate.py", "with_trainer.py"])
def test_every_example_is_one_that_is_run(name: str) -> None:
    assert name in examples()
    assert len(examples()) == 4
