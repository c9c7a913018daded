"""A launch plan as people read it."""

import pytest

from headrace.cli.views import plan_document
from headrace.engines.local.host_limits import Machine
from headrace.engines.local.plan_hosts import make_plan
from headrace.errors import UsageError
from headrace.job import Job
from headrace.runs import RunPaths

GROUPS = {"data": 1, "dnn": 1}
ONE_GROUP = {"instance_type": "ml.c5.xlarge", "instance_count": 1}


def groups_of(hosts):
    """Groups of a type, by how many hosts each has."""
    return [
        {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "instance_count": count}
        for name, count in hosts.items()
    ]


def viewed(folder, **fields):
    """The plan of a job whose code is `train.py` in `folder`, as people see it."""
    (folder / "train.py").touch()
    job = Job("job", source_dir=str(folder), entry_point="train.py", **fields)
    return plan_document.view(job, make_plan(job, RunPaths(folder / "run"), Machine((0, 1)), "py"))


def test_the_plan_shows_the_command_line_of_every_kind_of_program(tmp_path):
    (tmp_path / "data.sh").touch()
    elastic = {"enabled": True, "processes_per_host": 2, "elastic": {"min_hosts": 1, "max_restarts": 3}}
    groups = groups_of({**GROUPS, "old": 1})
    groups[0] |= {"entry_point": "data.sh", "hyperparameters": {"note": "a b"}}
    view = viewed(
        tmp_path,
        hyperparameters={"epochs": 3},
        instance_groups=groups,
        distribution=[
            {"torch_distributed": elastic, "instance_groups": ["dnn"]},
            {"mpi": {"enabled": True, "custom_mpi_options": "-verbose --NCCL_DEBUG WARN"}, "instance_groups": ["old"]},
        ],
    )
    shown = {host.group: host.programs[0] for host in view.hosts}
    assert shown["data"].argv == ("bash", "./data.sh", "--epochs", "3", "--note", "a b")
    assert shown["dnn"].stream == "torchrun"
    assert shown["dnn"].argv[:4] == ("py", "-m", "torch.distributed.run", "--nnodes=1:1")
    assert shown["dnn"].argv[-5:] == ("--no-python", "py", "train.py", "--epochs", "3")
    where = ("--host", "127.0.1.3", "-np", "1")
    assert shown["old"].argv == (
        *("mpirun", *where, "-x", "NCCL_DEBUG=WARN", "-verbose"),
        *("py", "train.py", "--epochs", "3"),
    )


def test_the_plan_tells_worlds_ports_ends_requirements_and_places(tmp_path):
    (tmp_path / "data.txt").touch()
    groups = groups_of({"data": 2, "dnn": 2})
    groups[0] |= {"requirements": "data.txt"}
    groups[1] |= {"depends_on": ["data"]}
    fields = {
        "instance_groups": groups,
        "distribution": {"horovod": {"enabled": True, "processes_per_host": 2}, "instance_groups": ["dnn"]},
        "completion": {"stall_after": 60},
        "retry": {"attempts": 2},
        "encrypt_inter_container_traffic": True,
        "output_path": f"{tmp_path}/job/../out",
        "checkpoint_s3_uri": str(tmp_path / "kept"),
    }
    shown = viewed(tmp_path, **fields)
    assert plan_document.worlds(shown) == ["mpi with Horovod over dnn: 4 ranks, started by mpirun on algo-3"]
    assert [host.launched for host in shown.hosts] == [(), (), ("0", "1"), ("2", "3")]
    assert plan_document.used_ports(shown) == "ports: control 7071"
    assert shown.storage.output == str(tmp_path / "out")
    ends = plan_document.promises(shown)
    for words in ("stops after 86400 s", "60 s of silence", "tried again after the loss of a host, 2 times", "TLS"):
        assert words in ends
    assert plan_document.work(shown.groups[1]) == "2 ranks, after data"
    assert shown.requirements == {"data": "data.txt"}
    (tmp_path / "requirements.txt").touch()
    assert viewed(tmp_path, **fields).requirements == {"data": "data.txt", "dnn": "requirements.txt"}
    assert shown.storage == plan_document.StorageView(
        str(tmp_path / "out"), str(tmp_path / "kept"), "/opt/ml/checkpoints"
    )


@pytest.mark.parametrize(
    ("workers", "ports", "words"),
    [
        (1, {}, "tf.data dispatcher 7072, tf.data worker 7073"),
        (3, {}, "tf.data dispatcher 7072, tf.data workers 7073 to 7075"),
        (3, {"control": 7074}, "tf.data dispatcher 7072, tf.data workers 7073 and 7075 to 7076"),
    ],
)
def test_every_port_of_tf_data_is_told(tmp_path, workers, ports, words):
    shown = viewed(
        tmp_path,
        instance_groups=groups_of(GROUPS),
        data_service={"tf_data": {"enabled": True, "workers_per_host": workers}, "instance_groups": ["data"]},
        engines={"local": {"ports": ports}},
    )
    assert plan_document.used_ports(shown) == (
        f"ports: control {ports.get('control', 7071)}, {words} (tf.data's on all addresses, without authentication)"
    )


def test_elastic_worlds_and_their_ports_are_told(tmp_path):
    elastic = {"enabled": True, "processes_per_host": 1, "elastic": {"min_hosts": 1, "max_restarts": 3}}
    shown = viewed(tmp_path, **ONE_GROUP | {"instance_count": 2}, distribution={"torch_distributed": elastic})
    (line,) = plan_document.worlds(shown)
    assert line.endswith(": 2 ranks, elastic from 1 host on, restarted 3 times at most")
    assert plan_document.used_ports(shown) == "ports: control 7071, ranks 7777"


def test_an_option_of_mpirun_without_its_value_is_told(tmp_path):
    mpi = {"enabled": True, "custom_mpi_options": "--NCCL_DEBUG"}
    with pytest.raises(UsageError, match="custom_mpi_options: --NCCL_DEBUG needs a value"):
        viewed(tmp_path, **ONE_GROUP, distribution={"mpi": mpi})


@pytest.mark.parametrize("way", [None, "torch_distributed", "mpi", "multi_worker_mirrored_strategy"])
def test_variables_that_headrace_sets_over_the_users_are_told(tmp_path, way):
    kept = {"AWS_REGION": "eu-west-1", "SM_OWN": "x", "PATH": "/bin", "PYTHONPATH": "/lib", "OMP_NUM_THREADS": "1"}
    groups = groups_of({"data": 1, "dnn": 2})
    groups[1]["environment"] = {"SM_CHANNEL_TRAIN": "/elsewhere", "SM_HP_EPOCHS": "4", "TMP": "/t"}
    shown = viewed(
        tmp_path,
        hyperparameters={"epochs": 3},
        inputs={"train": str(tmp_path)},
        environment={**kept, "SM_HOSTS": "evil", "TRAINING_JOB_NAME": "foo", "CURRENT_HOST": "x", "WORLD_SIZE": "9"},
        instance_groups=groups,
        **({"distribution": {way: {"enabled": True}, "instance_groups": ["dnn"]}} if way else {}),
    )
    expected = ["environment.SM_HOSTS", "environment.TRAINING_JOB_NAME", "environment.CURRENT_HOST"]
    expected += ["environment.WORLD_SIZE"] * (way == "torch_distributed")
    expected += [f"instance_groups[1].environment.{name}" for name in ("SM_CHANNEL_TRAIN", "SM_HP_EPOCHS")]
    assert [unused.field for unused in shown.without_effect] == expected
