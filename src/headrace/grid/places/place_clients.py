"""Clients of S3 for the regions of a grid, one for each way in which a region is reached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.errors import HeadraceError, Problem, StorageError, UsageError
from headrace.grid.copies.copy_failure import CopyFailure, copy_failed
from headrace.grid.copies.copy_workers import all_at_once
from headrace.grid.copies.grid_copy import access_in
from headrace.grid.lines.line import Line
from headrace.instance.s3 import S3, S3Access

PARALLEL = 16
T = TypeVar("T")
R = TypeVar("R")
_OF_ALL = (CopyFailure.CREDENTIALS, CopyFailure.NO_ANSWER, CopyFailure.THROTTLED)
"""Failures that are about a region, not about one place."""


class PlaceClients:
    """Clients of S3. Safe for use by several threads.

    Args:
        job: keys of the grid's job.
        in_regions: what of it is another in a region, by region.
    """

    def __init__(self, job: Mapping[str, Any], in_regions: Mapping[str, Mapping[str, object]]) -> None:
        self._job = job
        self._in_regions = in_regions
        self._clients: dict[S3Access, S3] = {}
        self._lock = threading.Lock()

    def of(self, region: str) -> S3:
        """Returns the client of a region; of the environment's when its name is empty. Raises UsageError."""
        access = access_in(region, self._job, self._in_regions.get(region, {}))
        with self._lock:
            if access not in self._clients:
                self._clients[access] = S3(connections=PARALLEL, access=access)
            return self._clients[access]

    def close(self) -> None:
        """Closes all connections."""
        for client in self._clients.values():
            client.close()


@contextmanager
def place_clients(job: Mapping[str, Any], in_regions: Mapping[str, Mapping[str, object]]) -> Iterator[PlaceClients]:
    """Clients for the block."""
    clients = PlaceClients(job, in_regions)
    try:
        yield clients
    finally:
        clients.close()


def ask_all(
    items: Iterable[T], ask: Callable[[T], R], region_of: Callable[[T], str]
) -> list[tuple[T, R | UsageError | StorageError]]:
    """Asks S3 of many places, several at once.

    Args:
        items: what is asked of.
        ask: asks.
        region_of: the region that an item is asked in. Where one cannot be asked at all, for want of credentials or of
            an answer, the first item has that error, and the others of that region are left out.

    Returns:
        Items with their answers, or with an error.
    """
    answers: list[tuple[T, R | UsageError | StorageError]] = []
    silent: set[str] = set()
    lock = threading.Lock()

    def asked(item: T) -> R | UsageError | StorageError | None:
        region = region_of(item)
        if region in silent:
            return None
        try:
            return ask(item)
        except (UsageError, StorageError) as error:
            if copy_failed(error, writing=False).failure not in _OF_ALL:
                return error
            with lock:
                if region in silent:
                    return None
                silent.add(region)
            return error

    def done(item: T, answer: R | UsageError | StorageError | None) -> None:
        if answer is not None:
            answers.append((item, answer))

    all_at_once(PARALLEL, asked, items, done, threading.Event())
    return answers


def problem_at(line: Line, others: int, field: str, error: HeadraceError) -> Problem:
    """Returns what is wrong with a place, at the first line that reads it.

    Args:
        line: that one.
        others: how many more lines read it.
        field: that names it.
        error: what S3 said.
    """
    more = f", and {others} lines more" if others else ""
    return Problem(field, error.message, file=f"{line.place}{more}", hint=error.hint)
