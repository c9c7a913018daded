"""States as torchdata's loader has them: taken before the first batch, behind the last, at the end of an epoch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from effort import SOAK
from feed_data import flat
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulSampler

from headrace.errors import PositionError
from headrace.feed import DataLoader


class Drawn:
    """Samples that draw: the seed of the epoch matters, not only its order."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(2)


def own() -> torch.Generator:
    return torch.Generator().manual_seed(4)


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True},
    "shuffled, a generator": lambda: {"shuffle": True, "generator": own()},
    "in order, a generator": lambda: {"generator": own()},
    "RandomSampler": lambda: {"sampler": RandomSampler(Drawn())},
    "RandomSampler, a generator": lambda: {"sampler": RandomSampler(Drawn(), generator=own())},
    "torchdata's RandomSampler": lambda: {"sampler": StatefulSampler(Drawn(), generator=own())},
    "not batched": lambda: {"shuffle": True, "batch_size": None},
    "a seed": lambda: {"shuffle": True, "seed": 3},
}
LATER = ["shuffled, a generator", "a seed"]  # those whose later epochs draw nothing from torch's own generator
WHENS = ("before", "begun", "amid", "last", "end")


def taken(loader: Any, when: str) -> tuple[dict[str, Any], torch.Tensor, Iterator[Any]]:
    """Returns a state, that of torch's generator, and what the loader gives from there on."""
    batches = iter(()) if when == "before" else iter(loader)
    steps = {"before": 0, "begun": 0, "amid": 2, "last": len(loader), "end": len(loader) + 1}[when]
    for _ in itertools.islice(batches, steps):
        pass
    state, generator = loader.state_dict(), torch.get_rng_state()
    return state, generator, iter(loader) if when in ("before", "end") else batches


@pytest.mark.promise(
    "feed-resume", "a state in torch's order is exact at any moment, and making it draws no random number"
)
@pytest.mark.filterwarnings("ignore:fast-forwarding RandomSampler")  # the user's own
@pytest.mark.parametrize(
    ("name", "when"), [each for turn, each in enumerate(itertools.product(CALLS, WHENS)) if SOAK or turn % 2 == 0]
)
def test_a_state_of_any_moment_is_where_the_next_batches_begin(name: str, when: str) -> None:
    torch.manual_seed(1)
    loader = DataLoader(Drawn(), **({"batch_size": 3} | CALLS[name]()))
    told, generator, rest = taken(loader, when)
    state = json.loads(json.dumps(told))
    expected = [[flat(batch) for batch in each] for each in (rest, loader, loader)]
    for restored in (False, True):
        torch.manual_seed(2)
        if restored:
            torch.set_rng_state(generator)
        resumed = DataLoader(Drawn(), **({"batch_size": 3} | CALLS[name]()))
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        found = [[flat(batch) for batch in resumed] for _ in range(3)]
        assert found[0] == expected[0]
        drawn = when in ("amid", "last")  # what the pass draws was drawn before the state was told
        if name in LATER or (restored and drawn and name != "in order, a generator"):
            assert found[1:] == expected[1:]
        assert [len(each) for each in found] == [len(each) for each in expected]


@pytest.mark.parametrize("when", ["before", "begun", "amid", "end"])
def test_a_state_that_says_what_the_generator_had_not_given_is_still_read(when: str) -> None:
    torch.manual_seed(1)
    state, _, rest = taken(DataLoader(Drawn(), batch_size=3, shuffle=True), when)
    expected = [flat(batch) for batch in rest]
    state["sampler"]["undrawn"] = {"begun": 1, "amid": 0}.get(when, 2)  # as it was written before
    torch.manual_seed(2)
    resumed = DataLoader(Drawn(), batch_size=3, shuffle=True)
    resumed.load_state_dict(state)
    assert [flat(batch) for batch in resumed] == expected


@pytest.mark.filterwarnings("ignore::UserWarning")  # torchdata's own, of a torch that is newer than it
@pytest.mark.parametrize("when", WHENS)
def test_as_many_batches_follow_as_with_torchdata(when: str) -> None:
    counts = []
    for kind in (DataLoader, StatefulDataLoader):
        state, _, _ = taken(kind(Drawn(), batch_size=3, shuffle=True), when)
        resumed = kind(Drawn(), batch_size=3, shuffle=True)
        resumed.load_state_dict(state)
        counts.append([len(list(resumed)) for _ in range(2)])
    assert counts[0] == counts[1]


@pytest.mark.promise(
    "feed-resume", "a state in torch's order is exact at any moment, and making it draws no random number"
)
def test_telling_a_state_draws_nothing_and_changes_nothing() -> None:
    for call in CALLS.values():
        orders = []
        for told in (False, True):
            torch.manual_seed(1)
            loader = DataLoader(Drawn(), **({"batch_size": 3} | call()))
            order = []
            for _ in range(2):
                for _ in range(2 * told):
                    loader.state_dict()
                order += [flat(batch) for batch in loader]
            orders.append((order, torch.rand(1).item()))
        assert orders[0] == orders[1]


def test_a_state_of_another_kind_is_refused() -> None:
    loader = DataLoader(Drawn(), batch_size=3)
    others: list[Any] = [
        {"_snapshot": {"_snapshot_step": 0}, "_steps_since_snapshot": 0, "_iterator_finished": False},  # torchdata's
        {"epoch": 1}, [1], "state", DataLoader(Drawn(), batch_size=3, seed=1).state_dict(),
        DataLoader(Rows(9), batch_size=3).state_dict(), loader.state_dict() | {"more": 1},
        loader.state_dict() | {"step": "one"},
    ]  # fmt: skip
    for other in others:
        with pytest.raises(PositionError):
            loader.load_state_dict(other)
    with pytest.raises(PositionError):
        DataLoader(Rows(9), batch_size=3).load_state_dict(loader.state_dict())


class Rows(IterableDataset[Any]):
    """As torchdata's users write it: a state, and other rows without workers than with them."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        rows = range(self.count) if info is None else range(100 + info.id, 100 + self.count, info.num_workers)
        while self.at < len(rows):
            self.at += 1
            yield rows[self.at - 1], torch.rand(1)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize(
    ("when", "workers"),
    [
        (when, workers)
        for when in ("before", "begun", "amid", "end")
        for workers in (0, 2)
        if SOAK or not workers or when == "amid"
    ],
)
def test_an_iterable_dataset_goes_on_from_a_state_of_any_moment(when: str, workers: int) -> None:
    torch.manual_seed(1)
    loader = DataLoader(Rows(10), batch_size=3, num_workers=workers, seed=5)
    if when in ("before", "begun"):
        batches = iter(loader) if when == "begun" else None
        state = loader.state_dict()
        expected = [flat(batch) for batch in (loader if batches is None else batches)]
    else:
        batches = iter(loader)
        for _ in itertools.islice(batches, 2 if when == "amid" else 99):
            pass
        state = loader.state_dict()
        expected = [flat(batch) for batch in (batches if when == "amid" else loader)]
    assert len(expected) == {"amid": 2}.get(when, 4)
    resumed = DataLoader(Rows(10), batch_size=3, num_workers=workers, seed=5)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    with resumed, loader:
        assert [flat(batch) for batch in resumed] == expected


def refuse(number: int) -> None:
    raise AssertionError(f"there is no worker {number}")


def test_without_workers_an_iterable_dataset_sees_no_worker_as_with_torch() -> None:
    found = []
    for kind in (DataLoader, torch.utils.data.DataLoader):
        found.append([rows.tolist() for rows, _ in kind(Rows(10), batch_size=4, worker_init_fn=refuse)])
    assert found[0] == found[1] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    [rows, _] = next(iter(DataLoader(Rows(10), batch_size=4, num_shards=1)))
    assert rows.tolist() == [100, 101, 102, 103]
