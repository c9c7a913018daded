"""Checks that everything which a grid reads is there, and that there is a place for every copy; before anything starts.

All problems are told at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeGuard

from headrace.errors import JobInvalid, ObjectMissing, Problem, StorageError, UsageError
from headrace.grid.copies.copied_object import bucket_region
from headrace.grid.lines.line import Line, engine_of
from headrace.grid.load_grid import Grid
from headrace.grid.places.place_clients import PlaceClients, ask_all, place_clients, problem_at
from headrace.grid.plan_grid import GridPlan, demand_of
from headrace.instance.storage import split
from headrace.job.problems.finding import JobSource
from headrace.job.rules.kubernetes_rules import in_volumes
from headrace.job.rules.local_files import missing

KUBERNETES = "kubernetes"


def check_places(grid: Grid, plan: GridPlan, *, only_missing: bool = False) -> None:
    """Looks at every place that a line reads, and at those that copies go to.

    Args:
        grid: as it was read.
        plan: of it.
        only_missing: what cannot be asked here, for want of a right or an answer, is no problem: its lines may know
            better, and fail alone.

    Raises:
        JobInvalid: with everything that is not there, line by line.
    """
    found: list[tuple[int, Problem]] = [*_local(grid)]
    with place_clients(grid.template.data, grid.file.in_regions) as clients:
        found += _data(grid, plan, clients, only_missing)
        found += _copies(grid, plan, clients, only_missing)
    if found:
        raise JobInvalid(tuple(problem for _, problem in sorted(found, key=lambda each: each[0])))


def _local(grid: Grid) -> Iterator[tuple[int, Problem]]:
    source = JobSource()
    for line, data in zip(grid.lines, grid.jobs, strict=True):
        pods = engine_of(line, grid.file.engine) == KUBERNETES
        elsewhere = frozenset(in_volumes(data)) if pods else frozenset()
        for finding in missing(data, grid.template.base, elsewhere):
            wrong = source.problem(finding)
            yield line.index, Problem(wrong.field, wrong.message, wrong.value, line.place, hint=wrong.hint)


def _data(grid: Grid, plan: GridPlan, clients: PlaceClients, only_missing: bool) -> Iterator[tuple[int, Problem]]:
    rules = grid.file.placement
    reads: dict[tuple[str, str], list[Line]] = {}
    for each, data in zip(plan.lines, grid.jobs, strict=True):
        for place in demand_of(each.line, data, rules, grid.file.engine).places:
            known = rules.data_of(place)
            region = known.region if known else each.placed.chosen.region if each.placed.chosen else ""
            reads.setdefault((place, region), []).append(each.line)

    def look(read: tuple[str, str]) -> bool:
        place, region = read
        s3 = clients.of(region)
        bucket, prefix = split(place)
        if next(s3.list(bucket, prefix), None) is None:
            raise ObjectMissing(f"{place} holds no objects", "check the prefix")
        return True

    for (place, region), error in ask_all(reads, look, lambda read: read[1]):
        if _is_problem(error, only_missing):
            lines = reads[place, region]
            yield lines[0].index, problem_at(lines[0], len(lines) - 1, "inputs", error)
    stated = {(split(place)[0], found.region): place for place, found in rules.data.items()}
    yield from ((-1, each) for each in _regions(stated, "placement.data", clients, only_missing))


def _copies(grid: Grid, plan: GridPlan, clients: PlaceClients, only_missing: bool) -> Iterator[tuple[int, Problem]]:
    rules = grid.file.placement
    targets: dict[tuple[str, str], str] = {}
    for copy in plan.copies:
        if copy.region in rules.copy_to:
            target = rules.copy_to[copy.region]
            targets[split(target)[0], copy.region] = target
            continue
        hint = f"placement: {{copy_to: {{{copy.region}: s3://BUCKET/PREFIX}}}}"
        line = plan.lines[copy.lines[0]].line
        message = f"must name a place for the copy of {copy.copy.place} to {copy.region}"
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
