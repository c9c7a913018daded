"""The model on figures that others published: a step time, the CPUs, perhaps how busy the GPU was. Pure.

Nobody published waits, so compute is inferred from the GPU's use, a weak witness: a GPU counts as busy while any kernel
runs, also one that waits for another GPU. Nothing of the published result goes into the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.catalog.instance_types import shape, speed
from headrace.insight.advise.calibrate import published_bandwidth
from headrace.insight.performance_model import Pool, Prediction, Range, Workload, predict


class Published(msgspec.Struct, frozen=True):
    """A published homogeneous run, all of whose cores were busy.

    Attributes:
        instance_type: of its one instance.
        step: seconds; low and high are other values that the source gives for the same thing.
        ranks: training processes.
        gpu_use: share of the time, 0 to 1; None when the source gives none: then compute may be anything.
    """

    instance_type: str
    step: Range
    ranks: int
    gpu_use: float | None


class Added(msgspec.Struct, frozen=True):
    """Data hosts that are put beside it.

    Attributes:
        instance_type: their type.
        hosts: how many.
        workers: data workers on each; None for one a vCPU.
    """

    instance_type: str
    hosts: int
    workers: int | None = None


def predict_published(run: Published, added: Added, *, trainer_helps: bool) -> tuple[Prediction, tuple[str, ...]]:
    """Predicts the step with data hosts from a published homogeneous run.

    Args:
        run: the published run.
        added: the data hosts.
        trainer_helps: whether the instance that trains goes on making samples.

    Returns:
        The prediction, and what it assumes, in sentences. The unit of `rows` is one step.
    """
    own, other = shape(run.instance_type), shape(added.instance_type)
    assert own is not None
    assert other is not None
    step = run.step.value
    compute = Range(0.0, 0.0, 0.0) if run.gpu_use is None else Range(*(run.gpu_use * of for of in _ends(run.step)))
    trainer = run.ranks * compute.value
    work = Range(*(own.vcpus * of - trainer for of in _ends(run.step)))
    here, there = speed(run.instance_type).clock_ghz, speed(added.instance_type).clock_ghz
    ratio = here / there if here and there else 1.0
    beside = Range(work.low * min(1.0, ratio), work.value, work.high * max(1.0, ratio))
    workers = float(added.workers if added.workers is not None else other.vcpus)
    found = predict(
        Workload(1.0, compute, Range(trainer, trainer, trainer)),
        [
            Pool(added.hosts, other.vcpus, workers, beside, bandwidth=published_bandwidth(added.instance_type)),
            Pool(1, own.vcpus, own.vcpus - run.ranks if trainer_helps else 0, work, trains=True),
        ],
    )
    return found, (
        f"all {own.vcpus} vCPUs were busy for the whole step of {1000 * step:.0f} ms",
        f"compute is the GPU's use x step: {100 * run.gpu_use:.0f} % of {1000 * step:.0f} ms"
        if run.gpu_use is not None
        else "compute is shorter than the prediction: the source gives no GPU use",
        f"each of the {run.ranks} ranks keeps a core busy while it computes; all other CPU time makes samples",
        f"a vCPU of {added.instance_type} is as fast as one of {run.instance_type}; the range holds their published "
        f"clocks ({there} and {here} GHz)",
    )


def _ends(of: Range) -> Sequence[float]:
    return of.low, of.value, of.high
