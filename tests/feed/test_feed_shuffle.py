"""The order of torch's RandomSampler, whose beginning is computed without the rest."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler

from headrace.feed.loader.data_loader import DataLoader
from headrace.feed.plan import torch_shuffle

LENGTH = torch_shuffle.LEAST + 17
SEEDS = (0, -1, 3, 2**40 + 5, 2**63 - 1)


def permutation(length: int, seed: int) -> list[int]:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(length, generator=generator).tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_keys_are_those_of_randperm(seed: int) -> None:
    for length in (1, 2, 257, 5000):
        assert list(torch_shuffle.head(length, seed)) == permutation(length, seed)
    assert list(torch_shuffle.shuffled(LENGTH, seed)) == permutation(LENGTH, seed)


def test_the_first_keys_come_without_the_whole_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, asked = permutation(LENGTH, 5), []
    randperm = torch.randperm

    def counted(length: int, **options: Any) -> torch.Tensor:
        asked.append(length)
        return randperm(length, **options)

    monkeypatch.setattr(torch, "randperm", counted)
    keys = torch_shuffle.shuffled(LENGTH, 5)
    assert list(itertools.islice(keys, 1000)) == expected[:1000]
    assert LENGTH not in asked
    assert list(keys) == expected[1000:]
    assert asked.count(LENGTH) == 1


def test_a_torch_that_shuffles_in_another_way_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    randperm = torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda length, **options: randperm(length, **options).flip(0))
    assert list(torch_shuffle.shuffled(LENGTH, 5)) == permutation(LENGTH, 5)


def test_a_torch_that_shuffles_only_large_datasets_in_another_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    randperm = torch.randperm

    def other(length: int, **options: Any) -> torch.Tensor:
        keys = randperm(length, **options)
        return keys.flip(0) if length == LENGTH else keys

    monkeypatch.setattr(torch, "randperm", other)
    with pytest.raises(RuntimeError, match="seed="):
        list(torch_shuffle.shuffled(LENGTH, 5))


@pytest.mark.parametrize("num_samples", [None, 20_000, LENGTH + 1])
def test_a_loader_has_torch_s_order_and_leaves_torch_s_generator_where_torch_does(num_samples: int | None) -> None:
    def told(kind: Any) -> tuple[list[list[int]], list[float]]:
        torch.manual_seed(11)
        loader = kind(range(LENGTH), 8192, sampler=RandomSampler(range(LENGTH), num_samples=num_samples))
        return [batch.tolist() for batch in loader], torch.rand(3).tolist()

    assert told(DataLoader) == told(TorchLoader)


def test_a_pass_is_resumed_behind_the_keys_that_were_computed_one_by_one() -> None:
    torch.manual_seed(12)
    loader = DataLoader(range(LENGTH), 500, shuffle=True)
    batches, states = [], []
    for batch in itertools.islice(loader, 8):
        batches.append(batch.tolist())
        states.append(loader.state_dict())
    for done in (1, 2, 3, 6):
        again = DataLoader(range(LENGTH), 500, shuffle=True)
        again.load_state_dict(states[done - 1])
        assert next(iter(again)).tolist() == batches[done]
