"""The advice as a table. Measured and predicted stand in different tables, with a title each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from headrace.insight.advise.advisor import Advised
from headrace.insight.advise.clusters import Candidate
from headrace.insight.cost.billing import age_text, amount, origin
from headrace.insight.figures.figure import Figure, Spread
from headrace.insight.performance_model import Range
from headrace.insight.render.document import (
    Document,
    Heading,
    Notes,
    Section,
    Sentence,
    document,
    section,
    sentences,
    table,
)
from headrace.insight.render.plain_text import MISSING, quantity, spread

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
