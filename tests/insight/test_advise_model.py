"""The model of a step: what it is in cases that can be worked out by hand, and what must always hold."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.insight.performance_model import (
    Pool,
    Range,
    Workload,
    exactly,
    fewest_executors,
    pause_of,
    predict,
    rate,
)

NOTHING = exactly(0.0)


def workload(compute: float = 0.1, trainer_cpu: float = 0.0, size: float | None = None) -> Workload:
    return Workload(rows=10.0, compute=exactly(compute), trainer_cpu=exactly(trainer_cpu), sample_bytes=size)


def pool(hosts: int = 1, cores: float = 1, executors: float = 1, cpu: float = 0.02, **more: object) -> Pool:
    return msgspec.structs.replace(Pool(hosts, cores, executors, exactly(cpu)), **more)


@pytest.mark.parametrize(
    ("executors", "cores", "cpu", "pause", "made"),
    [(4, 2, 0.1, 0.0, 20), (2, 4, 0.1, 0.0, 20), (1, 0.25, 0.1, 0.0, 2.5), (6, 1, 0.0, 0.1, 60),
     (500, 2, 0.01, 0.1, 200), (96, 96, 5.0, 0.0001, 96 / 5.0001)],
    ids=["no pause", "cores to spare", "a part of a core", "only waiting", "many", "a core each"],
)  # fmt: skip
def test_workers_make_what_their_cores_can_and_those_that_wait_need_none(
    executors: int, cores: float, cpu: float, pause: float, made: float
) -> None:
    assert rate(executors, cores, cpu=cpu, pause=pause) == pytest.approx(made)


@given(
    st.integers(1, 40),
    st.floats(0.25, 64),
    st.floats(1e-4, 1),
    st.floats(1e-3, 1),
)
def test_the_pause_is_found_again(executors: int, cores: float, cpu: float, pause: float) -> None:
    busy = executors / rate(executors, cores, cpu, pause)
    again = pause_of(busy, executors, cores, cpu)
    assert executors / rate(executors, cores, cpu, again) == pytest.approx(busy, rel=1e-6)


@given(st.integers(1, 400), st.floats(0.25, 64), st.floats(1e-4, 1), st.floats(0, 1))
def test_the_fewest_executors_reach_what_is_wanted_and_one_less_does_not(
    executors: int, cores: float, cpu: float, pause: float
) -> None:
    wanted = 0.999 * rate(executors, cores, cpu, pause)
    found = fewest_executors(wanted, cores, cpu, pause)
    assert found is not None
    assert rate(found - 1, cores, cpu, pause) < wanted <= rate(found, cores, cpu, pause) * (1 + 1e-6)
    assert fewest_executors(wanted, cores, cpu, pause, most=executors) == found
    if found > 1:
        assert fewest_executors(wanted, cores, cpu, pause, most=found - 1) is None
    assert fewest_executors(1.001 * cores / cpu, cores, cpu, pause) is None


@given(st.integers(1, 60), st.floats(0.25, 64), st.floats(1e-4, 1), st.floats(1e-3, 1))
def test_the_rate_is_the_mean_of_the_birth_death_process(
    executors: int, cores: float, cpu: float, pause: float
) -> None:
    weights = [1.0]
    for k in range(1, executors + 1):
        weights.append(weights[-1] * (executors - k + 1) / pause * cpu / min(k, cores))
    made = sum(weight * min(k, cores) / cpu for k, weight in enumerate(weights))
    assert rate(executors, cores, cpu, pause) == pytest.approx(made / sum(weights))


def test_what_queueing_explains_is_no_pause() -> None:
    assert pause_of(0.04, executors=4, cores=2, cpu=0.02) == 0.0
    assert pause_of(0.05, executors=1, cores=1, cpu=0.02) == pytest.approx(0.03)


def test_one_core_that_trains_and_one_that_helps_share_all_the_work() -> None:
    # P = 200 ms and T = 50 ms of CPU a step: (P + T) / 1 alone, (P + T) / 2 with one more core
    own = pool(trains=True)
    alone = predict(workload(compute=0.05, trainer_cpu=0.05), [own])
    both = predict(workload(compute=0.05, trainer_cpu=0.05), [own, pool()])
    assert alone.step.value == pytest.approx(0.25)
    assert both.step.value == pytest.approx(0.125)
    assert alone.limit == both.limit == "workers"
    assert both.wait == pytest.approx(1 - 0.05 / 0.125)


def test_the_step_is_never_shorter_than_computing() -> None:
    found = predict(workload(compute=0.1), [pool(hosts=50)])
    assert found.step.value == 0.1
    assert (found.limit, found.wait) == ("compute", 0.0)


def test_a_trainer_without_a_core_to_spare_makes_nothing() -> None:
    # its ranks need 1.2 CPU seconds of one core for a step that the data host makes in 0.2 s
    found = predict(workload(compute=0.1, trainer_cpu=1.2), [pool(trains=True), pool()])
    assert found.making == pytest.approx(0.2)


def test_the_network_limits_the_data_hosts_and_what_the_trainer_takes_in() -> None:
    # 10 samples of 1 MB a step; a host makes 50 samples a second and sends 25, or the trainer takes in 20
    sender = predict(workload(size=1e6), [pool(bandwidth=25e6)])
    assert (sender.limit, sender.making, sender.wire) == ("network", pytest.approx(0.2), pytest.approx(0.4))
    trainer = pool(executors=0, trains=True, bandwidth=20e6)
    taker = predict(workload(size=1e6), [pool(hosts=4), trainer])
    assert (taker.limit, taker.wire) == ("network", pytest.approx(0.5))


def test_without_a_worker_a_step_never_ends() -> None:
    found = predict(workload(), [pool(executors=0, trains=True)])
    assert math.isinf(found.step.value)
    assert found.wait == 1.0


POOLS = st.builds(
    pool,
    hosts=st.integers(1, 8),
    cores=st.floats(0.25, 96),
    executors=st.integers(1, 32),
    cpu=st.floats(1e-4, 1),
    pause=st.floats(0, 1).map(exactly),
    bandwidth=st.none() | st.floats(1e3, 1e10),
)
WORKLOADS = st.builds(
    workload, compute=st.floats(1e-3, 10), trainer_cpu=st.floats(0, 5), size=st.none() | st.floats(1, 1e7)
)


@given(WORKLOADS, POOLS, POOLS, st.booleans())
def test_more_hosts_cores_workers_or_network_are_never_slower(
    work: Workload, own: Pool, beside: Pool, with_own: bool
) -> None:
    rest = [msgspec.structs.replace(own, trains=True)] if with_own else []
    before = predict(work, [*rest, beside])
    for more in (
        {"hosts": beside.hosts + 1},
        {"cores": beside.cores * 2},
        {"executors": beside.executors + 1},
        {"bandwidth": None},
        {"cpu": exactly(beside.cpu.value / 2)},
    ):
        after = predict(work, [*rest, msgspec.structs.replace(beside, **more)])
        assert after.step.value <= before.step.value * (1 + 1e-6)
    assert before.step.value >= work.compute.value


@given(WORKLOADS, POOLS, POOLS)
def test_the_range_holds_the_value_and_grows_with_what_is_unknown(work: Workload, own: Pool, beside: Pool) -> None:
    wide = msgspec.structs.replace(beside, cpu=Range(beside.cpu.value / 2, beside.cpu.value, beside.cpu.value * 2))
    found = predict(work, [msgspec.structs.replace(own, trains=True), wide])
    assert found.step.low <= found.step.value * (1 + 1e-9)
    assert found.step.value <= found.step.high * (1 + 1e-9)


@given(WORKLOADS, POOLS, POOLS, st.floats(1, 10), st.floats(1, 10))
def test_a_range_is_never_upside_down_where_samples_are_dear_when_ranks_are_cheap(
    work: Workload, own: Pool, beside: Pool, ranks: float, samples: float
) -> None:
    """As `calibrate` has it of hosts that train: the high end of a sample belongs to the low CPU time of the ranks."""
    cpu, rest = own.cpu.value, work.trainer_cpu.value
    both = msgspec.structs.replace(work, trainer_cpu=Range(rest * ranks, rest, rest / ranks))
    trains = msgspec.structs.replace(own, trains=True, cpu=Range(cpu / samples, cpu, cpu * samples))
    for pools in ([trains], [trains, beside]):
        step = predict(both, pools).step
        assert step.low <= step.value <= step.high
