"""From a run's metrics to the advice: what is read, what candidates cost, which stand out, what the sentence says."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import msgspec
import pytest
from recorded_runs import FEED, columns_of, feed, host, loader, record
from recorded_runs import rank as recorded_rank

from headrace.catalog.prices import Price, cost, price_of
from headrace.cli.views.cost_tables import advice_document, milliseconds
from headrace.cli.views.table import show
from headrace.errors import UsageError
from headrace.insight import VerdictName, cost_report, report
from headrace.insight.advise.advisor import DEFAULT_TYPES, Advised, _other_step, advised, judge_clusters
from headrace.insight.advise.calibrate import GroupFacts, Measured, measure
from headrace.insight.advise.clusters import SAME, Candidate, cores_per_vcpu, frontier
from headrace.insight.billing import age_text, amount
from headrace.insight.evidence import CROWDED, LEAST_RECORDS
from headrace.insight.figures.figure import Figure, Window
from headrace.insight.figures.run_files import PlannedGroup
from headrace.insight.performance_model import Range, Workload, exactly
from headrace.runs import HostSecond, LoaderSecond, ServiceSecond, Stream, WorkerSecond
from loader_seconds import loader_second

TRAINER, DATA = "ml.g5.xlarge", "ml.c5.xlarge"
ROWS = 10


def facts(name: str, kind: str, hosts: int = 1, *, trains: bool = False, **more: object) -> GroupFacts:
    base = GroupFacts(name, kind, hosts, trains, 4, 4, busy=0.99, cpu=exactly(0.1), pause=exactly(0.0))
    return msgspec.structs.replace(base, **more)


def measured(
    step: float = 0.3, wait: float = 0.7, *groups: GroupFacts, compute: float = 0.09, size: float | None = 1000.0
) -> Measured:
    """A run whose 4 cores take 0.25 s to make a step of 10 samples, and 0.09 s to compute one."""
    return Measured(
        workload=Workload(ROWS, exactly(compute), exactly(0.2), size),
        step=Range(step * 0.95, step, step * 1.05),
        wait=wait,
        steps=1000,
        samples=1000 * ROWS,
        window=Window(0.0, 300.0),
        groups=groups or (facts("train", TRAINER, trains=True, executors=3),),
        workers_told=True,
    )


def advise(run: Measured, *types: str, region: str = "us-east-1", trained: float | None = 310.0) -> Advised:
    names = types or DEFAULT_TYPES
    wanted = dict.fromkeys([*run.instance_types, *names])
    prices = [price for name in wanted if (price := price_of(name, region)) is not None]
    bill = None if trained is None else Figure("cost", "USD", 0.125, Window(-60.0, trained))
    return judge_clusters(
        "run-1", run, prices, types=names, max_hosts=8, region=region, time_to_train=trained, cost_of_run=bill
    )


def price(name: str) -> float:
    found = price_of(name)
    assert isinstance(found, Price)
    return found.price


@pytest.mark.parametrize(
    ("types", "words", "money"),
    [
        ((), "the wait: ", "cheaper"),
        ((DATA,), "3 data hosts of ml.c5.xlarge remove the wait: ", "cheaper"),
        (("ml.c5.18xlarge",), "1 data host of ml.c5.18xlarge removes the wait: ", "dearer"),
    ],
)
def test_data_hosts_remove_the_wait_and_the_sentence_says_how_many_and_whether_it_is_cheaper(
    types: tuple[str, ...], words: str, money: str
) -> None:
    found = advise(measured(), *types)
    assert found.best is not None
    assert found.best.wait < 0.05
    assert found.best.limit == "compute"
    assert found.advice.startswith(f"{found.best.data_hosts} data host")
    assert words in found.advice
    assert found.best.instance_type in found.advice
    assert "the wait: a predicted step of 90.0 ms" in found.advice
    assert "instead of 300.0 ms measured" in found.advice
    assert f"% {money} a sample at list prices" in found.advice
    cheaper = [one for one in found.candidates if one.wait < 0.05 and one.data_hosts]
    assert found.best.cost_per_1000_samples is not None
    assert found.best.cost_per_1000_samples.value == min(
        one.cost_per_1000_samples.value for one in cheaper if one.cost_per_1000_samples
    )


def test_a_step_that_does_not_wait_gets_no_hosts() -> None:
    found = advise(measured(0.1, 0.02, compute=0.098))
    assert found.advice.startswith("Do not add CPU hosts: ranks wait 2.0 % of a step of 100.0 ms (measured)")
    assert found.best is None
    assert not found.add


def test_a_network_that_is_full_gets_no_hosts() -> None:
    # 0.1 GB a sample: the trainer's 2.5 Gbit/s carry 3 of them a second, and so do both data hosts' 1.25 Gbit/s
    groups = (facts("data", DATA, 2), facts("train", TRAINER, trains=True, executors=0))
    found = advise(measured(3.2, 0.9, *groups, size=1e8))
    assert found.advice.startswith("Do not add CPU hosts: ")
    assert "the network carries no more" in found.advice
    assert {one.verdict for one in found.candidates} == {"network-bound"}


def test_too_many_data_hosts_are_noticed() -> None:
    groups = (facts("data", DATA, 6), facts("train", TRAINER, trains=True, executors=3))
    found = advise(measured(0.0905, 0.005, *groups), DATA)
    assert found.best is not None
    assert 0 < found.best.data_hosts < 6
    assert "Do not add CPU hosts" in found.advice
    assert f"{found.best.data_hosts} data hosts of {DATA} would be enough" in found.advice
    helps = (facts("data", DATA), facts("train", TRAINER, trains=True, executors=32, cores=32))
    none = advise(measured(0.0905, 0.005, *helps), DATA)
    assert none.best is not None
    assert none.best.data_hosts == 0
    assert "Do not add CPU hosts: " in none.advice
    assert ". It needs no data hosts at all: a predicted step of " in none.advice


def test_costs_are_the_one_cost_function_of_the_predicted_time() -> None:
    found = advise(measured(), DATA)
    two = next(one for one in found.candidates if one.data_hosts == 2)
    hourly = price(TRAINER) + 2 * price(DATA)
    assert two.price_per_hour == pytest.approx(hourly)
    assert two.cost_per_1000_samples is not None
    assert two.cost_per_1000_samples.value == cost(two.price_per_hour or 0, two.step.value * 1000 / ROWS)
    # 310 s to train, of which 1,000 steps took 300 s: 10 s are no steps and stay
    assert two.time_to_train is not None
    assert two.time_to_train.value == pytest.approx(1000 * two.step.value + 10)
    # The bill began 60 s before: the instances were started, and that is paid too, as in the run's report.
    assert two.cost is not None
    assert two.cost.value == pytest.approx(cost(two.price_per_hour or 0, 1000 * two.step.value + 70))
    assert found.now.cost_per_1000_samples == cost(price(TRAINER), 0.3 * 1000 / ROWS)
    assert found.now.cost == 0.125


def test_a_type_that_is_named_twice_is_tried_once() -> None:
    once, twice = advise(measured(), DATA), advise(measured(), DATA, DATA)
    assert once.best is not None
    assert "advised" in once.best.marks
    assert twice == once


def test_a_run_that_goes_on_has_no_cost_yet() -> None:
    found = advise(measured(), trained=None)
    assert found.now.cost is None
    assert all(one.time_to_train is None and one.cost is None for one in found.candidates)
    assert found.best is not None


def test_without_prices_there_is_advice_but_no_money() -> None:
    found = advise(measured(), DATA, region="mars-1")
    assert all(one.cost_per_1000_samples is None and one.price_per_hour is None for one in found.candidates)
    assert found.now.cost_per_1000_samples is None
    assert found.cheapest is found.knee is None
    assert found.best is not None
    assert "whether it is cheaper is not known" in found.advice
    assert f"no price of {TRAINER}, {DATA} in mars-1" in found.notes[0]


def test_the_frontier_holds_what_nothing_beats_in_both() -> None:
    found = advise(measured())
    edge = [one for one in found.candidates if "frontier" in one.marks]
    assert edge

    def worth(one: Candidate) -> tuple[float, float]:
        assert one.cost_per_1000_samples is not None
        return one.step.value, one.cost_per_1000_samples.value

    for one in found.candidates:
        beaten = any(worth(e)[0] <= worth(one)[0] and worth(e)[1] < worth(one)[1] for e in found.candidates)
        assert not (beaten and one in edge)
    assert frontier(found.candidates) == sorted(edge, key=worth, reverse=True)
    for name, chosen in (("fastest", found.fastest), ("cheapest", found.cheapest), ("knee", found.knee)):
        assert chosen is not None
        assert name in chosen.marks
        assert sum(name in one.marks for one in found.candidates) == 1
    assert found.fastest is not None
    assert found.fastest.step.value <= min(one.step.value for one in found.candidates) * (1 + SAME)


def test_a_core_that_stands_for_vcpus_keeps_their_proportions() -> None:
    # one core played the 4 vCPUs of a g5.xlarge: a c5.9xlarge is then 9 cores
    run = measured(0.3, 0.7, facts("train", TRAINER, trains=True, cores=1, executors=1))
    assert cores_per_vcpu(run, "ml.c5.9xlarge") == 0.25
    found = advise(run, "ml.c5.9xlarge")
    assert found.candidates[1].workers == 9
    assert any("1 core of this run stood for the 4 vCPUs of ml.g5.xlarge" in text for text in found.assumptions)


def test_the_range_is_widened_by_what_the_model_misses_on_the_runs_own_cluster() -> None:
    # the model says 0.3 s ((10 * 0.1 + 0.2) / 4 cores) where 0.36 s were measured
    found = advise(measured(0.36, 0.75), DATA)
    assert found.now.predicted.value == pytest.approx(0.3333, rel=1e-3)
    assert found.now.residual == pytest.approx(0.08, rel=1e-2)
    best = found.candidates[-1]
    assert best.step.high == pytest.approx(best.step.value * 1.08)


def test_an_unknown_shape_is_assumed_in_words_and_clocks_widen_the_range() -> None:
    found = advise(measured(), "ml.c5.9xlarge", "ml.c7i.4xlarge")
    joined = " ".join(found.assumptions)
    assert "(GHz: ml.g5.xlarge 3.3, ml.c5.9xlarge 3.4, ml.c7i.4xlarge 3.2)" in joined
    one = next(c for c in found.candidates if c.instance_type == "ml.c7i.4xlarge")  # slower clock than 3.3
    assert one.step.high >= one.step.value


# From records


TRAIN_HOST, DATA_HOST = Stream("train", "algo-2", "host"), Stream("data", "algo-1", "host")
RANK = Stream("train", "algo-2", "0")
PLAN = [
    PlannedGroup("data", DATA, ("algo-1",), entry_point=False, feed_executors=2),
    PlannedGroup("train", TRAINER, ("algo-2",), processes_per_host=1, feed_executors=1),
]


def step_second(t: float, steps: int = 5, wait: float = 0.5, step: float = 1.0) -> LoaderSecond:
    size = {"samples": steps * ROWS, "bytes": 1000 * steps * ROWS, "step_max": 0.3}
    return loader_second(t, steps=steps, wait=wait, step=step, **size)


def worker_second(t: float, executors: int, produce: float, cpu: float, samples: int) -> WorkerSecond:
    return WorkerSecond(
        t=t, seconds=1.0, executors=executors, produce=produce, blocked=0.0, idle=executors - produce,
        cpu=cpu, slices=1, samples=samples, bytes=1000 * samples,
    )  # fmt: skip


def host_second(t: float, rate: float, cores: int = 2) -> HostSecond:
    return HostSecond(t=t, cpu=rate * t, cores=cores, rss=1, processes=1)


LOADERS = {RANK: [step_second(t, wait=9.0 if t == 1.0 else 0.5) for t in (1.0, 2.0, 3.0, 4.0)]}
HOSTS = {
    TRAIN_HOST: [host_second(t, 1.0) for t in (1.0, 2.0, 3.0, 4.0)],
    DATA_HOST: [host_second(t, 0.9) for t in (1.0, 2.0, 3.0, 4.0)],
}
WORKERS = {
    Stream("data", "algo-1", "feed"): [worker_second(t, 2, 2.0, 0.8, 40) for t in (1.0, 2.0, 3.0, 4.0)],
    Stream("train", "algo-2", "feed"): [worker_second(t, 1, 0.5, 0.3, 10) for t in (1.0, 2.0, 3.0, 4.0)],
}


def test_what_a_run_tells_is_read_without_its_warm_up() -> None:
    found = measure(PLAN, columns_of(LOADERS, WORKERS, HOSTS))
    assert found.window == Window(1.0, 4.0)
    assert found.step.value == pytest.approx(0.2)
    assert found.wait == pytest.approx(0.5)
    assert (found.steps, found.samples) == (20, 200)
    assert found.workload.rows == ROWS
    assert found.workload.compute.value == pytest.approx(0.1)
    assert found.workload.sample_bytes == 1000
    # 1 CPU second a second on the trainer's host, 0.3 of it its worker's; 5 steps a second
    assert found.workload.trainer_cpu.value == pytest.approx(0.7 / 5)
    data, train = found.groups
    assert (data.trains, train.trains) == (False, True)
    assert (data.executors, data.cores, data.busy) == (2, 2, pytest.approx(0.45))
    assert data.cpu is not None
    assert data.pause is not None
    assert data.cpu.value == pytest.approx(0.02)
    assert data.pause.value == pytest.approx(0.03)  # busy 50 ms a sample; a core for each of the two
    assert found.workers_told
    assert found.assumptions == ()


def test_a_rank_that_waits_for_another_in_a_collective_does_not_count_as_computing() -> None:
    other = {Stream("train", "algo-2", "1"): [step_second(t, wait=0.1) for t in (1.0, 2.0, 3.0)]}
    found = measure(PLAN, columns_of(LOADERS | other, WORKERS, HOSTS))
    assert found.workload.compute.value == pytest.approx(0.1)  # of the rank that waited for its data
    assert found.workload.rows == 2 * ROWS


def test_a_loader_that_tells_nothing_of_its_workers_is_assumed_for_in_words() -> None:
    plan = [PlannedGroup("train", TRAINER, ("algo-2",), processes_per_host=1)]
    found = measure(plan, columns_of(LOADERS, {TRAIN_HOST: [host_second(t, 1.5) for t in (1.0, 2.0, 3.0, 4.0)]}))
    assert not found.workers_told
    # 0.3 CPU seconds a step, 0.1 of them the rank's
    cpu = found.groups[0].cpu
    assert cpu is not None
    assert (cpu.value, cpu.high) == (pytest.approx(0.02), pytest.approx(0.03))
    assert "each rank is taken to keep one core busy while it computes" in found.assumptions[0]


def foreign(wait: float, rate: float, **changes: object) -> Measured:
    """A run of a loader that tells nothing, on 2 cores of which `rate` are busy."""
    plan = [PlannedGroup("train", TRAINER, ("algo-2",), processes_per_host=1)]
    ranks = {RANK: [msgspec.structs.replace(step_second(t, wait=wait), **changes) for t in (1.0, 2.0, 3.0, 4.0)]}
    return measure(plan, columns_of(ranks, {TRAIN_HOST: [host_second(t, rate) for t in (1.0, 2.0, 3.0, 4.0)]}))


@pytest.mark.parametrize("wait", [0.01, 0.1])
def test_a_busy_host_that_makes_its_own_batches_is_not_told_to_add_none(wait: float) -> None:
    # 1 CPU second of computing and none of making, or the reverse? Nobody tells.
    found = advise(msgspec.structs.replace(foreign(wait, 1.99), workload=measured().workload))
    if wait < 0.05:
        assert found.advice.startswith("It cannot be told whether CPU hosts would help: ranks wait 1.0 % of a step")
        assert (found.best, found.add) == (None, False)
        assert any("data hosts bring more than is predicted" in note for note in found.notes)
    assert "Do not add" not in found.advice
    alone = advise(
        msgspec.structs.replace(foreign(wait, 1.7), workload=Workload(ROWS, exactly(0.2), exactly(0.2), 1.0))
    )
    assert alone.advice.startswith("It cannot be told whether CPU hosts would help")
    assert "headrace doctor" in alone.advice


def test_cores_to_spare_a_measured_device_or_a_queue_tell_that_the_ranks_compute() -> None:
    assert foreign(0.01, 2 * CROWDED / 100).blurred
    assert foreign(0.01, 0.3).blurred  # the rank had no core of its own: other programs had it
    assert not foreign(0.01, 2 * (CROWDED - 1) / 100).blurred
    assert not foreign(0.01, 1.99, compute=0.9).blurred
    assert not foreign(0.01, 1.99, queue=1.0).blurred
    assert advise(foreign(0.01, 1.5)).advice.startswith("Do not add CPU hosts: ")
    assert not measure(PLAN, columns_of(LOADERS, WORKERS, HOSTS)).blurred
    served = {Stream("data", "algo-1", "tf-worker-0"): [
        ServiceSecond(t=t, stream="tf-worker-0", role="worker", cpu=t, rss=1, tasks=1) for t in (1.0, 2.0)
    ]}  # fmt: skip
    plan = [PlannedGroup("train", TRAINER, ("algo-2",), processes_per_host=1)]
    busy = {TRAIN_HOST: [host_second(t, 1.99) for t in (1.0, 2.0, 3.0, 4.0)]}
    assert measure(plan, columns_of(LOADERS, busy)).blurred
    assert not measure(plan, columns_of(LOADERS, busy, served)).blurred


def test_the_model_proves_itself_on_the_cluster_of_a_foreign_loader() -> None:
    # two cores, busy all the time: 0.4 CPU seconds a step of 0.2 s
    plan = [PlannedGroup("train", TRAINER, ("algo-2",), processes_per_host=1)]
    found = measure(plan, columns_of(LOADERS, {TRAIN_HOST: [host_second(t, 2.0) for t in (1.0, 2.0, 3.0, 4.0)]}))
    assert (found.groups[0].executors, found.ranks_per_host) == (2, 1.0)
    assert advise(found).now.predicted.value == pytest.approx(0.2)


def test_hosts_of_another_data_service_count_with_all_their_cpu_time() -> None:
    plan = [msgspec.structs.replace(PLAN[0], feed_executors=0), msgspec.structs.replace(PLAN[1], feed_executors=0)]
    found = measure(plan, columns_of(LOADERS, HOSTS))
    # (1.0 + 0.9) CPU seconds a second, 5 steps a second, 0.1 s of each the rank's
    assert found.groups[0].cpu is not None
    assert found.groups[0].cpu.value == pytest.approx((1.9 / 5 - 0.1) / ROWS)
    assert "all CPU time of data goes into samples" in found.assumptions


def test_data_workers_that_the_plan_forgets_count_by_what_they_told() -> None:
    plan = [msgspec.structs.replace(group, feed_executors=0) for group in PLAN]
    found = measure(plan, columns_of(LOADERS, WORKERS, HOSTS))
    assert found == measure(PLAN, columns_of(LOADERS, WORKERS, HOSTS))
    only = {Stream("data", "algo-1", "feed"): WORKERS[Stream("data", "algo-1", "feed")]}
    assert advise(measure(plan, columns_of(LOADERS, only, HOSTS)), DATA).best is not None
    # The group of the workers is not in the plan, or they made samples in no time: nothing tells what one costs.
    unknown = {Stream("other", "algo-9", "feed"): only[Stream("data", "algo-1", "feed")]}
    timeless = {stream: [msgspec.structs.replace(one, produce=0.0) for one in told] for stream, told in only.items()}
    for workers in (unknown, timeless):
        with pytest.raises(UsageError, match="its data workers do not tell how long they took") as refused:
            measure(plan, columns_of(LOADERS, workers, HOSTS))
        assert refused.value.hint


def test_groups_that_do_neither_stay_and_cost_money() -> None:
    plan = [*PLAN, PlannedGroup("judge", "ml.m5.large", ("algo-3",))]
    found = advise(measure(plan, columns_of(LOADERS, WORKERS, HOSTS)), DATA)
    assert found.now.cluster == f"1 x {DATA} + 1 x {TRAINER} + 1 x ml.m5.large"
    assert found.now.price_per_hour == pytest.approx(price(TRAINER) + price(DATA) + price("ml.m5.large"))
    assert found.candidates[0].price_per_hour == pytest.approx(price(TRAINER) + price("ml.m5.large"))


def test_compute_under_crowded_cores_is_the_cpu_time_of_a_rank() -> None:
    plan = [PlannedGroup("train", TRAINER, ("algo-2",), processes_per_host=1, feed_executors=1)]
    workers = {Stream("train", "algo-2", "feed"): [worker_second(t, 1, 1.0, 0.53, 10) for t in (1.0, 2.0, 3.0, 4.0)]}
    hosts = {TRAIN_HOST: [host_second(t, 1.0, cores=1) for t in (1.0, 2.0, 3.0, 4.0)]}
    found = measure(plan, columns_of(LOADERS, workers, hosts))
    assert found.workload.compute.value == pytest.approx(0.47 / 5)  # less than the 100 ms measured
    assert found.workload.compute.high == pytest.approx(0.1)
    assert "data workers competed for the cores of the ranks" in found.assumptions[0]


@pytest.mark.parametrize(
    ("loaders", "workers", "hosts", "message"),
    [
        ({}, {}, HOSTS, "no loader wrote metrics"),
        ({RANK: LOADERS[RANK][:1]}, WORKERS, HOSTS, "no loader wrote metrics"),
        ({RANK: LOADERS[RANK][:LEAST_RECORDS]}, WORKERS, HOSTS, "2 records of its loader .* a measurement needs 3"),
        (LOADERS, WORKERS, {DATA_HOST: HOSTS[DATA_HOST]}, "the hosts of train wrote no CPU metrics"),
        (LOADERS, {}, HOSTS, "its data workers wrote no metrics"),
        ({RANK: [msgspec.structs.replace(s, samples=0) for s in LOADERS[RANK]]}, {}, HOSTS, "how many samples"),
    ],
)
def test_a_run_that_tells_too_little_is_refused(
    loaders: dict[Stream, list[LoaderSecond]],
    workers: dict[Stream, list[WorkerSecond]],
    hosts: dict[Stream, list[HostSecond]],
    message: str,
) -> None:
    with pytest.raises(UsageError, match=message):
        measure(PLAN, columns_of(loaders, workers, hosts))


@pytest.mark.parametrize("seconds", [1 + LEAST_RECORDS - 1, 1 + LEAST_RECORDS])
def test_a_run_whose_verdict_is_unknown_gets_no_advice(tmp_path: Path, seconds: int) -> None:
    hosts = {Stream(one.group, one.host, "host"): host(0.5) for one in (recorded_rank(0), FEED)}
    run = record(tmp_path, "short", {recorded_rank(0): loader(0.5, seconds=seconds), FEED: feed(0.9, 0.0), **hosts})
    (run.paths.root / "job.json").write_text("{}")
    if report(run).verdict.name is VerdictName.UNKNOWN:
        with pytest.raises(UsageError, match="a measurement needs") as refused:
            advised(run)
        assert refused.value.hint.startswith("train for at least 5 seconds")
    else:
        assert seconds > LEAST_RECORDS
        assert advised(run).best is not None


def test_what_the_run_cost_is_what_its_report_says(tmp_path: Path) -> None:
    hosts = {Stream(one.group, one.host, "host"): host(0.5) for one in (recorded_rank(0), FEED)}
    run = record(tmp_path, "priced", {recorded_rank(0): loader(0.5), FEED: feed(0.9, 0.0), **hosts})
    (run.paths.root / "job.json").write_text("{}")
    plan = json.loads((run.paths.root / "plan.json").read_text())
    plan["groups"][0]["feed_executors"] = 2
    (run.paths.root / "plan.json").write_text(json.dumps(plan))
    found = advised(run, types=(DATA,), max_hosts=2)
    money = report(run).cost
    assert money is not None
    assert found.now.cost == money.total.value == cost_report(run).total.value
    assert money.total.window is not None
    assert found.now.time_to_train is not None
    assert money.total.window.seconds > found.now.time_to_train, "or the test tells nothing"
    one = found.candidates[-1]
    assert one.cost is not None
    steps = found.measured.steps * (one.step.value - found.now.step.value)
    assert one.cost.value == pytest.approx(cost(one.price_per_hour or 0, money.total.window.seconds + steps))


def test_a_step_time_that_is_not_the_report_s_says_why(tmp_path: Path) -> None:
    hosts = {Stream(one.group, one.host, "host"): host(0.5) for one in (recorded_rank(0), FEED)}
    run = record(tmp_path, "late", {recorded_rank(0): loader(0.5), FEED: feed(0.9, 0.0), **hosts})
    (run.paths.root / "job.json").write_text("{}")
    assert not [note for note in advised(run).notes if "the report's step time" in note]
    judged = report(run)
    later = msgspec.structs.replace(advised(run).measured.step, value=1.1 * advised(run).measured.step.value)
    assert judged.training is not None
    said = _other_step(msgspec.structs.replace(advised(run).measured, step=later), judged)
    assert said.startswith(f"the report's step time, {judged.training.step_time.value:.1f} ms, counts the time before")


def test_old_prices_are_called_old_with_their_years_and_the_command_that_brings_newer_ones() -> None:
    old = [found for name in (DATA, "ml.c5.18xlarge") if (found := price_of(name)) is not None]
    years = {price.as_of[:4] for price in old}
    said = age_text(old, date(2030, 1, 1))
    assert said.startswith(f"OLD prices, of {min(years)}")
    assert "`headrace prices update --region us-east-1`" in said
    new = [replace(price, as_of="2029-06") for price in old]
    assert age_text([*new, None], date(2030, 1, 1)) == ""


def test_prices_are_those_of_the_option_else_of_the_budget_else_a_note_says_whose(tmp_path: Path) -> None:
    hosts = {Stream(one.group, one.host, "host"): host(0.5) for one in (recorded_rank(0), FEED)}
    run = record(tmp_path, "abroad", {recorded_rank(0): loader(0.5), FEED: feed(0.9, 0.0), **hosts})
    (run.paths.root / "job.json").write_text("{}")
    note = "the job names no region: prices of us-east-1"
    assert (advised(run).region, note in advised(run).notes) == ("us-east-1", True)
    plan = json.loads((run.paths.root / "plan.json").read_text())
    budget = {"max_cost": 25.0, "region": "us-west-2"}
    (run.paths.root / "plan.json").write_text(json.dumps({**plan, "budget": budget}))
    found = advised(run)
    assert (found.region, note in found.notes) == ("us-west-2", False)
    assert {price.region for price in found.prices} == {"us-west-2"}
    assert found.region == cost_report(run).region
    assert advised(run, region="us-east-1").region == "us-east-1"
    (run.paths.root / "plan.json").write_text(json.dumps({**plan, "budget": {"max_cost": "much"}}))
    assert advised(run).notes[0].startswith("plan.json cannot be read, so the instance types and what the run costs")
    assert advised(run).now.cost is None


@pytest.mark.parametrize("types", [(), (DATA,)])
@pytest.mark.parametrize(("trainer", "money"), [("local", False), ("local_gpu", False), (TRAINER, True)])
def test_money_is_shown_where_the_run_has_named_types_and_never_for_this_machine_itself(
    capsys: pytest.CaptureFixture[str], trainer: str, money: bool, types: tuple[str, ...]
) -> None:
    found = advise(measured(0.3, 0.7, facts("train", trainer, trains=True, executors=3)), *types)
    show(
        advice_document(
            msgspec.structs.replace(found, now=msgspec.structs.replace(found.now, cost=None)), everything=True
        )
    )
    shown = capsys.readouterr().out
    assert ("USD" in shown, "prices" in shown) == (money, money)
    assert bool(found.prices) is money
    assert "data host" in found.advice


@pytest.mark.parametrize("width", [0, 60, 80, 100])
def test_every_figure_of_the_advice_is_shown_whole_however_narrow(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    found = advise(measured())
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: bool(width))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", str(width or 80))
    monkeypatch.setenv("TERM", "xterm")
    show(advice_document(found, everything=True))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "…" not in shown
    assert not width or max(map(len, shown.splitlines())) <= width
    squeezed, place = re.sub(r"\s", "", shown), 0
    for one in found.candidates:
        assert one.cost is not None
        figures = (
            milliseconds(one.step.value),
            f"{100 * one.wait:.0f} %",
            amount(one.cost.value),
            one.verdict,
        )
        for text in (one.title, *figures, *one.marks):  # in this order, one candidate after the other
            place = squeezed.index(re.sub(r"\s", "", text), place) + 1
