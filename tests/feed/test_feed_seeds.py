"""Random numbers by plan position."""

from __future__ import annotations

import random

import numpy as np
import torch

from headrace.feed.seeds import preserved_generators, seed_collate, seed_sample, stream_key


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_sample_s_numbers_do_not_depend_on_what_was_drawn_before() -> None:
    with preserved_generators():
        numbers = {}
        for position in range(20):
            seed_sample(3, 1, position)
            numbers[position] = draw()
        for position in (7, 0, 19, 7):
            for _ in range(position):
                draw()
            seed_sample(3, 1, position)
            assert draw() == numbers[position]
        assert len(set(numbers.values())) == 20


def test_seed_epoch_position_and_purpose_all_matter() -> None:
    keys = [stream_key(s, e, p) for s in range(5) for e in range(5) for p in range(5)]
    keys += [stream_key(0, 0, p, b"collate") for p in range(5)]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {16}


def test_any_whole_number_is_a_seed() -> None:
    with preserved_generators():
        for seed in (-1, 0, 2**63, 2**64 - 1, 2**64 + 5):
            seed_sample(seed, 0, 0)
            seed_collate(seed, 0, 0)


def test_the_numbers_are_pinned_so_that_a_run_can_be_repeated_by_a_later_version() -> None:
    assert stream_key(3, 1, 4).hex() == "20b24587267767156c83c8df314ddb16"


def test_the_generators_of_this_process_are_as_before() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = [draw() for _ in range(3)]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    got = []
    for position in range(3):
        got.append(draw())
        with preserved_generators():
            seed_sample(3, 0, position)
            draw()
    assert got == expected


def test_the_generators_are_restored_when_the_dataset_raises() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    try:
        with preserved_generators():
            seed_sample(3, 0, 0)
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(before, torch.get_rng_state())
