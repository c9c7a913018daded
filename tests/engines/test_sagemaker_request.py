"""The CreateTrainingJob request of a job for SageMaker, against the service's own model; what is refused of a job."""

from __future__ import annotations

import json
from pathlib import Path

import botocore.session
import pytest
from botocore.validate import ParamValidator
from sagemaker_jobs import RUN, planned

from headrace.catalog.aws_facts import VERSIONS, find_image, known_regions
from headrace.engines.sagemaker.sagemaker_job import Carrier, plan_sagemaker_job
from headrace.engines.sagemaker.sagemaker_ticket import training_job_name
from headrace.errors import EngineRefused, JobInvalid
from headrace.job import Job
from headrace.job.sagemaker.check import check_request
from headrace.runs import RunPaths

SDK_TABLES = list(
    Path(__file__).parents[2].glob(".venv-sagemaker/lib/python*/site-packages/sagemaker/image_uri_config")
)
OPERATION = botocore.session.Session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
SPOT = {"use_spot_instances": True, "stopping_condition": {"max_run": 60, "max_wait": 120}}
SINGLE = {"instance_groups": None, "inputs": None, "distribution": None, "data_service": None, "instance_count": 2}
ONE = {**SINGLE, "instance_type": "ml.g5.xlarge"}
NETWORK = {"subnets": ["subnet-1", "subnet-2"], "security_group_ids": ["sg-1"]}


FORMS: list[dict[str, object]] = [
    {},
    {**SPOT, "checkpoint_s3_uri": "s3://bucket/checkpoints"},
    {**NETWORK, "volume_size": 50, "volume_kms_key": "key-1", "output_kms_key": "alias/key"},
    {"tags": [{"key": "team", "value": "vision"}], "encrypt_inter_container_traffic": True},
    {**ONE, "keep_alive_period_in_seconds": 600, "command": ["python3", "x.py"], "entry_point": None},
    {"retry": {"attempts": 3}, "metric_definitions": [{"name": "loss", "regex": "loss=([0-9.]+)"}]},
    {"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}, "instance_groups": ["dnn_group"]}},
]
NAMES = ["groups", "spot", "network", "tags", "one type", "retry", "smdistributed"]


@pytest.mark.promise("engines", "channels, on sagemaker")
@pytest.mark.promise("sagemaker-engine", "on SageMaker the job file is one request, checked before it is sent")
@pytest.mark.parametrize("fields", FORMS, ids=NAMES)
def test_the_request_is_valid_for_the_services_own_model_and_by_the_rules_of_jobs(fields: dict[str, object]) -> None:
    request = planned(**fields).request()
    report = ParamValidator().validate(request, OPERATION.input_shape)
    assert not report.has_errors(), report.generate_report()
    assert check_request(request) == []


@pytest.mark.parametrize("fields", FORMS, ids=NAMES)
def test_a_job_that_a_later_process_reads_is_submitted_as_the_first_one_was(fields: dict[str, object]) -> None:
    job = planned(**fields)
    data = json.loads(json.dumps(job.asked.model_dump(mode="json", exclude_unset=True)))
    again = plan_sagemaker_job(Job(**data), RunPaths(Path("/runs") / RUN), {})
    assert again.request() == job.request()
    assert again.plan == job.plan


@pytest.mark.needs(".venv-sagemaker")
@pytest.mark.parametrize("framework", sorted(VERSIONS))
def test_the_images_are_those_of_the_table_of_the_sdk(framework: str) -> None:
    table = json.loads((SDK_TABLES[0] / f"{framework}.json").read_text())["training"]["versions"]
    theirs = {
        version: each
        for version, each in table.items()
        if all(python.startswith("py31") for python in each.get("py_versions", ["py2"]))
    }
    assert {version: [python] for version, python in VERSIONS[framework].items()} == {
        version: each["py_versions"] for version, each in theirs.items()
    }
    newest = theirs[list(theirs)[-1]]["registries"]
    assert set(known_regions()) == set(newest)
    for region, account in newest.items():
        image = find_image(framework, list(theirs)[-1])
        assert image is not None
        uri = image.uri(region, False)
        assert uri.startswith(f"{account}.dkr.ecr.{region}.amazonaws.com"), uri


@pytest.mark.promise("engines", "channels, on sagemaker")
@pytest.mark.promise("sagemaker-engine", "on SageMaker the job file is one request, checked before it is sent")
def test_one_channel_carries_headrace_to_all_groups_and_the_container_starts_it() -> None:
    job = planned()
    request = job.request()
    *others, ours = request["InputDataConfig"]  # type: ignore[misc]
    assert [channel["ChannelName"] for channel in others] == ["training"]
    assert ours == {
        "ChannelName": "headrace-job",
        "InputMode": "File",
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": "s3://bucket/out/headrace/channels/digits-20261122-130000-00ff/",
                "S3DataDistributionType": "FullyReplicated",
                "InstanceGroupNames": ["data_group", "dnn_group"],
            }
        },
    }
    assert request["AlgorithmSpecification"] == {
        "TrainingImage": "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312",
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["python3", "/opt/ml/input/data/headrace-job/headrace.zip", RUN],
    }
    assert request["HyperParameters"] == {
        "lr": "0.1",
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"/opt/ml/input/data/headrace-job/code"',
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_distribution_instance_groups": '["dnn_group"]',
    }


def test_no_group_is_named_when_no_channel_names_one_because_the_service_wants_all_or_none() -> None:
    ours = planned(inputs={"training": "s3://bucket/data"}).request()["InputDataConfig"][-1]  # type: ignore[index]
    assert "InstanceGroupNames" not in ours["DataSource"]["S3DataSource"]


def test_what_starts_headrace_takes_the_place_of_the_jobs_command_and_its_arguments() -> None:
    job = planned(**ONE, command=["python3", "x" * 256], entry_point=None)
    carrier = Carrier("s3://b/manifest", ("/bin/sh",), ("-c", "true"), "ManifestFile", environment={"A": "1"})
    request = job.request(carrier)
    algorithm = request["AlgorithmSpecification"]
    assert (algorithm["ContainerEntrypoint"], algorithm["ContainerArguments"]) == (["/bin/sh"], ["-c", "true"])  # type: ignore[index]
    assert request["Environment"] == {"A": "1", "HEADRACE_RECORD": f"s3://bucket/out/headrace/runs/{RUN}/"}
    assert job.plan.command == ("python3", "x" * 256)


def test_the_name_is_the_runs_another_one_in_each_attempt_and_never_too_long() -> None:
    assert planned().request()["TrainingJobName"] == "digits-20261122-130000-00ff"
    long = "a" * 60 + "-20261122-130000-00ff"
    names = {
        training_job_name(run, attempt) for run in (long, f"{long[:-1]}e", "a_b", "a-b") for attempt in (1, 2, 100)
    }
    assert len(names) == 12
    for name in names:
        request = {**planned().request(), "TrainingJobName": name}
        assert check_request(request) == []


@pytest.mark.promise("sagemaker-engine", "on SageMaker the job file is one request, checked before it is sent")
@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"role": None}, "role", "is required in a request"),
        ({"output_path": "/tmp/out"}, "output_path", "must be an s3:// URI"),
        ({"output_path": "s3://headrace-local/out"}, "output_path", "a folder of this machine"),
        ({"output_path": "s3://10.0.0.1/out"}, "output_path", "looks like an IP address"),
        ({"output_path": "https://s3.amazonaws.com/bucket"}, "output_path", "must be an s3:// URI"),
        ({"role": "banana"}, "role", "must be the ARN of a role"),
        ({"inputs": {"training": "/data"}}, "inputs.training.s3_data", "must be an s3:// URI"),
        ({"inputs": {f"c{n}": "s3://bucket/x" for n in range(20)}}, "inputs", "at most 19 channels"),
        ({"enable_network_isolation": True}, "enable_network_isolation", "keeps hosts from S3"),
        ({"use_spot_instances": True}, "stopping_condition.max_wait", "is required"),
        ({"stopping_condition": {"max_run": 1, "max_wait": 9}}, "stopping_condition.max_wait", "use_spot_instances"),
        ({"keep_alive_period_in_seconds": 60}, "keep_alive_period_in_seconds", "cannot be used with instance groups"),
        ({**ONE, **SPOT, "keep_alive_period_in_seconds": 60}, "keep_alive_period_in_seconds", "use_spot_instances"),
        ({"framework_version": None}, "framework_version", "is required"),
        ({"framework_version": "1.0"}, "framework_version", "no image of pytorch is known"),
        ({"py_version": "py39"}, "py_version", "has py312"),
        ({"options": {"framework": None}}, "image_uri", "is required"),
        ({"options": {"region": "xx-nowhere-1"}}, "engines.sagemaker.framework", "no image of pytorch is known in"),
        ({**SINGLE, "instance_type": "ml.trn1.32xlarge"}, "engines.sagemaker.framework", "for ml.trn1.32xlarge"),
        ({"entry_point": None, "image_uri": "image"}, "entry_point", "is required"),
    ],
)  # fmt: skip
def test_what_cannot_run_there_is_refused_with_its_field_before_anything_is_sent(
    fields: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(JobInvalid) as caught:
        planned(**fields)  # type: ignore[arg-type]
    problem = caught.value.problems[0]
    assert problem.field == field
    assert words in problem.message


def test_the_bucket_of_this_machine_is_one_of_a_service_that_the_job_names() -> None:
    with pytest.raises(JobInvalid, match=r"for `headrace serve`, give engines\.sagemaker\.endpoint_url"):
        planned(output_path="s3://headrace-local/out")
    options = {"endpoint_url": "http://127.0.0.1:7080"}
    assert planned(options, output_path="s3://headrace-local/out").base == "s3://headrace-local/out/headrace"


def test_hyperparameters_of_a_group_have_the_limits_of_the_request() -> None:
    groups = [{"name": "data_group", "type": "ml.c5.xlarge", "count": 2}]
    long = {"name": "dnn_group", "type": "ml.g5.xlarge", "count": 1, "hyperparameters": {"note": "x" * 2499}}
    with pytest.raises(JobInvalid) as caught:
        planned(instance_groups=[*groups, long])
    problem = caught.value.problems[0]
    assert problem.field == "instance_groups[1].hyperparameters.note"
    assert "less than or equal to 2500" in problem.message
    assert problem.value == "2501 characters", "with the quotation marks that the service's JSON has"


def test_a_region_comes_from_the_job_or_the_environment_and_one_that_is_missing_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EngineRefused) as caught:
        planned({"region": None})
    assert "AWS_REGION" in caught.value.hint
