"""How long a step takes on a cluster, from what a step and a sample cost: supply, demand and the wire. Pure.

`headrace advise` asks it about hosts to rent, `headrace doctor` about workers and cores for one script.

A loader that prefetches overlaps three things: the ranks compute, data workers make samples, the network carries them.
So the step lasts as long as the longest of the three:

    step = max(compute, making, wire)

    making: the shortest step t in which all workers together make the rows of a step. A host that trains too has
        `cores - trainer_cpu / t` for its workers: the ranks come first.
    wire: the same with every host limited to what its network carries, bandwidth / bytes of a sample, and with the
        trainer's hosts taking in no more than theirs.

What the workers of a host make is `rate`: every worker in turn waits (for a disk, a network) and computes, and shares
the host's cores with the others while it computes.

With one core that trains and one that helps this is (P + T) / 2, and never less than T, where P and T are the CPU
seconds a step of preprocessing and of training. Nothing here is fitted: every number is measured, published, or an
assumption that the caller names.

More hosts are never slower in this model; so it cannot know that many small hosts cost the trainer more connections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

_HALVINGS = 50
_SHORTEST = 1e-6
_LITTLE = 1e-9
_NEGLIGIBLE = 1e-18

RATE_FORMULA = "rate: machine-repairman model of workers that pause and then compute on shared cores"

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
        executors: data worker processes on each; for a type that stands for a part of its vCPUs, a part of one.
        cpu: CPU seconds of a sample there.
        pause: seconds that an executor spends on a sample without needing a core.
        bandwidth: bytes a second that its network carries, each way; None for no limit.
        trains: its hosts run ranks too.
    """

    hosts: int
    cores: float
    executors: float
    cpu: Range
    pause: Range = Range(0.0, 0.0, 0.0)
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
    low = value = high = _step(workload, pools, _value)
    ranges = [workload.compute, workload.trainer_cpu, *(cost for pool in pools for cost in (pool.cpu, pool.pause))]
    if any(one.low != one.high for one in ranges):
        low, high = _step(workload, pools, _low), _step(workload, pools, _high)
    compute, making, wire = value
    step = max(value)
    limit = COMPUTE if compute >= step else NETWORK if wire > making else WORKERS
    wait = 1.0 if math.isinf(step) else 1 - compute / step
    # Where samples are dear when the ranks are cheap, the ends of the costs need not be those of the step.
    ends = (max(low), step, max(high))
    return Prediction(Range(min(ends), step, max(ends)), compute, making, wire, limit, wait)


def rate(executors: float, cores: float, cpu: float, pause: float) -> float:
    """Returns the samples a second that the executors of one host make together.

    This is the machine-repairman model: N executors, each `pause` seconds on its own and then `cpu` seconds on one of C
    cores, which are shared evenly. How many compute at a time is a birth-death process with the exact solution

        p(k) / p(k - 1) = (N - k + 1) / pause * cpu / min(k, C),        rate = sum of p(k) * min(k, C) / cpu

    that depends on the means of both times only (processor sharing is insensitive to their distributions). Without
    pauses it is min(N, C) / cpu; with a core for each executor N / (cpu + pause).

    Args:
        executors: N. A part of one counts in proportion.
        cores: C. A part of one is a slower core.
        cpu, pause: seconds a sample.
    """
    if executors <= 0 or (cores <= 0 and cpu > 0):
        return 0.0
    if cpu <= 0:
        return executors / pause if pause > 0 else math.inf
    if pause <= cpu * _LITTLE:
        return min(executors, cores) / cpu
    whole = math.floor(executors)
    below = _closed(whole, cores, cpu, pause)
    part = executors - whole
    return below if part <= 0 else below + part * (_closed(whole + 1, cores, cpu, pause) - below)


def pause_of(busy: float, executors: int, cores: float, cpu: float) -> float:
    """Returns the pause at which executors that all have work are busy for `busy` seconds with a sample.

    The inverse of `rate`: executors / rate(...) = busy. 0 when queueing for the cores explains all of it.
    """
    alone = rate(executors, cores, cpu, 0.0)
    if alone <= 0 or executors / alone >= busy:
        return 0.0
    low, high = 0.0, busy - cpu  # queueing only adds to the busy time
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if executors / rate(executors, cores, cpu, middle) < busy:
            low = middle
        else:
            high = middle
    return high


def fewest_executors(wanted: float, cores: float, cpu: float, pause: float, most: int | None = None) -> int | None:
    """Returns how many executors on `cores` cores make `wanted` samples a second; None when not so many can.

    The inverse of `rate`, in whole executors, at least one.

    Args:
        wanted: samples a second.
        cores, cpu, pause: as for `rate`.
        most: executors at most; None for any number.
    """
    wanted *= 1 - _LITTLE
    if cpu > 0 and cores / cpu < wanted:
        return None
    high = max(1, math.ceil(wanted * (cpu + pause))) if most is None else most
    while rate(high, cores, cpu, pause) < wanted:
        if most is not None:
            return None
        high *= 2
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rate(middle, cores, cpu, pause) < wanted else (low, middle)
    return high


def _closed(executors: int, cores: float, cpu: float, pause: float) -> float:
    """Sums from the most probable k in both directions, as far as a term changes the sum: nothing overflows."""

    def ratio(k: int) -> float:
        return (executors - k + 1) / pause * cpu / min(k, cores)

    top, high = 0, executors  # the ratio falls with k: the most probable k is the last one where it is at least 1
    while top < high:
        middle = (top + high + 1) // 2
        top, high = (middle, high) if ratio(middle) >= 1 else (top, middle - 1)
    weights, busy = 1.0, min(top, cores)
    weight = 1.0
    for k in range(top + 1, executors + 1):
        weight *= ratio(k)
        weights, busy = weights + weight, busy + weight * min(k, cores)
        if weight < _NEGLIGIBLE * weights:
            break
    weight = 1.0
    for k in range(top, 0, -1):
        weight /= ratio(k)
        weights, busy = weights + weight, busy + weight * min(k - 1, cores)
        if weight < _NEGLIGIBLE * weights:
            break
    return busy / weights / cpu


_low, _value, _high = map(attrgetter, ("low", "value", "high"))


def _step(workload: Workload, pools: Sequence[Pool], pick: Callable[[Range], float]) -> tuple[float, float, float]:
    """Returns compute, making and wire with one end of every range."""
    free = carried = 0.0
    own: Pool | None = None
    for pool in pools:
        if pool.trains:
            own = pool
            continue
        each = rate(pool.executors, pool.cores, pick(pool.cpu), pick(pool.pause))
        free += pool.hosts * each
        carried += pool.hosts * min(each, _carries(pool.bandwidth, workload.sample_bytes))
    if own is not None:
        carried = min(carried, own.hosts * _carries(own.bandwidth, workload.sample_bytes))
    trainer = pick(workload.trainer_cpu)
    making = _making(workload.rows, free, own, trainer, pick)
    wire = making if carried == free else _making(workload.rows, carried, own, trainer, pick)
    return pick(workload.compute), making, wire


def _carries(bandwidth: float | None, size: float | None) -> float:
    """Returns the samples a second that one network carries."""
    return math.inf if bandwidth is None or not size else bandwidth / size


def _making(rows: float, others: float, own: Pool | None, trainer_cpu: float, pick: Callable[[Range], float]) -> float:
    """Returns the shortest step in which all workers make `rows`, seconds; infinite without a worker.

    Args:
        rows: samples of a step.
        others: samples a second of the hosts that do not train.
        own: the hosts that train; None, or without executors, when they make nothing.
        trainer_cpu: CPU seconds a step that each of them needs for the ranks.
        pick: which end of the ranges.
    """
    without = rows / others if others > 0 else math.inf
    if own is None or own.executors <= 0 or without == 0.0:
        return without

    def lacks(step: float) -> bool:
        """The samples of a step grow with its length, so there is one length at which they are enough."""
        each = rate(own.executors, own.cores - trainer_cpu / step, pick(own.cpu), pick(own.pause))
        return step * (others + own.hosts * each) < rows

    high = without
    if math.isinf(without):
        high = max(trainer_cpu / own.cores, _SHORTEST)
        while lacks(high):
            high *= 2
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle > 0 and lacks(middle):
            low = middle
        else:
            high = middle
    return high
