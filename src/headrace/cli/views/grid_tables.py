"""The plan of a grid as a document, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.catalog.prices import CURRENCY
from headrace.cli.views.cost_tables import sources
from headrace.grid.grid_record import LineRecord
from headrace.grid.grid_report import counted
from headrace.grid.line import REGION, equal_lines, said_of
from headrace.grid.place_line import Candidate, Placed, Refused
from headrace.grid.plan_grid import GridPlan
from headrace.insight.billing import amount
from headrace.insight.render.document import (
    Document,
    Heading,
    Sentence,
    Table,
    document,
    notes,
    section,
    sentences,
    table,
)
from headrace.insight.render.plain_text import MISSING, duration

_COPY_NUMBERS = ("GB", "objects", "cost", "hours")


def plan_document(plan: GridPlan, shown: int, why: bool) -> Document:
    """Returns a plan: the first lines, all copies and regions, totals, and where prices come from."""
    more = len(plan.lines) - shown
    unpriced = sum(region.unpriced for region in plan.regions)
    besides = f", and {counted(unpriced)} of unknown price" if unpriced else ""
    longest = max((line.planned_seconds or 0.0 for line in plan.lines), default=0.0)
    long = f"{duration(longest)} at most, its max_run or placement.run_seconds"
    expected = f"when every job runs as long as is expected of it ({long})"
    names = ("line", "says", "job", "region", "why", "cost", "hours", "copies")
    rows = (
        row for line, placed in zip(plan.lines[:shown], plan.placed, strict=False) for row in _rows(line, placed, why)
    )
    return document(
        section(Heading(f"{plan.name}: {counted(len(plan.lines))}")),
        section(
            table(names, rows, ("cost", "hours")),
            Sentence(f"and {counted(more)} more (--lines N shows N; --output json has all)") if more > 0 else None,
        ),
        section(_copies(plan, shown)) if plan.copies else None,
        section(
            _totals(plan),
            Sentence(f"{amount(plan.cost)} {CURRENCY} {expected}{besides}"),
            *sentences(sources(price for chosen in _chosen(plan) for price in chosen.prices)),
        ),
        notes(_notes(plan)),
    )


def _copies(plan: GridPlan, shown: int) -> Table:
    rows = []
    readers = plan.readers
    for copy in plan.copies[:shown]:
        lines = readers[copy.place, copy.region]
        used = ", ".join(line.place for line in lines[:3])
        used += f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        count = MISSING if copy.objects is None else str(copy.objects)
        numbers = (f"{copy.gigabytes:.4g}", count, amount(copy.cost), _hours(copy.seconds))
        rows.append((copy.place, copy.source, copy.region, *numbers, used))
    return table(("copy", "from", "to", *_COPY_NUMBERS, "for lines"), rows, _COPY_NUMBERS)


def _totals(plan: GridPlan) -> Table:
    rows = []
    for region in plan.regions:
        known = region.unpriced < region.lines
        runs = amount(region.run_cost) if known else MISSING
        whole = amount(region.run_cost + region.copy_cost) if known or region.copy_cost else MISSING
        counts = (str(region.lines), str(region.hosts), runs, amount(region.copy_cost), whole)
        rows.append((region.region or MISSING, *counts))
    names = ("region", "lines", "hosts", "runs", "copies", "cost")
    return table(names, rows, names[1:])


def _rows(line: LineRecord, placed: Placed, why: bool) -> Iterator[tuple[str, ...]]:
    best = placed.chosen
    cells = line.place, said_of(line.fields), line.job_name
    if best is None:
        yield (*cells, MISSING, "no region is left", "", "", "")
    else:
        reason = "the line names it" if line.fields.get(REGION) else _reason(placed)
        yield (*cells, best.region or MISSING, reason, _cost(best), _hours(best.seconds), _copied(best))
    for other in placed.others if why or best is None else ():
        against = "; ".join(map(refused_text, other.refused)) or "possible"
        yield ("", "", "", other.region, against, _cost(other), _hours(other.seconds), _copied(other))


def _reason(placed: Placed) -> str:
    chosen, *others = placed.possible
    decided = placed.decided_by.replace("_", " ")
    if not placed.others:
        return "the only one" if chosen.region else "its engine has no regions"
    if not others:
        return "nothing else is left"
    second = others[0].region
    return f"{decided}, before {second}" if decided else f"as good as {second}, and first by name"


def _cost(candidate: Candidate) -> str:
    return MISSING if candidate.cost is None else amount(candidate.cost)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}"


def _copied(candidate: Candidate) -> str:
    size = sum(copy.gigabytes for copy in candidate.copies)
    return f"{size:.4g} GB" if candidate.copies else ""


def refused_text(refused: Refused) -> str:
    """Returns a reason against a region in words, with the numbers that decided."""
    words = f"{refused.refusal.value} {refused.what}".strip()
    if refused.number is None or refused.limit is None:
        return words
    return f"{words}: {refused.number:g}, the limit is {refused.limit:g}"


def _chosen(plan: GridPlan) -> list[Candidate]:
    return [placed.chosen for placed in plan.placed if placed.chosen]


def _notes(plan: GridPlan) -> Iterator[str]:
    for group in equal_lines(plan.lines):
        yield f"{' and '.join(line.place for line in group[:3])} say the same: they run {len(group)} times"
    chosen = _chosen(plan)
    unpriced = sorted({kind for each in chosen for kind in each.unpriced})
    if unpriced:
        count = sum(region.unpriced for region in plan.regions)
        yield f"{counted(count)} where the price of {', '.join(unpriced)} is unknown: their cost is not counted"
    shares = sorted({(each.region, each.spot_share) for each in chosen if each.spot_share is not None})
    if shares:
        paid = ", ".join(f"{share:g} of it in {region}" for region, share in shares)
        yield f"spot capacity costs a share of the list price, as placement.spot says: {paid}"
    if plan.unknown:
        place, line = plan.unknown[0]
        others = f", and {len(plan.unknown) - 1} places more" if len(plan.unknown) > 1 else ""
        yield (
            f"placement.data says nothing of {place} ({line.place}){others}: such data count as being in every region, "
            "under no law"
        )
    measured = {copy.place: copy for copy in plan.copies if copy.objects is not None}
    if measured:
        place, copy = next(iter(measured.items()))
        yield (
            f"`headrace grid run` measures with --measure only: or write into placement.data, such as {place}: "
            f"{{region: {copy.source}, gigabytes: {copy.gigabytes:.4g}}}"
        )
    if plan.unplaced:
        yield f"{counted(plan.unplaced)} can run nowhere: --why shows what is against each region"


def plan_values(plan: GridPlan) -> dict[str, object]:
    """Returns a plan as plain data: every line with all its candidates."""
    readers = plan.readers
    return {
        "name": plan.name,
        "digest": plan.digest,
        "currency": CURRENCY,
        "cost": plan.cost,
        "lines": [_line(line, placed) for line, placed in zip(plan.lines, plan.placed, strict=True)],
        "copies": [
            {**vars(copy), "lines": [line.index for line in readers[copy.place, copy.region]]} for copy in plan.copies
        ],
        "regions": [vars(region) for region in plan.regions],
        "unknown": [{"place": place, "line": line.index} for place, line in plan.unknown],
    }


def _line(line: LineRecord, placed: Placed) -> dict[str, object]:
    return {
        "index": line.index,
        "place": line.place,
        "key": line.key,
        "job_name": line.job_name,
        "fields": dict(line.fields),
        "chosen": _candidate(placed.chosen) if placed.chosen else None,
        "decided_by": placed.decided_by,
        "others": [_candidate(other) for other in placed.others],
    }


def _candidate(candidate: Candidate) -> dict[str, object]:
    return {
        "region": candidate.region,
        "price_per_hour": candidate.price,
        "unpriced": list(candidate.unpriced),
        "spot_share": candidate.spot_share,
        "run_cost": candidate.run_cost,
        "copy_cost": candidate.copy_cost,
        "cost": candidate.cost,
        "seconds": candidate.seconds,
        "reserved": candidate.reserved,
        "copies": [{**vars(copy)} for copy in candidate.copies],
        "refused": [{**vars(each), "refusal": each.refusal.name.lower()} for each in candidate.refused],
    }
