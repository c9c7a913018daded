"""Malformed requests in every part of the endpoint: refused in the caller's protocol, and nothing starts."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from effort import SOAK

from headrace.endpoint.auth import signatures
from headrace.endpoint.auth.gatekeeper import AccessKey, keys_of
from headrace.endpoint.endpoint_server import Endpoint, ServeOptions
from headrace.endpoint.http.http_message import BytesBody, Headers, HttpReply, HttpRequest
from headrace.endpoint.training_jobs.job_store import lock_store

REQUESTS = 400_000 if SOAK else 6_000
HOST = "127.0.0.1:7080"
JSON_TYPE = "application/x-amz-json-1.1"
TARGETS = {"sagemaker": "SageMaker", "logs": "Logs_20140328", "monitoring": "GraniteServiceVersion20100801"}
ARN = "arn:aws:sagemaker:us-east-1:000000000000:training-job/none"
GROUP = "/aws/sagemaker/TrainingJobs"
CREATE: dict[str, Any] = {
    "TrainingJobName": "fuzzed",
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "HyperParameters": {"sagemaker_program": '"train.py"', "a": "1"},
    "InputDataConfig": [
        {"ChannelName": "c", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/c"}}}
    ],
    "OutputDataConfig": {"S3OutputPath": "s3://b/out"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
    "Environment": {"A": "b"},
}  # without RoleArn: whatever else becomes of it, it is no request that may start something
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("sagemaker", "CreateTrainingJob", CREATE),
    ("sagemaker", "DescribeTrainingJob", {"TrainingJobName": "none"}),
    ("sagemaker", "ListTrainingJobs", {"MaxResults": 5, "NextToken": "NQ==", "CreationTimeAfter": 1.5}),
    ("sagemaker", "StopTrainingJob", {"TrainingJobName": "none"}),
    ("sagemaker", "DeleteTrainingJob", {"TrainingJobName": "none"}),
    ("sagemaker", "ListTags", {"ResourceArn": ARN}),
    ("logs", "DescribeLogGroups", {"logGroupNamePrefix": "/aws"}),
    ("logs", "DescribeLogStreams", {"logGroupName": GROUP, "logStreamNamePrefix": "a/", "nextToken": "MQ=="}),
    ("logs", "GetLogEvents", {"logGroupName": GROUP, "logStreamName": "a/algo-1-1", "nextToken": "f/1/s"}),
    ("logs", "FilterLogEvents", {"logGroupName": GROUP, "nextToken": "e30="}),
    (
        "monitoring",
        "GetMetricStatistics",
        {"Namespace": GROUP, "MetricName": "m", "Dimensions": [{"Name": "Host", "Value": "j/algo-1"}], "StartTime": 1.0,
         "EndTime": 2e9, "Period": 60, "Statistics": ["Average"]},
    ),
    ("sts", "GetCallerIdentity", {}),
    ("iam", "GetRole", {"RoleName": "r"}),
    ("iam", "SimulatePrincipalPolicy", {"PolicySourceArn": ARN, "ActionNames": ["s3:Get"], "ResourceArns": ["*"]}),
    ("dynamodb", "ListTables", {}),
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**80, -(2**63), 1.5, 1e308, -1e308, "", " ", "a" * 3000, "\x00", "\n",
    "\ud800", "ä€😀", "../../x", "s3://", "s3://b/../../x", "file:///etc/passwd", "https://x/y", [], {}, [[]], [None],
    {"": ""}, {"a": {"b": []}}, ["a"] * 300, "NaN", "0x1", "1e5", "-0", "arn:aws:iam::1:role/x", "Completed", [{}],
]  # fmt: skip

ADDRESSES = [("/x%", ""), ("//..", "a=b&a"), ("/", "X-Amz-Signature=1"), ("/", "%zz=%"), ("*", "Action=x")]
WRONG_TARGETS = ["", ".", "SageMaker", "SageMaker.", "Logs_20140328.x", "a.b.c", "SageMaker.__init__"]


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Endpoint, AccessKey]]:
    """An endpoint whose queue works."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    store = tmp_path / "serve"
    options = ServeOptions(port=0, store=store)
    with lock_store(store):
        keys = keys_of(store)
        made = Endpoint(options, keys)
        with made.running():
            yield made, keys.user


def changed(value: Any, rng: random.Random, times: int) -> Any:
    """Changes some places of a document at random."""
    found = copy.deepcopy(value)
    for _ in range(times):
        place, key = found, rng.choice([*found, "New"]) if found else "New"
        while (
            isinstance(place.get(key) if isinstance(place, dict) else place[key], (dict, list)) and rng.random() < 0.8
        ):
            inner = place[key]
            if not inner:
                break
            place, key = inner, rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        what = rng.randrange(3)
        if what == 0 and isinstance(place, dict):
            place.pop(key, None)
        elif what == 1 and isinstance(place, dict):
            place[rng.choice(["x", "", "ä", "ServerlessJobConfig", "InstanceGroups", "A" * 200])] = copy.deepcopy(
                rng.choice(VALUES)
            )
        else:
            place[key] = copy.deepcopy(rng.choice(VALUES))
    return found


def as_form(action: str, value: Any) -> bytes:
    """Returns a document as a form."""
    pairs = [("Action", action), ("Version", "2011-06-15")]

    def add(name: str, each: Any) -> None:
        if isinstance(each, dict):
            for key, inner in each.items():
                add(f"{name}.{key}" if name else key, inner)
        elif isinstance(each, list):
            for number, inner in enumerate(each, 1):
                add(f"{name}.member.{number}", inner)
        else:
            pairs.append((name, str(each)))

    add("", value)
    text = "&".join(f"{quote(name, errors='replace')}={quote(text, errors='replace')}" for name, text in pairs)
    return text.encode()


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """Changes bytes at random: one is another, a part is missing or stands twice, the end is cut off."""
    if not data:
        return rng.randbytes(5)
    at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return rng.choice([
        data[:at] + rng.randbytes(rng.randrange(1, 4)) + data[at + 1 :],
        data[:at] + data[end:], data[:end] + data[at:], data[:at], b"[" * 3000 + data,
    ])  # fmt: skip


def sign(key: AccessKey, service: str, head: dict[str, str], body: bytes, path: str, query: str) -> dict[str, str]:
    """Returns the headers with a right signature."""
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    names = ("host", "x-amz-date", *(["x-amz-target"] if "X-Amz-Target" in head else []))
    given = {**head, "X-Amz-Date": stamp}
    signed = signatures.Signed(key.key_id, "", int(now), None, stamp[:8], "us-east-1", service, names)
    request = HttpRequest("POST", path, query, Headers(given.items()))
    value = signatures._version_4(signed, request, key.secret, hashlib.sha256(body).hexdigest())
    scope = f"{key.key_id}/{stamp[:8]}/us-east-1/{service}/aws4_request"
    credential = f"Credential={scope}, SignedHeaders={';'.join(names)}, Signature={value}"
    return {**given, "Authorization": f"{signatures.ALGORITHM} {credential}"}


def malformed(key: AccessKey, rng: random.Random) -> HttpRequest:
    """Returns one request."""
    service, operation, members = rng.choice(CALLS)
    document = changed(members, rng, rng.choice([0, 1, 1, 2, 4]))
    document.pop("RoleArn", None)
    head = {"Host": HOST, "Content-Type": JSON_TYPE}
    if service in ("sts", "iam") or rng.random() < 0.05:
        body = as_form(operation, document)
        head["Content-Type"] = "application/x-www-form-urlencoded; charset=utf-8"
    else:
        body = json.dumps(document).encode()
        head["X-Amz-Target"] = f"{TARGETS.get(service, 'Other')}.{operation}"
    path, query = "/", ""
    if rng.random() < 0.3:
        body = spoilt(body, rng)
    if rng.random() < 0.1:
        path, query = rng.choice(
            [("/x%", ""), ("//..", "a=b&a"), ("/", "X-Amz-Signature=1"), ("/", "%zz=%"), ("*", "Action=x")]
        )
    if rng.random() < 0.1:
        head["X-Amz-Target"] = rng.choice(
            ["", ".", "SageMaker", "SageMaker.", "Logs_20140328.x", "a.b.c", "SageMaker.__init__"]
        )
    method = rng.choice(["POST"] * 9 + ["GET", "PUT", "DELETE", "x"])
    head = sign(key, service, head, body, path, query)
    if rng.random() < 0.35:
        name = rng.choice(list(head))
        head[name] = spoilt(head[name].encode(), rng).decode("latin-1").replace("\n", " ")[:4000]
    if rng.random() < 0.05:
        head["Smithy-Protocol"] = "rpc-v2-cbor"
    return HttpRequest(method, path, query, Headers(head.items()), BytesBody(body))


@pytest.mark.promise(
    "serve-reference", "the endpoint answers nobody without its keys, and no malformed request starts anything"
)
@pytest.mark.promise("serve", "6,000 malformed requests: no internal error, nothing started")
def test_malformed_requests_are_refused_with_a_code_and_start_nothing(
    endpoint: tuple[Endpoint, AccessKey], tmp_path: Path
) -> None:
    served, key = endpoint
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    codes: dict[int, int] = {}
    begun = time.process_time()
    for _ in range(REQUESTS):
        request = malformed(key, rng)
        reply = served.handle(request)
        assert isinstance(reply, HttpReply)
        codes[reply.status] = codes.get(reply.status, 0) + 1
        assert reply.status < 500 or reply.status == 501, (request, reply)
        if reply.status >= 400:
            assert isinstance(reply.body, bytes)
            assert b"__type" in reply.body or b"<Code>" in reply.body, (request, reply)
    print(f"{codes} in {time.process_time() - begun:.1f} CPU s")
    assert codes[200] > REQUESTS / 100, "some are no worse than allowed, so that what answers is reached"
    assert codes[400] > REQUESTS / 2
    assert not list(tmp_path.glob("runs/*")), "nothing was started"
    assert served.handle(_list(key)).body == b'{"TrainingJobSummaries":[]}', "nothing is queued"


def _list(key: AccessKey) -> HttpRequest:
    head = {"Host": HOST, "Content-Type": JSON_TYPE, "X-Amz-Target": "SageMaker.ListTrainingJobs"}
    return HttpRequest("POST", "/", "", Headers(sign(key, "sagemaker", head, b"{}", "/", "").items()), BytesBody(b"{}"))
