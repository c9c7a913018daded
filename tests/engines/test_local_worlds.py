"""Several distributions in one job, one over several groups, and what the local engine cannot start."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from effort import SOAK
from stage import both_isolations_at_length, groups, text

from headrace import engines
from headrace.errors import JobInvalid
from headrace.instance.frameworks import worker_ports
from headrace.job import Job
from headrace.runs import Status

TORCH = {"torch_distributed": {"enabled": True, "processes_per_host": 1}}

SUM = """
import json, os, pathlib
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
group = os.environ["SM_CURRENT_INSTANCE_GROUP"]
mine = torch.tensor([{"a": 1.0, "b": 10.0, "c": 100.0}[group]])
for _ in range(20):  # both worlds are at work at the same time
    total = mine.clone()
    dist.all_reduce(total)
seen = {name: os.environ[name] for name in os.environ if name.startswith(("SM_", "MASTER_", "RANK", "WORLD_SIZE"))}
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], f"rank-{dist.get_rank()}.json").write_text(
    json.dumps({"total": total.item(), "seen": seen}))
dist.destroy_process_group()
"""


def written(handle, host: str, rank: int) -> dict[str, object]:
    return json.loads((handle.paths.host(host) / "output" / "data" / f"rank-{rank}.json").read_text())


MASTER = 20_000 + 4 * (os.getpid() % 5_000)
"""torch takes its port on all addresses: the default one could meet that of another job of this machine."""


def none(**local: object) -> dict[str, object]:
    return {"isolation": "none", "ports": {"master": MASTER}, **local}


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.promise("sagemaker-differences", "absent here: one group for a distribution, one distribution for a job")
def test_two_worlds_train_at_once_and_know_nothing_of_each_other(stage):
    """The first is over two groups, and numbers its ranks in the order of the groups."""
    handle = stage.start(
        SUM,
        instance_groups=groups(a=1, b=1, c=1),
        distribution=[{**TORCH, "instance_groups": ["c", "a"]}, {**TORCH, "instance_groups": ["b"]}],
        local=none(),
    )
    assert handle.wait(90) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle, within=2.0)
    worlds = (
        (["c", "a"], ["algo-3", "algo-1"], MASTER, 101.0),
        (["b"], ["algo-2"], MASTER + 1, 10.0),
    )
    for names, hosts, port, total in worlds:
        for rank, host in enumerate(hosts):
            found = written(handle, host, rank)
            assert found["total"] == total
            seen = found["seen"]
            assert json.loads(seen["SM_DISTRIBUTION_INSTANCE_GROUPS"]) == names
            assert json.loads(seen["SM_DISTRIBUTION_HOSTS"]) == hosts
            assert seen["SM_MASTER_ADDR"] == seen["MASTER_ADDR"] == f"{stage.prefix}.{hosts[0].removeprefix('algo-')}"
            assert seen["SM_MASTER_PORT"] == seen["MASTER_PORT"] == str(port)
            assert seen["WORLD_SIZE"] == str(len(hosts))
            assert json.loads(seen["SM_HOSTS"]) == ["algo-1", "algo-2", "algo-3"]


def test_workers_of_multi_worker_mirrored_strategy_know_their_groups_hosts_only(stage):
    script = """
    import json, os, pathlib, sys
    config = os.environ.get("TF_CONFIG")
    assert "RANK" not in os.environ
    pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "config.json").write_text(config or "null")
    """
    handle = stage.start(
        script,
        instance_groups=groups(data=1, dnn=2),
        distribution={"multi_worker_mirrored_strategy": {"enabled": True}, "instance_groups": ["dnn"]},
        completion={"instance_groups": ["data", "dnn"]},
        local=none(),
    )
    assert handle.wait(30) is Status.COMPLETED, text(handle)
    configs = [
        json.loads((handle.paths.host(f"algo-{number}") / "output" / "data" / "config.json").read_text())
        for number in (1, 2, 3)
    ]
    workers = [f"{stage.prefix}.2:8890", f"{stage.prefix}.3:8891"]
    assert configs[0] is None
    assert configs[1] == {
        "cluster": {"worker": workers},
        "environment": "cloud",
        "task": {"index": 0, "type": "worker"},
    }
    assert configs[2]["task"]["index"] == 1
    streams = sorted(str(program.stream) for program in handle.run.programs)
    assert streams == ["data/algo-1[0]", "dnn/algo-2[0]", "dnn/algo-3[1]"]


@pytest.mark.parametrize(
    ("distribution", "kind", "instead"),
    [
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, "smdistributed.dataparallel", "torch_distributed"),
        (
            {"smdistributed": {"modelparallel": {"enabled": True}}, "mpi": {"enabled": True}},
            "smdistributed.modelparallel",
            "torch_distributed",
        ),
        ({"parameter_server": {"enabled": True}}, "parameter_server", "multi_worker_mirrored_strategy"),
        ({"pytorchddp": {"enabled": True}}, "pytorchddp", "torch_distributed"),
        ({"pytorchxla": {"enabled": True}}, "pytorchxla", "torch_distributed"),
    ],
)
@pytest.mark.promise("sagemaker-differences", "absent here: `parameter_server` with groups: `UnboundLocalError`")
def test_what_runs_on_sagemaker_only_is_refused_with_what_to_use(stage, distribution, kind, instead):
    job = stage.job("", distribution=distribution)
    for attempt in (engines.plan, engines.start):
        with pytest.raises(JobInvalid) as refused:
            attempt(job)
        (problem,) = refused.value.problems
        assert f"distribution.{kind}" in str(problem)
        assert instead in problem.hint
    assert not (stage.folder / "home" / "runs").exists()


def test_the_ports_of_every_world_are_free_ones(stage):
    job = stage.job(
        "",
        instance_groups=groups(a=1, b=1),
        distribution=[
            {**TORCH, "instance_groups": ["a"]},
            {"multi_worker_mirrored_strategy": {"enabled": True}, "instance_groups": ["b"]},
        ],
        local=none(),
    )
    with socket.create_server((f"{stage.prefix}.2", 8890)):
        plan = engines.plan(job).plan
    assert worker_ports(plan) == {"algo-2": 8900}


if SOAK:  # in every run: hosts that find each other by name and port, test_local_isolation.py

    @pytest.mark.torch
    @pytest.mark.namespaces
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("stage", ["namespace"], indirect=True)
    def test_a_script_that_calls_torchrun_itself_runs_where_hosts_have_names_and_ports(stage):
        """As users write it for SageMaker: an entry point in shell, with the variables of the container alone."""
        code = stage.folder / "code"
        code.mkdir()
        (code / "run.sh").write_text(
            """\
    set -eu
    hosts=$(python -c 'import json, os; print(" ".join(json.loads(os.environ["SM_HOSTS"])))')
    master=${hosts%% *}
    rank=0
    for host in $hosts; do [ "$host" = "$SM_CURRENT_HOST" ] && break; rank=$((rank + 1)); done
    torchrun --nnodes="$(echo $hosts | wc -w)" --node_rank="$rank" --nproc_per_node=1 \\
      --master_addr="$master" --master_port=7777 train.py "$@"
    """
        )
        (code / "train.py").write_text(
            """\
    import sys
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print("sum", total.item(), sys.argv[1:], flush=True)
    dist.destroy_process_group()
    """
        )
        job = Job(
            "job",
            source_dir=str(code),
            entry_point="run.sh",
            hyperparameters={"note": "a b"},
            instance_type="ml.c5.xlarge",
            instance_count=2,
            engines={"local": {"isolation": "namespace", "stop_grace": 3}},
        )
        handle = engines.start(job)
        stage.handles.append(handle)
        assert handle.wait(120) is Status.COMPLETED, text(handle)
        for host in (1, 2):
            assert "sum 2.0 ['--note', 'a b']" in text(handle, f"homogeneousCluster/algo-{host}[0]")
        stage.assert_nothing_left(handle, within=3.0)


@pytest.mark.namespaces
@pytest.mark.parametrize("stage", ["namespace"], indirect=True)
def test_workers_of_multi_worker_mirrored_strategy_have_the_services_names_in_namespaces(stage):
    handle = stage.start(
        "import os; print(os.environ['TF_CONFIG'], flush=True)",
        distribution={"multi_worker_mirrored_strategy": {"enabled": True}},
        instance_type="ml.c5.xlarge",
        instance_count=2,
    )
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    config = json.loads(text(handle, "homogeneousCluster/algo-2[1]"))
    assert config["cluster"]["worker"] == ["algo-1:8890", "algo-2:8890"]
    assert config["task"]["index"] == 1


TENSORFLOW = Path(__file__).resolve().parents[2] / ".venv-horovod" / "bin" / "python"

MIRRORED = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
x = tf.random.stateless_normal((64, 4), (1, 2))
data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, 1, keepdims=True))).batch(16).repeat()
history = model.fit(data, epochs=1, steps_per_epoch=8, verbose=0)
print("workers", strategy.num_replicas_in_sync, "loss", history.history["loss"][-1].hex(), flush=True)
"""


if SOAK:  # in every run: the TF_CONFIG that it reads, above

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    @pytest.mark.needs(".venv-horovod")
    @both_isolations_at_length
    def test_tensorflow_trains_with_multi_worker_mirrored_strategy(stage):
        code = stage.folder / "code"
        code.mkdir()
        (code / "train.py").write_text(MIRRORED)
        job = Job(
            "job",
            source_dir=str(code),
            command=[str(TENSORFLOW), "train.py"],
            environment={"TF_CPP_MIN_LOG_LEVEL": "2"},
            instance_groups=groups(dnn=2),
            distribution={"multi_worker_mirrored_strategy": {"enabled": True}},
            engines={"local": {"isolation": stage.isolation, "address_prefix": stage.prefix, "stop_grace": 3}},
        )
        handle = engines.start(job)
        stage.handles.append(handle)
        assert handle.wait(150) is Status.COMPLETED, text(handle)
        said = [text(handle, f"dnn/algo-{rank + 1}[{rank}]").splitlines()[-1] for rank in (0, 1)]
        assert said[0].startswith("workers 2 loss ")
        assert said[0] == said[1]
