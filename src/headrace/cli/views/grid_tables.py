"""The plan of a grid as tables and as a document."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from headrace.catalog.prices import CURRENCY, Price
from headrace.cli.views.cost_tables import sources
from headrace.cli.views.table import Columns, columns, console, notes
from headrace.grid.lines.line import equal_lines, said_of
from headrace.grid.placement.candidate import Candidate, Copy, Refused
from headrace.grid.plan_grid import GridPlan, PlannedLine
from headrace.grid.report.grid_report import counted
from headrace.insight.cost.billing import amount
from headrace.insight.render.plain_text import MISSING, duration

_COPY_NUMBERS = ("GB", "objects", "cost", "hours")


def show_plan(plan: GridPlan, shown: int, why: bool) -> None:
    """Prints a plan: the first lines, all copies and regions, totals, and where prices come from."""
    out = console()
    out.print(Text(f"{plan.name}: {counted(len(plan.lines))}", style="bold"))
    out.print()
    table = columns(("line", "says", "job", "region", "why", "cost", "hours", "copies"), right=("cost", "hours"))
    for each in plan.lines[:shown]:
        _add(table, each, why)
    out.print(table)
    if len(plan.lines) > shown:
        out.print(Text(f"and {counted(len(plan.lines) - shown)} more (--lines N shows N; --output json has all)"))
    if plan.copies:
        out.print()
        copies = columns(("copy", "from", "to", "GB", "objects", "cost", "hours", "for lines"), right=_COPY_NUMBERS)
        for copy in plan.copies[:shown]:
            size, hours = f"{copy.copy.gigabytes:.4g}", _hours(copy.copy.seconds)
            count = MISSING if copy.copy.objects is None else str(copy.copy.objects)
            used = ", ".join(plan.lines[index].line.place for index in copy.lines[:3])
            used += f" and {len(copy.lines) - 3} more" if len(copy.lines) > 3 else ""
            copies.add(copy.copy.place, copy.copy.source, copy.region, size, count, amount(copy.copy.cost), hours, used)
        out.print(copies)
    out.print()
    names = ("region", "lines", "hosts", "runs", "copies", "cost")
    totals = columns(names, right=names[1:])
    for region in plan.regions:
        known = region.unpriced < region.lines
        runs = amount(region.run_cost) if known else MISSING
        whole = amount(region.run_cost + region.copy_cost) if known or region.copy_cost else MISSING
        hosts, copied = str(region.hosts), amount(region.copy_cost)
        totals.add(region.region or MISSING, str(region.lines), hosts, runs, copied, whole)
    out.print(totals)
    more = sum(region.unpriced for region in plan.regions)
    besides = f", and {counted(more)} of unknown price" if more else ""
    longest = max((each.placed.chosen.seconds for each in plan.lines if each.placed.chosen), default=0.0)
    long = f"{duration(longest)} at most, its max_run or placement.run_seconds"
    expected = f"when every job runs as long as is expected of it ({long})"
    out.print(Text(f"{amount(plan.cost)} {CURRENCY} {expected}{besides}"))
    for line in sources(price for each in plan.lines for price in _prices(each)):
        out.print(Text(line))
    notes(out, list(_notes(plan)))


def _add(table: Columns, each: PlannedLine, why: bool) -> None:
    best = each.placed.chosen
    line = each.line.place, said_of(each.line.fields), each.job_name
    if best is None:
        table.add(*line, MISSING, "no region is left", "", "", "")
    else:
        reason = _reason(each)
        table.add(*line, best.region or MISSING, reason, _cost(best), _hours(best.seconds), _copied(best))
    for other in each.placed.others if why or best is None else ():
        against = "; ".join(map(refused_text, other.refused)) or "possible"
        table.add("", "", "", other.region, against, _cost(other), _hours(other.seconds), _copied(other))


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


def plan_document(plan: GridPlan) -> dict[str, object]:
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
