"""Costs of synthetic runs whose right answers are computed by hand, and what a plan may cost."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import msgspec
import pytest
from recorded_runs import columns_of

from headrace.insight import CostReport, cost_report, project
from headrace.insight.figures.columns import Floats, Table
from headrace.insight.figures.figure import FORMULAS, Figure, Window
from headrace.insight.figures.loaders import Training, training_of
from headrace.insight.figures.run_files import PlannedBudget, PlannedGroup, PlannedJob
from headrace.insight.run_cost import cost_of
from headrace.runs import EventWriter, LoaderSecond, MetricWriter, Run, Status, Stream, create_run, state_of
from headrace.runs.events import (
    AttemptBilled,
    AttemptStarted,
    Event,
    HostReleased,
    InstancesStarted,
    JobStarted,
    RunFinished,
)
from loader_seconds import loader_second

C5, P4D, P4 = 3.672, 37.688, "ml.p4d.24xlarge"
DNN, DATA = (
    PlannedGroup("dnn", "ml.p4d.24xlarge", ("algo-1",)),
    PlannedGroup("data", "ml.c5.18xlarge", ("algo-2", "algo-3")),
)
HOSTS = {"dnn": ("algo-1",), "data": ("algo-2", "algo-3")}
RANK = Stream("dnn", "algo-1", "0")
BEGIN: list[Event] = [InstancesStarted(t=100.0, hosts=HOSTS), JobStarted(t=110.0)]
END: Event = RunFinished(t=160.5, status=Status.COMPLETED)


def second(t: float, step: float = 1.0, steps: int = 10, epoch: int = 0) -> LoaderSecond:
    return loader_second(t, epoch=epoch, steps=steps, samples=8 * steps, step=step)


def costs(events: list[Event], records: list[LoaderSecond] | None = None, **fields: object) -> CostReport:
    job = fields.pop("job", PlannedJob((DNN, DATA)))
    assert isinstance(job, PlannedJob)
    finished = any(isinstance(event, RunFinished) for event in events)
    loaders = {RANK: records} if records else {}
    return cost_of(state_of(events, not finished), job, training_of(columns_of(loaders).loaders()), now=200.0, **fields)  # type: ignore[arg-type]


def values(figure: Figure) -> tuple[float | None, str]:
    return figure.value, figure.note


def billed(number: int, region: str, kind: str, training: int, billable: int, ended: float) -> AttemptBilled:
    return AttemptBilled(
        t=ended + 5.0,
        name=f"mill-{number}",
        number=number,
        region=region,
        groups={"dnn": (kind, 1), "data": ("ml.c5.18xlarge", 2)},
        training_seconds=training,
        billable_seconds=billable,
        started=ended - training,
        ended=ended,
    )


def test_a_run_that_the_service_bills_costs_what_that_says_and_a_released_host_costs_to_the_end() -> None:
    events = [
        *BEGIN,
        HostReleased(t=140.0, group="data", host="algo-3"),
        billed(1, "us-east-1", P4, 75, 30, 172.0),
        END,
    ]
    found = costs(events, [second(120.0 + n) for n in range(20)])
    rate = P4D + 2 * C5
    assert found.total.value == found.platform.value == pytest.approx(rate * 30 / 3600)
    assert [group.seconds.value for group in found.groups] == [30, 60]
    assert [group.cost.value for group in found.groups] == pytest.approx([P4D * 30 / 3600, C5 * 60 / 3600])
    assert [(host.seconds.value, host.cost.value) for host in found.hosts] == [
        (30, pytest.approx(P4D * 30 / 3600)),
        (30, pytest.approx(C5 * 30 / 3600)),
        (30, pytest.approx(C5 * 30 / 3600)),
    ]
    assert found.per_hour.value == pytest.approx(rate * 30 / 75), "spare capacity costs a part of the time"
    assert found.total.window == Window(97.0, 172.0)
    assert "BillableTimeInSeconds of the service" in found.formulas["billable_seconds"]
    said = (
        "billed by the service: mill-1 in us-east-1, 1 x ml.p4d.24xlarge, 2 x ml.c5.18xlarge: 30 s of 75 s, 60 % less"
    )
    assert said in found.notes
    assert [each.name for each in found.billed] == ["mill-1"]


def test_every_attempt_is_billed_where_it_ran_and_on_what_it_ran() -> None:
    first, then = billed(1, "us-east-1", P4, 60, 60, 160.0), billed(2, "us-west-2", "ml.p3.2xlarge", 100, 100, 400.0)
    again: list[Event] = [AttemptStarted(t=299.0, number=2), InstancesStarted(t=300.0, hosts={"dnn": ("algo-3",)})]
    last = RunFinished(t=410.0, status=Status.COMPLETED)
    found = costs([*BEGIN, first, *again, then, last])
    assert found.total.value == pytest.approx((P4D + 2 * C5) * 60 / 3600 + (3.825 + 2 * C5) * 100 / 3600)
    assert [host.seconds.value for host in found.hosts] == [60, 60, 60, 100]
    unknown = costs([*BEGIN, billed(1, "eu-north-1", P4, 60, 60, 160.0), END])
    assert values(unknown.total) == (
        None,
        "no price of ml.p4d.24xlarge in eu-north-1 is known; no price of ml.c5.18xlarge in eu-north-1 is known",
    )
    assert costs([*BEGIN, billed(1, "eu-north-1", P4, 60, 60, 160.0), END], region="us-east-1").total.value is not None
    not_all = costs([*BEGIN, first, *again, last])
    assert (not_all.billed, not_all.total.note) == ((), ""), "what was not billed counts by headrace's clocks"
    nothing = costs([billed(1, "eu-north-1", P4, 0, 0, 160.0), END])
    assert nothing.total.value == 0.0, "no instance has started"


def test_prices_are_those_of_where_the_run_is_and_an_unknown_one_is_said() -> None:
    job = PlannedJob((DNN, DATA), budget=PlannedBudget(1.0, "us-east-1"), region="eu-north-1")
    found = costs([*BEGIN, END], job=job)
    assert found.region == "eu-north-1"
    assert found.total.value is None
    assert "no price of ml.p4d.24xlarge in eu-north-1 is known" in found.total.note
    assert costs([*BEGIN, END], job=job, region="us-west-2").region == "us-west-2"
    west = costs([*BEGIN, END], job=msgspec.structs.replace(job, region="us-west-2"))
    assert (west.region, west.groups[0].price and west.groups[0].price.region) == ("us-west-2", "us-west-2")


def test_every_host_costs_until_its_own_end_and_on_the_platform_until_the_end_of_the_run() -> None:
    found = costs([*BEGIN, HostReleased(t=140.0, group="data", host="algo-3"), END])
    assert [(group.group, group.instances, group.seconds.value) for group in found.groups] == [
        ("dnn", 1, 60.5),
        ("data", 2, 100.5),
    ]
    assert [(host.host, host.seconds.value, host.released) for host in found.hosts] == [
        ("algo-1", 60.5, False),
        ("algo-2", 60.5, False),
        ("algo-3", 40.0, True),
    ]
    assert found.groups[0].cost.value == pytest.approx(P4D * 60.5 / 3600)
    assert found.groups[1].cost.value == pytest.approx(C5 * 100.5 / 3600)
    assert found.total.value == pytest.approx((P4D * 60.5 + C5 * 100.5) / 3600)
    assert found.platform.value == pytest.approx((P4D + 2 * C5) * 61 / 3600)
    assert (found.region, found.currency, found.total.unit) == ("us-east-1", "USD", "USD")
    assert found.total.window is not None
    assert (found.total.window.start, found.total.window.end) == (100.0, 160.5)


@pytest.mark.promise("cost", "one cost function: a price has a source and a date, an unknown one makes no sum")
def test_a_price_comes_with_source_and_date_and_without_a_region_the_report_says_whose_it_is() -> None:
    found = costs([*BEGIN, END], engine="local")
    price = found.groups[0].price
    assert price is not None
    assert (price.price, price.as_of, price.status, bool(price.source)) == (P4D, "2024", "published", True)
    assert "the job names no region: prices of us-east-1" in found.notes
    assert any("nobody is billed" in note for note in found.notes)
    named = costs([*BEGIN, END], region="us-west-2")
    assert named.region == "us-west-2"
    assert not any("names no region" in note for note in named.notes)
    budget = PlannedJob((DNN, DATA), budget=PlannedBudget(25.0, "us-west-2"))
    assert (costs([*BEGIN, END], job=budget).region, costs([*BEGIN, END], job=budget).max_cost) == ("us-west-2", 25.0)


def test_the_price_is_one_that_was_known_on_the_day_of_the_run() -> None:
    old = costs([*BEGIN, END], on=date(2022, 10, 1))
    assert old.groups[0].price is not None
    assert (old.groups[0].price.price, old.groups[0].price.as_of) == (37.7, "2022-09")


def test_a_run_that_goes_on_has_costs_so_far() -> None:
    found = costs(BEGIN)
    assert values(found.total) == (pytest.approx((P4D + 2 * C5) * 100 / 3600), "so far")
    assert values(found.platform) == (pytest.approx((P4D + 2 * C5) * 100 / 3600), "so far")
    assert "the run is still going on: the figures are of now" in found.notes


def test_all_attempts_are_counted_and_a_released_host_costs_again_when_it_is_needed_again() -> None:
    retried: list[Event] = [
        *BEGIN,
        HostReleased(t=120.0, group="data", host="algo-3"),
        AttemptStarted(t=150.0, number=2),
        END,
    ]
    found = costs(retried)
    assert [host.seconds.value for host in found.hosts] == [60.5, 60.5, 30.5]
    assert [host.released for host in found.hosts] == [False, False, False]
    assert "2 attempts: all of them are counted" in found.notes


@pytest.mark.promise("cost", "one cost function: a price has a source and a date, an unknown one makes no sum")
def test_an_unknown_price_is_no_money_at_all_and_says_why() -> None:
    other = PlannedJob((DNN, PlannedGroup("data", "ml.g6e.xlarge", ("algo-2", "algo-3"))))
    found = costs([*BEGIN, END], [second(120), second(121)], job=other)
    why = "no price of ml.g6e.xlarge in us-east-1 is known"
    money = (found.total, found.platform, found.per_hour, found.per_step, found.per_1000_samples, found.per_epoch)
    for figure in money:
        assert values(figure) == (None, why)
    assert found.groups[0].cost.value is not None
    assert values(found.groups[1].cost) == (None, why)
    assert found.groups[1].seconds.value == 121.0
    assert why in found.notes
    abroad = costs([*BEGIN, END], region="eu-west-1")
    assert abroad.total.note == "no price of ml.p4d.24xlarge in eu-west-1 is known; known: us-east-1, us-west-2"


def test_this_machine_itself_has_no_price() -> None:
    local = PlannedJob((PlannedGroup("dnn", "local", ("algo-1",)),))
    begun: list[Event] = [InstancesStarted(t=100.0, hosts={"dnn": ("algo-1",)}), END]
    assert values(costs(begun, job=local).total) == (None, "local has no list price")


def test_before_the_instances_start_nothing_is_known_and_nothing_is_0() -> None:
    found = costs([JobStarted(t=110.0)])
    for figure in (found.total, found.platform, found.groups[0].cost, found.groups[0].seconds):
        assert values(figure) == (None, "the events hold no start of its instances")
    assert found.hosts == ()


def test_a_step_costs_the_price_of_the_hosts_that_ran_in_the_training_window() -> None:
    # Warm-up until 120; the window is 120..124. A data host is released at 122: it ran for half of it.
    records = [second(120, 9.0, 1), second(121), second(122, 1.0, 5), second(123), second(124)]
    found = costs([*BEGIN, HostReleased(t=122.0, group="data", host="algo-3"), END], records)
    hour = P4D + C5 + C5 / 2
    assert found.per_hour.value == pytest.approx(hour)
    assert found.per_hour.unit == "USD/hour"
    step = 4.0 / 35
    assert found.per_step.value == pytest.approx(hour * step / 3600)
    assert found.per_step.spread is not None
    # Steps of 100, 200, 100 and 100 ms: their 90th percentile is 170 ms.
    assert found.per_step.spread.high == pytest.approx(hour * 0.170 / 3600)
    assert found.per_1000_samples.value == pytest.approx(hour * 1000 / (280 / 4.0) / 3600)
    assert found.per_1000_samples.spread is not None
    assert found.per_1000_samples.spread.high > found.per_1000_samples.value > found.per_1000_samples.spread.low - 1e-12


def test_an_epoch_costs_its_steps_and_the_first_is_left_out_as_warm_up() -> None:
    records = [second(120, 9.0), second(122, 2.0, epoch=1), second(131, 1.0, epoch=1), second(134, 4.0, epoch=2)]
    hour = P4D + 2 * C5
    found = costs([*BEGIN, END], records)
    assert [(epoch.epoch, epoch.steps, epoch.samples, epoch.seconds) for epoch in found.epochs] == [
        (0, 10, 80, 9.0),
        (1, 20, 160, 3.0),
        (2, 10, 80, 4.0),
    ]
    assert [epoch.cost.value for epoch in found.epochs] == [pytest.approx(hour * s / 3600) for s in (9, 3, 4)]
    assert found.per_epoch.value == pytest.approx(hour * 3.5 / 3600)
    going_on = costs(BEGIN, records)
    assert going_on.per_epoch.value == pytest.approx(hour * 3 / 3600), "the last epoch has not ended"
    first = costs([*BEGIN, END], records[:1])
    assert values(first.per_epoch) == (pytest.approx(hour * 9 / 3600), "the first epoch, warm-up included")
    assert values(costs(BEGIN, records[:1]).per_epoch) == (None, "no epoch has ended")


def test_records_are_read_as_often_however_many_epochs_there_are() -> None:
    class Counted(Table):
        reads = 0

        def __getitem__(self, name: str) -> Floats:
            self.reads += 1
            return super().__getitem__(name)

    reads = []
    for epochs in (1, 200):
        columns = columns_of({RANK: [second(t, epoch=int(t) * epochs // 200) for t in map(float, range(200))]})
        records = Counted(columns.loaders()["train"][RANK].columns)
        found = cost_of(
            state_of([*BEGIN, END], True), PlannedJob((DNN, DATA)), Training("train", {RANK: records}), now=0.0
        )
        assert len(found.epochs) == epochs
        reads.append(records.reads)
    assert reads[0] == reads[1]


def test_ranks_share_the_steps_of_an_epoch_and_the_slowest_decides_how_long_it_took() -> None:
    state = state_of([*BEGIN, END], False)
    other = Stream("dnn", "algo-1", "1")
    loaders = {RANK: [second(120, 2.0), second(122, 2.0)], other: [second(120, 4.0), second(122, 2.0)]}
    (epoch,) = cost_of(state, PlannedJob((DNN, DATA)), training_of(columns_of(loaders).loaders()), now=200.0).epochs
    assert (epoch.steps, epoch.samples, epoch.seconds) == (20, 320, 6.0)


def test_the_steps_of_the_job_times_their_cost_are_the_cost_of_the_training() -> None:
    state = state_of([*BEGIN, END], False)
    lengths = {"0": 1.0, "1": 1.4, "2": 1.0}  # three ranks that do not wait for each other
    loaders = {
        Stream("dnn", "algo-1", name): [second(120 + n * length, length) for n in range(10)]
        for name, length in lengths.items()
    }
    found = cost_of(state, PlannedJob((DNN, DATA)), training_of(columns_of(loaders).loaders()), now=200.0)
    (epoch,) = found.epochs
    assert (epoch.steps, epoch.seconds) == (100, pytest.approx(14.0))
    assert found.per_step.value is not None
    assert found.per_1000_samples.value is not None
    assert epoch.samples == 2400
    assert 100 * found.per_step.value == pytest.approx((P4D + 2 * C5) * 14.0 / 3600)
    assert epoch.cost.value == pytest.approx(100 * found.per_step.value)
    assert epoch.cost.value == pytest.approx(2.4 * found.per_1000_samples.value)


def test_without_a_loader_there_are_no_steps_to_price() -> None:
    found = costs([*BEGIN, END])
    assert values(found.per_step) == (None, "no loader has a record after its warm-up")
    assert values(found.per_epoch) == (None, "no loader has counted a step")
    assert found.epochs == ()


def test_a_type_that_is_not_offered_any_more_is_said() -> None:
    old = PlannedJob((PlannedGroup("dnn", "ml.p3.2xlarge", ("algo-1",)),))
    found = costs([InstancesStarted(t=100.0, hosts={"dnn": ("algo-1",)}), END], job=old)
    assert found.total.value is not None
    assert any("ml.p3.2xlarge was not offered in us-east-1 any more" in note for note in found.notes)


def test_every_figure_of_a_report_and_of_a_projection_has_its_formula() -> None:
    found = costs([*BEGIN, END], [second(120), second(121)])
    figures = [found.total, found.per_hour, found.per_step, found.per_epoch, found.per_1000_samples, found.platform]
    figures += [figure for group in found.groups for figure in (group.seconds, group.cost)]
    figures += [epoch.cost for epoch in found.epochs]
    for figure in figures:
        assert found.formulas[figure.name] == FORMULAS[figure.name]
    planned = project((DNN, DATA), 3600.0, max_cost=1.0)
    for figure in (planned.per_hour, planned.maximum, planned.budget_time, planned.groups[0].per_hour):
        assert planned.formulas[figure.name] == FORMULAS[figure.name]
    assert set(planned.formulas).isdisjoint(found.formulas), "projected and measured figures have names of their own"


def recorded(runs: Path, plan: str | None) -> Run:
    paths = create_run("j", "local", runs=runs, created=1.7e9)
    with EventWriter(paths.events("engine")) as events:
        for event in (*BEGIN, END):
            events.write(event)
    with MetricWriter(paths.metrics(RANK)) as metrics:
        for record in (second(120), second(121), second(122)):
            metrics.write(record)
    if plan is not None:
        (paths.root / "plan.json").write_text(plan)
    return Run(paths)


GROUPS = [
    {"name": "dnn", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-1"], "x": 1},
    {"name": "data", "instance_type": "ml.c5.18xlarge", "hosts": ["algo-2", "algo-3"]},
]


def test_a_run_on_disk_is_read_and_its_report_goes_through_json(tmp_path: Path) -> None:
    found = cost_report(recorded(tmp_path, json.dumps({"groups": GROUPS, "x": 1})))
    assert found.total.value == pytest.approx((37.7 + 2 * C5) * 60.5 / 3600)  # the run is of November 2023
    assert found.per_step.value is not None
    assert msgspec.json.decode(msgspec.json.encode(found), type=CostReport) == found


@pytest.mark.parametrize("plan", [None, "{", '{"groups": 3}'])
def test_a_run_without_a_readable_plan_has_no_prices_and_says_so(tmp_path: Path, plan: str | None) -> None:
    found = cost_report(recorded(tmp_path, plan))
    assert "plan.json cannot be read" in found.notes[0]
    assert found.total.value is None
    assert found.total.note == "the instance type of dnn is not known; the instance type of data is not known"
    assert values(found.platform) == (None, "the groups are not known")
    assert [host.seconds.value for host in found.hosts] == [60.5, 60.5, 60.5]


def test_a_plan_shows_the_price_of_an_hour_and_the_most_that_the_job_may_cost() -> None:
    found = project((DNN, DATA), 1800.0)
    assert [group.per_hour.value for group in found.groups] == [P4D, 2 * C5]
    assert found.per_hour.value == pytest.approx(P4D + 2 * C5)
    assert found.maximum.value == pytest.approx((P4D + 2 * C5) / 2)
    assert found.notes == ("no region is named: prices of us-east-1",)
    assert values(found.budget_time) == (None, "the job has no budget")
    assert values(project((DNN, DATA), 0.0).maximum) == (None, "the job has no time limit")


def test_a_plan_says_which_of_budget_and_max_run_ends_the_job_first() -> None:
    small = project((DNN, DATA), 1800.0, max_cost=1.0, region="us-east-1")
    assert small.budget_time.value == pytest.approx(3600 / (P4D + 2 * C5))
    (note,) = small.notes
    assert note.startswith("the budget, 1.00 USD, lasts 79.9 s while all instances run, then the job is stopped")
    assert "max_run, 1800 s, would allow more" in note
    (note,) = project((DNN, DATA), 1800.0, max_cost=25.0, region="us-east-1").notes
    assert note.endswith("the job is stopped by max_run, 1800 s, before that")


def test_a_plan_without_a_price_has_no_sum() -> None:
    found = project((DNN, PlannedGroup("data", "local", ("algo-2",))), 1800.0, max_cost=1.0)
    assert values(found.per_hour) == (None, "local has no list price")
    assert values(found.maximum) == (None, "local has no list price")
    assert values(found.budget_time) == (None, "local has no list price")
    assert found.groups[0].per_hour.value == P4D
    assert found.notes == ("no region is named: prices of us-east-1", "local has no list price")
