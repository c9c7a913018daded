"""Money: what a run or a plan costs, list prices, and the advice. It shows values; it computes none. Measured and
predicted stand in different tables, with a title each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from headrace.catalog.prices import Price, PriceChange
from headrace.insight.billing import age_text, amount, origin
from headrace.insight.figures.figure import Figure, Spread
from headrace.insight.render.document import (
    Document,
    Heading,
    Notes,
    Section,
    Sentence,
    Table,
    document,
    notes,
    section,
    sentences,
    table,
)
from headrace.insight.render.plain_text import MISSING, listed, number, quantity, spread
from headrace.insight.render.run_documents import cost_tables

if TYPE_CHECKING:  # what is shown was made before
    from headrace.insight import CostReport, Projection
    from headrace.insight.advise.advisor import Advised
    from headrace.insight.advise.clusters import Candidate
    from headrace.insight.performance_model import Range

_OF_CLOCKS = ("cost", "billable_seconds", "cost_platform")
_FORMULAS = {
    "group": _OF_CLOCKS,
    "host": _OF_CLOCKS,
    "step": ("cost_per_hour", "cost_per_step", "cost_per_1000_samples", "cost_per_epoch"),
    "epoch": ("cost_of_epoch",),
}


def cost_document(report: CostReport, by: str, run_id: str) -> Document:
    """Returns what a run costs. `by`: ``group``, ``host``, ``step`` or ``epoch``."""
    limit = None if report.max_cost is None else Sentence(f"budget: {amount(report.max_cost)} {report.currency}")
    part = {"group": _groups, "host": _hosts, "step": _steps, "epoch": _epochs}[by](report)
    origins = sources(group.price for group in report.groups)
    return document(
        section(
            Heading(f"{run_id}  {number(report.total)} {report.total.note}".rstrip()),
            Sentence(f"on the platform, where no instance is released early: {number(report.platform)}"),
            limit,
        ),
        section(part if part.rows else Sentence("no loader has counted a step")),
        section(*sentences(f"{name} = {report.formulas[name]}" for name in _FORMULAS[by]), *sentences(origins)),
        notes([*report.notes, *_why_not(report, by)]),
    )


def _groups(report: CostReport) -> Table:
    return cost_tables(report)[0]


def _hosts(report: CostReport) -> Table:
    rows = (
        (host.group, host.host, number(host.seconds), number(host.cost), "released early" if host.released else "")
        for host in report.hosts
    )
    return table(("group", "host", "billable", "cost", ""), rows, ("billable", "cost"))


def _steps(report: CostReport) -> Table:
    figures = (
        ("an hour of training", report.per_hour),
        ("a step", report.per_step),
        ("1,000 samples", report.per_1000_samples),
        ("an epoch", report.per_epoch),
    )
    rows = ((title, number(figure), spread(figure)) for title, figure in figures)
    return table(("", "cost", "10th .. 90th percentile of the seconds"), rows, ("cost",))


def _epochs(report: CostReport) -> Table:
    names = ("epoch", "steps", "samples", "steps lasted", "cost")
    rows = (
        (
            str(epoch.epoch),
            str(epoch.steps),
            MISSING if epoch.samples is None else str(epoch.samples),
            f"{epoch.seconds:.2f} s",
            number(epoch.cost),
        )
        for epoch in report.epochs
    )
    return table(names, rows, names)


def _why_not(report: CostReport, by: str) -> Iterable[str]:
    """Returns why figures that are shown have no value, as far as the report's notes do not say it."""
    figures = [report.total, report.platform]
    if by == "step":
        figures += [report.per_hour, report.per_step, report.per_1000_samples, report.per_epoch]
    said = dict.fromkeys(figure.note for figure in figures if figure.value is None)
    return [note for note in said if note not in report.notes]


def projection_document(cost: Projection) -> Document:
    """Returns what a plan may cost."""
    names = ("group", "type", "hosts", "list price", "projected an hour")
    rows = [
        (group.group, group.instance_type, str(group.instances), listed(group.price), number(group.per_hour))
        for group in cost.groups
    ]
    rows.append(("all", "", str(sum(group.instances for group in cost.groups)), "", number(cost.per_hour)))
    at_most = f"{number(cost.maximum)} {cost.maximum.note}".strip()
    stops = cost.max_cost is not None and cost.maximum.value is not None and cost.max_cost < cost.maximum.value
    stopped = f"; the budget stops it at {amount(cost.max_cost or 0.0)} {cost.currency}" if stops else ""
    return document(
        section(
            table(names, rows, names[2:]),
            Sentence(f"at most, when all run for all of max_run: {at_most}{stopped}"),
            *sentences(sources(group.price for group in cost.groups)),
        ),
        notes(cost.notes),
    )


def sources(prices: Iterable[Price | None]) -> list[str]:
    """Returns one line a price: its source, its date and its status; before them that some are old, if they are."""
    known = [price for price in prices if price is not None]
    age = age_text(known, datetime.now(timezone.utc).date())
    return [*([age] if age else []), *dict.fromkeys(origin(price) for price in known)]


def price_changes_document(changes: Sequence[PriceChange], outcome: str) -> Document:
    """Returns what an update of prices changes. `outcome`: what has become of it."""
    before = [
        (MISSING, "") if each.before is None else (f"{each.before.price:g}", each.before.as_of) for each in changes
    ]
    rows = [
        (each.instance_type, each.region, *old, f"{each.after.price:g}", each.after.as_of)
        for each, old in zip(changes, before, strict=True)
    ]
    names = ("type", "region", "now", "as of", "then", "as of")
    return document(
        section(table(names, rows, ("now", "then")) if rows else None),
        notes(each.after.source for each in changes),
        section(Sentence(outcome)),
    )


def prices_document(prices: Sequence[Price]) -> Document:
    """Returns list prices."""
    offered = {True: "yes", False: "no", None: "?"}
    rows = (
        (
            price.instance_type,
            price.region,
            f"{price.price:g}",
            price.as_of,
            f"{price.status}: {price.rule}" if price.rule else price.status,
            offered[price.offered],
            price.source,
        )
        for price in prices
    )
    names = ("type", "region", "USD/hour", "as of", "", "offered", "source")
    return document(
        section(table(names, rows, ("USD/hour",))),
        notes(
            (
                "on demand, without taxes; offered: whether EC2 has the type in the region, October 2026",
                "derived prices follow from another row by the rule; licences: --output json",
            )
        ),
    )


_RIGHT = ("step", "data wait")


def advice_document(found: Advised, *, everything: bool) -> Document:
    """Returns the advice for one run.

    Args:
        found: the advice.
        everything: all candidates, not only those that stand out.
    """
    now = found.now
    money = (f"{found.currency}/1000 samples", f"{found.currency} to train") if found.prices else ()
    costs = (_money(now.cost_per_1000_samples), _money(now.cost)) if money else ()
    measured = (now.cluster, milliseconds(now.step.value), _range(now.step), f"{100 * now.wait:.1f} %", *costs)
    kept = [one for one in found.candidates if everything or one.marks]
    predicted = f"predicted{'' if found.trusted else ', NOT TRUSTED'}, data hosts"
    names = (predicted, "step", "", "data wait", *money, "verdict", "")
    rows = [_cells(one, with_money=bool(money)) for one in kept]
    error = f"measured {100 * now.residual:+.1f} % of that"
    age = age_text(found.prices, datetime.now(timezone.utc).date())
    ranges = "[a .. b]: measured, 10th to 90th percentile of the seconds; predicted, what follows from it"
    return document(
        section(Heading(found.run_id), Sentence(age) if age else None),
        section(table(("measured, this run", *names[1:4], *money), [measured], _RIGHT)),
        section(table(names, rows, _RIGHT) if rows else None, *sentences(_hidden(found, len(kept)))),
        section(Sentence(found.advice, strong=True)),
        _verified(found),
        section(
            Sentence(f"model: {milliseconds(now.predicted.value)} for this run's own cluster, {error}"),
            *sentences(f"assumed: {text}" for text in found.assumptions),
            *sentences(map(origin, found.prices)),
            Notes((*found.notes, ranges)),
        ),
    )


def _hidden(found: Advised, kept: int) -> Iterator[str]:
    hidden = len(found.candidates) - kept
    if hidden and found.trusted:
        yield f"{hidden} more candidates: --all"
    elif hidden:
        yield f"{hidden} candidates are not shown, because their predictions are not to be trusted: --all"


def _cells(one: Candidate, *, with_money: bool) -> tuple[str, ...]:
    costs = (_figure(one.cost_per_1000_samples), _figure(one.cost)) if with_money else ()
    return (
        one.title,
        milliseconds(one.step.value),
        _range(one.step),
        f"{100 * one.wait:.0f} %",
        *costs,
        one.verdict,
        " ".join(one.marks),
    )


def _verified(found: Advised) -> Section | None:
    proof = found.verified
    if proof is None:
        return None
    rows = (
        (name, milliseconds(step.value), _range(step), f"{100 * wait:.0f} %")
        for name, step, wait in (
            ("predicted", proof.predicted, proof.predicted_wait),
            ("measured", proof.measured, proof.measured_wait),
        )
    )
    where = "inside" if proof.inside else "outside"
    error = f"measured {100 * proof.error:+.1f} % of the prediction, {where} its range"
    lines = [f"{proof.cluster}: {error} ({proof.run_id})", *filter(None, [proof.unverified])]
    return section(table(("verified", "step", "", "data wait"), rows, _RIGHT), *sentences(lines))


def milliseconds(seconds: float) -> str:
    """Returns a time with its unit, as a report writes it."""
    return quantity(1000 * seconds, "ms")


def _range(of: Range) -> str:
    between = Spread(1000 * of.low, 1000 * of.high, count=0)
    return spread(Figure("step", "ms", 1000 * of.value, None, between))


def _figure(cost: Range | None) -> str:
    return _money(None if cost is None else cost.value)


def _money(value: float | None) -> str:
    return MISSING if value is None else amount(value)
