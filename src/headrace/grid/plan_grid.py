"""The plan of a grid: what runs where and why there, what is copied first, and what it costs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import JobInvalid, Problem
from headrace.grid.grid_file import PlacementRules
from headrace.grid.grid_record import CopyRecord, CopyState, LineRecord, LineState
from headrace.grid.line import REGION, SAGEMAKER, Line, engine_of, first_of
from headrace.grid.load_grid import Grid
from headrace.grid.place_line import Candidate, Copy, Demand, Placed, Placer, PlaceSize, Refusal
from headrace.job.model.field_types import JOB_NAME_CHARACTERS, MAX_RUN_DEFAULT, cut_name

_PREFIX = "S3Prefix"


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
        lines: in their order, as a journal begins with them.
        placed: why each runs where it does, and where else it may, in the same order.
        copies: each once, by region and place.
        regions: totals, by name.
        unknown: ``s3://`` places of which nobody said where the data are, with the first line that reads each.
    """

    name: str
    digest: str
    lines: tuple[LineRecord, ...]
    placed: tuple[Placed, ...]
    copies: tuple[Copy, ...]
    regions: tuple[RegionTotal, ...]
    unknown: tuple[tuple[str, Line], ...] = ()

    @property
    def unplaced(self) -> int:
        """How many lines can run nowhere."""
        return sum(line.state is LineState.UNPLACED for line in self.lines)

    @property
    def readers(self) -> dict[tuple[str, str], list[LineRecord]]:
        """The lines that wait for each copy, by its place and region."""
        readers: dict[tuple[str, str], list[LineRecord]] = {}
        for line in self.lines:
            for copy in line.waits_for:
                readers.setdefault(copy, []).append(line)
        return readers

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
    jobs = zip(grid.lines, grid.jobs, strict=True)
    placed = tuple(placer.place(demand_of(line, data, rules, grid.file.engine)) for line, data in jobs)
    lines = tuple(_planned(line, where, grid) for line, where in zip(grid.lines, placed, strict=True))
    unknown: dict[str, Line] = {}
    for line, where in zip(lines, placed, strict=True):
        for place in where.demand.places:
            if rules.data_of(place) is None:
                unknown.setdefault(place, line)
    needed = {(copy.region, copy.place): copy for where in placed if where.chosen for copy in where.chosen.copies}
    copies = tuple(needed[each] for each in sorted(needed))
    regions = tuple(_totals(placed, copies))
    return GridPlan(grid.file.name, grid.digest, lines, placed, copies, regions, tuple(unknown.items()))


def _planned(line: Line, placed: Placed, grid: Grid) -> LineRecord:
    chosen = placed.chosen
    unknown = any(each.refusal is Refusal.SIZE_UNKNOWN for other in placed.others for each in other.refused)
    measure = "; --measure lists data of unknown size" if unknown else ""
    nowhere = f"no region is left: `headrace grid plan --why` shows what is against each{measure}"
    return LineRecord(
        index=line.index,
        key=line.key,
        place=line.place,
        fields=line.fields,
        job_name=job_name(grid.file.name, line),
        engine=engine_of(line, grid.file.engine),
        region=chosen.region if chosen else "",
        planned_cost=chosen.run_cost if chosen else None,
        planned_seconds=chosen.seconds if chosen else None,
        state=LineState.WAITING if chosen else LineState.UNPLACED,
        reason="" if chosen else nowhere,
        waits_for=tuple((copy.place, copy.region) for copy in chosen.copies) if chosen else (),
    )


def copy_record(copy: Copy) -> CopyRecord:
    """Returns a copy as a journal begins with it."""
    return CopyRecord(copy.place, copy.source, copy.region, "", CopyState.WAITING, copy.cost)


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
            *(chosen.region, line.place),
            hint=hint,
        )
        for line, placed in zip(plan.lines, plan.placed, strict=True)
        if (chosen := placed.chosen) is not None and chosen.run_cost is None
    ]
    if grid.file.budget is not None and unpriced:
        raise JobInvalid(first_of(unpriced))


def job_name(grid: str, line: Line) -> str:
    """Returns the name of a line's job: the grid's name, cut where it must be, and the line's key.

    >>> job_name("campaigns", Line(0, "0123456789ab", "a.txt:1", {}))
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
    own = data.get("engines", {}).get(SAGEMAKER) or {}
    in_s3 = tuple(dict.fromkeys(place for place in places if place.startswith("s3://")))
    return Demand(
        hosts=hosts_of(data),
        places=in_s3,
        run_seconds=rules.run_seconds or longest,
        region=str(line.fields.get(REGION, "")),
        otherwise=own.get("region") or None if engine_of(line, engine) == SAGEMAKER else "",
        lists=lists,
        spot=bool(data.get("use_spot_instances")),
    )


def hosts_of(data: Mapping[str, Any]) -> dict[str, int]:
    """Returns instance type to number of hosts, of the keys of a job."""
    groups = data.get("instance_groups") or [data]
    found: dict[str, int] = {}
    for group in groups:
        kind = group.get("instance_type", "")
        found[kind] = found.get(kind, 0) + int(group.get("instance_count", 1))
    return found


def _totals(placed: Iterable[Placed], copies: Iterable[Copy]) -> Iterable[RegionTotal]:
    by_region: dict[str, list[tuple[Candidate, int]]] = {}
    for where in placed:
        if where.chosen is not None:
            hosts = sum(where.demand.hosts.values())
            by_region.setdefault(where.chosen.region, []).append((where.chosen, hosts))
    for region, chosen in sorted(by_region.items()):
        costs = [candidate.run_cost for candidate, _ in chosen]
        yield RegionTotal(
            region=region,
            lines=len(chosen),
            hosts=sum(hosts for _, hosts in chosen),
            run_cost=sum(cost for cost in costs if cost is not None),
            copy_cost=sum(copy.cost for copy in copies if copy.region == region),
            unpriced=sum(cost is None for cost in costs),
        )
