"""What a run costs: the list price of the instance types that its job names, for the time that was measured.

Two sums stand side by side and are never mixed. `total` follows headrace's own clocks, where a host that was released
early costs no more; `platform` is what SageMaker would bill for the same run, where all instances run to its end. Of
a run that a platform has billed both are the same: its own seconds count, and no clock of headrace.
Money is in no figure without a price: an unknown price gives a figure without a value, and a note.

The core, `cost_of`, takes values and returns values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone

import msgspec

from headrace.catalog.prices import CURRENCY, Price, cost, price_of
from headrace.insight.billing import (
    BILLED_FORMULAS,
    Bill,
    bill_by_clocks,
    bill_of_platform,
    billed_text,
    per_1000_samples,
    per_step,
    unpriced,
)
from headrace.insight.figures.columns import Table, read_columns, total
from headrace.insight.figures.figure import FORMULAS, Figure, Window, figure_of, missing
from headrace.insight.figures.loaders import Ranks, Training, job_time, training_of, whole_of
from headrace.insight.figures.run_files import PlannedGroup, PlannedJob, absent, planned_job
from headrace.runs import Run, RunState, Status, Stream
from headrace.runs.event_text import silence_text
from headrace.runs.events import AttemptBilled
from headrace.runs.state import HostTime

_NAMES = (
    "billable_seconds",
    "cost",
    "cost_per_hour",
    "cost_per_step",
    "cost_per_1000_samples",
    "cost_per_epoch",
    "cost_of_epoch",
    "cost_platform",
)


class HostCost(msgspec.Struct, frozen=True):
    """What one instance costs.

    Attributes:
        group, host: which one.
        released: its clock stopped before the end of the run.
        seconds: that it ran.
        cost: of these seconds.
    """

    group: str
    host: str
    released: bool
    seconds: Figure
    cost: Figure


class GroupCost(msgspec.Struct, frozen=True):
    """What one instance group costs.

    Attributes:
        group: its name.
        instance_type: that the job names; this machine may only have played it.
        instances: how many.
        price: of one instance an hour; None when it is not known.
        seconds: that its instances ran, added up.
        cost: of these seconds.
    """

    group: str
    instance_type: str
    instances: int
    price: Price | None
    seconds: Figure
    cost: Figure


class EpochCost(msgspec.Struct, frozen=True):
    """What the steps of one epoch cost.

    Attributes:
        epoch: its number.
        steps: of the rank that did most.
        samples: of all ranks; None when its batches do not tell how many they have.
        seconds: that the steps of the slowest rank lasted.
        cost: see `FORMULAS`.
    """

    epoch: int
    steps: int
    samples: int | None
    seconds: float
    cost: Figure


class CostReport(msgspec.Struct, frozen=True):
    """What a run costs, or has cost so far.

    Attributes:
        region: whose prices are taken.
        currency: of all money.
        total: of all hosts, each to its own end.
        per_hour: of the hosts that ran in the training window.
        per_step, per_epoch, per_1000_samples: of the training's main loader.
        platform: what the platform would bill.
        groups, hosts, epochs: the parts.
        max_cost: the job's budget, None without one.
        notes: what a reader must know about these figures.
        formulas: how every figure is computed, by its name.
        billed: what the platform says that it bills, an attempt each; empty where none does.
    """

    region: str
    currency: str
    total: Figure
    per_hour: Figure
    per_step: Figure
    per_epoch: Figure
    per_1000_samples: Figure
    platform: Figure
    groups: tuple[GroupCost, ...]
    hosts: tuple[HostCost, ...]
    epochs: tuple[EpochCost, ...]
    max_cost: float | None
    notes: tuple[str, ...]
    formulas: dict[str, str]
    billed: tuple[AttemptBilled, ...] = ()


def cost_report(run: Run, *, region: str | None = None, by_work: bool = True) -> CostReport:
    """Reads a run and returns what it costs.

    Args:
        run: the run; it may still be going on.
        region: whose prices are taken; None for where the run is, else that of the job's budget, else us-east-1, which
            a note says.
        by_work: also by step, sample and epoch, for which all metrics of the loaders are read.

    Raises:
        OSError, msgspec.DecodeError: if its header cannot be read.
    """
    header, state = run.header, run.state()
    clock = datetime.now(timezone.utc).timestamp()
    on = datetime.fromtimestamp(header.created, timezone.utc).date()
    job, unread = planned_job(run)
    found = cost_of(
        state,
        PlannedJob() if unread else job,
        training_of(read_columns(run).loaders()) if by_work else None,
        now=run.present(clock),
        region=region,
        on=on,
        engine="" if unread else header.engine,
    )
    silent = None if state.finished else run.silent_seconds(clock)
    copy = [] if silent is None else [silence_text(silent)]
    first = (*copy, *([unread] if unread else []), *map(str, (*run.damage, *absent(run.paths, state))))
    return msgspec.structs.replace(found, notes=(*first, *found.notes))


def cost_of(
    state: RunState,
    job: PlannedJob,
    training: Training | None,
    *,
    now: float,
    region: str | None = None,
    on: date | None = None,
    engine: str = "",
) -> CostReport:
    """Returns what a run costs, from values alone.

    Args:
        state: what its events say.
        job: its groups and its budget.
        training: its main loader; None without loader metrics.
        now: until when clocks count that still run.
        region: see `cost_report`.
        on: day of the run: no later price is taken.
        engine: where it ran.
    """
    where, unnamed = job.priced_in(region)
    prices = {group.name: price_of(group.instance_type, where, on=on) for group in job.groups}
    why_not = unpriced(job.groups, prices, where)
    if state.billed:
        bill = bill_of_platform(state, why_not, region or "", on)
    else:
        bill = bill_by_clocks(state, prices, why_not, now)
    figures = None if training is None else training.report
    rate = bill.per_hour(None if training is None else training.window)
    epochs = () if training is None else _epochs(bill, training.ranks)
    return CostReport(
        region=where,
        currency=CURRENCY,
        total=bill.cost(bill.charges),
        per_hour=rate,
        per_step=per_step(rate, figures),
        per_epoch=_per_epoch(epochs, state),
        per_1000_samples=per_1000_samples(rate, figures),
        platform=bill.platform(job.groups),
        groups=tuple(_group(bill, group, prices[group.name]) for group in job.groups),
        hosts=tuple(_host(bill, host) for host in state.hosts),
        epochs=epochs,
        max_cost=job.budget.max_cost if job.budget else None,
        notes=tuple(_notes(bill, prices, where, unnamed, engine)),
        formulas={each: (BILLED_FORMULAS if state.billed else FORMULAS).get(each, FORMULAS[each]) for each in _NAMES},
        billed=state.billed,
    )


def _group(bill: Bill, group: PlannedGroup, price: Price | None) -> GroupCost:
    charges = bill.of_group(group.name)
    return GroupCost(
        group=group.name,
        instance_type=group.instance_type,
        instances=len(group.hosts),
        price=price,
        seconds=bill.seconds(charges),
        cost=bill.cost(charges),
    )


def _host(bill: Bill, host: HostTime) -> HostCost:
    charges = bill.of_host(host)
    return HostCost(host.group, host.host, host.released, bill.seconds(charges), bill.cost(charges))


def _epochs(bill: Bill, ranks: Ranks) -> tuple[EpochCost, ...]:
    epochs: dict[int, dict[Stream, Table]] = {}
    for stream, rank in ranks.items():
        for number, rows in rank.parted("epoch").items():
            epochs.setdefault(number, {})[stream] = rows
    return tuple(_epoch(bill, number, epochs[number]) for number in sorted(epochs))


def _epoch(bill: Bill, number: int, ranks: Ranks) -> EpochCost:
    _, seconds, steps = job_time(ranks)
    whole = whole_of(ranks)
    samples = int(total(rank["samples"] for rank in ranks.values()))
    if bill.unknown or whole is None or not whole.seconds:
        money = missing("cost_of_epoch", bill.unknown or "it has no step")
    else:
        rate = bill.hourly(whole.start, whole.end)
        money = figure_of("cost_of_epoch", cost(rate, seconds), whole)
    return EpochCost(number, steps, samples or (None if steps else 0), seconds, money)


def _per_epoch(epochs: Sequence[EpochCost], state: RunState) -> Figure:
    name = "cost_per_epoch"
    if not epochs:
        return missing(name, "no loader has counted a step")
    unknown = next((epoch.cost.note for epoch in epochs if epoch.cost.value is None), None)
    if unknown is not None:
        return missing(name, unknown)
    ended = list(epochs if state.status is Status.COMPLETED else epochs[:-1])
    if not ended:
        return missing(name, "no epoch has ended")
    kept = ended[1:] or ended
    values = [epoch.cost.value for epoch in kept if epoch.cost.value is not None]
    windows = [epoch.cost.window for epoch in kept if epoch.cost.window is not None]
    window = Window(min(each.start for each in windows), max(each.end for each in windows))
    note = "the first epoch, warm-up included" if kept == ended else ""
    return figure_of(name, math.fsum(values) / len(values), window, note=note)


def _notes(bill: Bill, prices: Mapping[str, Price | None], region: str, unnamed: str, engine: str) -> list[str]:
    state, notes = bill.state, list(billed_text(bill.state.billed))
    known = any(prices.values())
    if engine == "local" and known:
        notes.append(
            "this machine played the instances and nobody is billed: these are list prices of the named instance types "
            "for the time measured here"
        )
    if unnamed and known:
        notes.append(unnamed)
    notes += bill.unpriced.values()
    gone = dict.fromkeys(price.instance_type for price in prices.values() if price and price.offered is False)
    notes += [f"{kind} was not offered in {region} any more in October 2026" for kind in gone]
    if state.attempt > 1:
        notes.append(f"{state.attempt} attempts: all of them are counted")
    if not state.finished and state.instances_started is not None:
        notes.append("the run is still going on: the figures are of now")
    return notes
