"""Horovod for real: the Keras MNIST job on two hosts, with two ranks each in the long run. Needs `make horovod`."""

import os
import runpy
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest
from effort import SOAK
from stage import kill

from headrace.runs import Run, RunPaths, Status
from headrace.runs.events import ProgramStarted
from observer import Observer
from patience import until

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "horovod-mnist"
HEADRACE = ROOT / ".venv-horovod" / "bin" / "headrace"
PREFIX = "127.93.1"
SECONDS = 600  # the machine may be busy; alone it takes about 25

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(SECONDS + 60),
    pytest.mark.needs(".venv-horovod", "mpirun"),
]


@pytest.fixture
def observer(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return Observer(PREFIX)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example, with its data, in a folder of its own."""
    folder = tmp_path_factory.mktemp("horovod-mnist")
    runpy.run_path(str(EXAMPLE / "prepare.py"))["main"](folder / "data")
    (folder / "code").symlink_to(EXAMPLE / "code")
    (folder / "job.yaml").write_text((EXAMPLE / "job.yaml").read_text())
    return folder / "job.yaml"


def start(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [HEADRACE, "run", *arguments, "--set", f"engines.local.address_prefix={PREFIX}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_of(tmp_path):
    (root,) = (tmp_path / "home" / "runs").iterdir()
    return Run(RunPaths(root))


def lines(run, stream):
    return [line.text for line in run.logs() if str(line.stream) == stream]


def test_horovod_in_its_own_words_knows_its_world(observer, tmp_path):
    ranks = 2 if SOAK else 1  # a host; several on one are in test_local_mpi.py
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(
        "import os\n"
        "import horovod.tensorflow as hvd\nimport tensorflow as tf\n"
        "hvd.init()\n"
        "names = 'RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE', 'CROSS_RANK', 'CROSS_SIZE', 'HOSTNAME', 'CONTROLLER'\n"
        "print('hvd', hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), "
        "hvd.cross_rank(), hvd.cross_size())\n"
        "print('sum', float(hvd.allreduce(tf.constant(float(hvd.rank())), op=hvd.Sum)))\n"
        "print('env', *[os.environ['HOROVOD_' + name] for name in names], flush=True)\n"
    )
    job = tmp_path / "job.yaml"
    job.write_text(
        "job_name: hvd\nsource_dir: code\nentry_point: train.py\n"
        "instance_type: ml.c5.xlarge\ninstance_count: 2\n"
        f"distribution:\n  horovod:\n    enabled: true\n    processes_per_host: {ranks}\n"
    )
    process = start(job)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    run = run_of(tmp_path)
    group = next(iter(run.logs())).stream.group
    for rank in range(2 * ranks):
        host, local, place = f"algo-{1 + rank // ranks}", rank % ranks, rank // ranks
        assert lines(run, f"{group}/{host}[{rank}]")[-3:] == [  # TensorFlow says something first
            f"hvd {rank} {2 * ranks} {local} {ranks} {place} 2",
            f"sum {sum(range(2 * ranks)):.1f}",
            f"env {rank} {2 * ranks} {local} {ranks} {place} 2 {host} mpi",
        ]


if SOAK:  # in every run: the world above; what a rank 0 saves, mpi-hello and the notebook of test_local_unchanged.py

    def test_the_keras_mnist_job_learns_and_rank_0_saves_the_model(observer, example, tmp_path):
        ranks = 2 if SOAK else 1  # a host; several on one are in tests/engines/test_local_mpi.py
        little = "hyperparameters.epochs=5"  # of 12: the test accuracy is 0.96 behind them
        process = start(example, "--set", f"distribution.mpi.processes_per_host={ranks}", "--set", little)
        output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, output
        run = run_of(tmp_path)
        assert run.state().status is Status.COMPLETED
        for rank in range(2 * ranks):
            said = lines(run, f"workers/algo-{1 + rank // ranks}[{rank}]")
            assert f"rank {rank} of {2 * ranks}, local rank {rank % ranks}: {1438 // (2 * ranks)} images" in said
        (result,) = (line for line in lines(run, "workers/algo-1[0]") if line.startswith("test accuracy"))
        assert float(result.split()[2]) > 0.9
        models = {host: sorted((run.paths.host(host) / "model").iterdir()) for host in ("algo-1", "algo-2")}
        assert [path.name for path in models["algo-1"]] == ["model.keras"]
        assert models["algo-2"] == []
        assert "config.json" in zipfile.ZipFile(models["algo-1"][0]).namelist()
        observer.assert_nothing_left(run.paths.id, run.paths.root)

    def test_a_rank_that_is_killed_while_it_trains_is_the_cause(observer, example, tmp_path):
        # Without namespaces, so that the pids in the events are those of this machine.
        process = start(example, "--set", "hyperparameters.epochs=1000", "--set", "engines.local.isolation=none")
        try:
            until(lambda: (tmp_path / "home" / "runs").exists() and any((tmp_path / "home" / "runs").iterdir()), 30)
            run = run_of(tmp_path)
            until(lambda: any("Epoch 2/" in line for line in lines(run, "workers/algo-1[0]")), SECONDS)
            started = {event.stream: event.pid for event in run.events() if isinstance(event, ProgramStarted)}
            kill(started["3"])
            output, _ = process.communicate(timeout=10)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 1, output
        cause = run_of(tmp_path).state().cause
        assert str(cause) == "workers/algo-2[3]: killed by SIGKILL"
        assert cause.signal == signal.SIGKILL
        observer.assert_nothing_left(run.paths.id, run.paths.root)
