"""What doctor says beside its figures: of a gain that the wait does not explain, and of batches of floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.insight.doctor_report import Batch, float_note, gain_note
from headrace.measuring.facts import describe


def test_a_gain_beyond_the_data_wait_is_explained() -> None:
    (note,) = gain_note(0.138, 5.59)
    assert "without its data wait, 13.8 %, a step would be 1.16x as fast, and with kept batches it is 5.59x" in note
    assert "their workers take CPU time from the training" in note
    assert gain_note(0.8, 5.1) == ()
    assert gain_note(0.0, 1.1) == ()
    assert gain_note(1.0, 7.0) == ()


@pytest.mark.parametrize(("dtype", "part"), [("float32", "1/4"), ("float64", "1/8"), ("uint8", ""), ("float16", "")])
def test_large_batches_of_floats_are_told_to_be_bytes(dtype: str, part: str) -> None:
    images = np.zeros((32, 3, 224, 224), dtype)
    for value in ((images, 1), {"image": torch.from_numpy(images), "label": torch.zeros(32)}):
        notes = float_note(Batch(pid=1, loader=0, bytes=images.nbytes + 256, tree=describe(value)))
        assert [part in note and f"MB of a batch are {dtype}" in note for note in notes] == ([True] if part else [])
    assert float_note(Batch(pid=1, loader=0, bytes=10**9, tree=describe(images))) == (), "the rest is no such array"
    assert float_note(Batch(pid=1, loader=0, bytes=8000, tree=describe(np.zeros((10, 10, 10))))) == (), "few"
    assert float_note(Batch(pid=1, loader=0, bytes=10**7, tree=describe(np.zeros((1250, 1000))))) == (), "no images"
    assert float_note(None) == ()
