"""Samples that draw no random numbers are loaded without seeds, and hold what they hold with them."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from effort import SOAK

from headrace.feed.loader.data_loader import DataLoader
from headrace.feed.pipelines.seeds import PreservedGenerators, rng, set_generators, stream_key

ROWS, BATCH, QUIET = 1500, 300, 1211  # the first row that draws lies in the middle of a batch


DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
    "normal": lambda: float(np.random.randn()),
    "feed.rng": lambda: float(rng().random()),
    "feed.rng of torch": lambda: float(torch.rand((), generator=rng("torch"))),
}


class Rows:
    """Rows of three numbers, the last of which is drawn for some rows."""

    def __init__(self, draw: Callable[[], float], draws: Callable[[int], bool]) -> None:
        self.draw, self.draws = draw, draws

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        drawn = self.draw() if self.draws(index) else 0.0
        return np.array([index, 1.0, drawn])


def listed(dataset: Any, **options: Any) -> list[Any]:
    with DataLoader(dataset, BATCH, seed=3, **options) as loader:
        return [batch.tolist() for batch in loader]


def pairs(samples: list[Any]) -> Any:
    return torch.as_tensor(np.stack(samples))


def with_own_seeds(dataset: Rows) -> list[Any]:
    """The batches, each sample made with all generators set for it."""
    rows = []
    with PreservedGenerators():
        for index in range(ROWS):
            set_generators(stream_key(3, 0, index))
            rows.append(dataset[index].tolist())
    return [rows[first : first + BATCH] for first in range(0, ROWS, BATCH)]


@pytest.mark.parametrize(
    ("kind", "collate"),
    [(kind, collate) for kind in DRAWS for collate in (None, pairs) if SOAK or kind == "torch" or not collate],
)
def test_a_dataset_that_begins_to_draw_gets_the_numbers_of_its_place(kind: str, collate: Any) -> None:
    for draws in (lambda index: index >= QUIET, lambda index: index == QUIET):
        dataset = Rows(DRAWS[kind], draws)
        expected = with_own_seeds(dataset)
        assert listed(dataset, collate_fn=collate) == expected
        assert listed(dataset, num_workers=1, collate_fn=collate) == expected
        drawn = [row[2] for batch in expected for row in batch if draws(int(row[0]))]
        assert 0.0 not in drawn
        assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("workers", [0, 1])
def test_no_generator_is_set_until_a_sample_draws(workers: int) -> None:
    def seeds(draws: Callable[[int], bool]) -> list[float]:
        dataset = Rows(torch.default_generator.initial_seed, lambda _: True)  # which nobody sees it read
        return [row[2] for batch in listed(Drawing(dataset, draws), num_workers=workers) for row in batch]

    asked = 2 * BATCH  # before the first answer has told how large a row is
    assert len(set(seeds(lambda _: False)[asked:])) < BATCH
    after = seeds(lambda index: index == QUIET)
    assert len(set(after[asked:QUIET])) < BATCH
    assert len(set(after[QUIET:])) == ROWS - QUIET


class Drawing:
    """A dataset that also draws, for some rows, numbers which go nowhere."""

    def __init__(self, dataset: Any, draws: Callable[[int], bool]) -> None:
        self.dataset, self.draws = dataset, draws

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if self.draws(index):
            torch.rand(())
        return self.dataset[index]


def test_a_row_that_raises_is_named_and_the_others_are_made() -> None:
    class Failing(Rows):
        def __getitem__(self, index: int) -> Any:
            if index in (QUIET, QUIET + 1):
                raise KeyError(f"row {index}")
            return super().__getitem__(index)

    dataset = Failing(random.random, lambda _: False)
    with DataLoader(dataset, BATCH, num_workers=1, on_error="skip") as loader:
        rows = [int(row[0]) for batch in loader for row in batch]
        assert [skipped.key for skipped in loader.skipped] == [QUIET, QUIET + 1]
    assert rows == [row for row in range(ROWS) if row not in (QUIET, QUIET + 1)]


def test_the_rows_of_one_batch_are_loaded_twice_when_a_dataset_begins_to_draw(tmp_path: Any) -> None:
    log = tmp_path / "loaded"

    class Logged(Rows):
        def __getitem__(self, index: int) -> Any:
            with log.open("a") as file:
                file.write(f"{index}\n")
            return super().__getitem__(index)

    dataset = Logged(lambda: float(torch.rand(())), lambda index: index >= QUIET)
    with DataLoader(dataset, BATCH, num_workers=1) as loader:  # without a seed: no epoch is begun ahead
        collections.deque(loader, 0)
    loaded = collections.Counter(int(line) for line in log.read_text().split())
    twice = [row for row, times in loaded.items() if times == 2]
    assert QUIET in twice
    assert {row // BATCH for row in twice} == {QUIET // BATCH}
    assert sorted(loaded) == list(range(ROWS))
    assert max(loaded.values()) == 2
