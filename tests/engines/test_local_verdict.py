"""Real jobs that one thing limits on purpose, a throttled link or a slow trainer, and what their reports say."""

from __future__ import annotations

import pytest
from effort import SOAK
from run_places import WITHOUT_TORCH
from stage import Stage, groups, text

from headrace import insight
from headrace.insight.evidence import VerdictName
from headrace.runs import Status

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(600)]

DATA = """
import numpy as np
from headrace import feed

class Noise:
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        return np.random.default_rng(index).integers(0, 255, 30_000, dtype=np.uint8)

@feed.pipeline
def noise():
    return Noise()
"""
TRAIN = """
import time
from data import noise
from headrace import feed

began = 0.0
for batch in feed.DataLoader(noise(), batch_size=16, seed=1, collate_fn=feed.stack_arrays):
    began = began or time.monotonic()
    time.sleep(0.05)
    if time.monotonic() > began + 7:
        break
"""
BATCH_BITS = 16 * 30_000 * 8
"""A batch; the trainer takes at most 20 a second."""


@pytest.mark.parametrize(
    ("bandwidth", "expected"),
    [
        ("20mbit", VerdictName.NETWORK_BOUND),
        *([("1gbit", VerdictName.COMPUTE_BOUND)] if SOAK else []),  # in every run: insight/test_verdict_of_runs.py
    ],
)
@pytest.mark.parametrize("stage", ["namespace"], indirect=True)
def test_a_throttled_link_is_what_limits_a_job_and_a_wide_one_is_not(
    stage: Stage, bandwidth: str, expected: VerdictName
) -> None:
    code = stage.folder / "code"
    code.mkdir()
    (code / "data.py").write_text(DATA)
    handle = stage.start(
        TRAIN,
        instance_groups=groups(data=1, dnn=1),
        data_service={"feed": {"enabled": True, "workers_per_host": 1}, "instance_groups": ["data"]},
        environment=WITHOUT_TORCH,
        local={"network": {"data": {"bandwidth": bandwidth}}},
    )
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    report = insight.report(handle.run)
    assert report.verdict.name is expected, report.verdict
    assert report.training is not None
    step, wait = report.training.step_time.value, report.training.data_wait.value
    assert step is not None
    assert wait is not None
    [workers] = report.workers
    assert workers.link.value is not None
    if expected is VerdictName.NETWORK_BOUND:
        assert step > 0.9 * 1000 * BATCH_BITS / 20e6
        assert wait > 50
        assert workers.link.value > 80
        assert report.verdict.crowded or "faster network" in report.verdict.next, "other tests may have had the cores"
    else:
        assert wait < 5
        assert workers.link.value < 50
    stage.assert_nothing_left(handle)
