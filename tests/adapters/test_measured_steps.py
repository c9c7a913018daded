"""Steps of loops that are not headrace's, with loaders that are not: Lightning, the Trainer, Keras."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace.runs.metric_records import LoaderSecond, Metric

HERE = Path(__file__).parent / "measured"
ROOT = HERE.parent.parent.parent
SECONDS = 600.0
# What runs in one process, one after the other: importing torch takes longer than most of it.
PROCESSES = {"torch": ("in_lightning", "in_transformers"), "keras": ("in_keras",)}
RUN = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='__main__')"

pytestmark = [pytest.mark.timeout(SECONDS + 60), pytest.mark.slow]

Measured = Callable[[str, str], list[LoaderSecond]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Runs the processes side by side. Returns what gives the records of a loader of one."""
    directory = tmp_path_factory.mktemp("measured")
    started = {}
    assert {path.stem for path in HERE.glob("in_*.py")} == {name for names in PROCESSES.values() for name in names}
    for process, scripts in PROCESSES.items():
        environment = dict(os.environ) | {
            "PYTHONPATH": str(ROOT / "src"), "HEADRACE_METRICS": str(directory / f"{process}.jsonl"),
            "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        out = (directory / f"{process}.log").open("wb")
        paths = [HERE / f"{name}.py" for name in scripts]
        started[process] = subprocess.Popen(
            [sys.executable, "-c", RUN, *paths], cwd=directory, env=environment, stdout=out, stderr=out
        )
        out.close()
    try:
        for name, running in started.items():
            assert running.wait(SECONDS) == 0, (directory / f"{name}.log").read_text()[-6000:]
    finally:
        for running in started.values():
            running.kill()
            running.wait()

    def records(process: str, loader: str) -> list[LoaderSecond]:
        lines = (directory / f"{process}.jsonl").read_bytes().splitlines()
        found = [msgspec.json.decode(line, type=Metric) for line in lines]
        return [one for one in found if isinstance(one, LoaderSecond) and one.loader == loader]

    return records


def check(records: list[LoaderSecond], steps: list[int], rows: int, wait: float, length: float) -> None:
    """Compares sums with what is known of the loop.

    Args:
        records: of one loader.
        steps: of every epoch.
        rows: of all steps.
        wait, length: seconds that a step waits and lasts at least; on a busy machine it is more.
    """
    assert [sum(one.steps for one in records if one.epoch == epoch) for epoch in range(len(steps))] == steps
    assert sum(one.samples for one in records) == rows
    assert all(one.bytes > 0 for one in records)
    total, waited, lasted = sum(steps), sum(one.wait for one in records), sum(one.step for one in records)
    assert wait * total <= waited
    assert length * total <= lasted
    assert all(one.wait <= one.step and one.h2d is one.compute is one.queue is None for one in records)


def test_lightning(measured: Measured) -> None:
    records = measured("torch", "lightning")
    check(records, [5, 5], 40, 0.02, 0.05)
    assert sum(one.wait for one in records) < sum(one.step for one in records) - 10 * 0.03
    assert measured("torch", "twice") == []
    assert sum(one.steps for one in measured("torch", "own")) in (4, 5)


def test_the_trainer(measured: Measured) -> None:
    records = measured("torch", "trainer")
    check(records, [5, 5], 40, 0.02, 0.05)
    assert measured("torch", "twice") == []
    assert sum(one.steps for one in measured("torch", "train")) in (4, 5)


def test_keras_and_a_loop_over_its_dataset(measured: Measured) -> None:
    for name in ("keras", "eager"):
        check(measured("keras", name), [5, 5, 5], 54, 0.0, 0.0)  # TensorFlow may prefetch while it compiles
    assert sum(one.steps for one in measured("keras", "endless")) == 5 + 6
    assert sum(one.samples for one in measured("keras", "arrays")) == 18
    assert sum(one.steps for one in measured("keras", "again")) == 5
    check(measured("keras", "mirrored"), [3], 18, 0.0, 0.0)
    assert measured("keras", "several") == []
    check(measured("keras", "loop"), [5, 5], 36, 0.02, 0.02)
