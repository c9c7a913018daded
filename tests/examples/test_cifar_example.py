"""examples/cifar-tfrecord: the files hold what they say, and two hosts learn together from tf.data service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK

from headrace.job import load_job
from headrace.runs import Run, RunPaths, Status
from headrace.runs.metric_records import LoaderSecond
from needs import require
from observer import Observer

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "cifar-tfrecord"
PREFIX = "127.91.7"
LOOK = """
import json, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/code"]
import numpy as np, prepare, images

def read(folder, part):
    files = sorted(str(path) for path in (folder / part).iterdir())
    everything = prepare.tf.data.TFRecordDataset(files).map(images.parse).batch(10_000)
    found, labels = next(iter(everything))
    return list(zip(labels.numpy().tolist(), found.numpy()))

folder = Path(sys.argv[2])
prepare.main(folder)
saw = {part: [[label, image.tobytes().hex()] for label, image in read(folder, part)] for part in ("train", "test")}
if len(sys.argv) == 3:
    print(json.dumps(saw))
    sys.exit()
one = next(iter(images.train_set(folder / "train", 16, 2, 7)))[0]
saw["batch"] = [list(one.shape), float(one.numpy().min()), float(one.numpy().max())]
ruler = np.zeros((427, 640, 3), np.uint8)  # a photograph whose pixels tell their column
ruler[..., 0], ruler[..., 1] = np.divmod(np.arange(640), 256)
prepare.photograph = lambda name: ruler
prepare.main(folder / "ruler")
saw["columns"] = {}
for part in ("train", "test"):
    for label, image in read(folder / "ruler", part):
        columns = image[..., 0].astype(int) * 256 + image[..., 1]
        saw["columns"].setdefault(f"{label} {part}", []).extend([int(columns.min()), int(columns.max())])
print(json.dumps(saw))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder that prepare.py filled, and what a process with TensorFlow read from it."""
    require("tensorflow")
    folder = tmp_path_factory.mktemp("cifar")
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(EXAMPLE), str(folder), *(["all"] if SOAK else [])],
        env=dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_the_records_are_labelled_crops_and_no_test_crop_is_a_training_crop(written: tuple[Path, Any]) -> None:
    train, test = written[1]["train"], written[1]["test"]
    assert (len(train), len(test)) == (2400, 600)
    assert {label: sum(each == label for each, _ in train) for label in range(6)} == dict.fromkeys(range(6), 400)
    assert {label: sum(each == label for each, _ in test) for label in range(6)} == dict.fromkeys(range(6), 100)
    assert {len(image) for _, image in train + test} == {2 * 32 * 32 * 3}
    assert not {image for _, image in train} & {image for _, image in test}


if SOAK:  # in every run: what the records are

    def test_no_pixel_of_a_training_crop_is_in_a_test_crop(written: tuple[Path, Any]) -> None:
        columns = written[1]["columns"]
        for label in range(6):
            assert max(columns[f"{label} train"]) < min(columns[f"{label} test"])


if SOAK:  # in every run: what the records are

    def test_a_batch_is_prepared(written: tuple[Path, Any]) -> None:
        shape, low, high = written[1]["batch"]
        assert shape == [16, 32, 32, 3]
        assert 0.0 <= low < 0.3
        assert 0.7 < high <= 1.0


ROOT = EXAMPLE.parent.parent
SMALL = ["epochs=2", "steps_per_epoch=6", "enlarge=1"]


def ran(headrace: Path, name: str, folder: Path, home: Path) -> Run:
    """Runs a job file of the example in an environment, with little work, to its good end."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    settings = [f"engines.local.address_prefix={PREFIX}", f"inputs.train={folder / 'train'}"]
    settings += [f"inputs.test={folder / 'test'}", *(f"hyperparameters.{each}" for each in SMALL)]
    done = subprocess.run(
        [headrace, "run", EXAMPLE / name, *(word for each in settings for word in ("--set", each))],
        env=environment | {"HEADRACE_HOME": str(home)}, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (root,) = (home / "runs").iterdir()
    return Run(RunPaths(root))


# In every run tests/engines has the strategy (test_local_worlds), the service (test_local_tfdata) and Horovod.
if SOAK:

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_two_hosts_learn_with_one_mirrored_strategy_from_workers_of_both_groups(
        written: tuple[Path, Any], tmp_path: Path
    ) -> None:
        observer = Observer(PREFIX)
        run = ran(Path(sys.executable).parent / "headrace", "multi-worker.yaml", written[0], tmp_path)
        observer.assert_nothing_left(run.id, run.paths.root, within=5.0)
        trained = {program.stream.host for program in run.programs if program.stream.group == "dnn_group"}
        assert trained == {"algo-2", "algo-3"}
        losses = [line.text for line in run.logs() if line.text.startswith("epoch ")]
        assert len(losses) == 2 * 2
        assert len(set(losses)) == 2, "both hosts see the loss of all"
        measured = [
            metric for stream in run.metrics().values() for metric in stream if isinstance(metric, LoaderSecond)
        ]
        assert sum(metric.steps for metric in measured) == 2 * 2 * 6, "the last step of each host is measured too"
        host = run.paths.host("algo-2")
        assert json.loads((host / "output" / "data" / "result.json").read_text())["accuracy"] > 0.4, (
            "guessing gives 0.17"
        )
        assert (host / "model" / "model.keras").exists()
        streams = {(program.stream.host, program.stream.name) for program in run.programs}
        assert streams >= {("algo-1", "tf-dispatcher"), *((f"algo-{number}", "tf-worker-0") for number in (1, 2, 3))}
        assert not run.degraded

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_the_heterogeneous_job_learns_from_workers_of_both_groups(
        written: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        require("2 cores")  # the job pins its groups to cores 0 and 1
        monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
        folder = written[0]
        overrides = [
            f"engines.local.address_prefix={PREFIX}",
            f"inputs.train={folder / 'train'}", f"inputs.test={folder / 'test'}",
            "hyperparameters.epochs=2", "hyperparameters.steps_per_epoch=20", "hyperparameters.enlarge=2",
        ]  # fmt: skip
        job = load_job(EXAMPLE / "heterogeneous.yaml", overrides)
        observer = Observer(PREFIX)
        handle = job.fit(engine="local", logs=False)
        assert handle.status is Status.COMPLETED
        run = Run.open(handle.id)
        observer.assert_nothing_left(run.id, run.paths.root, within=5.0)
        host = run.paths.host(job.hosts["dnn_group"][0])
        assert json.loads((host / "output" / "data" / "result.json").read_text())["accuracy"] > 0.4, (
            "guessing gives 0.17"
        )
        assert (host / "model" / "model.keras").exists()
        streams = {(program.stream.host, program.stream.name) for program in run.programs}
        assert streams >= {("algo-1", "tf-dispatcher"), ("algo-1", "tf-worker-0"), ("algo-2", "tf-worker-0")}
        assert not run.degraded

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    @pytest.mark.needs(".venv-horovod", "mpirun")
    def test_two_ranks_train_with_horovod(written: tuple[Path, Any], tmp_path: Path) -> None:
        run = ran(ROOT / ".venv-horovod" / "bin" / "headrace", "horovod.yaml", written[0], tmp_path)
        assert {program.stream.name for program in run.programs} >= {"0", "1", "mpirun", "tf-dispatcher"}
