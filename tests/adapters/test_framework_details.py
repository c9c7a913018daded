"""Samplers, accumulation, resuming, refusals and warnings under the frameworks, with two real ranks."""

from __future__ import annotations

from pathlib import Path

from framework_runs import epochs_of, notes, run

HERE = Path(__file__).parent


def test_accelerate_and_the_trainer_with_samplers_accumulation_and_checkpoints(tmp_path: Path) -> None:
    printed = run(tmp_path, (HERE / "hugging_face.py").read_text(), torchrun=True)
    assert "rank 0 is content" in printed
    assert "rank 1 is content" in printed


def test_lightning_with_a_plain_loader_that_is_told_or_warned(tmp_path: Path) -> None:
    printed = run(tmp_path, (HERE / "in_lightning.py").read_text(), torchrun=True)
    assert "rank 0 is content" in printed
    assert "rank 1 is content" in printed
    assert epochs_of(notes(tmp_path, "train"), 2) == [list(range(101))] * 2
