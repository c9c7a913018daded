"""Candidate clusters: what the model and the price list say of each, which of them stand out, and the advice in words.
Pure.

A candidate keeps the hosts that train and puts `data_hosts` hosts of one type beside them, in place of those that the
run had. A host counts with as many cores for each vCPU of its type as the run's hosts had: on the platform one, on a
machine that plays all hosts a part of one, so that a small run stands for the large one in its proportions.

Whether the model may be believed about a run is told first: it must explain the step of the run's own cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.catalog.instance_types import shape, speed
from headrace.catalog.prices import cost
from headrace.insight.advise.calibrate import GroupFacts, Measured, published_bandwidth
from headrace.insight.evidence import CPU_BUSY, NEXT_APART, NOT_BOUND_SHARE, WORTH, VerdictName
from headrace.insight.performance_model import COMPUTE, NETWORK, Pool, Prediction, Range, predict
from headrace.insight.render.plain_text import quantity
from headrace.insight.verdict import Verdict

SAME = 0.01
"""Steps that differ by less count as equally fast."""


class Candidate(msgspec.Struct, frozen=True):
    """One cluster. Every number in it is predicted, none is measured.

    Attributes:
        data_hosts: hosts that only make samples.
        instance_type: their type; empty when there are none.
        workers: data workers on each of them.
        step: seconds.
        wait: share of the step that ranks wait, 0 to 1.
        limit: what decides the step: ``compute``, ``workers`` or ``network``.
        verdict: ``compute-bound``, ``input-bound`` or ``network-bound``.
        price_per_hour: of the whole cluster; None when a price is not known.
        cost_per_1000_samples, cost: in the currency of the prices; `cost` is that of the whole run, as in its report.
        time_to_train: seconds; None when the run has not completed.
        marks: ``frontier`` (nothing else is both faster and cheaper), ``fastest``, ``cheapest``, ``knee``, ``advised``.
    """

    data_hosts: int
    instance_type: str
    workers: int
    step: Range
    wait: float
    limit: str
    verdict: str
    price_per_hour: float | None
    cost_per_1000_samples: Range | None
    time_to_train: Range | None
    cost: Range | None
    marks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The data hosts in words."""
        return f"{self.data_hosts} x {self.instance_type}" if self.data_hosts else "no data hosts"


class Scenario(msgspec.Struct, frozen=True):
    """What all candidates share.

    Attributes:
        measured: the run.
        prices: list price an hour by instance type.
        workers: data workers on a data host; None for one a core.
        residual: measured step of the run's own cluster / what the model says of it, minus 1.
        other_seconds: of the run's time to train, what was no step; None when the run has not completed.
        other_billed: of the seconds from the start of its instances to its end, what was no step; None likewise.
    """

    measured: Measured
    prices: Mapping[str, float]
    workers: int | None
    residual: float
    other_seconds: float | None
    other_billed: float | None


def own_pools(measured: Measured) -> list[Pool]:
    """Returns the pools of the run's own cluster."""
    return [_pool(measured, group, group.hosts) for group in measured.groups]


def cores_per_vcpu(measured: Measured, instance_type: str) -> float:
    """Returns how many of the run's cores stand for a vCPU of a type: as on its own hosts, else as on the trainer's."""
    for group in (*measured.helpers, measured.trainer):
        if group.instance_type == instance_type:
            break
    else:
        group = measured.helpers[0] if measured.helpers else measured.trainer
    known = shape(group.instance_type)
    return group.cores / known.vcpus if known else 1.0


def pools_of(scenario: Scenario, instance_type: str, data_hosts: int) -> list[Pool]:
    """Returns the pools of a candidate. The type's shape must be known."""
    measured = scenario.measured
    trainer = measured.trainer
    own = _pool(measured, trainer, trainer.hosts)
    if not measured.workers_told:  # its loader would be headrace's then: what the ranks leave of the cores
        own = msgspec.structs.replace(own, executors=max(1.0, own.cores - measured.ranks_per_host))
    if not data_hosts:
        return [own]
    known = shape(instance_type)
    assert known is not None
    cores = known.vcpus * cores_per_vcpu(measured, instance_type)
    cpu, pause = sample_cost(measured, instance_type)
    executors = max(1.0, cores) if scenario.workers is None else float(scenario.workers)
    return [own, Pool(data_hosts, cores, executors, cpu, pause, bandwidth_of(measured, instance_type))]


def sample_cost(measured: Measured, instance_type: str) -> tuple[Range, Range]:
    """Returns CPU seconds and pause of a sample on a type.

    What its own hosts took; else what others took, with a range that also holds what the published clocks of both
    types say.
    """
    told = [group for group in (*measured.helpers, measured.trainer) if group.cpu is not None]
    same = [group for group in told if group.instance_type == instance_type]
    group = (same or told)[0]
    assert group.cpu is not None
    assert group.pause is not None
    here, there = speed(group.instance_type).clock_ghz, speed(instance_type).clock_ghz
    if same or here is None or there is None:
        return group.cpu, group.pause
    ratio = here / there
    return Range(group.cpu.low * min(1.0, ratio), group.cpu.value, group.cpu.high * max(1.0, ratio)), group.pause


def bandwidth_of(measured: Measured, instance_type: str) -> float | None:
    """Returns the bytes a second that the network of a data host carries; None when it is not known.

    That of the run's own data hosts, for another type in proportion to both published bandwidths; else the published
    one.
    """
    there = published_bandwidth(instance_type)
    known = [group for group in measured.helpers if group.bandwidth is not None]
    if not known:
        return there
    group = next((one for one in known if one.instance_type == instance_type), known[0])
    here = published_bandwidth(group.instance_type)
    assert group.bandwidth is not None
    return group.bandwidth * (there / here if here and there else 1.0)


def _pool(measured: Measured, group: GroupFacts, hosts: int) -> Pool:
    cpu, pause = group.cpu, group.pause
    if cpu is None or pause is None:
        cpu, pause = sample_cost(measured, group.instance_type)
    bandwidth = published_bandwidth(group.instance_type) if group.bandwidth is None else group.bandwidth
    return Pool(hosts, group.cores, group.executors, cpu, pause, bandwidth, group.trains)


def candidate(scenario: Scenario, instance_type: str, data_hosts: int) -> Candidate:
    """Returns what the model and the price list say of one cluster."""
    measured = scenario.measured
    pools = pools_of(scenario, instance_type, data_hosts)
    found = predict(measured.workload, pools)
    step = widened(found.step, scenario.residual)
    price = _price(scenario, instance_type, data_hosts)
    time = None if scenario.other_seconds is None else _scaled(step, measured.steps, scenario.other_seconds)
    billed = None if scenario.other_billed is None else _scaled(step, measured.steps, scenario.other_billed)
    a_thousand = 1000 / measured.workload.rows
    return Candidate(
        data_hosts=data_hosts,
        instance_type=instance_type if data_hosts else "",
        workers=round(pools[-1].executors) if data_hosts else 0,
        step=step,
        wait=found.wait,
        limit=found.limit,
        verdict=verdict_of(found),
        price_per_hour=price,
        cost_per_1000_samples=_money(price, _scaled(step, a_thousand)),
        time_to_train=time,
        cost=None if billed is None else _money(price, billed),
    )


def verdict_of(found: Prediction) -> str:
    """Returns the verdict that a prediction amounts to."""
    if found.wait < NOT_BOUND_SHARE or found.limit == COMPUTE:
        return "compute-bound"
    return "network-bound" if found.limit == NETWORK else "input-bound"


def widened(step: Range, residual: float) -> Range:
    """Returns a predicted range, widened by what the model misses on the run's own cluster."""
    return Range(step.low * min(1.0, 1 + residual), step.value, step.high * max(1.0, 1 + residual))


def _scaled(of: Range, factor: float, more: float = 0.0) -> Range:
    return Range(of.low * factor + more, of.value * factor + more, of.high * factor + more)


def _money(price: float | None, seconds: Range) -> Range | None:
    if price is None:
        return None
    return Range(cost(price, seconds.low), cost(price, seconds.value), cost(price, seconds.high))


def _price(scenario: Scenario, instance_type: str, data_hosts: int) -> float | None:
    trainer = scenario.measured.trainer
    return _sum_of_prices(
        scenario, [(trainer.instance_type, trainer.hosts), *([(instance_type, data_hosts)] if data_hosts else [])]
    )


def current_price(scenario: Scenario) -> float | None:
    """Returns what an hour of the run's own cluster costs; None when a price is not known."""
    return _sum_of_prices(scenario, [(group.instance_type, group.hosts) for group in scenario.measured.groups])


def _sum_of_prices(scenario: Scenario, hosts: Sequence[tuple[str, int]]) -> float | None:
    """Returns the price of an hour of these hosts and of those that neither train nor make samples."""
    wanted = [*hosts, *((group.instance_type, len(group.hosts)) for group in scenario.measured.others)]
    if any(name not in scenario.prices for name, _ in wanted):
        return None
    return sum(scenario.prices[name] * count for name, count in wanted)


def candidates(scenario: Scenario, types: Iterable[str], max_hosts: int) -> list[Candidate]:
    """Returns all candidates: the one without data hosts first, if the trainer's hosts make samples too."""
    trainer = scenario.measured.trainer
    makes = trainer.executors > 0 or not scenario.measured.workers_told
    found = [candidate(scenario, "", 0)] if makes else []
    return found + [candidate(scenario, name, hosts) for name in types for hosts in range(1, max_hosts + 1)]


def frontier(found: Sequence[Candidate]) -> list[Candidate]:
    """Returns the candidates that no other beats in time and in cost, the slowest and cheapest first."""
    priced = [one for one in found if one.cost_per_1000_samples is not None]
    kept: list[Candidate] = []
    for one in sorted(priced, key=lambda each: (each.step.value, _cost(each), each.data_hosts)):
        if not kept or _cost(one) < _cost(kept[-1]):
            kept.append(one)
    return kept[::-1]


def fastest(found: Sequence[Candidate]) -> Candidate | None:
    """Returns the cheapest of those that are as fast as the fastest; without prices the one with the fewest hosts."""
    least = min((one.step.value for one in found), default=0.0)
    fast = [one for one in found if one.step.value <= least * (1 + SAME)]
    return min(fast, key=by_cost, default=None)


def cheapest(found: Sequence[Candidate]) -> Candidate | None:
    """Returns the candidate whose samples cost least; of equals the faster. None without prices."""
    priced = [one for one in found if one.cost_per_1000_samples is not None]
    return min(priced, key=lambda one: (_cost(one), one.step.value), default=None)


def knee(found: Sequence[Candidate]) -> Candidate | None:
    """Returns the candidate of the frontier with the least time x cost: beyond it one per cent of time costs more than
    one per cent of money. None without prices."""
    return min(frontier(found), key=lambda one: one.step.value * _cost(one), default=None)


def by_cost(one: Candidate) -> tuple[bool, float, int, float]:
    """Sort key: what is known to be cheap first, then few hosts, then fast."""
    known = one.cost_per_1000_samples is not None
    return (not known, _cost(one) if known else 0.0, one.data_hosts, one.step.value)


def _cost(one: Candidate) -> float:
    assert one.cost_per_1000_samples is not None
    return one.cost_per_1000_samples.value


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
        predicted = f"{_ms(fewer.step.value)}{_cheaper(now, fewer)}"
        return fewer, f"Do not add CPU hosts: {waits}. {enough}: a predicted step of {predicted}."
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
        f"measured{_cheaper(now, best)}.{_LINK if measured.link_unsure and best.data_hosts else ''}"
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


def _cheaper(now: Current, one: Candidate) -> str:
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
    if not measured.workers_told and measured.wait >= NOT_BOUND_SHARE and busy is not None and busy < CPU_BUSY / 100:
        notes.append(
            f"the trainer's cores were {100 * busy:.0f} % busy although ranks waited: its workers wait for something "
            "else (too few workers, a disk); `headrace doctor` tells, and more workers may be all it takes"
        )
    return tuple(notes)
