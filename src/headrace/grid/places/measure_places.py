"""Measures data of unknown size: lists the places that lines read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import JobInvalid, ObjectMissing, Problem, StorageError, UsageError
from headrace.grid.copies.copied_object import list_objects
from headrace.grid.lines.line import Line
from headrace.grid.load_grid import Grid
from headrace.grid.placement.candidate import PlaceSize
from headrace.grid.places.place_clients import ask_all, place_clients, problem_at
from headrace.grid.plan_grid import demand_of
from headrace.instance.storage import split

BYTES_OF_GIGABYTE = 10**9


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
    with place_clients(grid.template.data, grid.file.in_regions) as clients:

        def measured(place: str) -> PlaceSize:
            objects = list_objects(clients.of(wanted[place][0]), *split(place))
            if not objects:
                raise ObjectMissing(f"{place} holds no objects", "check the prefix")
            return PlaceSize(sum(each.size for each in objects) / BYTES_OF_GIGABYTE, len(objects))

        for place, answer in ask_all(wanted, measured, lambda place: wanted[place][0]):
            if isinstance(answer, (UsageError, StorageError)):
                lines = wanted[place][1]
                problems.append((lines[0].index, problem_at(lines[0], len(lines) - 1, "inputs", answer)))
            else:
                sizes[place] = answer
    return MeasuredPlaces(sizes, tuple(problem for _, problem in sorted(problems, key=lambda each: each[0])))
