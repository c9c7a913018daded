"""A batch is asked for when another one is handed out, as torch does, and not only when it is waited for.

What is proved by events: the worker has begun the next batch while the trainer holds one and has asked for nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import trouble_data
from feed_servers import Server, wait_until
from torch.utils.data import Dataset, IterableDataset

from headrace.errors import FeedError
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.client.exchange import Exchange
from headrace.feed.client.session import Session

ROWS = 4
STEPS = 6


class Begun(Dataset[int]):
    """Writes down every batch that is begun."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __len__(self) -> int:
        return STEPS * ROWS

    def __getitem__(self, index: int) -> int:
        if index % ROWS == 0:
            with self.log.open("a") as log:
                print(index // ROWS, file=log)
        return index


class BegunInLane(Begun, IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return map(self.__getitem__, range(len(self)))


class Drawn:
    """A batch sampler that counts what was drawn of it; it raises behind its last batch."""

    def __init__(self, steps: int = STEPS, error: Exception | None = None) -> None:
        self.steps, self.error = steps, error
        self.count = 0

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.steps):
            self.count += 1
            yield list(range(step * ROWS, (step + 1) * ROWS))
        if self.error is not None:
            raise self.error

    def __len__(self) -> int:
        return self.steps


def ours(dataset: Any, **options: Any) -> DataLoader:
    return DataLoader(dataset, **{"num_workers": 1, "prefetch_factor": 1, "hedge": False, "verify": 0} | options)


def torchs(dataset: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, **{"num_workers": 1, "prefetch_factor": 1} | options)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    found = tmp_path / "begun"
    found.touch()
    return found


@pytest.mark.parametrize(
    ("make", "kind", "options"),
    [
        (torchs, Begun, {"batch_size": ROWS}),
        (ours, Begun, {"batch_size": ROWS}),
        (ours, Begun, {"batch_size": ROWS, "seed": 3}),
        (ours, Begun, {"batch_size": ROWS, "in_order": False}),
        (ours, Begun, {"batch_sampler": Drawn()}),
        (ours, BegunInLane, {"batch_size": ROWS, "seed": 3}),
        (ours, BegunInLane, {"global_batch_size": ROWS, "num_shards": 1}),
    ],
    ids=["torch", "torch's order", "own order", "window", "sampler", "lanes", "lanes of a global batch"],
)
def test_the_next_batch_is_begun_while_the_trainer_holds_one_and_has_not_asked(
    make: Callable[..., Any], kind: type[Begun], options: dict[str, Any], log: Path
) -> None:
    batches = iter(make(kind(log), **options))
    for step in range(STEPS - 1):
        assert next(batches).tolist() == list(range(step * ROWS, (step + 1) * ROWS))
        wait_until(lambda step=step: len(log.read_text().split()) > step + 1, f"batch {step + 1} is begun")
    assert len(next(batches)) == ROWS
    assert next(batches, None) is None
    assert log.read_text().split()[:STEPS] == [str(step) for step in range(STEPS)]


@pytest.mark.parametrize("over_tcp", [False, True])
@pytest.mark.usefixtures("without_torch")
def test_a_batch_that_takes_long_is_made_while_the_trainer_computes(
    over_tcp: bool, log: Path, own_server: Callable[..., Server]
) -> None:
    options: dict[str, Any] = {"num_workers": 1}
    if over_tcp:
        server = own_server(executors=1)
        options = {"workers": server.tcp, "secret_file": str(server.secret)}
    with DataLoader(
        trouble_data.logged(str(log)), batch_size=10, hedge=False, verify=0, collate_fn=stack_arrays, **options
    ) as loader:
        batches = iter(loader)
        for step in range(2):  # the trainer computes until the next batch is made
            assert next(batches).tolist() == list(range(10 * step, 10 * step + 10))
            wait_until(lambda step=step: len(log.read_text().split()) >= 10 * step + 20, "the next batch is made")
        next(batches)
        made = len(log.read_text().split())
        wait_until(lambda: len(log.read_text().split()) >= made + 15, "more than a batch is made, and nobody asks")


@pytest.mark.usefixtures("without_torch")
def test_what_waits_behind_a_slow_sample_is_made_by_a_host_that_has_nothing_to_do(
    tmp_path: Path, log: Path, own_server: Callable[..., Server]
) -> None:
    """Each host is asked for half of 32 batches; the 10th is not done before the other one has made nearly all."""
    one, other = own_server("one", executors=1), own_server("other", executors=1)
    release = tmp_path / "release"
    made: list[int] = []

    def watch() -> None:
        for _ in range(300):
            made.append(len(log.read_text().split()))
            if made[-1] >= 10 + 32 - 4:
                break
            time.sleep(0.1)
        release.touch()

    with DataLoader(
        trouble_data.held(str(log), 10, str(release)), workers=f"{one.tcp},{other.tcp}", secret_file=str(one.secret),
        prefetch_factor=16, hedge=False, verify=0, collate_fn=stack_arrays,
    ) as loader:  # fmt: skip
        batches = iter(loader)
        first = [next(batches).item() for _ in range(10)]
        watcher = threading.Thread(target=watch)
        watcher.start()
        assert first + [batch.item() for batch in batches] == list(range(200))
        watcher.join()
    assert made[-1] >= 10 + 32 - 4, "two of the slow host, and what is handed over by nobody"


@pytest.mark.parametrize(("factor", "workers"), [(1, 1), (3, 2)])
def test_no_more_is_on_its_way_than_torch_has(factor: int, workers: int, log: Path) -> None:
    """The sampler runs in the trainer's process, so what it was asked for is known without a wait."""
    counts = []
    for make in (torchs, ours):
        sampler = Drawn(40)
        batches = iter(make(Repeated(40 * ROWS), batch_sampler=sampler, num_workers=workers, prefetch_factor=factor))
        counts.append([(next(batches), sampler.count)[1] for _ in range(40)])
    assert counts[0][0] == factor * workers + 1
    assert all(own <= theirs for own, theirs in zip(counts[1], counts[0], strict=True)), counts
    if factor == 1 and workers == 1:
        assert counts[1] == counts[0]


class Repeated(Dataset[int]):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> int:
        return index


def test_what_a_sampler_raises_behind_a_batch_does_not_take_that_batch() -> None:
    for workers in (0, 1):
        batches = iter(
            ours(
                Repeated(40), batch_sampler=Drawn(3, ValueError("no more")), num_workers=workers,
                prefetch_factor=1 if workers else None,
            )
        )  # fmt: skip
        assert [next(batches).tolist()[0] // ROWS for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="no more"):
            next(batches)
        assert next(batches, None) is None


def test_when_asking_ahead_fails_the_batch_is_there_and_the_next_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ours(Repeated(40), batch_size=ROWS)
    batches = iter(loader)
    next(batches)

    asked = Exchange.ask_slices

    def fail(self: Exchange) -> bool:
        if sys._getframe(1).f_code is Session._ask_ahead.__code__:
            raise OSError("no descriptor is left")
        return asked(self)

    monkeypatch.setattr(Exchange, "ask_slices", fail)
    batch = next(batches)
    assert batch.tolist() == [4, 5, 6, 7], "its memory stays, though the session is closed"
    with pytest.raises(OSError, match="no descriptor is left"):
        next(batches)
    with pytest.raises(FeedError, match="an error ended it"):
        next(batches)
    loader.close()


def test_a_state_taken_between_two_batches_knows_nothing_of_what_was_asked_ahead(log: Path) -> None:
    for seed in (None, 3):
        torch.manual_seed(0)
        options = {"batch_size": ROWS, "shuffle": True, "seed": seed}
        loader = ours(Repeated(STEPS * ROWS), **options)
        batches = iter(loader)
        came, states = [], []
        for batch in batches:
            came.append(batch.tolist())
            states.append(loader.state_dict())
        for step, state in ((1, states[0]), (STEPS - 2, states[STEPS - 3])):
            other = ours(Repeated(STEPS * ROWS), **options)
            other.load_state_dict(state)
            assert [batch.tolist() for batch in other] == came[step:], (seed, step)
            other.close()
