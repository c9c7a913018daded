"""Who may call a real `headrace serve`, how often, and what becomes of a call that is sent again."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import importlib.util
import socket
import threading
import time
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import botocore.awsrequest
import botocore.config
import botocore.credentials
import botocore.exceptions
import pytest
from botocore.auth import SigV4Auth

from patience import allowed
from serve_process import BUCKET, ROLE, ServeProcess, serving, wait_for

JSON = "application/x-amz-json-1.1"
LIST = {"X-Amz-Target": "SageMaker.ListTrainingJobs", "Content-Type": JSON}


def code_of(call: Any, **members: Any) -> str:
    """Returns the code with which a call is refused."""
    with pytest.raises(botocore.exceptions.ClientError) as found:
        call(**members)
    return str(found.value.response["Error"]["Code"])


def send(endpoint: ServeProcess, head: dict[str, str], body: str = "{}", method: str = "POST") -> tuple[int, str]:
    """Sends a request as it is. Returns status and text of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=30)
    try:
        connection.putrequest(method, "/", skip_host="Host" in head)
        for name, value in {"Content-Length": str(len(body)), **head}.items():
            connection.putheader(name, value)
        connection.endheaders(body.encode())
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def signed(
    endpoint: ServeProcess, head: dict[str, str], body: str = "{}", service: str = "sagemaker", url: str = ""
) -> dict[str, str]:
    """Returns the headers of a request with its signature."""
    request = botocore.awsrequest.AWSRequest("POST", url or f"{endpoint.url}/", data=body, headers=head)
    SigV4Auth(botocore.credentials.Credentials(*endpoint.keys()), service, "us-east-1").add_auth(request)
    return dict(request.headers)


@pytest.mark.promise(
    "serve-reference", "the endpoint answers nobody without its keys, and no malformed request starts anything"
)
@pytest.mark.promise("security", "unsigned, altered and recorded requests get the service's error")
@pytest.mark.promise("serve", "requests without a right signature are refused")
def test_a_request_without_a_signature_or_with_a_wrong_one_is_refused_with_the_services_codes(
    endpoint: ServeProcess,
) -> None:
    assert "MissingAuthenticationTokenException" in send(endpoint, LIST)[1]
    assert send(endpoint, {}, "")[0] == 403, "what a browser would ask for"
    key_id, _ = endpoint.keys()
    wrong = {"aws_access_key_id": key_id, "aws_secret_access_key": "wrong"}
    unknown = {"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "wrong"}
    assert code_of(endpoint.client(**wrong).list_training_jobs) == "InvalidSignatureException"
    assert code_of(endpoint.client(**unknown).list_training_jobs) == "UnrecognizedClientException"
    assert code_of(endpoint.client("sts", **wrong).get_caller_identity) == "SignatureDoesNotMatch"
    assert code_of(endpoint.client("sts", **unknown).get_caller_identity) == "InvalidClientTokenId"
    assert code_of(endpoint.client("s3", **wrong).list_buckets) == "SignatureDoesNotMatch"
    assert code_of(endpoint.client("s3", **unknown).list_buckets) == "InvalidAccessKeyId"
    assert endpoint.client().list_training_jobs()["TrainingJobSummaries"] == []


@pytest.mark.promise(
    "serve-reference", "the endpoint answers nobody without its keys, and no malformed request starts anything"
)
@pytest.mark.promise("serve", "requests without a right signature are refused")
def test_a_signed_request_is_bound_to_its_body_host_and_time(
    endpoint: ServeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = signed(endpoint, LIST)
    assert send(endpoint, head)[0] == 200
    assert "InvalidSignatureException" in send(endpoint, head, '{"MaxResults":1}')[1]
    assert "InvalidSignatureException" in send(endpoint, {**head, "X-Amz-Target": "SageMaker.ListTags"})[1]
    for name in ("rebound.example.com", "sagemaker.us-east-1.amazonaws.com", "10.0.0.1"):
        status, text = send(endpoint, {**signed(endpoint, LIST, url=f"http://{name}/"), "Host": name})
        assert (status, "not called" in text) == (400, True), "another name for this machine, as a page could make one"
    for more in ({"Origin": "http://127.0.0.1"}, {"Sec-Fetch-Site": "cross-site"}):
        assert "AccessDeniedException" in send(endpoint, {**head, **more})[1]
    then = time.time
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: _at(then() - 600))
    assert "Signature expired" in send(endpoint, signed(endpoint, LIST))[1]
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: _at(then() + 600))
    assert "not yet current" in send(endpoint, signed(endpoint, LIST))[1]


def _at(seconds: float) -> Any:
    import datetime

    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


@pytest.mark.promise("serve", "the key of those who carry data has objects, no job and no bucket")
def test_the_key_of_a_jobs_programs_reads_and_starts_or_stops_nothing(endpoint: ServeProcess) -> None:
    client = endpoint.client(holder="program")
    assert client.list_training_jobs()["TrainingJobSummaries"] == []
    assert code_of(client.create_training_job, **endpoint.one_host("p", "pass")) == "AccessDeniedException"
    assert code_of(client.stop_training_job, TrainingJobName="p") == "AccessDeniedException"
    assert code_of(client.delete_training_job, TrainingJobName="p") == "AccessDeniedException"
    assert code_of(endpoint.client("iam", holder="program").get_role, RoleName="r") == "AccessDenied"
    assert "assumed-role/headrace/program" in endpoint.client("sts", holder="program").get_caller_identity()["Arn"]
    assert endpoint.runs() == []


PRINTS_VARIABLES = """
import os
print({name: value for name, value in os.environ.items() if name.startswith("AWS_")}, flush=True)
"""


def test_programs_have_their_own_key_and_none_of_him_who_runs_the_endpoint(endpoint: ServeProcess) -> None:
    client = endpoint.client()
    client.create_training_job(**endpoint.one_host("variables", PRINTS_VARIABLES))
    assert endpoint.ended(client, "variables")["TrainingJobStatus"] == "Completed"
    text = next((endpoint.home / "runs").glob("variables-*/logs/*/*/0.log")).read_text()
    assert endpoint.keys("program")[0] in text
    assert endpoint.keys("user")[0] not in text
    assert endpoint.keys("user")[1] not in text
    assert "the-users-own" not in text


@pytest.mark.promise("serve", "a create that its client sends again makes one job")
def test_a_create_that_its_client_sends_again_is_answered_and_makes_one_job(endpoint: ServeProcess) -> None:
    client = endpoint.client()
    same = {"amz-sdk-invocation-id": "a-call-of-this-test"}

    def name_call(request: Any, **_: Any) -> None:
        for name, value in same.items():
            del request.headers[name]
            request.headers[name] = value

    client.meta.events.register("before-send.sagemaker.CreateTrainingJob", name_call)
    request = endpoint.one_host("again", "print('once')")
    first = client.create_training_job(**request)["TrainingJobArn"]
    assert client.create_training_job(**request)["TrainingJobArn"] == first
    assert code_of(client.create_training_job, **{**request, "Tags": [{"Key": "a", "Value": "b"}]}) == "ResourceInUse"
    same["amz-sdk-invocation-id"] = "another-call"
    assert code_of(client.create_training_job, **request) == "ResourceInUse"
    endpoint.ended(client, "again")
    assert len([run for run in endpoint.runs() if run.parent.name.startswith("again-")]) == 1


def test_of_many_that_create_one_name_at_once_one_succeeds(endpoint: ServeProcess) -> None:
    request = endpoint.one_host("raced", "pass")
    clients = [endpoint.client() for _ in range(6)]
    codes: list[str] = []

    def create(client: Any) -> None:
        try:
            client.create_training_job(**request)
            codes.append("created")
        except botocore.exceptions.ClientError as error:
            codes.append(error.response["Error"]["Code"])

    threads = [threading.Thread(target=create, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == ["ResourceInUse"] * 5 + ["created"]
    endpoint.ended(clients[0], "raced")
    assert len([run for run in endpoint.runs() if run.parent.name.startswith("raced-")]) == 1


@pytest.mark.promise("security", "unsigned, altered and recorded requests get the service's error")
def test_a_recorded_create_cannot_be_played_again_when_its_job_was_deleted(endpoint: ServeProcess) -> None:
    import json

    client = endpoint.client()
    request = endpoint.one_host("played", "pass")
    request["HyperParameters"]["sagemaker_submit_directory"] = (
        '"s3://nowhere/code.tar.gz"'  # it fails, and starts nothing
    )
    body = json.dumps(request)
    head = signed(endpoint, {**LIST, "X-Amz-Target": "SageMaker.CreateTrainingJob"}, body)
    assert send(endpoint, head, body)[0] == 200
    endpoint.ended(client, "played")
    client.delete_training_job(TrainingJobName="played")
    status, text = send(endpoint, head, body)
    assert (status, "InvalidSignatureException" in text) == (400, True)
    assert "TrainingJobSummaries" in client.list_training_jobs(NameContains="played")
    assert client.list_training_jobs(NameContains="played")["TrainingJobSummaries"] == []


@pytest.mark.promise("serve-reference", "slow requests of strangers hold up no client of the endpoint")
@pytest.mark.promise("security", "slow connections of strangers to `headrace serve` hold up no client")
def test_three_hundred_slow_requests_of_strangers_hold_up_no_client(endpoint: ServeProcess) -> None:
    head = signed(endpoint, LIST)
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    half_head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{endpoint.port}\r\n{lines}".encode()
    with contextlib.ExitStack() as stack:
        for i in range(300):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", endpoint.port), allowed(20)))
            sock.sendall(half_head + (b"Content-Length: 9\r\n\r\n{" if i % 2 else b""))
        began = time.monotonic()
        assert endpoint.client().list_training_jobs()["TrainingJobSummaries"] is not None
        assert time.monotonic() - began < allowed(5.0)  # 15 s and more if they kept their places


@pytest.mark.promise("serve", "a job that was deleted is created again within the second")
def test_a_job_that_was_deleted_is_created_again_within_the_second(endpoint: ServeProcess) -> None:
    client = endpoint.client()
    request = endpoint.one_host("at-once", "pass")
    request["HyperParameters"]["sagemaker_submit_directory"] = '"s3://nowhere/c.tar.gz"'  # it fails and starts nothing
    time.sleep(1.0 - time.time() % 1.0)  # to the beginning of a second
    arn = client.create_training_job(**request)["TrainingJobArn"]
    endpoint.ended(client, "at-once")
    client.delete_training_job(TrainingJobName="at-once")
    assert client.create_training_job(**request)["TrainingJobArn"] == arn
    endpoint.ended(client, "at-once")


MISSING = {
    "no-bucket": ("S3Prefix", "s3://nowhere/a"),
    "no-key": ("S3Prefix", f"s3://{BUCKET}/nothing/here"),
    "empty-folder": ("S3Prefix", f"s3://{BUCKET}/empty"),
    "beyond-a-file": ("S3Prefix", f"s3://{BUCKET}/there/x/"),
    "no-manifest": ("ManifestFile", f"s3://{BUCKET}/there"),
    "no-augmented-manifest": ("AugmentedManifestFile", f"s3://{BUCKET}/there/"),
}


@pytest.mark.parametrize(("kind", "uri"), MISSING.values(), ids=MISSING)
@pytest.mark.promise("serve", "inputs and buckets that are not there are refused")
def test_an_input_that_is_not_there_is_refused_in_the_services_words(
    kind: str, uri: str, endpoint: ServeProcess
) -> None:
    (endpoint.bucket / "empty").mkdir(exist_ok=True)
    (endpoint.bucket / "there").mkdir(exist_ok=True)
    (endpoint.bucket / "there/x").write_text("x")
    names = {"AttributeNames": ["a"]} if kind == "AugmentedManifestFile" else {}
    channels = [_channel("good", "S3Prefix", f"s3://{BUCKET}/the"), _channel("c", kind, uri, **names)]
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        endpoint.client().create_training_job(**endpoint.one_host("missing", "pass", InputDataConfig=channels))
    error = refused.value.response["Error"]
    assert error["Code"] == "ValidationException"
    bucket = uri.split("/")[2]
    assert error["Message"] == (
        f'No S3 objects found under S3 URL "{uri}" given in input data source. Please ensure that the bucket exists '
        f'in the selected region (us-east-1), that objects exist under that S3 prefix, and that the role "{ROLE}" has '
        f'"s3:ListBucket" permissions on bucket "{bucket}".'
    )
    assert endpoint.client().list_training_jobs(NameContains="missing")["TrainingJobSummaries"] == []


@pytest.mark.parametrize(
    "place",
    [{"OutputDataConfig": {"S3OutputPath": "s3://nowhere/out"}}, {"CheckpointConfig": {"S3Uri": "s3://nowhere/c"}}],
)
@pytest.mark.promise("serve", "inputs and buckets that are not there are refused")
def test_a_bucket_to_write_into_that_is_not_there_is_refused(place: dict[str, Any], endpoint: ServeProcess) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match=r'ValidationException.*"s3://nowhere/.*does not exist'):
        endpoint.client().create_training_job(**endpoint.one_host("unwritten", "pass", **place))


@pytest.mark.promise("serve", "`distributed=MPI()` of SDK 3 is refused without SSH")
def test_the_mpi_driver_of_sdk_3_is_refused_where_it_finds_no_ssh_with_the_way_out(endpoint: ServeProcess) -> None:
    (endpoint.bucket / "drivers").mkdir(exist_ok=True)
    script = endpoint.bucket / "drivers/sm_train.sh"
    request = endpoint.one_host("ssh", "pass")
    request["AlgorithmSpecification"] |= {"ContainerEntrypoint": ["/bin/bash"]}
    request["InputDataConfig"] = [_channel("sm_drivers", "S3Prefix", f"s3://{BUCKET}/drivers/")]
    script.write_text("$SM_PYTHON_CMD /opt/ml/input/data/sm_drivers/distributed_drivers/mpi_driver.py\n")
    assert importlib.util.find_spec("paramiko") is None, "the environment of the tests has no SSH client"
    with pytest.raises(botocore.exceptions.ClientError, match=r"no paramiko.*sagemaker_mpi_enabled.*Torchrun"):
        endpoint.client().create_training_job(**request)
    script.write_text("$SM_PYTHON_CMD /opt/ml/input/data/sm_drivers/distributed_drivers/torchrun_driver.py\n")
    request["OutputDataConfig"] = {"S3OutputPath": "s3://nowhere/out"}  # it starts nothing
    with pytest.raises(botocore.exceptions.ClientError, match="nowhere"):
        endpoint.client().create_training_job(**request)


def _channel(name: str, kind: str, uri: str, **more: object) -> dict[str, Any]:
    source = {"S3DataSource": {"S3DataType": kind, "S3Uri": uri, **more}}
    return {"ChannelName": name, "DataSource": source, "InputMode": "Pipe" if more else "File"}


def test_bodies_have_a_limit(endpoint: ServeProcess) -> None:
    body = '{"NameContains":"' + "x" * (2 << 20) + '"}'
    status, text = send(endpoint, signed(endpoint, LIST, body), body)
    assert (status, "RequestEntityTooLarge" in text) == (413, True)


@pytest.mark.promise(
    "serve", "presigned addresses hold for one object and time; an upload that is not the signed one is none"
)
def test_an_upload_that_is_not_the_signed_one_leaves_no_object(endpoint: ServeProcess) -> None:
    client = endpoint.client("s3")
    client.create_bucket(Bucket="checked")
    client.put_object(Bucket="checked", Key="whole", Body=b"as signed")

    def change(request: Any, **_: Any) -> None:
        request.body = b"as sent.."

    client.meta.events.register("before-send.s3.PutObject", change)
    assert code_of(client.put_object, Bucket="checked", Key="changed", Body=b"as signed") in (
        "XAmzContentSHA256Mismatch",
        "BadDigest",
    )
    client = endpoint.client("s3")
    digests = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in (b"as signed", b"another")]
    kept = client.put_object(Bucket="checked", Key="summed", Body=b"as signed", ChecksumSHA256=digests[0])
    assert kept["ChecksumSHA256"] == digests[0]
    wrong = {"Bucket": "checked", "Key": "changed", "Body": b"as signed", "ChecksumSHA256": digests[1]}
    assert code_of(client.put_object, **wrong) == "BadDigest"  # the signature is right, and its hash is the checksum's
    listed = client.list_objects_v2(Bucket="checked")["Contents"]
    assert [each["Key"] for each in listed] == ["summed", "whole"]


@pytest.mark.parametrize("version", ["s3", "s3v4"])
@pytest.mark.promise("security", "a presigned address is good for its object, time and headers only")
@pytest.mark.promise(
    "serve", "presigned addresses hold for one object and time; an upload that is not the signed one is none"
)
def test_presigned_addresses_are_good_for_one_object_and_time(endpoint: ServeProcess, version: str) -> None:
    import urllib.error
    import urllib.request

    config = botocore.config.Config(signature_version=version, s3={"addressing_style": "path"})
    writer, client = endpoint.client("s3"), endpoint.client("s3", config=config)
    with contextlib.suppress(writer.exceptions.BucketAlreadyOwnedByYou):
        writer.create_bucket(Bucket="shown")
    writer.put_object(Bucket="shown", Key="a b", Body=b"shown")
    url = client.generate_presigned_url("get_object", Params={"Bucket": "shown", "Key": "a b"}, ExpiresIn=60)
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.read() == b"shown"
    old = client.generate_presigned_url("get_object", Params={"Bucket": "shown", "Key": "a b"}, ExpiresIn=1)
    for wrong in (url.replace("a%20b", "a%20c"), url[:-1] + ("0" if url[-1] != "0" else "1")):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(wrong, timeout=30)
    wait_for(lambda: _refused(old))


def test_the_signature_of_a_presigned_address_is_not_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    import urllib.request

    monkeypatch.setenv("HEADRACE_LOG", "debug")
    with serving() as endpoint:
        for version, name in (("s3", "Signature"), ("s3v4", "X-Amz-Signature")):
            client = endpoint.client("s3", config=botocore.config.Config(signature_version=version))
            url = client.generate_presigned_url("list_objects_v2", Params={"Bucket": BUCKET, "Prefix": f"a-{version}"})
            secret = dict(parse_qsl(urlsplit(url).query))[name]
            with urllib.request.urlopen(url.replace("Signature", "S%69gnature"), timeout=30):
                pass
            wait_for(lambda version=version: f"prefix=a-{version}" in endpoint.log)
            assert secret not in unquote(endpoint.log)


def _refused(url: str) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=30):
            return False
    except urllib.error.HTTPError as error:
        with error:
            return error.code == 403


@pytest.mark.promise("security", "runs, temporary files, stores and buckets are closed to other users")
def test_the_files_of_the_store_are_for_its_owner_only(endpoint: ServeProcess) -> None:
    assert endpoint.store.stat().st_mode & 0o777 == 0o700
    for name in ("keys.json", "aws-config", "aws-credentials", "sagemaker-config.yaml", "jobs.sqlite"):
        assert (endpoint.store / name).stat().st_mode & 0o077 == 0, name
    key_id, secret = endpoint.keys()
    assert not any(key_id in line or secret in line for line in endpoint.output), "nothing secret is shown"


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"TrainingJobName": "-x"}, "ValidationException", "at 'trainingJobName' failed to satisfy constraint"),
    ({"RoleArn": "role"}, "ValidationException", "at 'roleArn' failed to satisfy constraint"),
    ({"RoleArn": None}, "ValidationException", "Value null at 'roleArn'"),
    ({"HyperParameters": {"a": "x" * 2501}}, "ValidationException", "2500"),
    ({"HyperParameters": {"a": 1}}, "SerializationException", "HyperParameters"),
    ({"StoppingCondition": None}, "ValidationException", "StoppingCondition"),
    ({"StoppingCondition": {"MaxRuntimeInSeconds": 0}}, "ValidationException", "stoppingCondition.maxRuntimeInSeconds"),
    ({"ResourceConfig": {"InstanceType": "ml.x9.huge", "InstanceCount": 1}}, "ValidationException", "enum value set"),
    (
        {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "InstanceGroups": [
            {"InstanceGroupName": "a", "InstanceType": "ml.m5.large", "InstanceCount": 1}]}},
        "ValidationException",
        "InstanceType or InstanceCount cannot be specified with InstanceGroups",
    ),
    ({"ServerlessJobConfig": {}}, "ValidationException", "serverless"),
    ({"Unknown": 1}, "ValidationException", "Unknown"),
    ({"Environment": {"1x": "y"}}, "ValidationException", "environment"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "code", "words"), BAD)
@pytest.mark.promise("serve", "bad requests are refused in the service's words and start nothing")
def test_a_bad_request_is_refused_in_the_services_words_and_starts_nothing(
    endpoint: ServeProcess, changes: dict[str, Any], code: str, words: str
) -> None:
    import json

    body = json.dumps({**endpoint.one_host("bad", "pass"), **changes})
    head = signed(endpoint, {**LIST, "X-Amz-Target": "SageMaker.CreateTrainingJob"}, body)
    status, text = send(endpoint, head, body)
    assert status == 400
    assert json.loads(text)["__type"] == code, text
    assert words in json.loads(text)["message"]
    gone = endpoint.client()
    assert code_of(gone.describe_training_job, TrainingJobName="bad") == "ValidationException"
