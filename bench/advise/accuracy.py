"""Prediction against measurement: the model's error of every configuration, and their summary. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.insight.advise.measured import GroupFacts, Measured
from headrace.insight.advise.model import Pool, Prediction, predict


@dataclass(frozen=True)
class Outcome:
    """What one workload took on one cluster in one round."""

    cluster: str
    workload: str
    number: int
    measured: Measured

    def plain(self) -> dict[str, object]:
        """Returns it as plain data."""
        return {
            "cluster": self.cluster,
            "workload": self.workload,
            "round": self.number,
            "measured": msgspec.to_builtins(self.measured),
        }


@dataclass(frozen=True)
class Judged:
    """One configuration. Seconds a step.

    Attributes:
        steps: measured, one a round.
        predicted: by the model, from the calibration run alone.
    """

    cluster: str
    workload: str
    calibration: bool
    steps: tuple[float, ...]
    predicted: Prediction

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

    def plain(self) -> dict[str, object]:
        """Returns it as plain data."""
        own = {"cluster": self.cluster, "workload": self.workload, "calibration": self.calibration}
        prediction = msgspec.to_builtins(self.predicted)
        return {**own, "steps": self.steps, "predicted": prediction, "error": self.error, "spread": self.spread}


@dataclass(frozen=True)
class Summary:
    """All configurations but the calibrations."""

    text: str
    numbers: dict[str, float]


def judge(outcomes: Sequence[Outcome]) -> list[Judged]:
    """Predicts every configuration from the first round's cluster without data hosts."""
    calibrations: dict[str, Measured] = {}
    for one in outcomes:
        if not one.measured.helpers:
            calibrations.setdefault(one.workload, one.measured)
    found: list[Judged] = []
    for cluster, workload in dict.fromkeys((one.cluster, one.workload) for one in outcomes):
        mine = [one for one in outcomes if (one.cluster, one.workload) == (cluster, workload)]
        known = calibrations[workload]
        predicted = predict(known.workload, _pools(known, mine[0].measured.groups))
        steps = tuple(one.measured.step.value for one in mine)
        found.append(Judged(cluster, workload, not mine[0].measured.helpers, steps, predicted))
    return found


def _pools(known: Measured, groups: Sequence[GroupFacts]) -> list[Pool]:
    """Returns the hosts of a cluster, with the costs that the calibration told.

    Of the cluster itself only its shape counts: hosts, cores, workers. All data hosts share CPU 1 and have the
    bandwidth that the job sets.
    """
    from bench.advise.runs import BYTES_A_SECOND

    cpu, wall = known.trainer.cpu, known.trainer.wall
    assert cpu is not None
    assert wall is not None
    pools = []
    for group in groups:
        cores = group.cores if group.trains else group.cores / group.hosts
        bandwidth = None if group.trains else BYTES_A_SECOND
        pools.append(Pool(group.hosts, cores, group.executors, cpu, wall, bandwidth, group.trains))
    return pools


def summary(judged: Sequence[Judged]) -> Summary:
    """Returns the median error of what was predicted, and how much rounds differ by themselves."""
    others = [one for one in judged if not one.calibration]
    error = statistics.median(abs(one.error) for one in others)
    spread = statistics.median(one.spread for one in others)
    inside = sum(one.predicted.step.low <= one.measured <= one.predicted.step.high for one in others)
    met = error <= 0.10 + spread
    return Summary(
        f"{len(others)} configurations predicted from one calibration run: median error {100 * error:.1f} %, worst "
        f"{100 * max(abs(one.error) for one in others):.1f} %; rounds differ by {100 * spread:.1f} % (median)\n"
        f"target: at most 10 % and what rounds differ by: {'met' if met else 'MISSED'}; {inside} of {len(others)} lie "
        "in their predicted range",
        {"configurations": len(others), "median_error": error, "median_spread": spread, "inside": inside, "met": met},
    )


def table(judged: Sequence[Judged]) -> str:
    """Returns all configurations as text. Measured and predicted stand in columns of their own."""
    lines = [
        f"{'cluster':45} {'workload':10} {'predicted, ms':>22} {'by':8} {'measured, ms':>22} {'error':>8} {'rounds':>7}"
    ]
    for one in judged:
        low, value, high = (1000 * part for part in _ends(one.predicted))
        predicted = f"{value:.1f} [{low:.1f} .. {high:.1f}]"
        measured = f"{1000 * one.measured:.1f} [{1000 * min(one.steps):.1f} .. {1000 * max(one.steps):.1f}]"
        title = f"{one.cluster} (calibration)" if one.calibration else one.cluster
        lines.append(
            f"{title:45} {one.workload:10} {predicted:>22} {one.predicted.limit:8} {measured:>22} "
            f"{100 * one.error:+7.1f}% {100 * one.spread:6.1f}%"
        )
    return "\n".join(lines)


def _ends(of: Prediction) -> tuple[float, float, float]:
    return of.step.low, of.step.value, of.step.high
