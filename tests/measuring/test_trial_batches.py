"""Copies and descriptions of batches in a trial."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from headrace.measuring.facts import Uncopyable, bytes_of, describe, hand_out, keep, rows_of
from headrace.measuring.transfer import make

Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Record:
    x: torch.Tensor
    name: str


def batch() -> Any:
    return {
        "image": torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4),
        "pair": Pair(np.arange(6.0).reshape(2, 3), [torch.zeros(2, dtype=torch.bfloat16)]),
        "more": (OrderedDict(x=torch.ones(2)), Record(torch.ones(3), "n")),
        "plain": ["text", b"bytes", 3, 0.5, None, True],
    }


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    if isinstance(value, Record):
        return [value.x, value.name]
    return [value]


def test_a_copy_is_equal_of_the_same_types_and_shares_nothing() -> None:
    original = batch()
    for copied in (keep(original), hand_out(keep(original))):
        assert type(copied["pair"]) is Pair
        assert type(copied["more"][0]) is OrderedDict
        for before, after in zip(leaves(original), leaves(copied), strict=True):
            assert type(before) is type(after)
            if isinstance(before, torch.Tensor):
                assert before.dtype == after.dtype
                assert torch.equal(before, after)
                assert before.data_ptr() != after.data_ptr()
            elif isinstance(before, np.ndarray):
                assert np.array_equal(before, after)
                assert not np.shares_memory(before, after)
            else:
                assert before == after


def test_a_kept_batch_does_not_change_with_what_was_handed_out() -> None:
    kept = keep([torch.zeros(3)])
    hand_out(kept)[0].add_(1)
    assert torch.equal(hand_out(kept)[0], torch.zeros(3))


def test_a_copy_draws_no_random_numbers() -> None:
    state = torch.get_rng_state()
    keep(batch())
    assert torch.equal(state, torch.get_rng_state())


def test_what_cannot_be_copied_is_named() -> None:
    with pytest.raises(Uncopyable, match=r"a _thread.lock cannot be copied"):
        keep({"x": [threading.Lock()]})


def test_sizes() -> None:
    assert bytes_of(batch()) == 24 + 48 + 4 + 8 + 12 + len("n") + len("text") + len("bytes") + 8 + 8
    assert rows_of(batch()) == 2
    assert rows_of(["text", 3]) == 0


def test_a_description_makes_a_batch_of_the_same_shape() -> None:
    described = json.loads(json.dumps(describe(batch())))
    made = make(described)
    assert describe(made) == described
    assert bytes_of(made) == bytes_of(batch())


def test_objects_that_cannot_travel_are_described_by_their_class() -> None:
    described = describe({"x": object()})
    assert described == ["d", {"x": ["o", "builtins.object"]}]
    assert make(described) == {"x": None}
