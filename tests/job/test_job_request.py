"""A CreateTrainingJob request becomes a job, and the job the same request again."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import JobInvalid
from headrace.job import Job, load_job

CHANNEL = {
    "ChannelName": "train",
    "DataSource": {
        "S3DataSource": {
            "S3DataType": "S3Prefix",
            "S3Uri": "s3://bucket/train",
            "S3DataDistributionType": "ShardedByS3Key",
            "InstanceGroupNames": ["data"],
        }
    },
    "ContentType": "text/csv",
}
REQUEST: dict[str, object] = {
    "TrainingJobName": "demo",
    "RoleArn": "arn:aws:iam::123456789012:role/Train",
    "AlgorithmSpecification": {
        "TrainingImage": "image:1",
        "TrainingInputMode": "File",
        "MetricDefinitions": [{"Name": "loss", "Regex": "loss=(.*)"}],
        "EnableSageMakerMetricsTimeSeries": True,
    },
    "HyperParameters": {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"s3://bucket/code/sourcedir.tar.gz"',
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "8",
        "sagemaker_mpi_custom_mpi_options": '"--NCCL_DEBUG INFO"',
        "sagemaker_distribution_instance_groups": '["dnn"]',
        "sagemaker_region": '"us-east-1"',
        "sagemaker_container_log_level": "20",
        "epochs": "10",
        "rate": "1e-3",
        "name": "hello",
        "quoted": '"a"',
    },
    "Environment": {"OMP_NUM_THREADS": "1", "EMPTY": ""},
    "InputDataConfig": [CHANNEL],
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out", "KmsKeyId": "key", "CompressionType": "NONE"},
    "ResourceConfig": {
        "VolumeSizeInGB": 30,
        "InstanceGroups": [
            {"InstanceGroupName": "data", "InstanceType": "ml.c5.xlarge", "InstanceCount": 2},
            {"InstanceGroupName": "dnn", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1},
        ],
    },
    "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
    "RetryStrategy": {"MaximumRetryAttempts": 3},
    "CheckpointConfig": {"S3Uri": "s3://bucket/checkpoints", "LocalPath": "/opt/ml/checkpoints/"},
    "EnableNetworkIsolation": False,
    "EnableManagedSpotTraining": True,
    "Tags": [{"Key": "team", "Value": "é 1"}],
    "ProfilerConfig": {"DisableProfiler": True},
}
FILE_SYSTEM = {
    "ChannelName": "disk",
    "DataSource": {
        "FileSystemDataSource": {
            "FileSystemId": "fs-01234567",
            "FileSystemAccessMode": "ro",
            "FileSystemType": "EFS",
            "DirectoryPath": "/data",
        }
    },
}


def changed(*changes: tuple[str, object]) -> dict[str, object]:
    """The request with other values at dotted places; None takes one out."""
    request = copy.deepcopy(REQUEST)
    for place, value in changes:
        *outer, last = place.split(".")
        inner: dict[str, object] = request
        for step in outer:
            inner = inner.setdefault(step, {})  # type: ignore[assignment]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    return request


def problems(request: dict[str, object]) -> list[tuple[str, str, str]]:
    with pytest.raises(JobInvalid) as caught:
        Job.from_request(request)
    return [(problem.field, problem.code, problem.message) for problem in caught.value.problems]


def test_every_member_is_in_the_job_or_among_the_extras() -> None:
    job = Job.from_request(REQUEST)
    assert (job.job_name, job.role, job.image_uri) == ("demo", "arn:aws:iam::123456789012:role/Train", "image:1")
    assert (job.entry_point, job.source_dir) == ("train.py", "s3://bucket/code/sourcedir.tar.gz")
    assert job.hyperparameters == {"epochs": 10, "rate": 0.001, "name": "hello", "quoted": "a"}
    (world,) = job.distributions
    assert (world.kind, world.instance_groups, world.processes_per_host) == ("mpi", ("dnn",), 8)
    assert world.custom_mpi_options == "--NCCL_DEBUG INFO"
    assert job.hosts == {"data": ("algo-1", "algo-2"), "dnn": ("algo-3",)}
    channel = job.inputs["train"]
    assert (channel.s3_data, channel.distribution, channel.instance_groups) == (
        "s3://bucket/train",
        "ShardedByS3Key",
        ("data",),
    )
    assert job.environment == {"OMP_NUM_THREADS": "1", "EMPTY": ""}
    assert (job.max_run, job.attempts, job.output_kms_key) == (3600, 3, "key")
    assert job.checkpoint_s3_uri == "s3://bucket/checkpoints"
    assert job.use_spot_instances
    assert job.tags[0].value == "é 1"
    assert job.request_extras == {
        "AlgorithmSpecification": {"EnableSageMakerMetricsTimeSeries": True},
        "HyperParameters": {
            "sagemaker_region": '"us-east-1"',
            "sagemaker_container_log_level": "20",
            "rate": "1e-3",
            "name": "hello",
        },
        "OutputDataConfig": {"CompressionType": "NONE"},
        "ProfilerConfig": {"DisableProfiler": True},
    }
    assert job.hyperparameter_texts_of("dnn") == {"epochs": "10", "rate": "1e-3", "name": "hello", "quoted": '"a"'}


def test_the_programs_get_the_requests_hyperparameters_and_no_other() -> None:
    job = Job.from_request(REQUEST)
    assert job.request_texts_of("dnn") == REQUEST["HyperParameters"]
    assert job.request_texts_of("data") == REQUEST["HyperParameters"]
    assert Job(**{**job.to_data(), "base_path": None}).request_texts_of("dnn") is None  # the same job, not a request


@pytest.mark.parametrize("place", ["/work/code", "/work/sourcedir.tar.gz"])
@pytest.mark.parametrize("quote", [str, json.dumps])
def test_the_code_of_a_request_may_be_a_file_uri(place: str, quote: Callable[[str], str]) -> None:
    """As SageMaker's local mode writes it."""
    request = changed(("HyperParameters.sagemaker_submit_directory", quote(f"file://{place}")))
    job = Job.from_request(request)
    assert job.source_dir == place
    assert job.request_texts_of("dnn") == request["HyperParameters"]


def test_code_under_a_file_uri_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    path = tmp_path / "request.json"
    for folder, wrong in (("code", []), ("none", [f"must be a folder; {tmp_path}/none does not exist"])):
        path.write_text(
            json.dumps(changed(("HyperParameters.sagemaker_submit_directory", f"file://{tmp_path}/{folder}")))
        )
        try:
            load_job(path)
            found = []
        except JobInvalid as error:
            found = [problem.message for problem in error.problems]
        assert found == wrong


def channel(**changes: object) -> dict[str, object]:
    """The channel with another name, or another S3Uri."""
    source = {**CHANNEL["DataSource"]["S3DataSource"], "S3Uri": changes.pop("S3Uri", "s3://b/x")}  # type: ignore[index,call-overload]
    return {**CHANNEL, "DataSource": {"S3DataSource": source}, **changes}


@pytest.mark.parametrize(
    "change",
    [
        ("Environment", {"A-B": "x"}),
        ("Environment", {"A": "x" * 513}),
        ("InputDataConfig", [channel(ChannelName="a b")]),
        ("InputDataConfig", [channel(ChannelName="a" * 65)]),
        ("InputDataConfig", [channel(S3Uri="ftp://x")]),
        ("InputDataConfig", [channel(S3Uri="/no/such/folder")]),
    ],
    ids=str,
)
def test_one_mistake_is_told_once(tmp_path: Path, change: tuple[str, object]) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(changed(change)))
    with pytest.raises(JobInvalid) as caught:
        load_job(path)
    (problem,) = caught.value.problems
    assert problem.code == "ValidationException"


def test_a_folder_in_the_place_of_s3_is_told_how_to_be_given_and_then_taken(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    path = tmp_path / "request.json"
    local = [channel(S3Uri="data"), channel(ChannelName="my.data", S3Uri="data")]
    path.write_text(
        json.dumps(
            changed(
                ("InputDataConfig", local),
                ("OutputDataConfig.S3OutputPath", "file://out"),
                ("CheckpointConfig.S3Uri", "kept here"),
                ("HyperParameters.sagemaker_submit_directory", str(tmp_path / "code")),
            )
        )
    )
    with pytest.raises(JobInvalid) as caught:
        load_job(path)
    told = [problem.hint.partition("--set ")[2] for problem in caught.value.problems]
    name = CHANNEL["ChannelName"]
    expected = [f"inputs.{name}.path=data", "'inputs.\"my.data\".path=data'", "'checkpoint_s3_uri=kept here'"]
    assert sorted(told) == sorted([*expected, "output_path=file://out"])
    job = load_job(path, [shlex.split(each)[0] for each in told])
    assert job.inputs["my.data"].local_path(job.base_path) == tmp_path / "data"
    assert (job.output_path, job.checkpoint_s3_uri) == ("file://out", "kept here")


SDK3 = changed(
    ("HyperParameters", {"epochs": "1"}),
    ("AlgorithmSpecification.ContainerEntrypoint", ["/bin/bash"]),
    (
        "AlgorithmSpecification.ContainerArguments",
        [
            "-c",
            "chmod +x /opt/ml/input/data/sm_drivers/sm_train.sh && /opt/ml/input/data/sm_drivers/sm_train.sh",
        ],
    ),
    (
        "InputDataConfig",
        [
            {
                "ChannelName": name,
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://bucket/{name}"}},
            }
            for name in ("train", "code", "sm_drivers")
        ],
    ),
)
ROUND = [
    REQUEST,
    SDK3,
    changed(("InputDataConfig", [CHANNEL, FILE_SYSTEM])),
    changed(("InputDataConfig", [FILE_SYSTEM, CHANNEL])),
    changed(("InputDataConfig", None), ("RetryStrategy", None), ("EnableManagedSpotTraining", False)),
    changed(
        ("ResourceConfig", {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2}),
        ("HyperParameters", None),
        ("InputDataConfig", None),
    ),
    changed(
        ("ResourceConfig", {"InstancePreferences": [{"InstanceType": "ml.c5.xlarge", "InstanceCount": 2}]}),
        ("HyperParameters", {}),
        ("InputDataConfig", None),
        ("EnableManagedSpotTraining", None),
    ),
    changed(("AlgorithmSpecification.TrainingImage", None), ("AlgorithmSpecification.AlgorithmName", "mine")),
    changed(("AlgorithmSpecification.ContainerArguments", ["train"])),
    changed(("AlgorithmSpecification.ContainerEntrypoint", ["python", "x.py"])),
    changed(("HyperParameters.sagemaker_distribution_instance_groups", None)),
    changed(
        ("HyperParameters.sagemaker_program", "train.py"),
        ("HyperParameters.sagemaker_mpi_enabled", "false"),
        ("HyperParameters.sagemaker_distribution_instance_groups", None),
    ),
    changed(
        ("HyperParameters.v", "x" * 2500),
        ("HyperParameters.w", "[1,2]"),
        ("HyperParameters.x", "NaN"),
        ("HyperParameters.y", '{"a": null}'),
        ("HyperParameters.z", ""),
    ),
    changed(
        (
            "HyperParameters",
            {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_distribution_instance_groups": '["dnn"]'},
        )
    ),
    changed(
        (
            "HyperParameters",
            {
                "mp_parameters": '{"partitions": 2}',
                "sagemaker_mpi_enabled": "true",
                "sagemaker_distribution_instance_groups": '["dnn"]',
            },
        )
    ),
    changed(
        ("Environment", {"SAGEMAKER_PROGRAM": "t.py", "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/code"}),
        ("HyperParameters", {"a": "1"}),
    ),
]


def test_what_is_wrong_with_the_program_of_a_request_says_what_that_hyperparameter_is() -> None:
    with pytest.raises(JobInvalid) as caught:
        Job.from_request(changed(("HyperParameters.sagemaker_program", "")))
    (problem,) = (each for each in caught.value.problems if each.field == "HyperParameters.sagemaker_program")
    assert "sagemaker_program is the script to run" in problem.hint


@pytest.mark.parametrize("request_", ROUND)
def test_a_job_that_was_made_of_a_request_gives_it_back(request_: dict[str, object]) -> None:
    before = copy.deepcopy(request_)
    job = Job.from_request(request_)
    if not request_.get("HyperParameters", 1):
        before.pop("HyperParameters")
    assert {**job.to_request()} == before
    assert request_.get("TrainingJobName") == "demo"


@pytest.mark.parametrize("request_", ROUND)
def test_a_job_file_of_a_request_holds_all_of_it(request_: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(Job.from_request(request_).to_yaml())
    (tmp_path / "request.json").write_text(json.dumps(request_))
    job = load_job(tmp_path / "request.json", ["source_dir=.", "entry_point=null", "command=[a]"])
    assert job.command == ("a",)
    again = Job(**Job.from_request(request_).to_data())  # type: ignore[arg-type]
    assert again == Job.from_request(request_)


def test_the_groups_that_a_request_does_not_name_are_worlds_of_their_own_as_in_sagemakers_containers() -> None:
    job = Job.from_request(changed(("HyperParameters.sagemaker_distribution_instance_groups", None)))
    assert [world.instance_groups for world in job.distributions] == [("data",), ("dnn",)]


def test_a_command_is_entrypoint_and_arguments_and_the_containers_hyperparameters_are_left_to_it() -> None:
    job = Job.from_request(SDK3)
    assert job.command[:2] == ("/bin/bash", "-c")
    assert list(job.inputs) == ["train", "code", "sm_drivers"]
    job.check_engine("local")
    kept = Job.from_request(changed(("AlgorithmSpecification.ContainerEntrypoint", ["train"])))
    assert (kept.entry_point, kept.source_dir, kept.distributions) == ("", "", ())


@pytest.mark.parametrize(
    ("changes", "field", "code", "words"),
    [
        (
            [("TrainingJobName", "a_b")],
            "TrainingJobName",
            "ValidationException",
            "regular expression pattern: [a-zA-Z0-9]",
        ),
        ([("RoleArn", None)], "RoleArn", "ParamValidationError", "Missing required parameter in input"),
        ([("StoppingCondition", None)], "StoppingCondition", "ValidationException", "is required"),
        ([("Foo", 1)], "Foo", "ParamValidationError", "Unknown parameter in input"),
        ([("HyperParameters.a", "x\ny")], "HyperParameters.a", "ValidationException", "Map value must satisfy"),
        ([("HyperParameters.a", 3)], "HyperParameters.a", "ParamValidationError", "Invalid type"),
        (
            [("ResourceConfig.InstanceType", "ml.c5.xlarge")],
            "ResourceConfig.InstanceType",
            "ValidationException",
            "InstanceType or InstanceCount cannot be specified with InstanceGroups",
        ),
        (
            [
                (
                    "InputDataConfig",
                    [
                        CHANNEL,
                        {
                            **CHANNEL,
                            "ChannelName": "sm_drivers",
                            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/c"}},
                        },
                    ],
                )
            ],
            "InputDataConfig[1]",
            "ValidationException",
            "Some channels have assigned instance groups: [train] while others not: [sm_drivers]",
        ),
        ([("InputDataConfig", [CHANNEL, CHANNEL])], "InputDataConfig[1].ChannelName", "ValidationException", "twice"),
        (
            [("HyperParameters.sagemaker_distribution_instance_groups", '["gpu"]')],
            "HyperParameters.sagemaker_distribution_instance_groups[0]",
            "ValueError",
            "Invalid training instance group gpu !",
        ),
        (
            [("HyperParameters.sagemaker_mpi_num_of_processes_per_host", '"two"')],
            "HyperParameters.sagemaker_mpi_num_of_processes_per_host",
            "",
            "whole number",
        ),
        (
            [("HyperParameters.sagemaker_mpi_enabled", "false")],
            "HyperParameters.sagemaker_distribution_instance_groups",
            "ValueError",
            "Don't set training instance groups while no distribution strategies enabled!",
        ),
        (
            [("StoppingCondition.MaxWaitTimeInSeconds", 60)],
            "StoppingCondition.MaxWaitTimeInSeconds",
            "",
            "at least max_run",
        ),
        ([("ServerlessJobConfig", {})], "ServerlessJobConfig", "", "no instances"),
        (
            [("ResourceConfig.InstancePreferences", [{"InstanceType": "ml.c5.xlarge"}])],
            "ResourceConfig.InstanceGroups",
            "ValidationException",
            "cannot be specified with InstancePreferences",
        ),
    ],
)
def test_what_the_service_refuses_is_refused_at_its_place_in_the_request(
    changes: list[tuple[str, object]], field: str, code: str, words: str
) -> None:
    found = problems(changed(*changes))
    assert any(place == field and kind == code and words in text for place, kind, text in found), found


def test_problems_of_a_request_file_have_lines_and_overrides_reach_the_job(
    write: Callable[[str], Path], tmp_path: Path
) -> None:
    broken = json.dumps(changed(("TrainingJobName", "a_b"), ("ResourceConfig.VolumeSizeInGB", -1)), indent=1)
    with pytest.raises(JobInvalid) as caught:
        load_job(write(broken))
    lines = broken.splitlines()
    found = {problem.field: problem.line for problem in caught.value.problems}
    assert '"TrainingJobName"' in lines[found["TrainingJobName"] - 1]
    assert "VolumeSizeInGB" in lines[found["ResourceConfig.VolumeSizeInGB"] - 1]
    job = load_job(
        write(json.dumps(REQUEST)), ["source_dir=code", "hyperparameters.rate=0.1", "inputs.train.path=data"]
    )
    assert (job.source_dir, job.hyperparameters["rate"]) == ("code", 0.1)
    with pytest.raises(JobInvalid, match=r"inputs\.train\.s3_data: must be an s3:// URI in a request"):
        job.to_request("s3://bucket/code.tar.gz")
    again = load_job(write(json.dumps(REQUEST)), ["hyperparameters.rate=0.1"]).to_request()
    assert again["HyperParameters"]["rate"] == "0.1"  # type: ignore[index]


def test_a_job_from_python_becomes_a_request_when_all_of_it_is_in_s3() -> None:
    job = Job(
        "demo",
        source_dir="code",
        entry_point="train.py",
        instance_type="ml.c5.xlarge",
        instance_count=1,
        image_uri="image",
        role="arn:aws:iam::123456789012:role/Train",
        output_path="s3://bucket/out",
        hyperparameters={"text": "a\nb; rm -rf $(x) 'é'", "none": None},
        distribution={"torch_distributed": {"enabled": True, "processes_per_host": 2}},
        completion={"stall_after": 60},
    )
    with pytest.raises(JobInvalid, match=r"source_dir: must be an s3:// URI in a request \(got 'code'\)"):
        job.to_request()
    request = job.to_request("s3://bucket/code.tar.gz")
    assert request["HyperParameters"] == {
        "text": "\"a\\nb; rm -rf $(x) '\\u00e9'\"",
        "none": "null",
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"s3://bucket/code.tar.gz"',
        "sagemaker_torch_distributed_enabled": "true",
    }
    assert Job.from_request(request).hyperparameters == job.hyperparameters
    assert job.beyond_request() == {
        "completion": "headrace's agents decide it",
        "distribution.torch_distributed.processes_per_host": "a container starts one process a GPU",
    }
    with pytest.raises(JobInvalid) as caught:
        Job("demo", command=["a"], instance_type="ml.c5.xlarge", instance_count=1).to_request()
    assert [problem.field for problem in caught.value.problems] == ["role", "output_path", "image_uri"]


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\x85\u2028\u2029\0"), max_size=30)
NAME = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\x85\u2028\u2029\0"), min_size=1, max_size=9
).filter(lambda name: not name.startswith("sagemaker_"))
VALUE = TEXT | st.sampled_from(
    [
        "1e-3",
        "True",
        "true",
        "null",
        '"',
        '"x"',
        "[1, 2]",
        "[1,2]",
        "{}",
        "-0",
        "1.0",
        "NaN",
        "$(rm -rf /)",
        "; rm",
        "'",
        '{"a": 1, "a": 2}',
        "",
        "\\",
        '"\\u0000"',
        "1" * 400,
    ]
)


@pytest.mark.promise("sagemaker", "a request of CreateTrainingJob comes back as it was")
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(
    texts=st.dictionaries(NAME, VALUE, max_size=5),
    variables=st.dictionaries(st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,9}\Z"), TEXT, max_size=3),
    left_out=st.sets(st.sampled_from(["Tags", "VpcConfig", "InputDataConfig", "CheckpointConfig", "ProfilerConfig"])),
)
def test_any_request_comes_back_as_it_was(texts: dict[str, str], variables: dict[str, str], left_out: set[str]) -> None:
    request = {key: value for key, value in REQUEST.items() if key not in left_out}
    request["HyperParameters"] = {**REQUEST["HyperParameters"], **texts}  # type: ignore[dict-item]
    request["Environment"] = {"A": "", **variables}
    job = Job.from_request(request)
    assert job.to_request() == request
    assert {**request["HyperParameters"], **job.hyperparameter_texts_of("dnn")} == request["HyperParameters"]  # type: ignore[dict-item]
