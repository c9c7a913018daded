"""examples/torchrun: a fixed world of two hosts with two ranks, and an elastic one that loses a rank and a host."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from effort import SOAK

from headrace import engines
from headrace.job import load_job
from headrace.runs import Run, Status
from headrace.runs.events import HostLost, HostStarted
from observer import Observer
from patience import allowed

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ONE_RANK = "distribution.torch_distributed.processes_per_host=1"  # tests/engines/test_local_run.py has several
PREFIX = f"127.{80 + os.getpid() % 40}.2"

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    spec = importlib.util.spec_from_file_location("digits_prepare", EXAMPLES / "digits" / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    prepare.main(EXAMPLES / "digits" / "data")


def start(file: str, *overrides: str):
    local = {
        "address_prefix": PREFIX,
        "isolation": "none",
        "stop_grace": 3,
        "ports.master": 41_000 + os.getpid() % 5_000,  # torch takes it on all addresses
    }
    options = [f"engines.local.{name}={value}" for name, value in local.items()]
    options += ["environment.OMP_NUM_THREADS=1"]  # the hosts share the cores of this machine
    return engines.start(load_job(EXAMPLES / "torchrun" / file, [*options, *overrides]))


def finish(handle) -> Run:
    status = handle.wait(allowed(120))
    if status is Status.IN_PROGRESS:
        handle.stop(now=True)
        handle.wait(20)
    assert status is Status.COMPLETED, f"{handle.cause}\n" + "\n".join(line.text for line in handle.logs())
    Observer(PREFIX).assert_nothing_left(handle.id, handle.paths.root, within=5.0)
    return Run.open(handle.id)


def result(handle) -> dict[str, float]:
    found = [handle.paths.host(host) / "output" / "data" / "result.json" for host in ("algo-1", "algo-2")]
    (written,) = [path for path in found if path.exists()]
    return json.loads(written.read_text())


def until_said(handle, words: str, seconds: float = 60.0) -> None:
    began = time.monotonic()
    while not any(words in line.text for line in handle.logs()):
        assert time.monotonic() - began < allowed(seconds), f"nobody said {words!r}"
        assert handle.exit_code is None, f"{handle.cause}"
        time.sleep(0.1)


def rank_of(handle, host: str) -> psutil.Process:
    """A rank of a host: a process of the script, below the host's agent."""
    agent = next(each.pid for each in handle.run.events() if isinstance(each, HostStarted) and each.host == host)
    below = psutil.Process(agent).children(recursive=True)
    return next(each for each in below if each.cmdline()[1:2] == ["train.py"])


if SOAK:  # in every run: such worlds, of tests/engines/test_local_elastic.py

    def test_a_fixed_world_trains() -> None:
        handle = start("torchrun.yaml", ONE_RANK)
        run = finish(handle)
        assert result(handle)["accuracy"] > 0.9
        assert result(handle)["world"] == 2
        assert {str(program.stream) for program in run.programs} == {
            f"homogeneousCluster/algo-{host}[{rank}]" for host, rank in ((1, 0), (2, 1))
        }


if SOAK:  # tests/engines/test_local_elastic.py holds what headrace does in every run

    def test_an_elastic_world_starts_again_from_its_checkpoint_when_a_rank_is_killed() -> None:
        handle = start("elastic.yaml", "hyperparameters.epoch_seconds=0.5", ONE_RANK)
        until_said(handle, "epoch 2/6")
        rank_of(handle, "algo-2").send_signal(signal.SIGKILL)
        finish(handle)
        assert result(handle)["world"] == 2
        assert result(handle)["accuracy"] > 0.9
        said = [line.text for line in handle.logs()]
        begins = {line.split("with ")[1] for line in said if " begins with epoch " in line}
        assert "epoch 1" in begins
        assert begins & {"epoch 3", "epoch 4"}, begins

    @pytest.mark.promise("distributed", "an elastic world goes on without a lost host")
    def test_an_elastic_world_goes_on_with_fewer_hosts() -> None:
        handle = start("elastic.yaml", "hyperparameters.epoch_seconds=0.5", ONE_RANK)
        until_said(handle, "epoch 2/6")
        agent = next(
            each.pid for each in handle.run.events() if isinstance(each, HostStarted) and each.host == "algo-2"
        )
        os.kill(agent, signal.SIGKILL)
        run = finish(handle)
        assert result(handle)["world"] == 1
        assert result(handle)["accuracy"] > 0.9
        assert [event.host for event in run.events() if isinstance(event, HostLost)] == ["algo-2"]
