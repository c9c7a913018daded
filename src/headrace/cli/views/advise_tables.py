"""The advice as a table. Measured and predicted stand in different tables, with a title each."""

from __future__ import annotations

from datetime import datetime, timezone

from rich.text import Text

from headrace.cli.views.table import columns, console
from headrace.insight.advise.advisor import Advised
from headrace.insight.advise.clusters import Candidate
from headrace.insight.cost.billing import age_text, amount, origin
from headrace.insight.figures.figure import Figure, Spread
from headrace.insight.performance_model import Range
from headrace.insight.render.plain_text import MISSING, quantity, spread


def show_advised(found: Advised, *, everything: bool) -> None:
    """Prints the advice for one run.

    Args:
        found: the advice.
        everything: all candidates, not only those that stand out.
    """
    out = console()
    out.print(Text(found.run_id, style="bold"))
    if age := age_text(found.prices, datetime.now(timezone.utc).date()):
        out.print(Text(age))
    out.print()
    now = found.now
    money = (f"{found.currency}/1000 samples", f"{found.currency} to train") if found.prices else ()
    table = columns(("measured, this run", "step", "", "data wait", *money), right=("step", "data wait"))
    costs = (_money(now.cost_per_1000_samples), _money(now.cost)) if money else ()
    table.add(now.cluster, milliseconds(now.step.value), _range(now.step), f"{100 * now.wait:.1f} %", *costs)
    out.print(table)
    out.print()
    shown = [one for one in found.candidates if everything or one.marks]
    table = columns(
        (
            f"predicted{'' if found.trusted else ', NOT TRUSTED'}, data hosts",
            "step",
            "",
            "data wait",
            *money,
            "verdict",
            "",
        ),
        right=("step", "data wait"),
    )
    for one in shown:
        table.add(*_cells(one, with_money=bool(money)))
    if shown:
        out.print(table)
    hidden = len(found.candidates) - len(shown)
    if hidden and found.trusted:
        out.print(Text(f"{hidden} more candidates: --all"))
    elif hidden:
        out.print(Text(f"{hidden} candidates are not shown, because their predictions are not to be trusted: --all"))
    out.print()
    out.print(Text(found.advice, style="bold"))
    if found.verified is not None:
        _show_verified(found)
    out.print()
    error = f"{100 * now.residual:+.1f} %"
    out.print(Text(f"model: {milliseconds(now.predicted.value)} for this run's own cluster, measured {error} of that"))
    for text in found.assumptions:
        out.print(Text(f"assumed: {text}"))
    for price in found.prices:
        out.print(Text(origin(price)))
    for text in found.notes:
        out.print(Text(f"note: {text}"))
    out.print(Text("note: [a .. b]: measured, 10th to 90th percentile of the seconds; predicted, what follows from it"))


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


def _show_verified(found: Advised) -> None:
    proof = found.verified
    assert proof is not None
    out = console()
    out.print()
    table = columns(("verified", "step", "", "data wait"), right=("step", "data wait"))
    for name, step, wait in (
        ("predicted", proof.predicted, proof.predicted_wait),
        ("measured", proof.measured, proof.measured_wait),
    ):
        table.add(name, milliseconds(step.value), _range(step), f"{100 * wait:.0f} %")
    out.print(table)
    where = "inside" if proof.inside else "outside"
    error = f"measured {100 * proof.error:+.1f} % of the prediction, {where} its range"
    out.print(Text(f"{proof.cluster}: {error} ({proof.run_id})"))
    if proof.unverified:
        out.print(Text(proof.unverified))


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
