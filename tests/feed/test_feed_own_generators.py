"""Generators of the process that makes samples, and a sample's own, depend on its place alone. Nothing is patched."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import feed_data
import numpy as np
import pytest
import torch
from effort import SOAK
from feed_data import flat
from feed_servers import Pair
from numpy.random import MT19937, mtrand
from torch import initial_seed

from headrace import feed
from headrace.feed import DataLoader
from headrace.feed.pipelines import seeds
from headrace.feed.pipelines.seeds import PreservedGenerators, set_generators, stream_key

ROWS, BATCH = 96, 8


def drawn_and_seeded() -> float:
    drawn = random.random() + np.random.rand()
    random.seed(0)
    np.random.seed(0)
    return drawn


DRAWS: dict[str, Callable[[], float]] = {
    "drawn, then seeded with 0": drawn_and_seeded,
    "feed.rng": lambda: float(feed.rng().random()),
    "feed.rng of torch": lambda: float(torch.rand((), generator=feed.rng("torch"))),
    "feed.rng of random": lambda: feed.rng("random").random(),
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


def undone() -> float:
    state = random.getstate()
    drawn = random.random()
    random.setstate(state)
    return drawn


def forked() -> float:
    with torch.random.fork_rng(devices=[]):
        return float(torch.rand(()))


LOOKS: dict[str, Callable[[], float]] = {
    "torch's seed": lambda: float(torch.initial_seed() % 2**50),
    "torch's seed, by a name of its own": lambda: float(initial_seed() % 2**50),
    "torch, forked": forked,
    "random: state read": lambda: float(random.getstate()[1][5] % 1000),
    "random: draw undone": undone,
}


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


def cells() -> list[tuple[str, int, type]]:
    """What is drawn, from which row on, and how the rows come; in the short run each way of drawing once or twice."""
    places = [*((name, first) for name in DRAWS for first in (0, 40)), *((name, 9) for name in LOOKS)]
    if SOAK:
        return [(*place, kind) for place in places for kind in (Rows, Stream)]
    kinds = itertools.cycle([Rows, Stream, Stream, Rows])
    return [(*place, kind) for place, kind in zip(places, kinds, strict=False) if place[0] != "feed.rng of random"]


@pytest.mark.parametrize(("name", "first", "kind"), cells())
def test_workers_the_trainer_and_a_resumed_pass_see_the_states_of_the_plan(name: str, first: int, kind: Any) -> None:
    rows = Rows((DRAWS | LOOKS)[name], first)
    dataset = rows if kind is Rows else Stream(rows)
    expected = []
    with PreservedGenerators():
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


@pytest.mark.parametrize("copied", [True, False])
def test_the_trainers_pending_normal_number_is_kept_also_when_it_sets_a_state_of_its_own(
    copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seeds._memory_is_state()  # of this NumPy; of another, states are read and set by its functions
    monkeypatch.setattr(seeds, "_memory_is_state", lambda: copied)
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
    done = subprocess.run([sys.executable, "-c", LATE, "1", "0", "0"], capture_output=True, text=True, check=True)
    by_workers, first, second = done.stdout.splitlines()
    assert by_workers == first == second
    assert len(set(first.split(","))) > 50


PATCHED = """
import random, sys, types
import numpy as np
import torch
from numpy.random import mtrand

def places():
    modules = random, np, np.random, mtrand, torch, torch.random
    for owner in (*modules, random.Random, mtrand.RandomState, torch.Generator):
        for name, value in vars(owner).items():
            if isinstance(value, types.ModuleType):
                continue  # imported by now
            yield f"{owner.__name__}.{name}", value
            if isinstance(value, types.FunctionType):
                yield f"{owner.__name__}.{name}.__code__", value.__code__

BEFORE = {name: id(value) for name, value in places()}
KEPT = list(places())  # so that no number is used again
GENERATOR = mtrand.get_bit_generator()

def changed():
    return [name for name, value in places() if BEFORE.get(name) != id(value)]

class Rows:
    def __init__(self, draws):
        self.draws = draws
    def __len__(self):
        return 96
    def __getitem__(self, index):
        return len(changed()), random.random() + np.random.randn() + float(torch.rand(())) if self.draws else 0.0

class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows
    def __iter__(self):
        return map(self.rows.__getitem__, range(96))

from headrace.feed import DataLoader

changes = []
for draws in (False, True):
    for workers in (0, 1):
        for dataset, options in ((Rows(draws), {}), (Stream(Rows(draws)), {"num_shards": 1})):
            with DataLoader(dataset, 8, num_workers=workers, **options) as loader:
                for inside, _ in loader:
                    changes += inside.tolist()
                    if mtrand.get_bit_generator() is not GENERATOR:
                        changes.append("numpy's bit generator")
print(sorted(set(changes)), changed())
"""


@pytest.mark.promise(
    "feed-guarantees", "`feed.rng()` gives a sample the same numbers anywhere; no library's generator is patched"
)
def test_nothing_of_random_numpy_and_torch_is_patched_in_the_trainer_and_in_workers() -> None:
    done = subprocess.run([sys.executable, "-c", PATCHED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0] []"


def with_noise(samples: list[dict[str, Any]]) -> tuple[list[float], float]:
    return [float(sample["numpy"][0]) for sample in samples], float(feed.rng().random())


@pytest.mark.promise(
    "feed-guarantees", "`feed.rng()` gives a sample the same numbers anywhere; no library's generator is patched"
)
def test_generators_of_samples_give_the_same_numbers_for_any_workers_on_other_hosts_and_resumed(pair: Pair) -> None:
    def taken(dataset: Any, skipped: int = 0, **options: Any) -> list[bytes]:
        with DataLoader(dataset, BATCH, seed=7, **options) as loader:
            if skipped:
                batches = iter(loader)
                for _ in range(skipped):
                    next(batches)
                loader.load_state_dict(loader.state_dict())
            return [flat(batch) for batch in loader]

    expected = taken(feed_data.Explicit())
    assert len(set(expected)) == ROWS // BATCH
    assert taken(feed_data.Explicit(), num_workers=1) == taken(feed_data.Explicit(), num_workers=2) == expected
    assert taken(feed_data.Explicit(), 5) == taken(feed_data.Explicit(), 5, num_workers=2) == expected[5:]
    assert taken(feed_data.explicit(), workers=pair.both, secret_file=pair.secret) == expected
    collated = taken(feed_data.Explicit(), collate_fn=with_noise)
    assert len(set(collated)) == ROWS // BATCH
    assert taken(feed_data.Explicit(), collate_fn=with_noise, num_workers=2) == collated


def test_generators_of_samples_are_not_those_of_other_samples_calls_or_the_process() -> None:
    rows = [row for batch in DataLoader(feed_data.Explicit(), None, seed=7) for row in [batch]]
    drawn = [float(value) for row in rows for name in ("numpy", "again", "torch") for value in row[name]]
    drawn += [float(row["random"]) for row in rows] + [float(row["global"]) for row in rows[1::2]]
    assert len(set(drawn)) == len(drawn)


def test_the_numbers_of_feed_rng_are_pinned_so_that_a_run_can_be_repeated_by_a_later_version() -> None:
    with PreservedGenerators():
        set_generators(stream_key(3, 1, 4))
        drawn = [feed.rng().integers(2**32), feed.rng("random").getrandbits(32), feed.rng("torch").initial_seed()]
    assert drawn == [3358181108, 118922172, 8378545802586754123]


def test_outside_of_a_loader_feed_rng_gives_new_generators_and_other_kinds_are_refused() -> None:
    with PreservedGenerators():
        seeds._explicit.set(None)  # as in a new process: other tests simulate workers in this one
        list(DataLoader(feed_data.Explicit(), BATCH, seed=7))
        assert feed.rng() is not feed.rng()
        assert len({feed.rng().integers(2**62) for _ in range(9)}) == 9
    with pytest.raises(ValueError, match='must be "numpy", "torch" or "random", got \'jax\''):
        feed.rng("jax")  # type: ignore[call-overload]
