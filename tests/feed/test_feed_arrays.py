"""Batches of NumPy arrays: stacked row by row as torch's are, the same wherever they are made, and without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import array_data
import numpy as np
import pytest
from feed_data import Point, flat
from torch.utils.data import default_collate

from headrace.errors import PositionError
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.batch.row_layout import Uneven, learn
from headrace.feed.pipelines.fetch import stacks_rows

HERE = Path(__file__).parent


def test_structures_are_kept_and_strings_are_listed() -> None:
    batch = stack_arrays([{"a": (i, Point(np.ones(2), i)), "name": f"n{i}"} for i in range(3)])
    assert type(batch["a"]) is tuple
    assert type(batch["a"][1]) is Point
    assert batch["a"][1].x.shape == (3, 2)
    assert batch["name"] == ["n0", "n1", "n2"]
    with pytest.raises(Uneven):
        learn({"name": "n0"}, stack_arrays)


def test_batches_of_arrays_are_cut_into_slices_as_torch_s_are() -> None:
    assert stacks_rows(stack_arrays, batched=True)
    assert stacks_rows(default_collate, batched=True)
    assert not stacks_rows(list, batched=True)


def test_samples_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="same shape"):
        stack_arrays([np.ones(2), np.ones(3)])
    with pytest.raises(ValueError, match="zip"):
        stack_arrays([(1, 2), (1,)])


@pytest.mark.parametrize("place", ["local", "unix", "two tcp"])
def test_arrays_are_the_same_wherever_they_are_made(place: str, loader_at: Callable[..., DataLoader]) -> None:
    options = {"collate_fn": stack_arrays, "shuffle": True, "seed": 3}
    here = [flat(batch) for batch in DataLoader(array_data.pictures(), 8, **options)]  # type: ignore[arg-type]
    with loader_at(place, array_data.pictures(), verify=1.0, **options) as loader:
        assert [flat(batch) for batch in loader] == here
        stats = loader.stats()
        assert stats["purity_failures"] == 0
        assert stats["bytes_copied"] == 0


def test_the_place_behind_some_batches_of_a_pass_is_known_while_more_have_been_taken() -> None:
    options: dict[str, Any] = {"collate_fn": stack_arrays, "shuffle": True, "seed": 3}
    loader = DataLoader(array_data.pictures(), 8, **options)
    with pytest.raises(PositionError, match="no pass"):
        loader.state_dict(0)
    whole = [flat(batch) for batch in loader]
    assert loader.state_dict(12) == loader.state_dict()
    assert loader.state_dict(12)["epoch"] == 1
    for batches in (0, 5, 11):
        state = loader.state_dict(batches)
        assert (state["epoch"], state["step"], state["samples"]) == (0, batches, 8 * batches)
        other = DataLoader(array_data.pictures(), 8, **options)
        other.load_state_dict(state)
        assert [flat(batch) for batch in other] == whole[batches:]
        assert other.state_dict(1)["step"] == (batches + 1) % 12, "counted from where the pass began"
    with pytest.raises(PositionError, match=r"\[0, 12\]"):
        loader.state_dict(13)


def test_nothing_of_it_needs_torch() -> None:
    program = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())
if __name__ == "__main__":
    import array_data
    from headrace.feed import DataLoader, stack_arrays
    options = {"batch_size": 8, "collate_fn": stack_arrays, "seed": 3}
    here = [batch[0]["image"].tobytes() for batch in DataLoader(array_data.pictures(), **options)]
    with DataLoader(array_data.pictures(), num_workers=2, **options) as loader:
        assert [batch[0]["image"].tobytes() for batch in loader] == here
    print(len(here), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, timeout=60)
    assert done.stdout == "12 False\n", done.stderr
