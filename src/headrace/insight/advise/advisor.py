"""`advise`: how many data hosts of which type remove the wait, and whether that is cheaper. Pure, but for `advised`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone

import msgspec

from headrace.catalog.instance_types import hint_for, parse_bandwidth, shape
from headrace.catalog.prices import CURRENCY, Price, cost, price_of
from headrace.errors import UsageError
from headrace.insight.advise.calibrate import Measured, measure, not_enough
from headrace.insight.advise.clusters import (
    MISSED,
    Candidate,
    Current,
    Scenario,
    assumed,
    candidates,
    cheapest,
    current_price,
    decide,
    explains,
    fastest,
    first_of_all,
    frontier,
    knee,
    notes_of,
    own_pools,
)
from headrace.insight.evidence import LINK_BUSY
from headrace.insight.figures.columns import Columns, read_columns
from headrace.insight.figures.figure import FIGURES, Figure, Window
from headrace.insight.figures.run_files import PlannedJob, planned_job
from headrace.insight.performance_model import RATE_FORMULA, Range, predict
from headrace.insight.run_cost import cost_of
from headrace.insight.run_report import Report, report, time_to_train
from headrace.insight.verdict import Verdict
from headrace.record_files import read_json
from headrace.runs import Run
from headrace.runs.event_text import not_started
from headrace.runs.events import FeedReady

DEFAULT_TYPES = ("ml.c5.xlarge", "ml.c5.2xlarge", "ml.c5.4xlarge", "ml.c5.9xlarge", "ml.c5.18xlarge")
"""Types of data hosts that are tried by default: the `ml.c5` family."""

ADVISE_FORMULAS: dict[str, str] = {
    "step": (
        "predicted: max(compute, making, wire); making: least t in which t * (sum over data hosts of rate(workers, "
        "cores) + sum over hosts that train of rate(workers, cores - trainer_cpu / t)) >= samples of a step; wire: the "
        f"same with every host limited to bandwidth / bytes of a sample; {RATE_FORMULA}"
    ),
    "compute": (
        "(sum(step) - sum(wait)) / steps of the rank with the least, training window; where data workers compete for "
        "the ranks' cores, the CPU time of a rank a step (`assumptions` say so)"
    ),
    "cpu": "CPU seconds of the data workers / samples, training window",
    "pause": "busy seconds of the data workers / samples - cpu - queueing for a core by the same model",
    "trainer_cpu": "(CPU of a host that trains - CPU of its data workers) a second * step",
    "wait": "predicted: 1 - compute / step",
    "range": (
        "the same with the 10th, or the 90th, percentile of the per-second values of everything measured, widened by "
        "what the model misses on the run's own cluster"
    ),
    "residual": "measured step / predicted step of the run's own cluster - 1",
    "bandwidth": (
        f"{FIGURES['bandwidth'].formula}, training window, where that is at least {LINK_BUSY:g} % of the time; another "
        "type in proportion to both published bandwidths; else the job's limit, else as published"
    ),
    "trusted": (
        f"|residual| < {MISSED:g}, or the predicted step of the run's own cluster lies between the 10th and the 90th "
        "percentile of its measured seconds; and the verdict is neither skewed nor stalled"
    ),
    "cost_per_1000_samples": "price_per_hour * step / 3600 * 1000 / samples of a step",
    "time_to_train": "predicted: steps * predicted step + (measured time to train - steps * measured step)",
    "cost": (
        f"measured: that of the run's report, {FIGURES['cost'].formula}; predicted: "
        "price_per_hour * (seconds from instances_started to the end of the run + steps * (predicted step - measured "
        "step)) / 3600: every host to the end of the run"
    ),
    "knee": "least step * cost_per_1000_samples of the frontier",
}
"""How every figure of the advice is computed, by its name."""


class Verified(msgspec.Struct, frozen=True):
    """A candidate that was run. Prediction and measurement stand apart.

    Attributes:
        run_id: the run that proves it.
        cluster: the candidate in words.
        predicted: step, seconds.
        measured: step, seconds, with the 10th and 90th percentile of its per-second values.
        predicted_wait, measured_wait: shares of the step, 0 to 1.
        error: measured / predicted - 1.
        inside: the measured step lies in the predicted range.
        unverified: what was advised and not run, in a sentence; empty when the advised candidate was run.
    """

    run_id: str
    cluster: str
    predicted: Range
    measured: Range
    predicted_wait: float
    measured_wait: float
    error: float
    inside: bool
    unverified: str = ""


class Advised(msgspec.Struct, frozen=True):
    """The advice for one run.

    Attributes:
        run_id: which run.
        advice: one sentence, or two.
        add: whether hosts should be added or the number of them changed.
        trusted: the model explains the run's own cluster, and its verdict does not speak against it. Else nothing is
            advised or marked, and the candidates are only what the model says.
        now: the run as it was.
        best: the advised cluster; None when nothing should be added.
        fastest, cheapest, knee: those candidates; None where prices do not tell.
        candidates: all of them, predicted.
        measured: what the model started from.
        region, currency: of the prices.
        prices: those used.
        window: where the run was measured.
        assumptions: what was not measured, in sentences.
        notes: what else to know.
        formulas: how every figure is computed.
        verified: the candidate that was run; None when none was.
    """

    run_id: str
    advice: str
    add: bool
    trusted: bool
    now: Current
    best: Candidate | None
    fastest: Candidate | None
    cheapest: Candidate | None
    knee: Candidate | None
    candidates: tuple[Candidate, ...]
    measured: Measured
    region: str
    currency: str
    prices: tuple[Price, ...]
    window: Window
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    formulas: dict[str, str]
    verified: Verified | None = None


class _Feed(msgspec.Struct, frozen=True):
    workers_per_host: int | str = "auto"


class _DataService(msgspec.Struct, frozen=True):
    feed: _Feed | None = None


class _Network(msgspec.Struct, frozen=True):
    bandwidth: str


class _Local(msgspec.Struct, frozen=True):
    network: dict[str, _Network] = {}


class _Engines(msgspec.Struct, frozen=True):
    local: _Local = _Local()


class _Job(msgspec.Struct, frozen=True):
    """The part of job.json that advice needs."""

    data_service: _DataService = _DataService()
    engines: _Engines = _Engines()

    @property
    def limits(self) -> dict[str, float]:
        """Bytes a second to which the hosts of a group are limited."""
        return {name: parse_bandwidth(one.bandwidth) / 8 for name, one in self.engines.local.network.items()}


_jobs = msgspec.json.Decoder(_Job)


_SAME_STEP = 0.005


def advised(
    run: Run,
    *,
    types: Sequence[str] = DEFAULT_TYPES,
    max_hosts: int = 8,
    region: str | None = None,
) -> Advised:
    """Reads a run and advises on its cluster.

    Args:
        run: the run; it may still be going on.
        types: instance types of data hosts to try.
        max_hosts: of each type, at most.
        region: whose prices are taken; None for that of the job's budget, else us-east-1, which a note says.

    Raises:
        UsageError: an unknown type, or a run that does not tell what the model needs.
    """
    unknown = [name for name in types if shape(name) is None]
    if unknown:
        raise UsageError(
            f"the shape of {', '.join(unknown)} is not known",
            hint=f"{hint_for(unknown[0])}; name types as SageMaker does, e.g. --types ml.c5.4xlarge,ml.c5.9xlarge",
        )
    if waits := not_started(run.state()):
        raise UsageError(f"the run cannot be advised: {waits}", hint="`headrace advise` needs some seconds of training")
    (plan, unread), job, columns = _plan(run), _job(run), read_columns(run)
    measured = _measured(run, None, plan, job, columns)
    where, unnamed = plan.priced_in(region)
    names = dict.fromkeys([*measured.instance_types, *types])
    on = datetime.fromtimestamp(run.header.created, timezone.utc).date()  # as the report does: one run, one price
    prices = [price for name in names if (price := price_of(name, where, on=on)) is not None]
    state, judged = run.state(), report(run, columns)
    trained = time_to_train(state, plan).value
    feed = job.data_service.feed
    found = judge_clusters(
        run.id,
        measured,
        prices,
        types=types,
        max_hosts=max_hosts,
        region=where,
        workers=feed.workers_per_host if feed is not None and isinstance(feed.workers_per_host, int) else None,
        time_to_train=trained,
        cost_of_run=None
        if trained is None or unread
        else cost_of(state, plan, None, now=run.present(time.time()), region=where, on=on).total,
        verdict=judged.verdict,
    )
    more = (unread, unnamed if found.prices else "", _other_step(measured, judged))
    return msgspec.structs.replace(found, notes=(*(note for note in more if note), *found.notes))


def _other_step(measured: Measured, judged: Report) -> str:
    """Returns why a report has another step time than the advice, where it has; empty else."""
    told = None if judged.training is None else judged.training.step_time.value
    own = 1000 * measured.step.value
    if told is None or abs(told - own) <= _SAME_STEP * own:
        return ""
    return (
        f"the report's step time, {told:.1f} ms, counts the time before the data workers of all hosts were ready, too; "
        f"the {own:.1f} ms here, on which the model rests, do not"
    )


def measured_of(run: Run, loader: str | None = None) -> Measured:
    """Reads from a run what the model needs.

    Args:
        run: the run.
        loader: name of the loader; by default the training's main one.

    Raises:
        UsageError: the run does not tell it.
    """
    return _measured(run, loader, _plan(run)[0], _job(run), read_columns(run))


def _measured(run: Run, loader: str | None, plan: PlannedJob, job: _Job, columns: Columns) -> Measured:
    limits = job.limits if run.header.engine == "local" else {}
    return measure(plan.groups, columns, loader, ready=_ready(run), limits=limits)


def _ready(run: Run) -> float:
    """Returns when the last host's data workers became ready for the first time: what came before had fewer of them."""
    first: dict[str, float] = {}
    for event in run.events():
        if isinstance(event, FeedReady):
            first.setdefault(event.host, event.t)
    return max(first.values(), default=0.0)


def verified(candidate: Candidate, run: Run) -> Verified:
    """Compares a candidate's prediction with its run. Raises UsageError when the run cannot be measured."""
    found = measured_of(run)
    return Verified(
        run_id=run.id,
        cluster=candidate.title,
        predicted=candidate.step,
        measured=found.step,
        predicted_wait=candidate.wait,
        measured_wait=found.wait,
        error=found.step.value / candidate.step.value - 1,
        inside=candidate.step.low <= found.step.value <= candidate.step.high,
    )


def _plan(run: Run) -> tuple[PlannedJob, str]:
    plan, unread = planned_job(run)
    if unread and not plan.groups:
        raise not_enough(unread)
    return plan, unread


def _job(run: Run) -> _Job:
    try:
        found = read_json(run.paths.job, _jobs)
        found.limits  # noqa: B018 (a bandwidth that is none)
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise not_enough(f"its job cannot be read: {error}") from error
    return found


def judge_clusters(
    run_id: str,
    measured: Measured,
    prices: Sequence[Price],
    *,
    types: Sequence[str],
    max_hosts: int,
    region: str,
    workers: int | None = None,
    time_to_train: float | None = None,
    cost_of_run: Figure | None = None,
    verdict: Verdict | None = None,
) -> Advised:
    """Advises on a cluster, from values alone.

    Args:
        run_id: which run.
        measured: what it tells.
        prices: those that are known.
        types: instance types of data hosts to try; their shapes are known.
        max_hosts: of each type, at most.
        region: of the prices.
        workers: data workers on a data host; None for one a core.
        time_to_train: of the run, seconds; None when it has not completed.
        cost_of_run: the `cost` of its report, whose window is that of the bill; None when it has not completed.
        verdict: that of its report; None when it is not known.
    """
    types = tuple(dict.fromkeys(types))
    by_type = {price.instance_type: price.price for price in prices}
    own = predict(measured.workload, own_pools(measured)).step
    residual = measured.step.value / own.value - 1
    other = None if time_to_train is None else time_to_train - measured.steps * measured.step.value
    bill = None if cost_of_run is None else cost_of_run.window
    billed = None if bill is None else bill.seconds - measured.steps * measured.step.value
    scenario = Scenario(measured, by_type, workers, residual, other, billed)
    found = candidates(scenario, types, max_hosts)
    price = current_price(scenario)
    step = measured.step.value
    now = Current(
        cluster=" + ".join(
            [f"{group.hosts} x {group.instance_type}" for group in measured.groups]
            + [f"{len(group.hosts)} x {group.instance_type}" for group in measured.others]
        ),
        step=measured.step,
        wait=measured.wait,
        predicted=own,
        residual=residual,
        price_per_hour=price,
        cost_per_1000_samples=None if price is None else cost(price, step * 1000 / measured.workload.rows),
        time_to_train=time_to_train,
        cost=None if cost_of_run is None else cost_of_run.value,
    )
    first = first_of_all(verdict)
    trusted = explains(measured.step, own.value) and not first
    best, advice = (None, first) if first else decide(now, measured, found, trusted=trusted)
    extremes = {"fastest": fastest(found), "cheapest": cheapest(found), "knee": knee(found), "advised": best}
    edge = frontier(found)
    if not trusted:
        extremes, edge = dict.fromkeys(extremes), []
    marked = {
        _key(one): tuple(
            (["frontier"] if one in edge else []) + [name for name, chosen in extremes.items() if chosen is one]
        )
        for one in found
    }
    shown = {key: msgspec.structs.replace(one, marks=marked[key]) for one in found for key in [_key(one)]}
    picked = {name: None if one is None else shown[_key(one)] for name, one in extremes.items()}
    return Advised(
        run_id=run_id,
        advice=advice,
        add=best is not None and bool(best.data_hosts or measured.helpers),
        trusted=trusted,
        now=now,
        best=picked["advised"],
        fastest=picked["fastest"],
        cheapest=picked["cheapest"],
        knee=picked["knee"],
        candidates=tuple(shown.values()),
        measured=measured,
        region=region,
        currency=CURRENCY,
        prices=() if price is None else tuple(prices),  # else no cluster has a cost
        window=measured.window,
        assumptions=(*measured.assumptions, *assumed(measured, types)),
        notes=notes_of(measured, by_type, types, region, own.value),
        formulas=ADVISE_FORMULAS,
    )


def _key(one: Candidate) -> tuple[str, int]:
    return one.instance_type, one.data_hosts
