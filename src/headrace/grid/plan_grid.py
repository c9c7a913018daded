"""The plan of a grid: what runs where and why there, what is copied first, and what it costs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import JobInvalid, Problem
from headrace.grid.lines.line import REGION, SAGEMAKER, Line, engine_of
from headrace.grid.lines.line_table import first_of
from headrace.grid.load_grid import Grid
from headrace.grid.placement.place_line import Copy, Demand, Placed, Placer, PlaceSize
from headrace.grid.placement.placement_rules import PlacementRules
from headrace.job.model.field_types import JOB_NAME_CHARACTERS, MAX_RUN_DEFAULT, cut_name

_PREFIX = "S3Prefix"


@dataclass(frozen=True)
class PlannedLine:
    """One line.

    Attributes:
        line: as it was read.
        job_name: of its job: the same as long as the line says the same.
        placed: where it runs, and why.
        hosts: of its job.
    """

    line: Line
    job_name: str
    placed: Placed
    hosts: int


@dataclass(frozen=True)
class PlannedCopy:
    """Data that are copied once, for all lines that need them.

    Attributes:
        copy: what, from where.
        region: to which region.
        lines: indices of the lines that wait for it.
    """

    copy: Copy
    region: str
    lines: tuple[int, ...]


@dataclass(frozen=True)
class RegionTotal:
    """What runs in a region.

    Attributes:
        region: its name.
        lines: how many.
        hosts: of all its lines.
        run_cost: USD, of lines whose price is known.
        copy_cost: USD, of copies into it, each counted once.
        unpriced: lines whose price is unknown.
    """

    region: str
    lines: int
    hosts: int
    run_cost: float
    copy_cost: float
    unpriced: int


@dataclass(frozen=True)
class GridPlan:
    """See the module.

    Attributes:
        name: of the grid.
        digest: of its lines.
        lines: in their order.
        copies: each once, by region and place.
        regions: totals, by name.
        unknown: ``s3://`` places of which nobody said where the data are, with the first line that reads each.
    """

    name: str
    digest: str
    lines: tuple[PlannedLine, ...]
    copies: tuple[PlannedCopy, ...]
    regions: tuple[RegionTotal, ...]
    unknown: tuple[tuple[str, Line], ...] = ()

    @property
    def unplaced(self) -> tuple[PlannedLine, ...]:
        """Lines that can run nowhere."""
        return tuple(each for each in self.lines if each.placed.chosen is None)

    @property
    def cost(self) -> float:
        """USD for all runs whose price is known, and all copies, each counted once."""
        return sum(each.run_cost + each.copy_cost for each in self.regions)


def plan_grid(grid: Grid, measured: Mapping[str, PlaceSize] | None = None) -> GridPlan:
    """Places every line. The same grid, sizes and price list give the same plan.

    Args:
        grid: as it was read.
        measured: sizes of places that its file does not know.
    """
    rules = grid.file.placement
    placer = Placer(rules, measured or {})
    demands = [demand_of(line, data, rules, grid.file.engine) for line, data in zip(grid.lines, grid.jobs, strict=True)]
    lines = tuple(
        PlannedLine(line, job_name(grid.file.name, line), placer.place(demand), sum(demand.hosts.values()))
        for line, demand in zip(grid.lines, demands, strict=True)
    )
    unknown: dict[str, Line] = {}
    for line, demand in zip(grid.lines, demands, strict=True):
        for place in demand.places:
            if rules.data_of(place) is None:
                unknown.setdefault(place, line)
    copies = _copies(lines)
    regions = tuple(_totals(lines, copies))
    return GridPlan(grid.file.name, grid.digest, lines, copies, regions, tuple(unknown.items()))


def check_budget(grid: Grid, plan: GridPlan) -> None:
    """Checks that a budget can be watched: the price of every line is known where it is placed.

    Raises:
        JobInvalid: with all lines of which it is not.
    """
    hint = "name a region or an instance type with a price, or take the budget out and limit the time: deadline"
    unpriced = [
        Problem(
            "budget",
            f"needs the price of every instance; none of {', '.join(chosen.unpriced)} is known",
            *(chosen.region, planned.line.place),
            hint=hint,
        )
        for planned in plan.lines
        if (chosen := planned.placed.chosen) is not None and chosen.run_cost is None
    ]
    if grid.file.budget is not None and unpriced:
        raise JobInvalid(first_of(unpriced))


def job_name(grid: str, line: Line) -> str:
    """Returns the name of a line's job: the grid's name, cut where it must be, and the line's key.

    >>> job_name("campaigns", Line(0, "a.txt:1", {}, "0123456789ab"))
    'campaigns-0123456789ab'
    """
    return with_ending(grid, f"-{line.key}")


def with_ending(name: str, ending: str) -> str:
    """Returns the name of a job: a name with an ending, cut before it where it must be."""
    return f"{cut_name(name, JOB_NAME_CHARACTERS - len(ending))}{ending}"


def demand_of(line: Line, data: Mapping[str, Any], rules: PlacementRules, engine: str) -> Demand:
    """Returns what a line's job needs.

    Args:
        line: the line.
        data: keys of its job.
        rules: of the grid.
        engine: of the grid; the line's own comes first.
    """
    read = data.get("inputs", {}).values()
    channels = [{"s3_data": channel} if isinstance(channel, str) else channel for channel in read]
    places = [channel.get("s3_data", "") for channel in channels]
    lists = frozenset(each.get("s3_data", "") for each in channels if each.get("s3_data_type", _PREFIX) != _PREFIX)
    longest = data.get("stopping_condition", {}).get("max_run", MAX_RUN_DEFAULT)
    in_s3 = tuple(dict.fromkeys(place for place in places if place.startswith("s3://")))
    return Demand(
        hosts=hosts_of(data),
        places=in_s3,
        run_seconds=rules.run_seconds or longest,
        region=str(line.fields.get(REGION, "")),
        otherwise=_own_region(data) if engine_of(line, engine) == SAGEMAKER else "",
        lists=lists,
        spot=bool(data.get("use_spot_instances")),
    )


def _own_region(data: Mapping[str, Any]) -> str | None:
    """Returns the region that a job names for SageMaker; None when it names none."""
    options = data.get("engines", {}).get(SAGEMAKER) or {}
    return options.get("region") or None


def hosts_of(data: Mapping[str, Any]) -> dict[str, int]:
    """Returns instance type to number of hosts, of the keys of a job."""
    groups = data.get("instance_groups") or [data]
    found: dict[str, int] = {}
    for group in groups:
        kind = group.get("instance_type", "")
        found[kind] = found.get(kind, 0) + int(group.get("instance_count", 1))
    return found


def _copies(lines: Iterable[PlannedLine]) -> tuple[PlannedCopy, ...]:
    found: dict[tuple[str, str], tuple[Copy, list[int]]] = {}
    for each in lines:
        chosen = each.placed.chosen
        for copy in chosen.copies if chosen else ():
            assert chosen is not None
            found.setdefault((chosen.region, copy.place), (copy, []))[1].append(each.line.index)
    return tuple(PlannedCopy(copy, region, tuple(used)) for (region, _), (copy, used) in sorted(found.items()))


def _totals(lines: Iterable[PlannedLine], copies: Iterable[PlannedCopy]) -> Iterable[RegionTotal]:
    by_region: dict[str, list[PlannedLine]] = {}
    for each in lines:
        if each.placed.chosen is not None:
            by_region.setdefault(each.placed.chosen.region, []).append(each)
    for region, there in sorted(by_region.items()):
        costs = [each.placed.chosen.run_cost for each in there if each.placed.chosen]
        yield RegionTotal(
            region=region,
            lines=len(there),
            hosts=sum(each.hosts for each in there),
            run_cost=sum(cost for cost in costs if cost is not None),
            copy_cost=sum(each.copy.cost for each in copies if each.region == region),
            unpriced=sum(cost is None for cost in costs),
        )
