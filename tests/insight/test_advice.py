"""The decision of `headrace doctor`: figures in, advice out."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from headrace.insight.evidence import WORTH
from headrace.insight.offload_decision import (
    HEADROOM,
    HYBRID,
    Advice,
    Case,
    Transfer,
    decide,
    local_capacity,
)
from headrace.insight.performance_model import Pool, Workload, exactly, predict, rate

FAST = Transfer(batches=100, bytes=1_000_000, seconds=0.0001, trainer_cpu=0.00001, worker_cpu=0.00001)


def case(**changes: Any) -> Case:
    """A loop of 100 ms steps that would take 10: 32 samples of 8 ms CPU and 10 ms wall, one worker."""
    figures: dict[str, Any] = {
        "rows": 32, "step": 0.1, "wait": 0.09, "floor": 0.01, "sample_wall": 0.01, "sample_cpu": 0.008, "cores": 4.0,
        "workers": 1,
    }  # fmt: skip
    return Case(**(figures | changes))


GRID = [
    case(rows=rows, wait=0.1 - floor, floor=floor, sample_cpu=cpu, sample_wall=max(cpu, wall), cores=cores, workers=n)
    for rows, floor, cpu, wall, cores, n in itertools.product(
        (1, 32, 1024), (0.001, 0.01, 0.08, 0.099), (1e-6, 1e-3, 0.05), (1e-5, 0.01), (0.5, 4.0, 96.0), (0, 1, 16)
    )
]
TRANSFERS = [None, FAST, Transfer(8, 10**8, 0.05, 0.03, 0.03), Transfer(8, 10**9, 5.0, 3.0, 3.0)]


@pytest.mark.parametrize("transfer", TRANSFERS, ids=["unmeasured", "fast", "slow", "hopeless"])
def test_what_holds_for_every_case(transfer: Transfer | None) -> None:
    for one in GRID:
        verdict = decide(one, transfer)
        assert verdict.reason
        if one.gain < WORTH:
            assert verdict.advice is Advice.DO_NOT_OFFLOAD
        if verdict.step is not None:
            assert one.floor <= verdict.step * 1.000001
            assert verdict.step <= one.step
        away = verdict.advice in (Advice.HYBRID, Advice.REMOTE)
        assert (verdict.remote_cores > 0) == (verdict.remote_workers > 0) == away
        if verdict.advice in (Advice.LOCAL, Advice.HYBRID):
            assert verdict.workers is not None
            assert 1 <= verdict.workers <= max(one.most_workers, one.workers)
        else:
            assert verdict.workers is None
        if away and transfer is not None:
            assert verdict.step is not None
            assert verdict.step * WORTH < one.step


def test_what_local_promises_this_machine_can_do() -> None:
    for one in GRID:
        verdict = decide(one, FAST)
        if verdict.advice is Advice.LOCAL and verdict.step == one.floor:
            capacity = local_capacity(one)
            assert capacity is None or capacity >= one.rows / one.floor
            assert verdict.workers is not None
            assert verdict.workers / (one.sample_wall or 1) >= one.rows / one.floor


def test_more_cores_never_move_the_work_away() -> None:
    order = [Advice.REMOTE, Advice.HYBRID, Advice.LOCAL]
    for cpu, floor in itertools.product((1e-4, 1e-3, 0.01), (0.001, 0.01, 0.05)):
        found = [
            decide(case(sample_cpu=cpu, sample_wall=cpu, floor=floor, wait=0.1 - floor, cores=cores), FAST).advice
            for cores in (0.25, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
        ]
        assert found == sorted(found, key=order.index)


def test_a_compute_bound_loop_is_left_alone_whatever_a_sample_costs() -> None:
    for cpu, cores in itertools.product((1e-6, 1e-3, 1.0), (0.5, 64.0)):
        verdict = decide(case(wait=0.0005, floor=0.0995, sample_cpu=cpu, sample_wall=cpu, cores=cores, workers=0), FAST)
        assert verdict.advice is Advice.DO_NOT_OFFLOAD
        assert "does not stall" in verdict.reason


def test_a_wait_that_the_device_hides_is_no_stall() -> None:
    verdict = decide(case(wait=0.08, floor=0.099), FAST)
    assert verdict.advice is Advice.DO_NOT_OFFLOAD
    assert "the device works meanwhile" in verdict.reason


def test_workers_that_take_the_trainers_cores_count_as_a_stall() -> None:
    crowded = case(wait=0.001, floor=0.05, cores=4.0, trainer_cores=3.0, sample_cpu=0.008, workers=3)
    assert decide(crowded, FAST).advice in (Advice.REMOTE, Advice.HYBRID)
    quiet = case(wait=0.001, floor=0.05, cores=64.0, trainer_cores=3.0, sample_cpu=0.0001, workers=3)
    verdict = decide(quiet, FAST)
    assert verdict.advice is Advice.DO_NOT_OFFLOAD
    assert "busy with other work" in verdict.notes[0]


def test_local_names_the_workers_that_remove_the_stall() -> None:
    verdict = decide(case(cores=64.0), FAST)
    assert (verdict.advice, verdict.workers) == (Advice.LOCAL, math.ceil(HEADROOM * 32 / 0.01 * 0.01))
    assert verdict.step == 0.01


def test_waiting_samples_need_workers_but_no_cores() -> None:
    verdict = decide(case(cores=8.0, sample_cpu=0.0, sample_wall=0.015), FAST)
    assert (verdict.advice, verdict.workers) == (Advice.LOCAL, 53)
    assert decide(case(cores=1.0, sample_cpu=0.0, sample_wall=0.015), FAST).advice is Advice.REMOTE


def test_hybrid_when_this_machine_can_do_a_good_part() -> None:
    cores = HEADROOM * 32 / 0.01 * 0.008  # 28.16
    verdict = decide(case(cores=cores / 2), FAST)
    assert verdict.advice is Advice.HYBRID
    assert verdict.remote_cores == math.ceil(cores / 2)
    assert verdict.step == pytest.approx(0.01)
    assert decide(case(cores=cores * HYBRID * 0.9), FAST).advice is Advice.REMOTE


def test_remote_takes_all_the_cores_from_elsewhere() -> None:
    verdict = decide(case(cores=2.0), FAST)
    assert (verdict.advice, verdict.remote_cores, verdict.remote_workers) == (Advice.REMOTE, 29, 37)
    cost = {"cpu": HEADROOM * 0.008, "pause": HEADROOM * 0.002}  # 35.2 executors would do if none queued for a core
    assert rate(36, 29, **cost) < 32 / 0.01 <= rate(37, 29, **cost)


def test_remote_is_sized_for_what_the_transfer_lets_through() -> None:
    slow = Transfer(8, 10**7, seconds=0.02, trainer_cpu=0.001, worker_cpu=0.001)
    verdict = decide(case(cores=2.0), slow)
    assert verdict.advice is Advice.REMOTE
    assert verdict.step == pytest.approx(0.02)
    assert verdict.remote_cores == 15
    assert "20.00 ms a batch over TCP is the limit" in verdict.notes[-1]


def test_no_offload_when_a_batch_takes_longer_over_tcp_than_here() -> None:
    hopeless = Transfer(8, 10**9, seconds=5.0, trainer_cpu=0.1, worker_cpu=0.1)
    verdict = decide(case(cores=2.0, step=0.14, wait=0.13, workers=2), hopeless)
    assert verdict.advice is Advice.DO_NOT_OFFLOAD
    assert "over TCP" in verdict.reason
    more_here = decide(case(cores=2.0, step=0.5, wait=0.49, workers=1), hopeless)
    assert (more_here.advice, more_here.workers) == (Advice.LOCAL, 3)  # two would leave a fifth of two cores idle
    assert more_here.step == pytest.approx(32 / rate(3, 2.0, cpu=HEADROOM * 0.008, pause=HEADROOM * 0.002))


def test_no_offload_when_receiving_costs_as_much_cpu_as_making() -> None:
    cheap = case(rows=1000, step=0.03, wait=0.027, floor=0.003, sample_cpu=0.00002, sample_wall=0.00002, cores=1.0)
    verdict = decide(cheap, Transfer(8, 10**7, seconds=0.004, trainer_cpu=0.025, worker_cpu=0.02))
    assert "remote workers would save nothing" in verdict.reason
    assert verdict.advice in (Advice.LOCAL, Advice.DO_NOT_OFFLOAD)


def test_iterable_datasets_and_unknown_costs_are_said_to_be_unknown() -> None:
    for one in (case(map_style=False), case(sample_cpu=None, sample_wall=None)):
        verdict = decide(one, FAST)
        assert verdict.advice is Advice.UNKNOWN
        assert local_capacity(one) is None
    assert "IterableDataset" in decide(case(map_style=False), FAST).reason


def test_a_wait_at_the_start_of_epochs_asks_for_persistent_workers() -> None:
    assert "persistent_workers=True" in decide(case(cores=64.0, first_wait=0.9), FAST).notes[0]
    assert not decide(case(cores=64.0, first_wait=0.9, workers=0), FAST).notes


def test_enough_workers_that_stall_all_the_same_are_told_so() -> None:
    verdict = decide(case(cores=64.0, workers=48), FAST)
    assert verdict.workers == 48
    assert "enough on average" in verdict.notes[0]


def test_a_loader_with_remote_workers_is_told_how_many_it_needs() -> None:
    verdict = decide(case(remote=True, sample_wall=None, workers=0), FAST)
    assert (verdict.advice, verdict.remote_cores) == (Advice.REMOTE, 29)


def test_what_is_predicted_is_what_the_shared_model_says_of_the_advised_workers() -> None:
    """2 cores, of which training at its floor uses one, and at a longer step less: the model gives those to workers."""
    alone = case(cores=2.0, trainer_cores=1.0, step=0.5, wait=0.49)
    verdict = decide(alone, Transfer(8, 10**9, seconds=5.0, trainer_cpu=0.1, worker_cpu=0.1))
    assert verdict.advice is Advice.LOCAL
    assert verdict.workers is not None
    cost = [exactly(HEADROOM * 0.008), exactly(HEADROOM * 0.002)]
    own = Pool(1, 2.0, verdict.workers, *cost, trains=True)
    work = Workload(32, compute=exactly(0.01), trainer_cpu=exactly(0.01))
    assert verdict.step == pytest.approx(predict(work, [own]).step.value)
    assert verdict.step < 32 * HEADROOM * 0.008  # as long as it would take with one core


def test_a_hybrid_is_sized_so_that_both_together_reach_the_floor() -> None:
    for trainer_cores in (0.0, 2.0):
        verdict = decide(case(cores=16.0, trainer_cores=trainer_cores), FAST)
        assert verdict.advice is Advice.HYBRID
        assert verdict.workers is not None
        cost = {"cpu": HEADROOM * 0.008, "pause": HEADROOM * 0.002}
        here = rate(verdict.workers, 16.0 - trainer_cores, **cost)
        away = rate(verdict.remote_workers, verdict.remote_cores, **cost)
        assert here + away >= 32 / 0.01 * (1 - 1e-6)
        assert here + rate(verdict.remote_workers - 1, verdict.remote_cores, **cost) < 32 / 0.01
        assert verdict.step == pytest.approx(0.01)
