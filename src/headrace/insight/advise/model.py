"""How long a step takes on a cluster, from what a step and a sample cost: supply, demand and the wire. Pure.

A loader that prefetches overlaps three things: the ranks compute, data workers make samples, the network carries them.
So the step lasts as long as the longest of the three:

    step = max(compute, making, wire)

    making: the shortest step t in which all workers together make the rows of a step. One data host makes
        min(executors / wall, cores / cpu) samples a second: `wall` is what an executor takes for a sample when nothing
        holds it up, `cpu` the CPU seconds in it. A host that trains too has `cores - trainer_cpu / t` for its
        executors: the ranks come first.
    wire: the same with every host limited to what its network carries, bandwidth / bytes of a sample, and with the
        trainer's hosts taking in no more than theirs.

With one core that trains and one that helps this is (P + T) / 2, and never less than T, where P and T are the CPU
seconds a step of preprocessing and of training. Nothing here is fitted: every number is measured, published, or an
assumption that the caller names.

More hosts are never slower in this model; so it cannot know that many small hosts cost the trainer more connections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

COMPUTE, WORKERS, NETWORK = "compute", "workers", "network"


class Range(msgspec.Struct, frozen=True):
    """A value, and the range in which it may lie."""

    low: float
    value: float
    high: float


def exactly(value: float) -> Range:
    """Returns the range of a number that is known."""
    return Range(value, value, value)


def around(value: float, *others: float) -> Range:
    """Returns a value with the range that it spans together with others."""
    return Range(min(value, *others), value, max(value, *others)) if others else exactly(value)


class Workload(msgspec.Struct, frozen=True):
    """What a step costs, wherever it runs.

    Attributes:
        rows: samples of a step, all ranks together.
        compute: seconds of a step when every batch is ready.
        trainer_cpu: CPU seconds a step of all that is no data worker, on each host that trains. Its ends belong to the
            same ends of the others: where a sample may cost more because the ranks cost less, `high` is the lower one.
        sample_bytes: payload of a sample; None when unknown: then the wire does not limit.
    """

    rows: float
    compute: Range
    trainer_cpu: Range
    sample_bytes: float | None = None


class Pool(msgspec.Struct, frozen=True):
    """Equal hosts that make samples.

    Attributes:
        hosts: how many.
        cores: of each; a part of a core is allowed.
        executors: data worker processes on each.
        cpu: CPU seconds of a sample there.
        wall: seconds an executor there takes for a sample when nothing holds it up, at least `cpu`.
        bandwidth: bytes a second that its network carries, each way; None for no limit.
        trains: its hosts run ranks too.
    """

    hosts: int
    cores: float
    executors: float
    cpu: Range
    wall: Range
    bandwidth: float | None = None
    trains: bool = False


class Prediction(msgspec.Struct, frozen=True):
    """What the model says of a cluster. Seconds a step.

    Attributes:
        step: the step.
        compute, making, wire: what it would last by each of the three alone; `making` is infinite without a worker.
        limit: ``compute``, ``workers`` or ``network``: which of them decides.
        wait: share of the step in which a rank waits for its batch, 0 to 1.
    """

    step: Range
    compute: float
    making: float
    wire: float
    limit: str
    wait: float


def predict(workload: Workload, pools: Sequence[Pool]) -> Prediction:
    """Predicts the step of a cluster.

    Args:
        workload: what a step costs.
        pools: all hosts that make samples; at most one of them trains.
    """
    low, value, high = (_step(workload, pools, pick) for pick in (_low, _value, _high))
    compute, making, wire = value
    step = max(value)
    limit = COMPUTE if compute >= step else NETWORK if wire > making else WORKERS
    wait = 1.0 if math.isinf(step) else 1 - compute / step
    return Prediction(Range(max(low), step, max(high)), compute, making, wire, limit, wait)


def host_rate(pool: Pool) -> float:
    """Returns the samples a second that one host of a pool makes when nobody else uses its cores."""
    return _rate(pool.executors, pool.cores, pool.cpu.value, pool.wall.value)


def _low(of: Range) -> float:
    return of.low


def _value(of: Range) -> float:
    return of.value


def _high(of: Range) -> float:
    return of.high


def _rate(executors: float, cores: float, cpu: float, wall: float) -> float:
    by_wall = executors / wall if wall > 0 else math.inf
    by_cpu = cores / cpu if cpu > 0 else math.inf
    return min(by_wall, by_cpu)


def _step(workload: Workload, pools: Sequence[Pool], pick: Callable[[Range], float]) -> tuple[float, float, float]:
    """Returns compute, making and wire with one end of every range."""
    free = carried = 0.0
    own: Pool | None = None
    for pool in pools:
        if pool.trains:
            own = pool
            continue
        rate = _rate(pool.executors, pool.cores, pick(pool.cpu), pick(pool.wall))
        free += pool.hosts * rate
        carried += pool.hosts * min(rate, _carries(pool.bandwidth, workload.sample_bytes))
    if own is not None:
        carried = min(carried, own.hosts * _carries(own.bandwidth, workload.sample_bytes))
    trainer = pick(workload.trainer_cpu)
    making = _making(workload.rows, free, own, trainer, pick)
    return pick(workload.compute), making, _making(workload.rows, carried, own, trainer, pick)


def _carries(bandwidth: float | None, size: float | None) -> float:
    """Returns the samples a second that one network carries."""
    return math.inf if bandwidth is None or not size else bandwidth / size


def _making(rows: float, others: float, own: Pool | None, trainer_cpu: float, pick: Callable[[Range], float]) -> float:
    """Returns the shortest step t in which all workers make `rows`.

    That is the least t with  t * others + hosts * max(0, min(t * executors / wall, (t * cores - trainer_cpu) / cpu))
    >= rows, whose left side grows with t.

    Args:
        rows: samples of a step.
        others: samples a second of the hosts that do not train.
        own: the hosts that train, None when they make nothing.
        trainer_cpu: CPU seconds a step that each of them needs for the ranks.
        pick: which end of the ranges.
    """
    without = rows / others if others > 0 else math.inf
    if own is None or own.executors <= 0:
        return without
    cpu, wall, hosts = pick(own.cpu), pick(own.wall), own.hosts
    by_wall = others + hosts * own.executors / wall if wall > 0 else math.inf
    slowest = rows / by_wall
    if cpu > 0:
        slowest = max(slowest, (rows + hosts * trainer_cpu / cpu) / (others + hosts * own.cores / cpu))
    return min(without, slowest)
