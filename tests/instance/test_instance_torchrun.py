"""torchrun's command line, and TF_CONFIG."""

from __future__ import annotations

import json

import msgspec
import pytest

from headrace.instance.frameworks import tf_config, torchrun_command, torchrun_variables, worker_ports
from headrace.instance.launch_plan import MULTI_WORKER_MIRRORED, TORCH_DISTRIBUTED, DistributionPlan, Elastic


def elastic_plan(make_plan):
    world = DistributionPlan(TORCH_DISTRIBUTED, ("dnn_group",), elastic=Elastic(1, 4))
    return make_plan(distributions=(world,), start_timeout=12.5)


def test_the_hosts_of_an_elastic_world_meet_at_its_first_host(make_plan) -> None:
    command = torchrun_command(elastic_plan(make_plan), "algo-4", ["bash", "x y"], "py")
    assert command[:3] == ["py", "-m", "torch.distributed.run"]
    assert command[-3:] == ["--no-python", "bash", "x y"]
    options = dict(option.split("=", 1) for option in command[3:-3])
    settings = dict(setting.split("=") for setting in options.pop("--rdzv-conf").split(","))
    assert options == {
        "--nnodes": "1:2",
        "--nproc-per-node": "2",
        "--max-restarts": "4",
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": "127.0.1.3:7799",
        "--rdzv-id": "the-job-20240607T000000Z-abcd",
        "--local-addr": "127.0.1.4",
    }
    assert (settings["is_host"], settings["join_timeout"], settings["read_timeout"]) == ("0", "13", "13")
    first = torchrun_command(elastic_plan(make_plan), "algo-3", [], "py")
    assert any("is_host=1" in option for option in first)


def test_ranks_of_an_elastic_world_share_the_cores_and_each_generation_has_its_store(make_plan) -> None:
    plan = elastic_plan(make_plan)
    assert torchrun_variables(plan, "algo-3", cores=8) == {
        "OMP_NUM_THREADS": "4",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    own = msgspec.structs.replace(plan, environment={"OMP_NUM_THREADS": "3"})
    assert torchrun_variables(own, "algo-3", cores=8)["OMP_NUM_THREADS"] == "3"


def test_a_host_outside_of_an_elastic_world_has_no_torchrun(make_plan) -> None:
    with pytest.raises(ValueError, match="algo-3 is in no elastic world"):
        torchrun_command(make_plan(), "algo-3", [], "py")


def tensorflow_plan(make_plan, prefix: str):
    plan = make_plan(distributions=(DistributionPlan(MULTI_WORKER_MIRRORED, ("dnn_group",)),))
    hosts = tuple(msgspec.structs.replace(host, address=host.name.replace("algo-", prefix)) for host in plan.hosts)
    return msgspec.structs.replace(plan, hosts=hosts)


def test_tf_config_has_the_hosts_of_the_group_only(make_plan) -> None:
    plan = tensorflow_plan(make_plan, "10.0.0.")
    assert json.loads(tf_config(plan, "algo-4")) == {
        "cluster": {"worker": ["10.0.0.3:8890", "10.0.0.4:8890"]},
        "environment": "cloud",
        "task": {"index": 1, "type": "worker"},
    }
    with pytest.raises(ValueError, match="algo-1 is no worker"):
        tf_config(plan, "algo-1")


def test_workers_that_share_a_machine_have_ports_of_their_own(make_plan) -> None:
    assert worker_ports(tensorflow_plan(make_plan, "127.0.1.")) == {"algo-3": 8890, "algo-4": 8891}
    assert worker_ports(tensorflow_plan(make_plan, "node-")) == {"algo-3": 8890, "algo-4": 8890}
    assert worker_ports(make_plan()) == {}
