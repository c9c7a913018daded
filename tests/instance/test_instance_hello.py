"""examples/hello on the instances of a job, without an engine: the script, its variables and its arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.instance import Environment, hyperparameter_arguments, program_variables
from headrace.instance.launch_plan import TORCH_DISTRIBUTED, DistributionPlan

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "hello"


def run_hello(base: Path, plan, **variables: str) -> subprocess.CompletedProcess[str]:
    env = Environment(base, environ={})
    return subprocess.run(
        [sys.executable, str(base / "code" / "hello.py"), *hyperparameter_arguments(env.hyperparameters)],
        env={**os.environ, **program_variables(env, plan), **variables},
        cwd=base / "code",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("distribution", [(), ("dnn_group",)])
@pytest.mark.parametrize("host", ["algo-1", "algo-4"])
def test_both_ways_agree_on_every_host(job, make_plan, host: str, distribution: tuple[str, ...]) -> None:
    channels = {"training": job.channel("training")}
    parameters = {"greeting": "Hello, big world; exit 3", "times": 2}
    worlds = (DistributionPlan(TORCH_DISTRIBUTED, distribution),) if distribution else ()
    base = job.tree(host, code=EXAMPLE / "code", channels=channels, hyperparameters=parameters, distributions=worlds)
    done = run_hello(base, make_plan(world=distribution))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    group = "data_group" if host == "algo-1" else "dnn_group"
    assert lines[:2] == [f"Hello, big world; exit 3! I am {host} of {group}."] * 2
    assert f"env.current_instance_group = '{group}'" in lines
    assert f"channel training: {base}/input/data/training" in lines
    assert lines[-1] == "Both ways agree."


def test_it_fails_when_they_differ(job, make_plan) -> None:
    base = job.tree("algo-1", code=EXAMPLE / "code", hyperparameters={})
    done = run_hello(base, make_plan(), SM_CURRENT_HOST="algo-9")
    assert done.returncode == 1
    assert "current_host: Environment 'algo-1', files 'algo-1', variables 'algo-9'" in done.stderr
