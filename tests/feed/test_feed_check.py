"""`DataLoader.check`: what differs is named, and which generator moved; the process is as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import checked_data
import numpy as np
import pytest
import torch
from feed_data import Noise

from headrace import feed
from headrace.errors import PipelineError
from headrace.feed import DataLoader

SEEDED = {"random", "numpy.random", "torch"}


def test_a_pure_dataset_is_pure_and_its_generators_are_named_as_seeded() -> None:
    report = DataLoader(checked_data.Pure(), 8, shuffle=True).check()
    assert isinstance(report, feed.PurityReport)
    assert (report.pure, report.samples, report.differences) == (True, 32, ())
    assert set(report.seeded) == SEEDED
    assert str(report).startswith("pure: 32 samples were the same twice")
    assert "moved, seeded by headrace: torch" in str(report)


@pytest.mark.parametrize("make", [checked_data.numpy_generator, checked_data.python_generator, checked_data.Lazy])
def test_what_a_generator_of_the_dataset_draws_is_named_and_the_report_says_where_to_look(
    make: Callable[[], Any],
) -> None:
    report = DataLoader(make(), 8).check(samples=5)
    assert not report.pure
    assert [str(difference) for difference in report.differences] == [
        f"index {key}: sample['drift']" for key in (0, 24, 49, 74, 99)
    ]
    assert "hint: look for a generator of the dataset's own, a counter, the clock" in str(report)
    assert "feed.rng()" in str(report)


def test_many_differences_are_counted() -> None:
    report = DataLoader(checked_data.Clock(), 8).check()
    assert not report.pure
    assert "and 24 more" in str(report)


def test_the_generators_of_the_process_are_as_before() -> None:
    def states() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    DataLoader(checked_data.Pure(), 8, seed=3).check()
    DataLoader(checked_data.pure(), 8, shuffle=True).check()
    assert states() == before


def test_a_pipeline_is_made_here() -> None:
    assert DataLoader(checked_data.pure(), 8).check().pure
    assert not DataLoader(checked_data.drifting(), 8).check().pure


def test_a_channel_that_is_missing_here_is_named() -> None:
    with pytest.raises(PipelineError, match="this host has no channel 'nowhere'") as error:
        DataLoader(checked_data.of_channel(), 8, workers="local").check()
    assert "SM_CHANNEL_NOWHERE" in error.value.hint


def test_samples_that_raise_are_told_and_all_of_them_is_an_error() -> None:
    report = DataLoader(checked_data.Bad(49), 8).check(samples=5)
    assert report.pure
    assert report.errors == ("index 49: ValueError: sample 49 is bad",)
    assert "raised both times: index 49" in str(report)
    with pytest.raises(PipelineError, match=r"every one of the 5 samples raised; index 0: ValueError"):
        DataLoader(checked_data.Bad(), 8).check(samples=5)


def test_a_collate_function_is_checked_too() -> None:
    report = DataLoader(checked_data.Pure(), 8, collate_fn=checked_data.Stacked()).check(samples=4)
    [difference] = report.differences
    assert difference.key == (0, 33, 66, 99)
    assert str(difference) == "collate_fn, of indices [0, 33, 66, 99]: batch['mixed']"


def test_samples_that_only_collate_can_read_are_compared_behind_it() -> None:
    assert DataLoader(checked_data.Odd(), 8, collate_fn=checked_data.unpacked).check().pure
    with pytest.raises(PipelineError, match=r"sample: a checked_data\.Slotted cannot travel"):
        DataLoader(checked_data.Odd(), 8).check()


def test_samples_that_are_loaded_together_and_without_batches() -> None:
    whole = checked_data.Whole(checked_data.numpy_generator().jitter)
    assert not DataLoader(whole, 8).check().pure
    assert not DataLoader(checked_data.numpy_generator(), batch_size=None).check().pure
    assert DataLoader(Noise(3), batch_size=None).check().pure


def test_the_number_of_samples_is_bounded_by_the_dataset_and_must_be_positive() -> None:
    assert DataLoader(Noise(1), 8).check().samples == 1
    assert DataLoader(Noise(3), 8).check(100).samples == 3
    with pytest.raises(ValueError, match="at least 1, got 0"):
        DataLoader(Noise(3), 8).check(0)
