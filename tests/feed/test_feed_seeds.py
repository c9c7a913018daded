"""Random numbers by plan position."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from headrace.feed.pipelines.seeds import PreservedGenerators, SampleSeeds, collate_key, set_generators, stream_key


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_sample_s_numbers_do_not_depend_on_what_was_drawn_before() -> None:
    with PreservedGenerators():
        numbers = {}
        for position in range(20):
            set_generators(stream_key(3, 1, position))
            numbers[position] = draw()
        for position in (7, 0, 19, 7):
            for _ in range(position):
                draw()
            set_generators(stream_key(3, 1, position))
            assert draw() == numbers[position]
        assert len(set(numbers.values())) == 20


@pytest.mark.promise(
    "feed-guarantees", "random numbers follow from seed, epoch and position; the trainer's own are not disturbed"
)
def test_seed_epoch_position_and_purpose_all_matter() -> None:
    keys = [stream_key(s, e, p) for s in range(5) for e in range(5) for p in range(5)]
    keys += [stream_key(0, 0, p, b"collate") for p in range(5)]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {16}


def test_any_whole_number_is_a_seed() -> None:
    with PreservedGenerators():
        for seed in (-1, 0, 2**63, 2**64 - 1, 2**64 + 5):
            set_generators(stream_key(seed, 0, 0))
            set_generators(collate_key(seed, 0, 0))


@pytest.mark.promise("feed-guarantees", "order and random numbers stay the same in later versions")
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
        with PreservedGenerators():
            set_generators(stream_key(3, 0, position))
            draw()
    assert got == expected


def test_the_generators_are_restored_when_the_dataset_raises() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    try:
        with PreservedGenerators():
            set_generators(stream_key(3, 0, 0))
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(before, torch.get_rng_state())


def normals() -> tuple[float, float, float]:
    return random.gauss(0, 1), float(np.random.randn()), float(torch.randn(()))


def test_second_numbers_of_normal_pairs_are_as_before() -> None:
    def numbers(block: Callable[[], None]) -> list[tuple[float, float, float]]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        found = []
        for _ in range(4):
            found += [normals() for _ in range(before)]
            block()
        return [*found, normals(), draw()]

    def drawing() -> None:
        with PreservedGenerators():
            with PreservedGenerators():
                for _ in range(drawn_inside):
                    normals()
            for _ in range(drawn_inside):
                normals()

    with PreservedGenerators():
        for before, drawn_inside in itertools.product(range(4), (0, 1, 2, 624)):
            assert numbers(drawing) == numbers(lambda: None), (before, drawn_inside)


def test_a_generator_that_numpy_was_given_is_kept_too() -> None:
    before = np.random.get_bit_generator()
    try:
        for generator in (np.random.MT19937(3), np.random.MT19937(4)):
            np.random.set_bit_generator(generator)
            state = repr(generator.state)
            with PreservedGenerators():
                np.random.rand(5)
                np.random.randn()
            assert repr(generator.state) == state
    finally:
        np.random.set_bit_generator(before)


def draws(kind: str, count: int) -> list[float]:
    if kind == "python":
        return [random.random() for _ in range(count)]
    if kind == "gauss":
        return [random.gauss(0, 1) for _ in range(count)]
    if kind == "numpy":
        return [float(np.random.rand()) for _ in range(count)]
    if kind == "normal":
        return [float(np.random.randn()) for _ in range(count)]
    return torch.rand(count).tolist()


@pytest.mark.parametrize("count", [0, 1, 311, 312, 624, 1248])
@pytest.mark.parametrize("kind", ["python", "gauss", "numpy", "normal", "torch"])
def test_a_draw_from_a_generator_that_was_not_set_is_noticed(kind: str, count: int) -> None:
    with PreservedGenerators():
        expected = {}
        for position in range(3):
            set_generators(stream_key(3, 1, position))
            expected[position] = draws(kind, count)
        seeds = SampleSeeds()
        for _ in range(16):  # which draw nothing
            seeds.made(lambda: seeds.call(stream_key(3, 0, 0), draws_nothing, None))
        calls = 0

        def drawn(position: int) -> list[float]:
            nonlocal calls
            calls += 1
            return draws(kind, count)

        set_generators(stream_key(3, 0, 1))  # as for another pipeline
        random.gauss(0, 1)
        np.random.randn()  # leaves the second number of a pair
        for position in (2, 0, 1, 2):
            got = seeds.made(lambda position=position: seeds.call(stream_key(3, 1, position), drawn, position))
            assert got == expected[position]
        assert calls == (5 if count else 4)  # the first draw of all is made again, and never another


def draws_nothing(_: object) -> None:
    """A sample."""
