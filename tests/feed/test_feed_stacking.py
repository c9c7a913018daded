"""Batches of NumPy arrays are stacked in one call, and are what torch's `default_collate` makes of them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate

from headrace.feed import DataLoader
from headrace.feed.pipelines.fetch import collate_as_torch

Point = collections.namedtuple("Point", ["x", "y"])
GRID = np.arange(24, dtype=np.float32).reshape(4, 6)


def mapped(folder: Path) -> Any:
    GRID.tofile(folder / "grid")
    return np.memmap(folder / "grid", np.float32, "c", shape=(4, 6))


SAMPLES: dict[str, Callable[[Path], list[Any]]] = {
    "rows": lambda _: list(GRID),
    "columns": lambda _: list(GRID.T),
    "some columns": lambda _: [GRID[:, first::2] for first in (0, 1)],
    "no dimension": lambda _: [np.array(3.5), np.array(4.5)],
    "empty": lambda _: [np.zeros((0, 3)), np.zeros((0, 3))],
    "one": lambda _: [GRID],
    "whole numbers": lambda _: [np.arange(5, dtype=dtype) for dtype in ("u1", "u1")],
    "16 bits": lambda _: [np.arange(5, dtype="f2"), np.ones(5, "f2")],
    "words of 16 bits": lambda _: [np.arange(5, dtype="u2"), np.ones(5, "u2")],
    "truth": lambda _: [np.array([True, False]), np.array([False, False])],
    "complex": lambda _: [np.array([1 + 2j]), np.array([3j])],
    "kinds that differ": lambda _: [np.arange(3, dtype="i4"), np.arange(3, dtype="i8")],
    "a number among them": lambda _: [np.array(1.0), 2.0],
    "file": lambda folder: list(mapped(folder)),
    "in tuples": lambda _: [(row, number) for number, row in enumerate(GRID)],
    "in dicts": lambda _: [{"a": row, "b": [row[:2], "name"], "c": Point(row[0], row)} for row in GRID],
    "with tensors": lambda _: [(row, torch.from_numpy(row)) for row in GRID],
}
REFUSED: dict[str, list[Any]] = {
    "shapes": [np.zeros(3), np.zeros(4)],
    "objects": [np.array([{}]), np.array([{}])],
    "strings": [np.array(["a"]), np.array(["b"])],
    "byte order": [np.arange(3, dtype=">f4"), np.arange(3, dtype=">f4")],
    "backwards": [GRID[::-1], GRID[::-1]],
    "long doubles": [np.zeros(3, np.longdouble), np.zeros(3, np.longdouble)],
}


def told(value: Any) -> Any:
    """All that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.tolist()
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [told(each) for each in value]
    return value


@pytest.mark.parametrize("name", SAMPLES)
def test_batches_are_those_of_torch(name: str, tmp_path: Path) -> None:
    samples = SAMPLES[name](tmp_path)
    made = collate_as_torch(samples)
    assert told(made) == told(default_collate(samples))
    first = next(iter(made.values())) if isinstance(made, dict) else made if name not in ("in tuples",) else made[0]
    if isinstance(first, torch.Tensor) and first.dtype is not torch.bool:
        before = np.array(samples[0] if isinstance(samples[0], np.ndarray) else 0)
        first.zero_()  # it has memory of its own
        assert np.array_equal(before, samples[0] if isinstance(samples[0], np.ndarray) else 0)


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_refused_in_its_words(name: str) -> None:
    with pytest.raises(Exception) as expected:
        default_collate(REFUSED[name])
    with pytest.raises(type(expected.value)) as found:
        collate_as_torch(REFUSED[name])
    assert str(found.value) == str(expected.value)


def test_a_function_that_the_user_gave_torch_for_arrays_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(collate.default_collate_fn_map, np.ndarray, lambda batch, **_: f"{len(batch)} arrays")
    assert collate_as_torch([GRID, GRID]) == "2 arrays"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_stands_where_torchs_loader_takes_its_own_is_used(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(samples: list[Any]) -> tuple[int, Any]:
        return len(samples), default_collate(samples)

    monkeypatch.setattr(collate, "default_collate", counted)
    expected = [told(batch) for batch in torch.utils.data.DataLoader(list(GRID), 3)]
    with DataLoader(list(GRID), 3, num_workers=workers) as loader:
        found = [told(batch) for batch in loader]
    assert len(expected) == 2
    assert found == expected
