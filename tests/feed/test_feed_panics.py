"""An exception that is no `Exception`, as a panic of a library in Rust, is an error of its row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from feed_data import PanickingLane, panicking_lane
from feed_servers import Pair
from trouble_data import PanicException, Panicking, panicking, panicking_rows, pure

from headrace.errors import PipelineError, WorkerError
from headrace.feed import DataLoader


@pytest.mark.parametrize("workers", [0, 1])
def test_a_panic_is_raised_with_its_text_and_the_pass_goes_on(workers: int) -> None:
    batches = iter(DataLoader(Panicking(), 10, num_workers=workers))
    kind = WorkerError if workers else PanicException
    for _ in range(4):
        with pytest.raises(kind, match=r"called `unwrap\(\)` on a `None` value"):
            next(batches)
    assert next(batches, None) is None


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_panic_are_skipped_as_others_are(workers: int) -> None:
    loader = DataLoader(Panicking(), 10, num_workers=workers, on_error="skip")
    assert sum(len(batch) for batch in loader) == 36
    assert [(skipped.key, "PanicException" in skipped.reason) for skipped in loader.skipped] == [
        (index, True) for index in (3, 13, 23, 33)
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_panic_of_collate_fn_and_of_a_lane_is_raised_with_its_text(workers: int) -> None:
    kind = WorkerError if workers else PanicException
    for loader in (
        DataLoader(range(4), 2, num_workers=workers, collate_fn=panicking),
        DataLoader(PanickingLane(), 4, num_workers=workers, num_shards=1),
    ):
        with pytest.raises(kind, match=r"called `unwrap\(\)` on a `None` value"):
            next(iter(loader))


def test_a_panic_on_a_feed_server_is_raised_with_its_text_and_its_workers_live(
    pair: Pair,
) -> None:
    server = pair.a
    where: dict[str, Any] = {"workers": server.tcp, "secret_file": server.secret}
    batches = iter(DataLoader(panicking_rows(), 10, **where))
    executors = [process.pid for process in server.executors()]
    for _ in range(4):
        with pytest.raises(WorkerError, match=r"PanicException: called `unwrap\(\)` on a `None` value"):
            next(batches)
    assert next(batches, None) is None
    loader = DataLoader(panicking_rows(), 10, on_error="skip", **where)
    assert sum(len(batch) for batch in loader) == 36
    assert [skipped.key for skipped in loader.skipped] == [3, 13, 23, 33]
    for loader in (
        DataLoader(pure(), 2, collate_fn=panicking, **where),
        DataLoader(panicking_lane(), 4, num_shards=1, **where),
    ):
        with pytest.raises(WorkerError, match=r"called `unwrap\(\)` on a `None` value"):
            next(iter(loader))
    assert [process.pid for process in server.executors()] == executors, "a panic ends no worker"


class Leaving(torch.utils.data.IterableDataset[int]):
    """Raises an exception over its fourth row."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __iter__(self) -> Iterator[int]:
        yield from range(3)
        raise self.error("in the fourth row")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_would_end_a_program_ends_no_worker_and_is_told_with_its_place(error: type[BaseException]) -> None:
    def leave(_: object) -> None:
        raise error("on purpose")

    rows = DataLoader(Panicking(error), 10, num_workers=1)
    batches = iter(rows)
    pids = {process.pid for process in psutil.Process().children()}
    for index in (3, 13, 23, 33):
        place = f" over index {index}" if error is not GeneratorExit else ""  # generators are closed by it
        told = rf"^{error.__name__}: called (.|\n)*raised on worker 0{place}; the traceback there(.|\n)*in __getitem__"
        with pytest.raises(WorkerError, match=told):
            next(batches)
    assert {process.pid for process in psutil.Process().children()} == pids, "it has ended no worker"
    assert next(batches, None) is None
    for loader, where in (
        (DataLoader(range(4), 2, num_workers=1, collate_fn=leave), "in leave"),
        (DataLoader(Leaving(error), 4, num_workers=1, num_shards=1), "in __iter__"),
        (DataLoader(Leaving(error), 4, num_workers=1, num_shards=1, worker_init_fn=leave), "in leave"),
    ):
        with pytest.raises(WorkerError, match=rf"{error.__name__}: (.|\n)*{where}"):
            next(iter(loader))
    with pytest.raises(PipelineError, match=rf"{error.__name__}: on purpose(.|\n)*in leave"):
        next(iter(DataLoader(range(4), 2, num_workers=1, worker_init_fn=leave)))
    if error is not GeneratorExit:
        loader = DataLoader(Panicking(error), 10, num_workers=1, on_error="skip")
        assert sum(len(batch) for batch in loader) == 36
        assert [skipped.key for skipped in loader.skipped] == [3, 13, 23, 33]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_program_ends_the_pass_without_workers(error: type[BaseException]) -> None:
    batches = iter(DataLoader(Panicking(error), 10, num_workers=0, on_error="skip"))
    with pytest.raises(error):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
