"""The order of torch's RandomSampler: keys, torch's generator behind them, and the place in them after a resume."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler

from headrace.feed.loader.data_loader import DataLoader

LENGTH = 5003


@pytest.mark.parametrize("num_samples", [None, 2000, LENGTH + 1])
def test_a_loader_has_torch_s_order_and_leaves_torch_s_generator_where_torch_does(num_samples: int | None) -> None:
    def told(kind: Any) -> tuple[list[list[int]], list[float]]:
        torch.manual_seed(11)
        loader = kind(range(LENGTH), 512, sampler=RandomSampler(range(LENGTH), num_samples=num_samples))
        return [batch.tolist() for batch in loader], torch.rand(3).tolist()

    assert told(DataLoader) == told(TorchLoader)


def test_a_shuffled_pass_is_resumed_at_its_place() -> None:
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
