"""What the programs of a job may do with their key, on a real endpoint: a row for each rule."""

from __future__ import annotations

import ast
import time
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest

from headrace.endpoint.auth.job_rights import rights_of
from headrace.engines.sagemaker.sagemaker_job import plan_sagemaker_job
from headrace.job import Job as JobOfFile
from headrace.runs import RunPaths
from serve_process import BUCKET, REGION, ServeProcess

SDK_BUCKET = f"sagemaker-{REGION}-000000000000"
ACCOUNT = "000000000000"
SAYS_ITS_KEY = """
import os
print([os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]], flush=True)
"""
ARN = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job"
GROUP = "/aws/sagemaker/TrainingJobs"


@pytest.fixture(scope="module")
def key(module_endpoint: ServeProcess) -> tuple[str, str]:
    """Two jobs that have ended, and the key of one of them, as its program has it."""
    endpoint = module_endpoint
    client = endpoint.client()
    for name in ("in/mine/0", "in/other/0", "args/0", "ckpt/0", "other/output/model.tar.gz", "loose"):
        endpoint.client("s3").put_object(Bucket=BUCKET, Key=name, Body=b"x")
    for name in ("mine", "other"):
        request = endpoint.one_host(name, SAYS_ITS_KEY)
        source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/in/{name}/"}
        request["InputDataConfig"] = [{"ChannelName": "training", "DataSource": {"S3DataSource": source}}]
        request["OutputDataConfig"] = {"S3OutputPath": f"s3://{BUCKET}/"}
        request["CheckpointConfig"] = {"S3Uri": f"s3://{BUCKET}/ckpt"}
        most = {f"V{number}": "x" for number in range(99)}
        request["Environment"] = {**most, "DATA": f"--from=s3://{BUCKET}/args/,s3://{BUCKET}/in/mine"}
        client.create_training_job(**request)
    for name in ("mine", "other"):
        ended = endpoint.ended(client, name)
        assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
        assert "AWS_SECRET_ACCESS_KEY" not in ended["Environment"]
    endpoint.close_clients()
    log = next((endpoint.home / "runs").glob("mine-*/logs/*/*/0.log")).read_text()
    line = next(line for line in log.splitlines() if "['HEADRACE" in line)
    key_id, secret = ast.literal_eval(line[line.index("[") :])
    assert key_id != endpoint.keys("program")[0]
    return key_id, secret


@pytest.fixture
def job(key: tuple[str, str], endpoint: ServeProcess) -> Job:
    return Job(endpoint, key)


class Job:
    """Clients with the key of a job's programs."""

    def __init__(self, endpoint: ServeProcess, key: tuple[str, str]) -> None:
        self._endpoint = endpoint
        self._key = {"aws_access_key_id": key[0], "aws_secret_access_key": key[1]}
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._endpoint.client(service, **self._key)
        return self._clients[service]

    def code(self, service: str, call: str, members: dict[str, Any]) -> str:
        """Returns the code of a refusal; empty when there is none."""
        try:
            answer = getattr(self.client(service), call)(**members)
        except botocore.exceptions.ClientError as error:
            return str(error.response["Error"]["Code"]).replace("Exception", "").replace("403", "AccessDenied")
        if "Body" in answer:
            answer["Body"].close()
        return str(next((error["Code"] for error in answer.get("Errors", ())), ""))


def s3(call: str, key: str | None = None, **more: Any) -> tuple[str, str, dict[str, Any]]:
    body = {"Body": b"x"} if call == "put_object" else {}
    return "s3", call, {"Bucket": BUCKET, **({} if key is None else {"Key": key}), **body, **more}


MAY = {
    "describe its own job": ("sagemaker", "describe_training_job", {"TrainingJobName": "mine"}),
    "tags of its own job": ("sagemaker", "list_tags", {"ResourceArn": f"{ARN}/mine"}),
    "read a channel": s3("get_object", "in/mine/0"),
    "list a channel": s3("list_objects_v2", Prefix="in/mine/"),
    "read what its variables name": s3("get_object", "args/0"),
    "write where its variables name": s3("put_object", "args/new"),
    "write checkpoints": s3("put_object", "ckpt/1"),
    "remove checkpoints": s3("delete_object", "ckpt/1"),
    "write its output": s3("put_object", "mine/output/data"),
    "upload its output in parts": s3("create_multipart_upload", "mine/output/large"),
    "copy an input to its output": s3("copy_object", "mine/copy", CopySource=f"{BUCKET}/in/mine/0"),
    "look for the default bucket": s3("head_bucket"),
    "create the bucket of SDKs": ("s3", "create_bucket", {"Bucket": SDK_BUCKET}),
    "write in the bucket of SDKs": ("s3", "put_object", {"Bucket": SDK_BUCKET, "Key": "mine/x", "Body": b"x"}),
    "who am I": ("sts", "get_caller_identity", {}),
    "streams of its own logs": (
        "logs",
        "describe_log_streams",
        {"logGroupName": GROUP, "logStreamNamePrefix": "mine/"},
    ),
}
MAY_NOT = {
    "describe another job": ("sagemaker", "describe_training_job", {"TrainingJobName": "other"}),
    "describe a job that is not there": ("sagemaker", "describe_training_job", {"TrainingJobName": "none"}),
    "tags of another job": ("sagemaker", "list_tags", {"ResourceArn": f"{ARN}/other"}),
    "stop a job, also its own": ("sagemaker", "stop_training_job", {"TrainingJobName": "mine"}),
    "delete a job, also its own": ("sagemaker", "delete_training_job", {"TrainingJobName": "mine"}),
    "write a channel": s3("put_object", "in/mine/0"),
    "remove from a channel": s3("delete_object", "in/mine/0"),
    "read a channel of another job": s3("get_object", "in/other/0"),
    "ask for an object of another job": s3("head_object", "in/other/0"),
    "read the output of another job": s3("get_object", "other/output/model.tar.gz"),
    "write the output of another job": s3("put_object", "other/output/model.tar.gz"),
    "write beside its output": s3("put_object", "mine2/output"),
    "write beside its checkpoints": s3("put_object", "ckpt2/0"),
    "replace what nobody named": s3("put_object", "loose"),
    "remove what nobody named": s3("delete_object", "loose"),
    "remove it in a list": s3("delete_objects", Delete={"Objects": [{"Key": "loose"}]}),
    "copy what it may not read": s3("copy_object", "mine/stolen", CopySource=f"{BUCKET}/in/other/0"),
    "copy to where it may not write": s3("copy_object", "loose", CopySource=f"{BUCKET}/in/mine/0"),
    "begin an upload elsewhere": s3("create_multipart_upload", "loose"),
    "list a whole bucket": s3("list_objects_v2"),
    "list it in the old way": s3("list_objects"),
    "list all uploads": s3("list_multipart_uploads"),
    "list the buckets": ("s3", "list_buckets", {}),
    "delete the bucket": s3("delete_bucket"),
    "create another bucket": ("s3", "create_bucket", {"Bucket": "another-bucket"}),
    "look for another bucket": ("s3", "head_bucket", {"Bucket": "another-bucket"}),
    "roles": ("iam", "get_role", {"RoleName": "headrace"}),
    "metrics of another job": (
        "cloudwatch",
        "get_metric_statistics",
        {
            "Namespace": "/aws/sagemaker/TrainingJobs", "MetricName": "CPUUtilization", "Statistics": ["Average"],
            "Dimensions": [{"Name": "Host", "Value": "other/algo-1"}],
            "StartTime": 0, "EndTime": 60_000, "Period": 60,
        },
    ),
}  # fmt: skip


@pytest.mark.promise("serve-reference", "a job's key reads its inputs, writes its outputs and sees no other job")
def test_the_key_of_a_job_may_read_what_its_request_names_and_write_its_outputs(job: Job) -> None:
    assert {what: job.code(*row) for what, row in MAY.items()} == dict.fromkeys(MAY, "")


@pytest.mark.promise("serve-reference", "a job's key reads its inputs, writes its outputs and sees no other job")
@pytest.mark.promise("security", "the key of a job is good for its own job only")
def test_the_key_of_a_job_may_do_nothing_else(job: Job) -> None:
    assert {what: job.code(*row) for what, row in MAY_NOT.items()} == dict.fromkeys(MAY_NOT, "AccessDenied")


@pytest.mark.promise("serve-reference", "a job's key reads its inputs, writes its outputs and sees no other job")
@pytest.mark.promise("security", "the key of a job is good for its own job only")
def test_the_key_of_a_job_sees_no_other_job(job: Job, endpoint: ServeProcess) -> None:
    listed = job.client("sagemaker").list_training_jobs()["TrainingJobSummaries"]
    assert [line["TrainingJobName"] for line in listed] == ["mine"]
    logs = job.client("logs")
    streams = logs.describe_log_streams(logGroupName=GROUP)["logStreams"]
    assert {stream["logStreamName"].partition("/")[0] for stream in streams} == {"mine"}
    events = logs.filter_log_events(logGroupName=GROUP)["events"]
    assert {event["logStreamName"].partition("/")[0] for event in events} == {"mine"}
    client = endpoint.client("logs")
    theirs = client.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix="other/")["logStreams"]
    name = theirs[0]["logStreamName"]
    assert job.code("logs", "get_log_events", {"logGroupName": GROUP, "logStreamName": name}) == "ResourceNotFound"


def test_the_key_of_a_job_puts_metrics_on_no_other_job(job: Job) -> None:
    metrics = job.client("sagemaker-metrics")

    def put(name: str) -> list[Any]:
        data = [{"MetricName": "loss", "Timestamp": time.time(), "Step": 1, "Value": 0.5}]
        answer = metrics.batch_put_metrics(TrialComponentName=f"{name}-aws-training-job", MetricData=data)
        return [error["Code"] for error in answer.get("Errors", [])]

    def statuses(name: str) -> list[str]:
        query = {
            "MetricName": "loss", "ResourceArn": f"{ARN}/{name}", "MetricStat": "Last", "Period": "IterationNumber",
            "XAxisType": "IterationNumber",
        }  # fmt: skip
        return [found["Status"] for found in metrics.batch_get_metrics(MetricQueries=[query])["MetricQueryResults"]]

    assert (put("mine"), put("other")) == ([], ["VALIDATION_ERROR"])
    assert (statuses("mine"), statuses("other")) == (["Complete"], ["ValidationError"])


@pytest.mark.promise("serve", "the key of those who carry data has objects, no job and no bucket")
def test_the_key_of_those_who_carry_data_has_objects_and_no_job_and_no_bucket(endpoint: ServeProcess, job: Job) -> None:
    endpoint.client("s3", holder="program").get_object(Bucket=BUCKET, Key="loose")["Body"].close()
    assert endpoint.client(holder="program").list_training_jobs()["TrainingJobSummaries"] == []
    refused: list[tuple[str, str, dict[str, Any]]] = [s3("delete_bucket"), MAY_NOT["describe another job"]]
    for service, call, members in [*refused, ("s3", "create_bucket", {"Bucket": "another-bucket"})]:
        with pytest.raises(botocore.exceptions.ClientError, match="AccessDenied"):
            getattr(endpoint.client(service, holder="program"), call)(**members)


def test_the_key_of_a_job_that_was_deleted_opens_nothing(endpoint: ServeProcess, job: Job) -> None:
    client = endpoint.client()
    client.delete_training_job(TrainingJobName="mine")
    for what in ("describe its own job", "read a channel", "who am I"):
        assert job.code(*MAY[what]) == "AccessDenied"


def test_what_a_request_names_is_found_wherever_it_stands() -> None:
    rights = rights_of(
        {
            "HyperParameters": {
                "sagemaker_submit_directory": '"s3://b/code/sourcedir.tar.gz"',
                "model_dir": '"s3://b/job/model"',
                "all": "s3://whole",
            },
            "AlgorithmSpecification": {"ContainerArguments": ["--base", "s3://b/remote/x"]},
            "InputDataConfig": [{"DataSource": {"S3DataSource": {"S3Uri": "s3://b/model_in"}}}],
            "TensorBoardOutputConfig": {"S3OutputPath": "s3://b/board"},
        },
        "j",
        frozenset({"d"}),
    )
    reads = [b"code/sourcedir.tar.gz", b"job/model/1", b"remote/x/0", b"model_in/0", b"model_in2", b"board/j/events"]
    assert all(rights.reads("b", key) for key in reads)
    writes = [b"job/model", b"job/model/1", b"remote/x/0", b"board/j/events"]
    assert all(rights.writes("b", key) for key in writes)
    others = [b"code/sourcedir.tar.gz", b"model_in/0", b"board/other", b"job/model2", b"", b"jobs"]
    assert not any(rights.writes("b", key) for key in others)
    assert (rights.reads("whole", b"x"), rights.writes("whole", b"x")) == (True, False)
    assert (rights.writes("d", b"j/x"), rights.writes("d", b"x"), rights.reads("d", b"x")) == (True, False, False)


@pytest.mark.parametrize("record", [None, {"uri": "s3://elsewhere/records"}], ids=["below its output", "elsewhere"])
def test_a_job_of_headraces_own_engine_writes_the_record_of_its_own_run_and_no_other(
    record: dict[str, str] | None,
) -> None:
    job = JobOfFile(
        "digits", source_dir=".", entry_point="train.py", instance_type="ml.m5.large", instance_count=1, image_uri="i",
        role="arn:aws:iam::123456789012:role/Train", output_path="s3://bucket/out", record=record,
        engines={"sagemaker": {"region": "eu-west-1"}},
    )  # fmt: skip
    run, other = "digits-20261122-130000-00ff", "digits-20261122-130000-00ee"
    planned = plan_sagemaker_job(job, RunPaths(Path("/runs") / run), {})
    bucket, runs = ("elsewhere", b"records/") if record else ("bucket", b"out/headrace/runs/")
    for attempt, place in ((1, runs), (2, runs + b"attempts/2/")):
        request = planned.at(attempt).request()
        rights = rights_of(request, str(request["TrainingJobName"]), frozenset())
        for folder in ("segments/w/1-x", "bundles/0"):
            assert rights.writes(bucket, place + f"{run}/{folder}".encode())
            assert rights.reads(bucket, place + f"{run}/{folder}".encode())
        assert rights.reads("bucket", f"out/headrace/channels/{run}/headrace.zip".encode())
        others = [
            *(runs + b"attempts/3/%b/segments/0" % run.encode(), runs + b"%b/segments/w/1-x" % other.encode()),
            *(place + f"{name}/segments/w/1-x".encode() for name in (other, f"{run}0", f"{run}-try2")),
            *(place, runs, runs + b"attempts/", place + run.encode()[:-1]),
        ]
        assert not [key for key in others if rights.writes(bucket, key) or rights.reads(bucket, key)]
        beside = [f"out/headrace/channels/{other}/secret.tar.gz", "out/model/x", "other/x"]
        assert not [
            key for key in beside if rights.writes("bucket", key.encode()) or rights.reads("bucket", key.encode())
        ]
        assert not rights.writes("bucket", f"out/headrace/channels/{run}/headrace.zip".encode())
