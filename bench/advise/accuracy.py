"""Prediction against measurement: the model's error of every configuration, and their summary. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec

from headrace.insight.advise.calibrate import Measured
from headrace.insight.advise.clusters import own_pools, widened
from headrace.insight.performance_model import Pool, Prediction, Range, predict

BANDWIDTH = "200mbit"
BYTES_A_SECOND = 200e6 / 8


@dataclass(frozen=True)
class Cluster:
    """One cluster: CPU 0 trains; CPU 1 is shared by the data hosts.

    Attributes:
        title: in words.
        data_hosts: how many.
        workers: data workers on every host that has some.
        trainer_helps: the host that trains has data workers too.
    """

    title: str
    data_hosts: int
    workers: int
    trainer_helps: bool


CLUSTERS = (
    Cluster("no data hosts", 0, 1, trainer_helps=True),
    Cluster("1 data host", 1, 1, trainer_helps=True),
    Cluster("2 data hosts on one core", 2, 1, trainer_helps=True),
    Cluster("1 data host of 3 workers, trainer makes none", 1, 3, trainer_helps=False),
)
CALIBRATION = CLUSTERS[0]


@dataclass(frozen=True)
class Outcome:
    """What one workload took on one cluster in one round: the mean step in seconds, and the share of it that waited."""

    cluster: Cluster
    workload: str
    number: int
    run_id: str
    step: float
    wait: float

    def plain(self) -> dict[str, object]:
        """Returns it as plain data."""
        return {**asdict(self), "cluster": self.cluster.title}


@dataclass(frozen=True)
class Judged:
    """One configuration. Seconds a step.

    Attributes:
        steps: measured, one a round.
        predicted: by the model, from the calibration run alone.
        range: of the predicted step, widened by what the model misses on the calibration itself.
    """

    cluster: Cluster
    workload: str
    steps: tuple[float, ...]
    predicted: Prediction
    range: Range

    @property
    def calibration(self) -> bool:
        """Whether this is the cluster that the model was told of."""
        return self.cluster == CALIBRATION

    @property
    def measured(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.steps)

    @property
    def error(self) -> float:
        """Measured / predicted - 1."""
        return self.measured / self.predicted.step.value - 1

    @property
    def spread(self) -> float:
        """How far rounds lie from their median, as a part of it: the median of their distances."""
        return statistics.median(abs(step - self.measured) for step in self.steps) / self.measured

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the predicted range."""
        return self.range.low <= self.measured <= self.range.high

    def plain(self) -> dict[str, object]:
        """Returns it as plain data."""
        return {
            "cluster": self.cluster.title,
            "workload": self.workload,
            "calibration": self.calibration,
            "steps": self.steps,
            "predicted": msgspec.to_builtins(self.predicted),
            "range": msgspec.to_builtins(self.range),
            "error": self.error,
            "spread": self.spread,
        }


@dataclass(frozen=True)
class Summary:
    """All configurations but the calibrations."""

    text: str
    numbers: dict[str, float]


def judge(outcomes: Sequence[Outcome], calibrations: dict[str, Measured]) -> list[Judged]:
    """Predicts every configuration.

    Args:
        outcomes: of all rounds.
        calibrations: by workload, what the one calibration run told.
    """
    found: list[Judged] = []
    for cluster, workload in dict.fromkeys((one.cluster, one.workload) for one in outcomes):
        known = calibrations[workload]
        predicted = predict(known.workload, pools(known, cluster))
        residual = known.step.value / predict(known.workload, own_pools(known)).step.value - 1
        steps = tuple(one.step for one in outcomes if (one.cluster, one.workload) == (cluster, workload))
        found.append(Judged(cluster, workload, steps, predicted, widened(predicted.step, residual)))
    return found


def pools(known: Measured, cluster: Cluster) -> list[Pool]:
    """Returns the hosts of a cluster, with the costs that the calibration told.

    All data hosts share CPU 1, so they are one host with the workers of all and the bandwidth of each.
    """
    cpu, pause = known.trainer.cpu, known.trainer.pause
    assert cpu is not None
    assert pause is not None
    own = Pool(1, known.trainer.cores, cluster.workers if cluster.trainer_helps else 0, cpu, pause, trains=True)
    if not cluster.data_hosts:
        return [own]
    workers, bandwidth = cluster.data_hosts * cluster.workers, cluster.data_hosts * BYTES_A_SECOND
    return [own, Pool(1, 1.0, workers, cpu, pause, bandwidth)]


def summary(judged: Sequence[Judged]) -> Summary:
    """Returns the median error of what was predicted, and how much rounds differ by themselves."""
    others = [one for one in judged if not one.calibration]
    error = statistics.median(abs(one.error) for one in others)
    worst = max(abs(one.error) for one in others)
    spread = statistics.median(one.spread for one in others)
    inside = sum(one.inside for one in others)
    met = error <= 0.10 + spread
    return Summary(
        f"{len(others)} configurations predicted from one calibration run: median error {100 * error:.1f} %, worst "
        f"{100 * worst:.1f} %; rounds differ by {100 * spread:.1f} % (median)\n"
        f"target: at most 10 % and what rounds differ by: {'met' if met else 'MISSED'}; {inside} of {len(others)} lie "
        "in their predicted range",
        {
            "configurations": len(others),
            "median_error": error,
            "worst_error": worst,
            "median_spread": spread,
            "inside": inside,
            "met": met,
        },
    )


def table(judged: Sequence[Judged]) -> str:
    """Returns all configurations as a Markdown table. Measured and predicted stand in columns of their own."""
    lines = [
        "| cluster | workload | predicted, ms | by | measured, ms | error | rounds differ |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in judged:
        value, low, high = (1000 * part for part in (one.predicted.step.value, one.range.low, one.range.high))
        predicted = f"{value:.1f} [{low:.1f} .. {high:.1f}]"
        measured = f"{1000 * one.measured:.1f} [{1000 * min(one.steps):.1f} .. {1000 * max(one.steps):.1f}]"
        title = f"{one.cluster.title} (calibration)" if one.calibration else one.cluster.title
        lines.append(
            f"| {title} | {one.workload} | {predicted} | {one.predicted.limit} | {measured} | "
            f"{100 * one.error:+.1f} % | {100 * one.spread:.1f} % |"
        )
    return "\n".join(lines)
