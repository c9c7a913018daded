"""boto3 against a real `headrace serve`: jobs from their creation to their description, logs and metrics."""

from __future__ import annotations

import json
import time
import urllib.parse
from typing import Any

import botocore.awsrequest
import botocore.credentials
import botocore.exceptions
import botocore.session
import pytest
from botocore.auth import SigV4Auth

from serve_process import BUCKET, GROUP, ServeProcess, wait_for

HELLO = """
import os
host, group = os.environ["SM_CURRENT_HOST"], os.environ["SM_CURRENT_INSTANCE_GROUP"]
print(f"{host} of {group} has {sorted(os.listdir(os.environ['SM_CHANNEL_TRAIN']))}", flush=True)
if group == "dnn":
    print("loss=0.75;", flush=True)
    print("loss=0.25;", flush=True)
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w") as file:
        file.write("trained")
"""


SERVE_OPTIONS = ("--max-running", "2")


def refused(call: Any, **members: Any) -> tuple[str, str]:
    """Returns code and message of a call that is refused."""
    with pytest.raises(botocore.exceptions.ClientError) as found:
        call(**members)
    error = found.value.response["Error"]
    return error["Code"], error["Message"]


def hello(endpoint: ServeProcess, name: str) -> dict[str, Any]:
    (endpoint.bucket / "data" / "train").mkdir(parents=True, exist_ok=True)
    (endpoint.bucket / "data" / "train" / "x.txt").write_text("data")
    request = endpoint.request(name, HELLO)
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/data/train/"}
    request["InputDataConfig"] = [{"ChannelName": "train", "DataSource": {"S3DataSource": source}}]
    request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": "loss=([0-9.]+);"}]
    request["Tags"] = [{"Key": "team", "Value": "mill"}]
    return request


def messages(endpoint: ServeProcess, name: str) -> dict[str, list[str]]:
    """Returns the lines of every stream of a job, by host."""
    logs = endpoint.client("logs")
    streams = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]
    found = {}
    for stream in (each["logStreamName"] for each in streams):
        events = logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True)["events"]
        found["-".join(stream.rpartition("/")[2].split("-")[:2])] = [event["message"] for event in events]
    return found


@pytest.mark.promise("serve", "SageMaker's own clients run jobs here unmodified, and see what they see on the service")
@pytest.mark.promise("sagemaker-differences", "heterogeneous clusters, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "statuses, transitions, billable seconds, by headrace serve")
def test_a_heterogeneous_job_runs_and_its_description_logs_and_metrics_are_those_of_its_run(
    endpoint: ServeProcess,
) -> None:
    client = endpoint.client()
    request = hello(endpoint, "hetero")
    begun = time.time()
    arn = client.create_training_job(**request)["TrainingJobArn"]
    assert arn == "arn:aws:sagemaker:us-east-1:000000000000:training-job/hetero"
    found = endpoint.ended(client, "hetero")
    took = time.time() - begun

    assert found["TrainingJobStatus"] == found["SecondaryStatus"] == "Completed", endpoint.log
    assert "FailureReason" not in found
    assert found["TrainingJobArn"] == arn
    assert found["ModelArtifacts"] == {"S3ModelArtifacts": f"s3://{BUCKET}/out/hetero/output/model.tar.gz"}
    assert (endpoint.bucket / "out/hetero/output/model.tar.gz").is_file()
    for member in ("HyperParameters", "InputDataConfig", "RoleArn", "StoppingCondition"):
        assert found[member] == request[member], "as it was sent, without a path of this machine"
    assert found["OutputDataConfig"] == {**request["OutputDataConfig"], "KmsKeyId": ""}
    assert found["ResourceConfig"] == {**request["ResourceConfig"], "InstanceCount": 0, "InstanceType": ""}
    assert found["EnableManagedSpotTraining"] is found["EnableNetworkIsolation"] is False
    assert [(each["MetricName"], each["Value"]) for each in found["FinalMetricDataList"]] == [("loss", 0.25)]
    assert 1 <= found["BillableTimeInSeconds"] == found["TrainingTimeInSeconds"] <= took + 1
    assert found["CreationTime"] <= found["TrainingStartTime"] <= found["TrainingEndTime"] <= found["LastModifiedTime"]
    passed = [each["Status"] for each in found["SecondaryStatusTransitions"]]
    assert passed[-4:] == ["Starting", "Training", "Uploading", "Completed"]
    assert "programs run in" in found["SecondaryStatusTransitions"][passed.index("Starting")]["StatusMessage"]

    lines = messages(endpoint, "hetero")
    assert set(lines) == {"algo-1", "algo-2"}
    assert all("pytorch-training:2.1-cpu: programs run in" in each[0] for each in lines.values())
    assert lines["algo-1"][1:] == ["algo-1 of data has ['x.txt']"]
    assert lines["algo-2"][1:] == ["algo-2 of dnn has ['x.txt']", "loss=0.75;", "loss=0.25;"]
    assert client.list_tags(ResourceArn=arn)["Tags"] == request["Tags"]

    asked = {
        "Namespace": GROUP,
        "MetricName": "loss",
        "Dimensions": [{"Name": "TrainingJobName", "Value": "hetero"}],
        "StartTime": begun - 60,
        "EndTime": begun + 600,
        "Period": 3600,
        "Statistics": ["Average", "Minimum", "SampleCount"],
    }
    points = endpoint.client("cloudwatch").get_metric_statistics(**asked)["Datapoints"]
    assert sum(each["SampleCount"] for each in points) == 2
    assert min(each["Minimum"] for each in points) == 0.25
    assert as_form(endpoint, asked).count("<member>") == len(points), "the CLI of version 2 asks with a form"


def as_form(endpoint: ServeProcess, asked: dict[str, Any]) -> str:
    """Asks CloudWatch as older clients do. Returns the XML of the answer."""
    form = {"Action": "GetMetricStatistics", "Version": "2010-08-01"}
    for name, value in asked.items():
        if name == "Dimensions":
            form |= {f"Dimensions.member.1.{key}": text for key, text in value[0].items()}
        elif isinstance(value, list):
            form |= {f"{name}.member.{number}": text for number, text in enumerate(value, 1)}
        elif name.endswith("Time"):
            form[name] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value))
        else:
            form[name] = str(value)
    body = urllib.parse.urlencode(form)
    head = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    status, text = signed_post(endpoint, "monitoring", body, head)
    assert status == 200, text
    return text


def signed_post(endpoint: ServeProcess, service: str, body: str, head: dict[str, str]) -> tuple[int, str]:
    """Sends a request that botocore signs. Returns status and text of the answer."""
    import http.client

    request = botocore.awsrequest.AWSRequest("POST", f"{endpoint.url}/", data=body, headers=head)
    SigV4Auth(botocore.credentials.Credentials(*endpoint.keys()), service, "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=30)
    try:
        connection.request("POST", "/", body, dict(request.headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.promise("sagemaker-differences", "failure reason, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "exit code of a failed program, by headrace serve")
def test_a_program_that_fails_is_the_failure_reason(endpoint: ServeProcess) -> None:
    client = endpoint.client()
    client.create_training_job(**endpoint.one_host("fails", "print('before'); raise SystemExit(7)"))
    found = endpoint.ended(client, "fails")
    assert found["TrainingJobStatus"] == found["SecondaryStatus"] == "Failed"
    assert found["FailureReason"].startswith("AlgorithmError: ")
    assert "code 7" in found["FailureReason"]
    assert any("before" in lines for lines in messages(endpoint, "fails").values()), (
        "its lines are there before the end"
    )


def test_code_that_is_not_there_fails_the_job_and_starts_nothing(endpoint: ServeProcess) -> None:
    client = endpoint.client()
    request = endpoint.request("no-code", "")
    request["HyperParameters"]["sagemaker_submit_directory"] = json.dumps(f"s3://{BUCKET}/nowhere/sourcedir.tar.gz")
    before = endpoint.runs()
    client.create_training_job(**request)
    found = endpoint.ended(client, "no-code")
    assert found["FailureReason"].startswith("ClientError: ")
    assert "nowhere/sourcedir.tar.gz" in found["FailureReason"]
    assert found["BillableTimeInSeconds"] == 0
    assert endpoint.runs() == before
    assert messages(endpoint, "no-code") == {}


STOPPED = """
import pathlib, os, signal, sys, time
def save(*_):
    pathlib.Path(os.environ["SM_MODEL_DIR"], "saved").write_text("yes")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("waiting", flush=True)
time.sleep(600)
"""


@pytest.mark.promise("sagemaker-differences", "SIGTERM to the program, by headrace serve")
def test_stop_gives_the_programs_time_to_save_and_a_second_stop_is_rejected_as_the_service_does(
    endpoint: ServeProcess,
) -> None:
    client = endpoint.client()
    client.create_training_job(**endpoint.one_host("stops", STOPPED))
    wait_for(lambda: waits(endpoint, "stops"))
    client.stop_training_job(TrainingJobName="stops")
    assert client.describe_training_job(TrainingJobName="stops")["TrainingJobStatus"] in ("Stopping", "Stopped")
    found = endpoint.ended(client, "stops")
    assert found["TrainingJobStatus"] == found["SecondaryStatus"] == "Stopped"
    assert "FailureReason" not in found
    assert (endpoint.bucket / "out/stops/output/model.tar.gz").is_file(), "what it saved is kept"
    assert refused(client.stop_training_job, TrainingJobName="stops") == (
        "ValidationException",
        "The request was rejected because the training job is in status Stopped.",
    )


@pytest.mark.promise("serve", "boto3's waiters end with the job")
def test_boto3s_waiter_ends_with_the_job_and_fails_for_one_that_is_not_there(endpoint: ServeProcess) -> None:
    client = endpoint.client()
    client.create_training_job(**endpoint.one_host("waited", "print('short')"))
    waiter = client.get_waiter("training_job_completed_or_stopped")
    waiter.wait(TrainingJobName="waited", WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    with pytest.raises(botocore.exceptions.WaiterError):
        waiter.wait(TrainingJobName="not-there", WaiterConfig={"Delay": 1, "MaxAttempts": 3})


LIVE = """
import os, time
if os.environ["SM_CURRENT_INSTANCE_GROUP"] == "dnn":
    for number in range(40):
        print(f"line {number}", flush=True)
        if number % 4 == 3:
            time.sleep(0.2)
"""


@pytest.mark.promise("serve", "SageMaker's own clients run jobs here unmodified, and see what they see on the service")
@pytest.mark.promise("sagemaker-differences", "logs, by headrace serve")
def test_a_client_that_follows_the_logs_sees_every_line_once_whatever_it_goes_on_from(endpoint: ServeProcess) -> None:
    """SDK v2 goes on from the time of its last event, v3 from a token, `aws logs tail` from event ids."""
    client, logs = endpoint.client(), endpoint.client("logs")
    client.create_training_job(**endpoint.request("live", LIVE))
    streams = wait_for(lambda: logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix="live/")["logStreams"])
    assert [each["logStreamName"].split("-")[1] for each in streams] == ["1", "2"], "also that of the silent host"
    name = {"logGroupName": GROUP, "logStreamName": streams[1]["logStreamName"]}
    by_time: list[str] = []
    by_token: list[str] = []
    by_id: dict[str, str] = {}
    last, skip, token, since = 0, 0, {}, 0
    polls = 0
    ended = False
    while True:
        answer = logs.get_log_events(**name, startTime=last, startFromHead=True)
        for event in answer["events"][skip:]:
            by_time.append(event["message"])
            last, skip = (last, skip + 1) if event["timestamp"] == last else (event["timestamp"], 1)
        answer = logs.get_log_events(**name, startFromHead=True, **token)
        by_token += [event["message"] for event in answer["events"]]
        token = {"nextToken": answer["nextForwardToken"]}
        found = logs.filter_log_events(logGroupName=GROUP, logStreamNamePrefix="live/algo-2", startTime=since)["events"]
        by_id.update((event["eventId"], event["message"]) for event in found)
        since = max([since, *(event["timestamp"] for event in found)])
        polls += 1
        if ended:
            break
        ended = client.describe_training_job(TrainingJobName="live")["TrainingJobStatus"] == "Completed"
    wanted = [f"line {number}" for number in range(40)]
    assert by_time[1:] == by_token[1:] == list(by_id.values())[1:] == wanted
    assert polls > 5, "it was followed while it ran"
    again = logs.get_log_events(**name, startFromHead=True, **token)
    assert again["events"] == []
    assert again["nextForwardToken"] == token["nextToken"], "at the end the same token comes back"
    pages: list[str] = []
    token = {}
    while len(pages) < 41:
        answer = logs.get_log_events(**name, limit=7, **token)
        pages = [event["message"] for event in answer["events"]] + pages
        token = {"nextToken": answer["nextBackwardToken"]}
    assert pages == by_time, "backwards, seven at a time"
    assert refused(logs.get_log_events, **name, nextToken="f/1/s")[0] == "InvalidParameterException"
    where = {"logGroupName": GROUP, "logStreamNamePrefix": "live/"}
    assert refused(logs.filter_log_events, **where, filterPattern="12")[0] == "InvalidParameterException"
    every, some = logs.filter_log_events(**where)["events"], logs.filter_log_events(**where, limit=1)
    more = logs.filter_log_events(**where, nextToken=some["nextToken"])["events"]
    assert [event["eventId"] for event in (*some["events"], *more)] == [event["eventId"] for event in every]
    for stream in (each["logStreamName"] for each in streams):
        its = logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True)["events"]
        assert [event["message"] for event in every if event["logStreamName"] == stream] == [
            event["message"] for event in its
        ]
    assert refused(logs.get_log_events, logGroupName="/other", logStreamName="x")[0] == "ResourceNotFoundException"


def waits(endpoint: ServeProcess, name: str) -> bool:
    """Tells whether a job with the script `STOPPED` has come so far that it can be stopped in order."""
    return any("waiting" in lines for lines in messages(endpoint, name).values())


@pytest.mark.promise("serve", "jobs wait in one queue, and one that waits can be stopped")
def test_jobs_wait_in_one_queue_and_one_that_waits_can_be_stopped(endpoint: ServeProcess) -> None:
    client = endpoint.client()
    for number in range(4):
        client.create_training_job(**endpoint.one_host(f"queued-{number}", STOPPED))
    status = lambda name: client.describe_training_job(TrainingJobName=name)["SecondaryStatus"]  # noqa: E731
    wait_for(lambda: all(waits(endpoint, f"queued-{number}") for number in range(2)))
    assert [status(f"queued-{number}") for number in (2, 3)] == ["Pending"] * 2, "two at once"
    client.stop_training_job(TrainingJobName="queued-2")
    assert status("queued-2") == "Stopped"
    client.stop_training_job(TrainingJobName="queued-0")
    wait_for(lambda: waits(endpoint, "queued-3"))
    for number in (1, 3):
        client.stop_training_job(TrainingJobName=f"queued-{number}")
    for number in range(4):
        found = endpoint.ended(client, f"queued-{number}")
        assert found["TrainingJobStatus"] == "Stopped", found.get("FailureReason")


@pytest.mark.promise("sagemaker-differences", "stop, list, detach, by headrace serve")
def test_jobs_are_listed_filtered_and_deleted_and_keep_their_tags(endpoint: ServeProcess) -> None:
    client = endpoint.client()
    sleeps = {**endpoint.one_host("kept", STOPPED), "Tags": [{"Key": "a", "Value": "3"}]}
    arn = client.create_training_job(**sleeps)["TrainingJobArn"]
    client.create_training_job(**endpoint.one_host("kept-2", "pass"))
    endpoint.ended(client, "kept-2")
    pages = client.get_paginator("list_training_jobs").paginate(NameContains="kept", PaginationConfig={"PageSize": 1})
    listed = [line["TrainingJobName"] for page in pages for line in page["TrainingJobSummaries"]]
    assert listed == ["kept-2", "kept"], "the newest first"
    running = client.list_training_jobs(NameContains="kept", StatusEquals="InProgress")["TrainingJobSummaries"]
    assert [line["TrainingJobArn"] for line in running] == [arn]
    assert refused(client.list_training_jobs, NextToken="x")[0] == "ValidationException"

    tags = [{"Key": "a", "Value": "3"}]
    assert client.list_tags(ResourceArn=arn)["Tags"] == tags
    for call, members in (
        (client.add_tags, {"ResourceArn": arn, "Tags": tags}),
        (client.delete_tags, {"ResourceArn": arn, "TagKeys": ["a"]}),
        (client.update_training_job, {"TrainingJobName": "kept"}),
    ):
        assert refused(call, **members)[0] == "UnknownOperationException"
    assert refused(client.delete_training_job, TrainingJobName="kept")[0] == "ResourceInUse"
    wait_for(lambda: waits(endpoint, "kept"))
    client.stop_training_job(TrainingJobName="kept")
    endpoint.ended(client, "kept")
    client.delete_training_job(TrainingJobName="kept")
    gone = ("ValidationException", "Requested resource not found.")
    assert refused(client.describe_training_job, TrainingJobName="kept") == gone
    assert refused(client.list_tags, ResourceArn=arn) == gone
    assert messages(endpoint, "kept") == {}
    client.create_training_job(**endpoint.one_host("kept", "pass"))  # the name is free
    assert endpoint.ended(client, "kept")["TrainingJobStatus"] == "Completed"


@pytest.mark.promise("sagemaker-differences", "needs, by headrace serve")
def test_identities_and_roles_are_what_the_sdks_ask_for(endpoint: ServeProcess) -> None:
    who = endpoint.client("sts").get_caller_identity()
    assert who["Arn"] == "arn:aws:sts::000000000000:assumed-role/headrace/user"
    role = endpoint.client("iam").get_role(RoleName="headrace")["Role"]
    assert role["Arn"] == "arn:aws:iam::000000000000:role/headrace"
    assert role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    simulated = endpoint.client("iam").simulate_principal_policy(
        PolicySourceArn=role["Arn"], ActionNames=["s3:PutObject", "s3:GetObject"], ResourceArns=["arn:aws:s3:::b/*"]
    )
    assert [each["EvalDecision"] for each in simulated["EvaluationResults"]] == ["allowed", "allowed"]


@pytest.mark.parametrize(
    ("service", "operation", "members"),
    [
        ("dynamodb", "list_tables", {}),
        ("ec2", "describe_instances", {}),
        ("batch", "list_jobs", {"jobQueue": "q"}),
        ("sagemaker", "list_models", {}),
        ("sts", "get_session_token", {}),
        ("logs", "describe_metric_filters", {}),
    ],
)
@pytest.mark.promise("serve", "other services and operations: a clear error in the caller's protocol")
def test_what_is_not_answered_is_refused_in_the_callers_protocol(
    endpoint: ServeProcess, service: str, operation: str, members: dict[str, Any]
) -> None:
    code, message = refused(getattr(endpoint.client(service), operation), **members)
    assert code in ("UnknownOperationException", "InvalidAction")
    assert "headrace serve has no" in message
