"""The bench of the advice: what it predicts, what it calls an error, and the table that it prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.advise.accuracy import CALIBRATION, CLUSTERS, Outcome, judge, pools, summary, table

from headrace.insight.advise.calibrate import GroupFacts, Measured
from headrace.insight.figures.figure import Window
from headrace.insight.performance_model import Workload, exactly, predict

KNOWN = Measured(
    workload=Workload(8.0, exactly(0.02), exactly(0.02), 1000.0),
    step=exactly(0.066),
    wait=0.7,
    steps=100,
    samples=800,
    window=Window(0.0, 6.6),
    groups=(GroupFacts("train", "ml.g5.xlarge", 1, True, 1, 1, 1.0, exactly(0.005), exactly(0.0)),),
    workers_told=True,
)


def outcomes(factor: float) -> list[Outcome]:
    found = []
    for cluster in CLUSTERS:
        step = predict(KNOWN.workload, pools(KNOWN, cluster)).step.value
        found += [Outcome(cluster, "computing", n, f"run-{n}", step * factor * (1 + n / 100), 0.5) for n in (-1, 0, 1)]
    return found


def test_only_the_calibration_is_told_to_the_model() -> None:
    alone, one, two, apart = (predict(KNOWN.workload, pools(KNOWN, cluster)).step.value for cluster in CLUSTERS)
    assert alone == pytest.approx(0.06)  # 8 x 5 ms and 20 ms on one core
    assert one == two == pytest.approx(0.03)  # on two; two data hosts share the second one
    assert apart == pytest.approx(0.04)  # 8 x 5 ms on the second core


def test_errors_are_of_the_median_round_and_the_calibration_does_not_count() -> None:
    judged = judge(outcomes(1.04), {"computing": KNOWN})
    assert [one.calibration for one in judged] == [True, False, False, False]
    assert [one.error for one in judged] == pytest.approx([0.04] * 4)
    assert [one.spread for one in judged] == pytest.approx([0.01] * 4)
    assert all(one.inside for one in judged)  # the model misses 10 % of its calibration, so the range holds that
    found = summary(judged)
    assert found.numbers["configurations"] == 3
    assert found.numbers["median_error"] == pytest.approx(0.04)
    assert found.numbers["met"]
    assert "MISSED" in summary(judge(outcomes(1.2), {"computing": KNOWN})).text


def test_the_table_has_a_row_for_every_configuration() -> None:
    lines = table(judge(outcomes(1.0), {"computing": KNOWN})).splitlines()
    assert len(lines) == 2 + len(CLUSTERS)
    assert lines[2].startswith(f"| {CALIBRATION.title} (calibration) | computing | 60.0 [60.0 .. 66.0] | workers |")
