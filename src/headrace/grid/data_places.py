"""The places that a grid reads, and those that it copies to: whether they are there, and how much they hold.

Everything is looked at before anything starts, and all problems are told at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeGuard, TypeVar

from headrace.errors import HeadraceError, JobInvalid, ObjectMissing, Problem, StorageError, UsageError
from headrace.grid.copied_object import BYTES_OF_GIGABYTE, CopyFailure, bucket_region, copy_failed, list_objects
from headrace.grid.copy_action import access_in, all_at_once
from headrace.grid.line import Line, engine_of
from headrace.grid.load_grid import Grid
from headrace.grid.place_line import PlaceSize
from headrace.grid.plan_grid import GridPlan, demand_of
from headrace.instance.s3 import S3, S3Access
from headrace.instance.storage import split
from headrace.job.job import missing_files
from headrace.job.problems.finding import JobSource

PARALLEL = 16
T = TypeVar("T")
R = TypeVar("R")
_OF_ALL = (CopyFailure.CREDENTIALS, CopyFailure.NO_ANSWER, CopyFailure.THROTTLED)
"""Failures that are about a region, not about one place."""


class PlaceClients:
    """Clients of S3, as the jobs of a grid have them. Safe for use by several threads."""

    def __init__(self, grid: Grid) -> None:
        self._job, self._in_regions = grid.template.data, grid.file.in_regions
        self._clients: dict[S3Access, S3] = {}
        self._lock = threading.Lock()

    def of(self, region: str) -> S3:
        """Returns the client of a region; of the environment's when its name is empty. Raises UsageError."""
        access = access_in(region, self._job, self._in_regions)
        with self._lock:
            if access not in self._clients:
                self._clients[access] = S3(connections=PARALLEL, access=access)
            return self._clients[access]

    def close(self) -> None:
        """Closes all connections."""
        for client in self._clients.values():
            client.close()


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


def problem_at(lines: Sequence[Line], error: HeadraceError) -> tuple[int, Problem]:
    """Returns what is wrong with a place that lines read, by the index of the first of them.

    Args:
        lines: that read it.
        error: what S3 said.
    """
    more = f", and {len(lines) - 1} lines more" if len(lines) > 1 else ""
    return lines[0].index, Problem("inputs", error.message, file=f"{lines[0].place}{more}", hint=error.hint)


def unknown_sizes(grid: Grid) -> dict[str, tuple[str, list[Line]]]:
    """Returns the places whose size a plan would have to know: the region of each, and the lines that read it. Pure."""
    found: dict[str, tuple[str, list[Line]]] = {}
    rules = grid.file.placement
    for line, data in zip(grid.lines, grid.jobs, strict=True):
        demand = demand_of(line, data, rules, grid.file.engine)
        for place in demand.places:
            known = rules.data_of(place)
            if known is not None and known.gigabytes is None and place not in demand.lists:
                found.setdefault(place, (known.region, []))[1].append(line)
    return found


@dataclass(frozen=True)
class MeasuredPlaces:
    """What was measured.

    Attributes:
        sizes: by place.
        problems: of places that are not there, hold nothing, or cannot be listed.
    """

    sizes: Mapping[str, PlaceSize] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def check(self) -> None:
        """Raises JobInvalid with all problems, if there are any."""
        if self.problems:
            raise JobInvalid(self.problems)


def measure_places(grid: Grid) -> MeasuredPlaces:
    """Lists every place whose size is unknown.

    Raises:
        UsageError: a library is not installed.
    """
    wanted = unknown_sizes(grid)
    sizes: dict[str, PlaceSize] = {}
    problems = []
    with closing(PlaceClients(grid)) as clients:

        def measured(place: str) -> PlaceSize:
            objects = list_objects(clients.of(wanted[place][0]), *split(place))
            if not objects:
                raise ObjectMissing(f"{place} holds no objects", "check the prefix")
            return PlaceSize(sum(each.size for each in objects) / BYTES_OF_GIGABYTE, len(objects))

        for place, answer in ask_all(wanted, measured, lambda place: wanted[place][0]):
            if isinstance(answer, (UsageError, StorageError)):
                problems.append(problem_at(wanted[place][1], answer))
            else:
                sizes[place] = answer
    return MeasuredPlaces(sizes, tuple(problem for _, problem in sorted(problems, key=lambda each: each[0])))


KUBERNETES = "kubernetes"


def check_places(grid: Grid, plan: GridPlan, *, only_missing: bool = False, only_local: bool = False) -> None:
    """Looks at every place that a line reads, and at those that copies go to.

    Args:
        grid: as it was read.
        plan: of it.
        only_missing: what cannot be asked here, for want of a right or an answer, is no problem: its lines may know
            better, and fail alone.
        only_local: S3 is not asked.

    Raises:
        JobInvalid: with everything that is not there, line by line.
    """
    found: list[tuple[int, Problem]] = [*_local(grid)]
    if not only_local:
        with closing(PlaceClients(grid)) as clients:
            found += _data(grid, plan, clients, only_missing)
            found += _copies(grid, plan, clients, only_missing)
    if found:
        raise JobInvalid(tuple(problem for _, problem in sorted(found, key=lambda each: each[0])))


def _local(grid: Grid) -> Iterator[tuple[int, Problem]]:
    source = JobSource()
    for line, data in zip(grid.lines, grid.jobs, strict=True):
        pods = engine_of(line, grid.file.engine) == KUBERNETES
        for finding in missing_files(data, grid.template.base, pods):
            yield line.index, replace(source.problem(finding), file=line.place, line=0)


def _data(grid: Grid, plan: GridPlan, clients: PlaceClients, only_missing: bool) -> Iterator[tuple[int, Problem]]:
    rules = grid.file.placement
    reads: dict[tuple[str, str], list[Line]] = {}
    for line, placed in zip(plan.lines, plan.placed, strict=True):
        for place in placed.demand.places:
            known = rules.data_of(place)
            reads.setdefault((place, known.region if known else line.region), []).append(line)

    def look(read: tuple[str, str]) -> bool:
        place, region = read
        s3 = clients.of(region)
        bucket, prefix = split(place)
        if next(s3.list(bucket, prefix), None) is None:
            raise ObjectMissing(f"{place} holds no objects", "check the prefix")
        return True

    for (place, region), error in ask_all(reads, look, lambda read: read[1]):
        if _is_problem(error, only_missing):
            yield problem_at(reads[place, region], error)
    stated = {(split(place)[0], found.region): place for place, found in rules.data.items()}
    yield from ((-1, each) for each in _regions(stated, "placement.data", clients, only_missing))


def _copies(grid: Grid, plan: GridPlan, clients: PlaceClients, only_missing: bool) -> Iterator[tuple[int, Problem]]:
    rules = grid.file.placement
    targets: dict[tuple[str, str], str] = {}
    readers = plan.readers
    for copy in plan.copies:
        if copy.region in rules.copy_to:
            target = rules.copy_to[copy.region]
            targets[split(target)[0], copy.region] = target
            continue
        hint = f"placement: {{copy_to: {{{copy.region}: s3://BUCKET/PREFIX}}}}"
        line = readers[copy.place, copy.region][0]
        message = f"must name a place for the copy of {copy.place} to {copy.region}"
        yield line.index, Problem("placement.copy_to", message, file=line.place, hint=hint)
    yield from ((-1, each) for each in _regions(targets, "placement.copy_to", clients, only_missing))


def _is_problem(answer: object, only_missing: bool) -> TypeGuard[UsageError | StorageError]:
    return isinstance(answer, ObjectMissing if only_missing else (UsageError, StorageError))


def _regions(
    places: Mapping[tuple[str, str], str], field: str, clients: PlaceClients, only_missing: bool
) -> Iterator[Problem]:
    """Checks that buckets are in the regions that the user says: law and price go by them.

    Args:
        places: place by bucket and region.
        field: that names them.
        clients: that are asked.
        only_missing: see `check_places`.
    """

    def look(each: tuple[str, str]) -> str:
        return bucket_region(clients.of(each[1]), each[0])

    for (bucket, region), answer in ask_all(places, look, lambda each: each[1]):
        place = places[bucket, region]
        if _is_problem(answer, only_missing):
            yield Problem(f"{field}.{place}", answer.message, hint=answer.hint)
        elif isinstance(answer, str) and answer not in ("", region):
            yield Problem(f"{field}.{place}", f"must be in {region}; the bucket is in {answer}")
