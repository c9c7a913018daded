"""`Environment`: reading a tree, and saying clearly when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.instance import Environment, TreePaths, UnknownChannel, machine
from needs import require


def test_a_host_of_the_distribution_and_one_outside_agree_on_who_trains(job) -> None:
    for host in ("algo-1", "algo-3"):
        env = job.environment(host)
        assert env.is_hetero
        assert env.distribution_instance_groups == ["dnn_group"]
        assert env.distribution_hosts == ["algo-3", "algo-4"]
        assert env.master_hostname == "algo-3"
        assert env.is_master is (host == "algo-3")


def test_it_is_a_mapping_of_its_properties(job) -> None:
    env = job.environment("algo-1")
    assert env["model_dir"] == env.model_dir == f"{job.root}/algo-1/model"
    assert list(env) == sorted(env.properties())
    assert len(env) == len(dict(env)) == 37
    assert "current_host" in env
    assert "nothing" not in env
    assert env.get("to_cmd_args") is None
    assert str(env) == str(dict(env))


def test_the_base_directory_comes_from_the_variable(job, monkeypatch) -> None:
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(job.tree("algo-2")))
    assert Environment().current_host == "algo-2"


def test_outside_a_job_the_error_says_so_and_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path / "nothing"))
    with pytest.raises(
        UsageError, match=r"not an instance of a job: .*/nothing/input/config/resourceconfig.json"
    ) as caught:
        Environment()
    assert "headrace run" in caught.value.hint
    assert "SAGEMAKER_BASE_DIR" in caught.value.hint
    assert not (tmp_path / "nothing").exists()


def test_without_the_variable_it_looks_in_opt_ml() -> None:
    require("no /opt/ml")
    with pytest.raises(UsageError, match=r"/opt/ml/input/config/resourceconfig.json does not exist"):
        Environment(environ={})


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"\xff", b'{"hosts": ["algo-1"]}', b'{"hosts": 1, "current_host": "a"}']
)
def test_a_broken_file_is_named(job, content: bytes) -> None:
    path = TreePaths(job.tree("algo-1")).resource_config
    path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        Environment(job.root / "algo-1")


def test_an_unknown_channel_is_named_with_those_that_exist(job) -> None:
    channels = {"training": job.channel("training"), "test": job.channel("test")}
    env = job.environment("algo-1", channels=channels)
    assert Path(env.channel("training"), "part-0").read_text() == "training"
    for ask in (env.channel, env.channel_input_dirs.__getitem__):
        with pytest.raises(UnknownChannel) as caught:
            ask("trainign")
        assert (
            str(caught.value)
            == "no channel 'trainign' on algo-1 (group 'data_group'); its channels: 'test', 'training'"
        )
        assert caught.value.hint
        assert isinstance(caught.value, KeyError)
    assert env.channel_input_dirs.get("trainign") is None


def test_reserved_hyperparameters_are_hidden_from_the_user(job) -> None:
    env = job.environment(
        "algo-1", hyperparameters={"lr": 0.1, "sagemaker_own": [1], "_tuning_objective_metric": "loss"}
    )
    assert env.hyperparameters == {"lr": 0.1}
    assert env.additional_framework_parameters == {
        "sagemaker_own": [1],
        "sagemaker_torch_distributed_enabled": True,
        "sagemaker_distribution_instance_groups": ["dnn_group"],
    }
    assert env.to_cmd_args() == ["--lr", "0.1"]


def test_the_platforms_job_name_wins_over_the_files(job) -> None:
    base = job.tree("algo-1")
    assert Environment(base, environ={}).job_name == "the-job"
    assert Environment(base, environ={"TRAINING_JOB_NAME": "retry-2"}).job_name == "retry-2"


def test_it_can_be_given_configurations_as_the_toolkits_can(job) -> None:
    env = Environment(
        job.tree("algo-1"),
        resource_config={"current_host": "me", "hosts": ["me"]},
        hyperparameters={"a": 1},
        environ={},
    )
    assert (env.current_host, env.hyperparameters, env.current_instance_group) == ("me", {"a": 1}, "homogeneousCluster")


def test_cpus_are_those_that_the_process_may_use(job) -> None:
    env = job.environment("algo-1")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert env.num_cpus == 1
    finally:
        os.sched_setaffinity(0, before)
    assert env.num_cpus == len(before)


@pytest.mark.parametrize(
    ("tool", "script", "expected"),
    [
        ("nvidia-smi", "echo 'GPU 0: X (UUID: 1)'; echo 'GPU 1: X (UUID: 2)'; echo note", 2),
        ("nvidia-smi", "echo 'GPU 0: X'; exit 9", 0),
        ("neuron-ls", """echo '[{"nc_count": 2}, {"nc_count": 2}]'""", 4),
        ("neuron-ls", "echo no json", 0),
        ("none", "", 0),
    ],
)
def test_accelerators_are_counted_by_their_tools(tmp_path, monkeypatch, tool: str, script: str, expected: int) -> None:
    (tmp_path / tool).write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    ask = machine.num_neurons.__wrapped__ if tool == "neuron-ls" else machine.installed_gpus.__wrapped__
    assert ask(*["ml.trn1.2xlarge"] if tool == "neuron-ls" else []) == expected


def test_a_program_pays_for_no_library(job) -> None:
    script = (
        "import json, sys; from headrace import Environment; env = Environment(); env.to_cmd_args(); "
        "print(json.dumps([env.current_host, sorted(sys.modules)]))"
    )
    environ = {**os.environ, "SAGEMAKER_BASE_DIR": str(job.tree("algo-4"))}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, timeout=30, check=True)
    host, modules = json.loads(done.stdout)
    assert host == "algo-4"
    heavy = {"torch", "numpy", "msgspec", "grpc", "psutil", "pydantic", "yaml", "rich", "subprocess"}
    assert not heavy & set(modules)
