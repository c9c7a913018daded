"""The plan of a grid as a document, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.catalog.prices import CURRENCY, Price
from headrace.cli.views.cost_tables import sources
from headrace.grid.lines.line import equal_lines, said_of
from headrace.grid.placement.place_line import Candidate, Copy, Refused
from headrace.grid.plan_grid import GridPlan, PlannedLine
from headrace.grid.report.grid_report import counted
from headrace.insight.cost.billing import amount
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
    longest = max((each.placed.chosen.seconds for each in plan.lines if each.placed.chosen), default=0.0)
    long = f"{duration(longest)} at most, its max_run or placement.run_seconds"
    expected = f"when every job runs as long as is expected of it ({long})"
    names = ("line", "says", "job", "region", "why", "cost", "hours", "copies")
    rows = (row for each in plan.lines[:shown] for row in _rows(each, why))
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
            *sentences(sources(price for each in plan.lines for price in _prices(each))),
        ),
        notes(_notes(plan)),
    )


def _copies(plan: GridPlan, shown: int) -> Table:
    rows = []
    for copy in plan.copies[:shown]:
        used = ", ".join(plan.lines[index].line.place for index in copy.lines[:3])
        used += f" and {len(copy.lines) - 3} more" if len(copy.lines) > 3 else ""
        planned = copy.copy
        count = MISSING if planned.objects is None else str(planned.objects)
        numbers = (f"{planned.gigabytes:.4g}", count, amount(planned.cost), _hours(planned.seconds))
        rows.append((planned.place, planned.source, copy.region, *numbers, used))
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


def _rows(each: PlannedLine, why: bool) -> Iterator[tuple[str, ...]]:
    best = each.placed.chosen
    line = each.line.place, said_of(each.line.fields), each.job_name
    if best is None:
        yield (*line, MISSING, "no region is left", "", "", "")
    else:
        yield (*line, best.region or MISSING, _reason(each), _cost(best), _hours(best.seconds), _copied(best))
    for other in each.placed.others if why or best is None else ():
        against = "; ".join(map(refused_text, other.refused)) or "possible"
        yield ("", "", "", other.region, against, _cost(other), _hours(other.seconds), _copied(other))


def _reason(each: PlannedLine) -> str:
    if each.line.fields.get("region"):
        return "the line names it"
    possible = [other.region for other in each.placed.others if not other.refused]
    decided = each.placed.decided_by.replace("_", " ")
    if not each.placed.others:
        chosen = each.placed.chosen
        return "the only one" if chosen and chosen.region else "its engine has no regions"
    if not possible:
        return "nothing else is left"
    return f"{decided}, before {possible[0]}" if decided else f"as good as {possible[0]}, and first by name"


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


def _prices(each: PlannedLine) -> tuple[Price, ...]:
    return each.placed.chosen.prices if each.placed.chosen else ()


def _notes(plan: GridPlan) -> Iterator[str]:
    for group in equal_lines(each.line for each in plan.lines):
        yield f"{' and '.join(line.place for line in group[:3])} say the same: they run {len(group)} times"
    unpriced = sorted({kind for each in plan.lines if each.placed.chosen for kind in each.placed.chosen.unpriced})
    if unpriced:
        count = sum(region.unpriced for region in plan.regions)
        yield f"{counted(count)} where the price of {', '.join(unpriced)} is unknown: their cost is not counted"
    chosen = [each.placed.chosen for each in plan.lines if each.placed.chosen]
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
    measured = {copy.copy.place: copy.copy for copy in plan.copies if copy.copy.objects is not None}
    if measured:
        place, copy = next(iter(measured.items()))
        yield (
            f"`headrace grid run` measures with --measure only: or write into placement.data, such as {place}: "
            f"{{region: {copy.source}, gigabytes: {copy.gigabytes:.4g}}}"
        )
    if plan.unplaced:
        yield f"{counted(len(plan.unplaced))} can run nowhere: --why shows what is against each region"


def plan_values(plan: GridPlan) -> dict[str, object]:
    """Returns a plan as plain data: every line with all its candidates."""
    return {
        "name": plan.name,
        "digest": plan.digest,
        "currency": CURRENCY,
        "cost": plan.cost,
        "lines": [_line(each) for each in plan.lines],
        "copies": [
            {**_copy_fields(copy.copy), "region": copy.region, "lines": list(copy.lines)} for copy in plan.copies
        ],
        "regions": [vars(region) for region in plan.regions],
        "unknown": [{"place": place, "line": line.index} for place, line in plan.unknown],
    }


def _line(each: PlannedLine) -> dict[str, object]:
    placed = each.placed
    return {
        "index": each.line.index,
        "place": each.line.place,
        "key": each.line.key,
        "job_name": each.job_name,
        "fields": dict(each.line.fields),
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
        "copies": [_copy_fields(copy) for copy in candidate.copies],
        "refused": [{**vars(each), "refusal": each.refusal.name.lower()} for each in candidate.refused],
    }


def _copy_fields(copy: Copy) -> dict[str, object]:
    return dict(vars(copy))
