"""Candidate clusters: what the model and the price list say of each, and which of them stand out. Pure.

A candidate keeps the hosts that train and puts `data_hosts` hosts of one type beside them, in place of those that the
run had. A host counts with as many cores for each vCPU of its type as the run's hosts had: on the platform one, on a
machine that plays all hosts a part of one, so that a small run stands for the large one in its proportions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.catalog.instance_types import shape, speed
from headrace.catalog.prices import cost
from headrace.insight.advise.measured_inputs import GroupFacts, Measured, published_bandwidth
from headrace.insight.performance_model import COMPUTE, NETWORK, Pool, Prediction, Range, predict
from headrace.insight.verdicts.thresholds import NOT_BOUND_SHARE

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
