"""The advice in words: which candidate, why, on which assumptions. Pure.

Whether the model may be believed about a run is told first: it must explain the step of the run's own cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.catalog.instance_types import shape, speed
from headrace.insight.advise.calibrate import SATURATED
from headrace.insight.advise.clusters import SAME, Candidate, by_cost, cores_per_vcpu, knee
from headrace.insight.advise.measured_inputs import Measured
from headrace.insight.performance_model import Range
from headrace.insight.render.plain_text import quantity
from headrace.insight.verdicts.decide import Verdict
from headrace.insight.verdicts.thresholds import NEXT_APART, NOT_BOUND_SHARE, WORTH, VerdictName

MISSED = 0.25
"""From this distance of the measured step from the predicted one of the same cluster on, the model does not explain
the run: `make bench-advise` has missed no configuration by so much."""


def explains(step: Range, predicted: float) -> bool:
    """Returns whether the model explains a run: it misses its step by less than MISSED, or by less than its seconds
    differ.

    Args:
        step: as measured, with the 10th and 90th percentile of its per-second values.
        predicted: of the same cluster.
    """
    return abs(step.value / predicted - 1) < MISSED or step.low <= predicted <= step.high


def first_of_all(verdict: Verdict | None) -> str:
    """Returns what has to be mended before data hosts are thought of, in sentences; empty when nothing has."""
    if verdict is not None and verdict.crowded:
        return (
            f"It cannot be told whether CPU hosts would help, because {verdict.crowded}. Run it again while nothing "
            "else runs there."
        )
    if verdict is None or not (verdict.workers_idle or verdict.name in (VerdictName.SKEWED, VerdictName.STALLED)):
        return ""
    why = "a wait for the workers" if verdict.workers_idle else "equal ranks whose steps do not stop"
    return (
        f"First mend what the verdict names: {verdict.sentence}. Next: {verdict.next}. What data hosts would bring "
        f"cannot be told before: the model knows {why}."
    )


def likely(measured: Measured, step: float, predicted: float) -> str:
    """Returns what a model that does not explain a run has probably missed, and what to do, in sentences."""
    if step < predicted:
        return "The run was faster than its measured costs allow: they are not those of its usual steps; run longer"
    if not measured.workers_told:
        return (
            "Its loader is another library's, which does not tell how its samples are made: probably they wait (for a "
            "disk, a network), or the loader has no workers (`num_workers=0`) and makes batches in the rank's own "
            "process, in turn with computing. Give it workers, or use headrace.feed.DataLoader, which measures this; "
            "`headrace doctor` tells how many workers are needed"
        )
    return (
        "The rest is neither computing, nor the work of data workers, nor a full network: probably batches are asked "
        "for late (the way there and back, the rank's own Python; many small batches), or other programs use the same "
        "machine"
    )


_BLURRED = (
    "but batches are made on the hosts of the ranks, which have no cores to spare or were not measured: making them "
    f"may be what makes the step long. To find out, {NEXT_APART}."
)

_LINK = " That holds if the link that was full is the data hosts', not the trainer's: which one was not measured."


class Current(msgspec.Struct, frozen=True):
    """The run's own cluster. Everything but `predicted` is measured, at list prices.

    Attributes:
        cluster: in words.
        step: seconds; range: 10th to 90th percentile of the per-second values.
        wait: share of the step, 0 to 1.
        predicted: what the model says of the same cluster, seconds: not a measurement, but the model's proof.
        residual: step / predicted - 1.
        price_per_hour, cost_per_1000_samples: None when a price is not known.
        time_to_train: seconds; None when the run has not completed.
        cost: the run's `cost`, as its report has it; None when the run has not completed.
    """

    cluster: str
    step: Range
    wait: float
    predicted: Range
    residual: float
    price_per_hour: float | None
    cost_per_1000_samples: float | None
    time_to_train: float | None
    cost: float | None


def decide(
    now: Current, measured: Measured, found: Sequence[Candidate], *, trusted: bool = True
) -> tuple[Candidate | None, str]:
    """Returns the advised candidate and the sentence.

    Args:
        now: the run's own cluster.
        measured: what the run told.
        found: all candidates.
        trusted: the model explains the run's own cluster; else nothing is advised that rests on it.
    """
    helpers = sum(group.hosts for group in measured.helpers)
    waits = f"ranks wait {100 * now.wait:.1f} % of a step of {_ms(now.step.value)} (measured)"
    if now.wait < NOT_BOUND_SHARE and measured.blurred:
        return None, f"It cannot be told whether CPU hosts would help: {waits}, {_BLURRED}"
    if now.wait < NOT_BOUND_SHARE:
        fewer = _fewer(now, helpers, found) if trusted else None
        if fewer is None:
            return (
                None,
                f"Do not add CPU hosts: {waits}; their time goes into computing, and faster input changes nothing.",
            )
        enough = f"{_hosts(fewer)} would be enough" if fewer.data_hosts else "It needs no data hosts at all"
        return fewer, (
            f"Do not add CPU hosts: {waits}. {enough}: a predicted step of {_ms(fewer.step.value)}{_money(now, fewer)}."
        )
    if not trusted:
        own, step = now.predicted.value, now.step.value
        return None, (
            f"It cannot be told whether CPU hosts would help: {waits}, and the model explains only {_ms(own)} of it. "
            if own < step
            else f"It cannot be told whether CPU hosts would help: {waits}, where the model says {_ms(own)}. "
        ) + f"{likely(measured, step, own)}."
    # Without data hosts a cluster can only be faster than the run when its script changes to headrace's loader.
    useful = [
        one
        for one in found
        if (one.data_hosts or not measured.workers_told) and now.step.value / one.step.value >= WORTH
    ]
    full = any(one.limit == "network" for one in found)
    if not useful and measured.blurred and not full:
        return None, f"It cannot be told whether CPU hosts would help: {waits}, {_BLURRED}"
    if not useful:
        reason = "the network carries no more" if full else "it is no faster"
        return None, (
            f"Do not add CPU hosts: {waits}, but no candidate is predicted to be {100 * (WORTH - 1):.0f} % faster: "
            f"{reason}."
        )
    removing = [one for one in useful if one.wait < NOT_BOUND_SHARE]
    best = min(removing, key=by_cost) if removing else (knee(useful) or min(useful, key=by_cost))
    many = best.data_hosts > 1
    end = f"remove{'' if many else 's'} the wait"
    if not removing:
        end = f"shorten{'' if many else 's'} the wait to {100 * best.wait:.0f} % (no candidate removes it)"
    if not best.data_hosts:
        many, end = False, f"without data hosts {end}"
    return best, (
        f"{_hosts(best) if best.data_hosts else 'headrace.feed.DataLoader'} {end}: a predicted step of "
        f"{_ms(best.step.value)} ({_ms(best.step.low)} to {_ms(best.step.high)}) instead of {_ms(now.step.value)} "
        f"measured{_money(now, best)}.{_LINK if measured.link_unsure and best.data_hosts else ''}"
    )


def _fewer(now: Current, helpers: int, found: Sequence[Candidate]) -> Candidate | None:
    """Returns a cheaper cluster that is as fast; None when the run has no data hosts or they are needed."""
    if not helpers or now.cost_per_1000_samples is None:
        return None
    limit, price = now.predicted.value * (1 + SAME), now.cost_per_1000_samples
    priced = [one for one in found if one.cost_per_1000_samples is not None and one.step.value <= limit]
    cheaper = [
        one for one in priced if one.price_per_hour is not None and one.price_per_hour < (now.price_per_hour or 0)
    ]
    best = min(cheaper, key=by_cost, default=None)
    if best is None or best.cost_per_1000_samples is None or best.cost_per_1000_samples.value >= price:
        return None
    return best


def _hosts(one: Candidate) -> str:
    return f"{one.data_hosts} data host{'s' if one.data_hosts > 1 else ''} of {one.instance_type}"


def _ms(seconds: float) -> str:
    return quantity(1000 * seconds, "ms")


def _money(now: Current, one: Candidate) -> str:
    if now.cost_per_1000_samples is None or one.cost_per_1000_samples is None:
        return "; whether it is cheaper is not known, because a price is missing"
    change = one.cost_per_1000_samples.value / now.cost_per_1000_samples - 1
    word = "cheaper" if change < 0 else "dearer"
    return f", {abs(100 * change):.0f} % {word} a sample at list prices"


def assumed(measured: Measured, types: Sequence[str]) -> tuple[str, ...]:
    """Returns what the predictions of these types rest on beside measurements, in sentences."""
    trainer = measured.trainer
    told = {group.instance_type for group in measured.groups if group.cpu is not None}
    foreign = [name for name in types if name not in told]
    found = ["compute and the CPU time of a sample stay what they were in this run, whatever is beside it"]
    for group in measured.groups:
        scale = cores_per_vcpu(measured, group.instance_type)
        known = shape(group.instance_type)
        if known is None:
            found.append(f"{group.instance_type} has an unknown shape: a vCPU counts as one core of this run")
        elif scale != 1.0:
            found.append(
                f"{group.cores} core{'s' if group.cores > 1 else ''} of this run stood for the {known.vcpus} vCPUs of "
                f"{group.instance_type}: a vCPU counts as {scale:.3g} of them"
            )
    if foreign:
        clocks = ", ".join(f"{name} {speed(name).clock_ghz or 'unknown'}" for name in (*sorted(told), *foreign))
        found.append(
            f"a vCPU of {', '.join(foreign)} is as fast as a core of this run; the range holds their published clocks "
            f"(GHz: {clocks})"
        )
    if trainer.executors or not measured.workers_told:
        found.append("the trainer's hosts go on making samples with the cores that their ranks leave")
    if not measured.helpers:
        found.append("sending and receiving batches costs no CPU time beside making them: this run sent none")
    if not measured.workers_told:
        found.append("the script changes to headrace.feed.DataLoader, so that other hosts can make its samples")
    found += _networks(measured, foreign)
    return tuple(found)


def _networks(measured: Measured, foreign: Sequence[str]) -> list[str]:
    """Returns what is taken of the networks that were not measured, in sentences."""
    known = [group for group in measured.helpers if group.bandwidth is not None]
    if not known:
        return ["a network carries its published baseline bandwidth; without one it does not limit"]
    others = [name for name in foreign if name not in {group.instance_type for group in known}]
    found = []
    if others:
        found.append(
            f"a network of {', '.join(others)} carries what one of {known[0].instance_type} does here, in proportion "
            "to their published baseline bandwidths"
        )
    return [*found, "a trainer's network that was not full carries its published baseline bandwidth"]


def notes_of(
    measured: Measured, prices: Mapping[str, float], types: Sequence[str], region: str, predicted: float
) -> tuple[str, ...]:
    """Returns what a reader must know before he believes the table, in sentences."""
    notes = []
    lacking = [name for name in dict.fromkeys([*measured.instance_types, *types]) if name not in prices]
    if lacking:
        notes.append(f"no price of {', '.join(lacking)} in {region}: no cost of clusters with it")
    residual = measured.step.value / predicted - 1
    if not explains(measured.step, predicted):
        notes.append(
            f"the model misses this run's own step by {100 * residual:+.0f} % (measured against predicted), more than "
            f"{100 * MISSED:.0f} % and than its seconds differ: what it says of other clusters is not to be trusted"
        )
    elif abs(residual) > WORTH - 1:
        notes.append(
            f"the model misses this run's own step by {100 * residual:+.0f} % (measured against predicted): the ranges "
            "are widened by that"
        )
    if measured.blurred:
        notes.append(
            "the predicted steps count all that is no wait as computing: if making batches is a part of it, data hosts "
            "bring more than is predicted"
        )
    busy = measured.trainer.busy
    if not measured.workers_told and measured.wait >= NOT_BOUND_SHARE and busy is not None and busy < SATURATED:
        notes.append(
            f"the trainer's cores were {100 * busy:.0f} % busy although ranks waited: its workers wait for something "
            "else (too few workers, a disk); `headrace doctor` tells, and more workers may be all it takes"
        )
    return tuple(notes)
