"""Scripts, launchers, estimator calls and requests written for SageMaker run here as they are.

The programs under unchanged/ know nothing of headrace: they have the shapes of AWS's examples (hello-world, the
launcher of the tf.data.service example, the Horovod notebook, the guide to heterogeneous clusters, a request for
boto3, the drivers of SDK 3), with /opt/ml, algo-N and ports written into them.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK

from headrace.estimator import InstanceGroup, PyTorch, TensorFlow, TrainingInput
from headrace.runs import Run, Status, list_runs
from needs import oracle, require

CODE = Path(__file__).parent / "unchanged"
ROOT = Path(__file__).parents[2]
ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"

mpi = pytest.mark.needs("mpirun", "libmpi", "mpi4py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the user stands: a folder of his own with nothing of headrace in it."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    here = tmp_path / "work"
    shutil.copytree(CODE, here)
    monkeypatch.chdir(here)
    yield here
    for run in list_runs():
        if not run.finished:  # the test has failed already
            headrace("stop", "--now", run.id)


@pytest.fixture
def namespaces() -> None:
    require("namespaces")


# Decorates what needs no /opt/ml, name or port of its own: without namespaces too in the long run, on addresses of
# this process, so that none meet.
with_and_without_namespaces = pytest.mark.parametrize(
    "engines",
    [
        pytest.param({"local": {"isolation": "auto"}}, id="auto"),
        *(
            [
                pytest.param(
                    {"local": {"isolation": "none", "address_prefix": f"127.{178 + os.getpid() % 70}.9"}}, id="none"
                )
            ]
            if SOAK
            else []
        ),
    ],
)


def headrace(*arguments: str) -> str:
    """Runs the command line, which must exit with 0, and returns what it says."""
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_of(estimator: Any) -> Run:
    return Run.open(estimator.latest_training_job.name)


def said(run: Run, stream: str) -> list[str]:
    return [line.text for line in run.logs() if str(line.stream) == stream]


def members(uri: str) -> dict[str, bytes]:
    """What is in an archive of a model or an output."""
    with tarfile.open(uri.removeprefix("file://")) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}


@pytest.mark.namespaces
@pytest.mark.needs("way out")  # without one, `auto` gives hosts no network of their own
@pytest.mark.promise("sagemaker-differences", "absent here: groups are a `KeyError`")
def test_hello_world_sees_its_groups_as_on_the_service(folder: Path, namespaces: None) -> None:
    estimator = PyTorch(
        entry_point="train.py",
        source_dir="./hello",
        role=ROLE,
        framework_version="1.10",
        py_version="py38",
        instance_groups=[
            InstanceGroup("data_group", "ml.c5.xlarge", 1),
            InstanceGroup("dnn_group", "ml.m4.xlarge", 2),
        ],
    )
    estimator.fit(job_name="hello-world-heterogenous", logs=False)
    lines = dict(line.split(": ", 1) for line in said(run_of(estimator), "dnn_group/algo-3[0]"))
    dnn = {"hosts": ["algo-2", "algo-3"], "instance_group_name": "dnn_group", "instance_type": "ml.m4.xlarge"}
    data = {"hosts": ["algo-1"], "instance_group_name": "data_group", "instance_type": "ml.c5.xlarge"}
    assert lines["current_host"] == "algo-3"
    assert lines["current_instance_type"] == "ml.m4.xlarge"
    assert lines["current_instance_group"] == "dnn_group"
    assert lines["current_instance_group_hosts"] == "['algo-2', 'algo-3']"
    assert lines["is_hetero"] == "True"
    assert lines["instance_groups"] == "['data_group', 'dnn_group']"
    assert json.loads(lines["instance_groups_dict"]) == {"data_group": data, "dnn_group": dnn}
    assert lines["distribution_instance_groups"] == "[]"
    assert lines["variables"] == 'dnn_group ["data_group","dnn_group"] true'
    assert json.loads(lines["resourceconfig.json"]) == {
        "current_group_name": "dnn_group",
        "current_host": "algo-3",
        "current_instance_type": "ml.m4.xlarge",
        "hosts": ["algo-1", "algo-2", "algo-3"],
        "instance_groups": [data, dnn],
        "network_interface_name": "eth0",
    }


@pytest.mark.namespaces
@pytest.mark.timeout(600)
@pytest.mark.parametrize("_", [pytest.param(None, marks=mpi)])
@pytest.mark.needs("way out")  # without one, `auto` gives hosts no network of their own
@pytest.mark.promise("sagemaker-differences", "absent here: 30 s of sleep after every MPI job")
def test_the_launcher_of_the_tensorflow_example_with_two_hosts_a_group_and_mpi(
    folder: Path, namespaces: None, _: None
) -> None:
    data_group = InstanceGroup("data_group", "ml.c5.18xlarge", 2)
    dnn_group = InstanceGroup("dnn_group", "ml.p4d.24xlarge", 2)
    estimator = TensorFlow(
        entry_point="launcher.py",
        source_dir="launcher",
        framework_version="2.9.1",
        py_version="py39",
        role=ROLE,
        volume_size=10,
        max_run=1800,
        disable_profiler=True,
        instance_groups=[data_group, dnn_group],
        hyperparameters={"steps": 6, "batch_size": 8, "num_of_data_workers": 1, "workers": 4},
        distribution={
            "mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "--NCCL_DEBUG WARN"},
            "instance_groups": [dnn_group],
        },
    )
    estimator.fit(logs=False)
    run = run_of(estimator)
    model = json.loads(members(estimator.model_data)["model.json"])
    samples = 4 * 6 * 8
    assert model == {
        "sum": samples * (samples - 1) // 2,
        "served_by": ["algo-1", "algo-2", "algo-3", "algo-4"],
        "ranks": 4,
    }
    sent = "\n".join(said(run, "dnn_group/algo-3[0]"))  # by two processes at once, so lines may be mixed
    for host in ("algo-1", "algo-2", "algo-3", "algo-4"):
        assert f"shutdown request sent to {host}:16000" in sent
    for rank, host in enumerate(("algo-3", "algo-3", "algo-4", "algo-4")):
        assert any(f"rank {rank} of 4 on {host}: " in line for line in said(run, f"dnn_group/{host}[{rank}]"))


if SOAK:  # in every run: the estimator in hello, the launcher in the example of TensorFlow

    @pytest.mark.namespaces
    @pytest.mark.needs("way out")  # without one, `auto` gives hosts no network of their own
    def test_the_notebook_of_the_pytorch_example(
        folder: Path, namespaces: None, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
            (folder / "data").mkdir(exist_ok=True)
            (folder / "data" / name).write_bytes(b"not read by the programs")
        kwargs: dict[str, Any] = {
            "hyperparameters": {
                "batch-size": 16,
                "steps": 5,
                "workers": 2,
                "grpc-workers": 4,
                "num-dnn-workers": 4,
                "pin-memory": True,
                "region": "us-east-1",
            },
            "instance_groups": [
                InstanceGroup("data_group", "ml.c5.9xlarge", 1),
                InstanceGroup("dnn_group", "ml.p3.2xlarge", 1),
            ],
        }
        estimator = PyTorch(
            framework_version="1.11.0",
            py_version="py38",
            role=ROLE,
            entry_point="launcher.py",
            source_dir="launcher",
            volume_size=10,
            max_run=4800,
            disable_profiler=True,
            debugger_hook_config=False,
            **kwargs,
        )
        estimator.fit(inputs={"training": "./data", "testing": "./data"}, job_name="pt-hetero-H-T-20220816T011505Z")
        assert "dnn_group/algo-2[0] train_dnn.py closed with returncode=0" in capfd.readouterr().out
        assert json.loads(members(estimator.model_data)["model.json"])["sum"] == 80 * 79 // 2
        described = estimator.latest_training_job.describe()
        assert described["TrainingJobStatus"] == "Completed"
        assert described["ModelArtifacts"] == {"S3ModelArtifacts": estimator.model_data}
        assert [part["Status"] for part in described["SecondaryStatusTransitions"]][-2:] == ["Uploading", "Completed"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("_", [pytest.param(None, marks=mpi)])
@with_and_without_namespaces
@pytest.mark.promise("sagemaker-differences", "absent here: Horovod's notebook needs TensorFlow 1 and SDK 1")
def test_the_horovod_notebook_of_sdk_1_with_its_data_in_s3(folder: Path, s3: Any, _: None, engines: Any) -> None:
    import numpy
    from sklearn.datasets import load_digits

    digits = load_digits()
    for name, part in (("train", slice(None, 1500)), ("test", slice(1500, None))):
        file = io.BytesIO()
        numpy.savez(file, data=digits.data[part], labels=digits.target[part])
        s3.put(f"mnist/{name}.npz", file.getvalue())
    estimator = TensorFlow(
        entry_point="mnist/mnist_mpi.py",
        role=ROLE,
        train_instance_count=2,
        train_instance_type="local",
        script_mode=True,
        framework_version="1.15.2",
        py_version="py3",
        distributions={"mpi": {"enabled": True, "processes_per_host": 2}},
        base_job_name="hvd-mnist-local",
        engines=engines,
    )
    estimator.fit({"train": s3.uri("mnist/train.npz"), "test": s3.uri("mnist/test.npz")}, logs=False)
    run = run_of(estimator)
    for rank, host in enumerate(("algo-1", "algo-1", "algo-2", "algo-2")):
        (line,) = said(run, f"homogeneousCluster/{host}[{rank}]")
        assert line.startswith(f"rank {rank} of 4 on {host}: test accuracy 0.")
        assert float(line.split()[-1]) > 0.7
    assert list(members(estimator.model_data)) == ["model.npy"]


if SOAK:  # in every run: test_local_channels.py has channels of groups, shards and arguments

    @with_and_without_namespaces
    def test_the_channels_and_groups_of_the_guide(folder: Path, s3: Any, engines: Any) -> None:
        for key in ("folder1/a", "folder1/b", "folder1/c", "folder2/x", "folder2/y"):
            s3.put(key, key.encode())
        one, two = (
            InstanceGroup("instance_group_1", "ml.c5.18xlarge", 1),
            InstanceGroup("instance_group_2", "ml.p3dn.24xlarge", 2),
        )
        estimator = PyTorch(
            entry_point="train.py",
            source_dir="guide",
            role=ROLE,
            framework_version="1.10.0",
            py_version="py38",
            job_name="my-training-job-with-heterogeneous-cluster",
            engines=engines,
            instance_groups=[one, two],
            hyperparameters={"epochs": 2, "name": 'it\'s $HOME; a "name"'},
        )
        channels = {
            name: TrainingInput(
                s3_data_type="S3Prefix",
                s3_data=s3.uri(prefix),
                distribution=distribution,
                input_mode="File",
                instance_group_names=[group],
            )
            for name, prefix, distribution, group in (
                ("training", "folder1", "FullyReplicated", "instance_group_1"),
                ("dummy-input-channel", "folder2", "ShardedByS3Key", "instance_group_2"),
            )
        }
        estimator.fit(inputs=channels, logs=False)
        run = run_of(estimator)
        arguments = ["--epochs", "2", "--name", 'it\'s $HOME; a "name"']
        hyperparameters = {"epochs": 2, "name": 'it\'s $HOME; a "name"'}
        assert [
            json.loads(said(run, stream)[0])
            for stream in ("instance_group_1/algo-1[0]", "instance_group_2/algo-2[0]", "instance_group_2/algo-3[0]")
        ] == [
            ["algo-1", "preprocess", {"training": ["a", "b", "c"]}, arguments, hyperparameters],
            ["algo-2", "train", {"dummy-input-channel": ["x"]}, arguments, hyperparameters],
            ["algo-3", "train", {"dummy-input-channel": ["y"]}, arguments, hyperparameters],
        ]
        assert members(estimator.model_data) == {
            "algo-1.txt": b"preprocess",
            "algo-2.txt": b"train",
            "algo-3.txt": b"train",
        }


if SOAK:  # in every run: the request of SDK 3 here, boto3's in tests/endpoint

    def request(s3: Any, name: str) -> dict[str, Any]:
        """A CreateTrainingJob request for `boto3.client("sagemaker").create_training_job(**request)`."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            tar.add("boto3/train.py", "train.py")
        s3.put(f"{name}/source/sourcedir.tar.gz", archive.getvalue())
        for key in ("a.csv", "b.csv", "c.csv"):
            s3.put(f"data/{key}", b"1,2\n")

        def channel(name: str, groups: list[str], distribution: str) -> dict[str, Any]:
            source = {
                "S3DataType": "S3Prefix",
                "S3Uri": s3.uri("data/"),
                "S3DataDistributionType": distribution,
                "InstanceGroupNames": groups,
            }
            return {"ChannelName": name, "DataSource": {"S3DataSource": source}, "ContentType": "text/csv"}

        texts = {
            "epochs": 3,
            "learning-rate": 1e-3,
            "layers": [64, 32],
            "augment": True,
            "name": "it's; rm -rf / $(id)",
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": s3.uri(f"{name}/source/sourcedir.tar.gz"),
            "sagemaker_container_log_level": 20,
            "sagemaker_job_name": name,
            "sagemaker_region": "us-east-1",
        }
        return {
            "TrainingJobName": name,
            "RoleArn": ROLE,
            "AlgorithmSpecification": {
                "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:1.12.1-gpu-py38",
                "TrainingInputMode": "File",
                "MetricDefinitions": [{"Name": "loss", "Regex": "loss: ([0-9.]+);"}],
                "EnableSageMakerMetricsTimeSeries": True,
            },
            "HyperParameters": {key: json.dumps(value) for key, value in texts.items()},
            "Environment": {"STAGE": "test"},
            "InputDataConfig": [
                channel("train", ["data group", "dnn group/1"], "FullyReplicated"),
                channel("shards", ["dnn group/1"], "ShardedByS3Key"),
            ],
            "OutputDataConfig": {"S3OutputPath": s3.uri("out"), "KmsKeyId": ""},
            "ResourceConfig": {
                "VolumeSizeInGB": 30,
                "InstanceGroups": [
                    {"InstanceGroupName": "data group", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
                    {"InstanceGroupName": "dnn group/1", "InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
                ],
            },
            "VpcConfig": {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": ["subnet-0123456789abcdef0"]},
            "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
            "CheckpointConfig": {"S3Uri": s3.uri("checkpoints")},
            "EnableManagedSpotTraining": False,
            "EnableNetworkIsolation": False,
            "EnableInterContainerTrafficEncryption": True,
            "RetryStrategy": {"MaximumRetryAttempts": 2},
            "Tags": [{"Key": "team", "Value": "vision"}],
            "DebugHookConfig": {"S3OutputPath": s3.uri("debug"), "CollectionConfigurations": []},
            "ProfilerConfig": {"DisableProfiler": True},
        }


if SOAK:  # in every run: the request of SDK 3 here, boto3's in tests/endpoint

    @pytest.mark.namespaces
    def test_a_request_for_boto3(folder: Path, namespaces: None, s3: Any) -> None:
        asked = request(s3, "pytorch-training-2022-08-16")
        Path("request.json").write_text(json.dumps(asked, indent=2))
        shown = headrace("plan", "request.json")
        for unused in ("image_uri", "role", "subnets", "security_group_ids", "volume_size", "tags", "DebugHookConfig"):
            assert unused in shown, unused
        headrace("run", "request.json", "--quiet")
        described = json.loads(headrace("status", "pytorch-training-2022-08-16", "--output", "json"))
        assert described["TrainingJobStatus"] == "Completed"
        model = s3.uri("out/pytorch-training-2022-08-16/output/model.tar.gz")
        assert described["ModelArtifacts"]["S3ModelArtifacts"] == model
        run = Run.open("pytorch-training-2022-08-16")
        first, second, third, *_ = said(run, "dnn group/1/algo-2[0]")
        assert json.loads(first.removeprefix("arguments ")) == {
            "epochs": 3,
            "learning_rate": 0.001,
            "layers": "[64, 32]",
            "augment": "True",
            "name": "it's; rm -rf / $(id)",
            "model_dir": "/opt/ml/model",
            "train": "/opt/ml/input/data/train",
        }
        assert second == "job pytorch-training-2022-08-16 test [64, 32]"
        assert third == "found [] files ['a.csv', 'b.csv', 'c.csv']"
        assert sorted(s3.listed())[:3] == ["checkpoints/epoch-0", "checkpoints/epoch-1", "checkpoints/epoch-2"]

        if SOAK:  # in every run: test_local_checkpoints.py::test_checkpoints_are_there_again_on_every_host
            Path("request.json").write_text(json.dumps({**asked, "TrainingJobName": "again"}))
            headrace("run", "request.json", "--quiet")
            begun = said(Run.open("again"), "data group/algo-1[0]")[2]
            assert begun == "found ['epoch-0', 'epoch-1', 'epoch-2'] files ['a.csv', 'b.csv', 'c.csv']"


@pytest.mark.namespaces
@pytest.mark.needs("way out")  # without one, `auto` gives hosts no network of their own
@pytest.mark.promise("sagemaker-differences", "absent here: channels of SDK 3 have no groups, and are refused")
def test_a_request_of_sdk_3_brings_its_driver_as_a_channel(folder: Path, namespaces: None, s3: Any) -> None:
    s3.put("job/input/sm_drivers/sm_train.sh", Path("sdk3/sm_train.sh").read_bytes())
    s3.put("job/input/code/train.py", Path("sdk3/train.py").read_bytes())
    s3.put("data/part-0", b"x")
    groups = [("cpu", "ml.c5.xlarge", 1), ("gpu", "ml.g5.xlarge", 2)]

    def channel(name: str, key: str, of: list[str]) -> dict[str, Any]:
        source = {"S3DataType": "S3Prefix", "S3Uri": s3.uri(key), "S3DataDistributionType": "FullyReplicated"}
        source["InstanceGroupNames"] = of
        return {"ChannelName": name, "DataSource": {"S3DataSource": source}, "InputMode": "File"}

    everyone = [name for name, _, _ in groups]
    Path("request.json").write_text(
        json.dumps(
            {
                "TrainingJobName": "sdk-3",
                "RoleArn": ROLE,
                "AlgorithmSpecification": {
                    "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.0.0-cpu-py310",
                    "TrainingInputMode": "File",
                    "ContainerEntrypoint": ["/bin/bash"],
                    "ContainerArguments": [
                        "-c",
                        "chmod +x /opt/ml/input/data/sm_drivers/sm_train.sh"
                        " && /opt/ml/input/data/sm_drivers/sm_train.sh",
                    ],
                },
                "HyperParameters": {"epochs": "7", "note": json.dumps("it's")},
                "InputDataConfig": [
                    channel("code", "job/input/code/", everyone),
                    channel("sm_drivers", "job/input/sm_drivers/", everyone),
                    channel("train", "data/", ["gpu"]),
                ],
                "OutputDataConfig": {"S3OutputPath": s3.uri("out"), "CompressionType": "GZIP"},
                "ResourceConfig": {
                    "VolumeSizeInGB": 30,
                    "InstanceGroups": [
                        {"InstanceGroupName": name, "InstanceType": type_, "InstanceCount": count}
                        for name, type_, count in groups
                    ],
                },
                "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
            }
        )
    )
    headrace("run", "request.json", "--quiet")
    run = Run.open("sdk-3")
    assert run.status is Status.COMPLETED
    assert said(run, "cpu/algo-1[0]") == [
        "Starting training script",
        "algo-1 cpu ['algo-1'] ['--epochs', '7'] None",
        "Training Container Exit",
    ]
    assert said(run, "gpu/algo-2[0]")[1:3] == [
        "algo-2 gpu ['algo-2', 'algo-3'] ['--epochs', '7'] ['part-0']",
        "algo-2 met algo-3",
    ]
    model = s3.get("out/sdk-3/output/model.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(model)) as archive:
        assert sorted(archive.getnames()) == ["cpu.txt", "gpu.txt"]


@pytest.mark.namespaces
@pytest.mark.needs("oracle")
@pytest.mark.needs("way out")  # without one, `auto` gives hosts no network of their own
@pytest.mark.promise("sagemaker-differences", "absent here: a toolkit of SageMaker's containers, as it is")
def test_the_toolkit_of_sagemakers_containers_finds_what_it_finds_there(folder: Path, namespaces: None) -> None:
    with tarfile.open("sourcedir.tar.gz", "w:gz") as archive:
        archive.add("launcher", ".")
    texts = {
        "steps": 4,
        "workers": 2,
        "batch_size": 4,
        "sagemaker_program": "launcher.py",
        "sagemaker_submit_directory": str(folder / "sourcedir.tar.gz"),
        "sagemaker_container_log_level": 20,
        "sagemaker_region": "us-east-1",
    }
    groups = [("data_group", "ml.c5.xlarge", 1), ("dnn_group", "ml.m4.xlarge", 1)]
    asked = {
        "TrainingJobName": "toolkit",
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": "pytorch-training:2.5",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [str(oracle().parent / "train")],
        },
        "HyperParameters": {name: json.dumps(value) for name, value in texts.items()},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {
            "VolumeSizeInGB": 30,
            "InstanceGroups": [
                {"InstanceGroupName": name, "InstanceType": type_, "InstanceCount": count}
                for name, type_, count in groups
            ],
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
    }
    Path("request.json").write_text(json.dumps(asked))
    headrace("run", "request.json", "--quiet", "--set", "output_path=out")
    run = Run.open("toolkit")
    for group, number in (("data_group", 1), ("dnn_group", 2)):
        lines = said(run, f"{group}/algo-{number}[0]")
        assert any("Reporting training SUCCESS" in line for line in lines)
        assert f"SM_CURRENT_INSTANCE_GROUP={group}" in lines
        assert 'SM_USER_ARGS=["--batch_size","4","--steps","4","--workers","2"]' in lines
    model = json.loads(members("out/toolkit/output/model.tar.gz")["model.json"])
    assert model["served_by"] == ["algo-1", "algo-2"]


def test_no_program_here_knows_headrace() -> None:
    found = subprocess.run(["grep", "-rlE", "import headrace|from headrace|HEADRACE", str(CODE)], capture_output=True)
    assert found.returncode == 1, found.stdout
