"""An exception that is no `Exception`, as a panic of a library in Rust, is an error of its row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from headrace.errors import WorkerError
from headrace.feed import DataLoader


class PanicException(BaseException):
    """As pyo3's."""


class Texts(torch.utils.data.Dataset[int]):
    def __init__(self, error: type[BaseException] = PanicException) -> None:
        self.error = error

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index % 10 == 3:
            raise self.error("called `unwrap()` on a `None` value")
        return index


class Lanes(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)
        raise PanicException("called `unwrap()` on a `None` value")


def panicking(_: Any) -> Any:
    raise PanicException("called `unwrap()` on a `None` value")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_panic_is_raised_with_its_text_and_the_pass_goes_on(workers: int) -> None:
    batches = iter(DataLoader(Texts(), 10, num_workers=workers))
    kind = WorkerError if workers else PanicException
    for _ in range(4):
        with pytest.raises(kind, match=r"called `unwrap\(\)` on a `None` value"):
            next(batches)
    assert next(batches, None) is None


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_panic_are_skipped_as_others_are(workers: int) -> None:
    loader = DataLoader(Texts(), 10, num_workers=workers, on_error="skip")
    assert sum(len(batch) for batch in loader) == 36
    assert [(skipped.key, "PanicException" in skipped.reason) for skipped in loader.skipped] == [
        (index, True) for index in (3, 13, 23, 33)
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_panic_of_collate_fn_and_of_a_lane_is_raised_with_its_text(workers: int) -> None:
    kind = WorkerError if workers else PanicException
    for loader in (
        DataLoader(range(4), 2, num_workers=workers, collate_fn=panicking),
        DataLoader(Lanes(), 4, num_workers=workers, num_shards=1),
    ):
        with pytest.raises(kind, match=r"called `unwrap\(\)` on a `None` value"):
            next(iter(loader))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_program_ends_the_pass_without_workers(error: type[BaseException]) -> None:
    batches = iter(DataLoader(Texts(error), 10, num_workers=0, on_error="skip"))
    with pytest.raises(error):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
