"""Money as tables, with rich: what a run or a plan costs, and list prices. It shows values; it computes none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from rich.text import Text

from headrace.catalog.price_update import PriceChange
from headrace.catalog.prices import Price
from headrace.cli.views.table import columns, console, notes
from headrace.insight import CostReport, Figure, Projection
from headrace.insight.cost.billing import age_text, amount, origin
from headrace.insight.render.plain_text import MISSING, number, spread

_OF_CLOCKS = ("cost", "billable_seconds", "cost_platform")
_FORMULAS = {
    "group": _OF_CLOCKS,
    "host": _OF_CLOCKS,
    "step": ("cost_per_hour", "cost_per_step", "cost_per_1000_samples", "cost_per_epoch"),
    "epoch": ("cost_of_epoch",),
}


def show_costs(report: CostReport, by: str, run_id: str) -> None:
    """Prints what a run costs. `by`: ``group``, ``host``, ``step`` or ``epoch``."""
    out = console()
    out.print(Text(f"{run_id}  {number(report.total)}", style="bold"), *_note(report.total))
    out.print(Text(f"on the platform, where no instance is released early: {number(report.platform)}"))
    if report.max_cost is not None:
        out.print(Text(f"budget: {amount(report.max_cost)} {report.currency}"))
    out.print()
    {"group": _groups, "host": _hosts, "step": _steps, "epoch": _epochs}[by](report)
    out.print()
    for name in _FORMULAS[by]:
        out.print(Text(f"{name} = {report.formulas[name]}"))
    for line in sources(group.price for group in report.groups):
        out.print(Text(line))
    notes(out, [*report.notes, *_why_not(report, by)])


def _note(figure: Figure) -> tuple[Text, ...]:
    """Returns a figure's note to print after it, with a blank before it; empty without a note."""
    return (Text(figure.note),) if figure.note else ()


def _groups(report: CostReport) -> None:
    names = ("group", "type", "hosts", "list price", "billable", "cost")
    table = columns(names, right=names[2:])
    for group in report.groups:
        named = (group.group, group.instance_type, str(group.instances), _listed(group.price))
        table.add(*named, number(group.seconds), number(group.cost))
    console().print(table)


def _hosts(report: CostReport) -> None:
    table = columns(("group", "host", "billable", "cost", ""), right=("billable", "cost"))
    for host in report.hosts:
        early = "released early" if host.released else ""
        table.add(host.group, host.host, number(host.seconds), number(host.cost), early)
    console().print(table)


def _steps(report: CostReport) -> None:
    table = columns(("", "cost", "10th .. 90th percentile of the seconds"), right=("cost",))
    rows = (
        ("an hour of training", report.per_hour),
        ("a step", report.per_step),
        ("1,000 samples", report.per_1000_samples),
        ("an epoch", report.per_epoch),
    )
    for title, figure in rows:
        table.add(title, number(figure), spread(figure))
    console().print(table)


def _epochs(report: CostReport) -> None:
    if not report.epochs:
        console().print("no loader has counted a step")
        return
    names = ("epoch", "steps", "samples", "steps lasted", "cost")
    table = columns(names, right=names)
    for epoch in report.epochs:
        counts = (str(epoch.epoch), str(epoch.steps), "-" if epoch.samples is None else str(epoch.samples))
        table.add(*counts, f"{epoch.seconds:.2f} s", number(epoch.cost))
    console().print(table)


def _why_not(report: CostReport, by: str) -> Iterable[str]:
    """Returns why figures that are shown have no value, as far as the report's notes do not say it."""
    figures = [report.total, report.platform]
    if by == "step":
        figures += [report.per_hour, report.per_step, report.per_1000_samples, report.per_epoch]
    said = dict.fromkeys(figure.note for figure in figures if figure.value is None)
    return [note for note in said if note not in report.notes]


def show_projection(cost: Projection) -> None:
    """Prints what a plan may cost."""
    names = ("group", "type", "hosts", "list price", "projected an hour")
    table = columns(names, right=names[2:])
    for group in cost.groups:
        named = (group.group, group.instance_type, str(group.instances), _listed(group.price))
        table.add(*named, number(group.per_hour))
    table.add("all", "", str(sum(group.instances for group in cost.groups)), "", number(cost.per_hour))
    out = console()
    out.print()
    out.print(table)
    at_most = f"{number(cost.maximum)} {cost.maximum.note}".strip()
    stops = cost.max_cost is not None and cost.maximum.value is not None and cost.max_cost < cost.maximum.value
    stopped = f"; the budget stops it at {amount(cost.max_cost or 0.0)} {cost.currency}" if stops else ""
    out.print(Text(f"at most, when all run for all of max_run: {at_most}{stopped}"))
    for line in sources(group.price for group in cost.groups):
        out.print(Text(line))
    notes(out, cost.notes)


def sources(prices: Iterable[Price | None]) -> list[str]:
    """Returns one line a price: its source, its date and its status; before them that some are old, if they are."""
    known = [price for price in prices if price is not None]
    age = age_text(known, datetime.now(timezone.utc).date())
    return [*([age] if age else []), *dict.fromkeys(origin(price) for price in known)]


def _listed(price: Price | None) -> str:
    return MISSING if price is None else f"{price.price:g} {price.unit}"


def show_price_changes(changes: Sequence[PriceChange]) -> None:
    """Prints what an update of prices changes."""
    if not changes:
        return
    table = columns(("type", "region", "now", "as of", "then", "as of"), right=("now", "then"))
    for each in changes:
        before = (MISSING, "") if each.before is None else (f"{each.before.price:g}", each.before.as_of)
        table.add(each.instance_type, each.region, *before, f"{each.after.price:g}", each.after.as_of)
    out = console()
    out.print(table)
    notes(out, list(dict.fromkeys(each.after.source for each in changes)))


def show_prices(prices: Sequence[Price]) -> None:
    """Prints list prices."""
    names = ("type", "region", "USD/hour", "as of", "", "offered", "source")
    table = columns(names, right=("USD/hour",))
    offered = {True: "yes", False: "no", None: "?"}
    for price in prices:
        how = f"{price.status}: {price.rule}" if price.rule else price.status
        cells = (price.instance_type, price.region, f"{price.price:g}", price.as_of, how, offered[price.offered])
        table.add(*cells, price.source)
    out = console()
    out.print(table)
    notes(
        out,
        [
            "on demand, without taxes; offered: whether EC2 has the type in the region, October 2026",
            "derived prices follow from another row by the rule; licences: --output json",
        ],
    )
