"""What a sample sees of the generators depends on its place alone, also where it reads a state or undoes its draws."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import MT19937, mtrand

from headrace.feed import DataLoader
from headrace.feed.pipelines.own_generators import preserved_generators
from headrace.feed.pipelines.seeds import set_generators, stream_key

ROWS, BATCH = 96, 8


def drawn_and_seeded() -> float:
    drawn = random.random() + np.random.rand()
    random.seed(0)
    np.random.seed(0)
    return drawn


def python_undone() -> float:
    state = random.getstate()
    drawn = random.random()
    random.setstate(state)
    return drawn


def numpy_undone() -> float:
    state = np.random.get_state()
    drawn = float(np.random.rand())
    np.random.set_state(state)
    return drawn


DRAWS: dict[str, Callable[[], float]] = {
    "drawn, then seeded with 0": drawn_and_seeded,
    "random: state read": lambda: float(random.getstate()[1][5] % 1000),
    "random: draw undone": python_undone,
    "NumPy: state read": lambda: float(np.random.get_state()[1][5] % 1000),
    "NumPy: draw undone": numpy_undone,
}


class Rows:
    """Rows that draw from some row on."""

    def __init__(self, draw: Callable[[], float], first: int) -> None:
        self.draw, self.first = draw, first

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.draw() if index >= self.first else 0.0


class Stream(torch.utils.data.IterableDataset[Any]):
    """The same, without a count."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return map(self.rows.__getitem__, range(ROWS))


def values(dataset: Any, workers: int, skipped: int = 0) -> list[float]:
    options: dict[str, Any] = {"num_shards": 1} if isinstance(dataset, Stream) else {}
    found: list[float] = []
    with DataLoader(dataset, BATCH, num_workers=workers, seed=7, verify=0.0, **options) as loader:
        if skipped:
            taken = iter(loader)
            for _ in range(skipped):
                next(taken)
            loader.load_state_dict(loader.state_dict())
        for _, drawn in loader:
            found += drawn.tolist()
    return found


@pytest.mark.parametrize("first", [0, 40])
@pytest.mark.parametrize("kind", [Rows, Stream], ids=["rows", "lanes"])
@pytest.mark.parametrize("name", DRAWS)
def test_workers_the_trainer_and_a_resumed_pass_see_the_states_of_the_plan(name: str, kind: Any, first: int) -> None:
    rows = Rows(DRAWS[name], first)
    dataset = rows if kind is Rows else Stream(rows)
    expected = []
    with preserved_generators():
        for index in range(ROWS):
            set_generators(stream_key(7, 0, index, b"sample" if kind is Rows else b"lane output"))
            expected.append(rows[index][1])
    assert len(set(expected)) > ROWS // 2 - 8
    assert values(dataset, 0) == values(dataset, 2) == expected
    assert values(dataset, 2, skipped=9) == expected[9 * BATCH :]


def test_methods_of_torchs_generator_see_nothing_of_the_trainers() -> None:
    rows = Rows(lambda: float(torch.rand((), generator=torch.default_generator.clone_state())), 0)
    seen = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        seen.append(values(rows, 0))
    assert seen[0] == seen[1]


def test_the_trainers_pending_normal_number_is_kept_also_when_it_sets_a_state_of_its_own() -> None:
    plain = Rows(lambda: 0.0, ROWS)
    kinds: list[tuple[Callable[[], Any], Callable[[Any], None], Callable[[], float]]] = [
        (random.getstate, random.setstate, lambda: random.gauss(0, 1)),
        (np.random.get_state, np.random.set_state, lambda: float(np.random.randn())),
    ]
    for read, write, draw in kinds:
        with DataLoader(plain, 1, seed=1) as loader:
            batches = iter(loader)
            draw()
            state = read()
            second = draw()
            next(batches)
            write(state)
            next(batches)
            assert draw() == second


def test_a_dataset_that_replaces_numpys_generator_changes_nothing_of_the_trainers() -> None:
    def replaced() -> float:
        mtrand.set_bit_generator(MT19937(5))
        return float(np.random.rand())

    before = mtrand._rand._bit_generator
    np.random.seed(3)
    state = np.random.get_state(legacy=False)
    values(Rows(replaced, 0), 0)
    assert mtrand._rand._bit_generator is before
    np.testing.assert_equal(np.random.get_state(legacy=False), state)


LATE = """
import sys
import numpy as np
from headrace import feed

class Rows:
    def __len__(self):
        return 96
    def __getitem__(self, index):
        if index < 40:
            return np.zeros(1)
        import torch
        return torch.rand(1).numpy()

def numbers(workers):
    with feed.DataLoader(Rows(), 8, num_workers=workers, seed=7, collate_fn=feed.stack_arrays) as loader:
        return [value for batch in loader for value in batch[:, 0].tolist()]

for workers in map(int, sys.argv[1:]):
    assert "torch" not in sys.modules or workers == 0
    print(numbers(workers)[38:])
"""


def test_torch_that_a_sample_imports_has_its_generator_set_for_the_first_draw() -> None:
    done = subprocess.run([sys.executable, "-c", LATE, "2", "0", "0"], capture_output=True, text=True, check=True)
    by_workers, first, second = done.stdout.splitlines()
    assert by_workers == first == second
    assert len(set(first.split(","))) > 50
