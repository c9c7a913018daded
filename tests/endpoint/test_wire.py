"""The wire's codec against botocore's own: what clients send is read, and what is answered they read."""

from __future__ import annotations

import random
import re
import runpy
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.parsers
import botocore.serialize
import pytest
from s3_server import SESSION

from headrace.endpoint.http.http_message import Headers
from headrace.endpoint.wire.answers import error_answer, query_answer, rest_answer
from headrace.endpoint.wire.models import FILE, OperationModel, Protocol, ServiceError, service_model
from headrace.endpoint.wire.requests import of_form, read_form, read_rest, read_xml
from headrace.job.sagemaker.check import Shape

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "wire_shapes.py"
S3 = service_model("s3").operations
TIME = re.compile("(Date|Time|Timestamp|Modified|Initiated|Used|Expires|RetainUntilDate)$")
QUERY = [(name, operation) for name in ("iam", "sts", "cloudwatch") for operation in service_model(name).operations]


def test_the_operations_are_those_of_the_installed_botocore() -> None:
    assert FILE.read_text() == runpy.run_path(str(SCRIPT))["wire_shapes"](), f"run {SCRIPT}"


def sample(shape: Shape, chance: random.Random) -> Any:
    """A value of a shape, with all of its members."""
    if shape.kind == "structure":
        return {name: sample(inner, chance) for name, inner in shape.members.items() if not _left_out(inner)}
    if shape.kind == "list":
        return [sample(shape.inner["member"], chance) for _ in range(2)]
    if shape.kind == "map":
        return {"one": "1", "two": "a & <b>"}
    if shape.kind in ("integer", "number"):
        return chance.randrange(1, 1000) if shape.kind == "integer" else chance.random()
    if shape.kind == "boolean":
        return chance.random() < 0.5
    return shape.enum[0] if shape.enum else f"text {chance.randrange(1000)}"


def _left_out(shape: Shape) -> bool:
    """Whether nothing that is done here asks for it: lists in headers, maps in documents."""
    return (shape.kind == "list" and shape.place == "header") or (shape.kind == "map" and shape.place != "headers")


@pytest.mark.parametrize("name", sorted(S3))
def test_what_a_client_of_s3_sends_has_its_members_back(name: str) -> None:
    chance = random.Random(name)
    model = SESSION.get_service_model("s3").operation_model(name)
    operation = S3[name]
    members = _sendable(operation.input, chance)
    sent = botocore.serialize.create_serializer("rest-xml", False).serialize_to_request(members, model)
    query = dict(sent["query_string"]) | dict(
        part.partition("=")[::2] for part in urlsplit(sent["url_path"]).query.split("&") if part
    )
    found = read_rest(
        operation.input, {key: str(value) for key, value in query.items()}, Headers(sent["headers"].items())
    )
    payload = operation.input.members.get(operation.input.payload)
    if payload is not None and payload.kind == "structure":
        found[operation.input.payload] = read_xml(sent["body"], payload.name, payload)
    places = {"Bucket", "Key", "Body"}
    assert {key: value for key, value in found.items() if key not in places and value != {}} == {
        key: value for key, value in members.items() if key not in places
    }


def _sendable(shape: Shape, chance: random.Random) -> dict[str, Any]:
    """Members of a request, without times, whose texts differ from place to place."""
    every = sample(shape, chance)

    def without_times(value: Any, inner: Shape) -> Any:
        if inner.kind == "structure":
            return {
                key: without_times(each, inner.members[key])
                for key, each in value.items()
                if inner.members[key].kind not in ("number", "map") or inner.members[key].place == "headers"
            }
        return [without_times(each, inner.inner["member"]) for each in value] if inner.kind == "list" else value

    found: dict[str, Any] = without_times(every, shape)
    return found


@pytest.mark.parametrize("name", sorted(S3))
def test_what_s3_answers_a_client_reads(name: str) -> None:
    chance = random.Random(name)
    operation = S3[name]
    members = _answered(operation, chance)
    document = "" if operation.output.payload or not _in_body(operation) else "Document"
    if name == "GetBucketLocation":
        return  # its one member is the document: a client's parser has a rule of its own, see test_s3_reading
    reply = rest_answer(operation, members, "http://s3.amazonaws.com/doc/2006-03-01/", document)
    parser = botocore.parsers.create_parser("rest-xml")
    shape = SESSION.get_service_model("s3").operation_model(name).output_shape
    answer = {"status_code": reply.status, "headers": dict(reply.headers), "body": reply.body}
    if name == "GetObject":
        answer["body"] = "bytes"  # a stream
        assert reply.body == "bytes"
    found = parser.parse(answer, shape) if shape is not None else {}
    found.pop("ResponseMetadata", None)
    assert found == members


def _in_body(operation: OperationModel) -> bool:
    return any(not shape.place for shape in operation.output.members.values())


def _answered(operation: OperationModel, chance: random.Random) -> dict[str, Any]:
    moment = datetime(2026, 11, 28, 11, 30, tzinfo=timezone.utc)

    def with_times(value: Any, shape: Shape, name: str = "") -> Any:
        if shape.kind == "structure":
            return {key: with_times(each, shape.members[key], key) for key, each in value.items()}
        if shape.kind == "list":
            return [with_times(each, shape.inner["member"]) for each in value]
        if shape.kind == "number" and TIME.search(name):
            return moment
        return "bytes" if shape.kind == "blob" else value

    found: dict[str, Any] = with_times(sample(operation.output, chance), operation.output)
    return found


@pytest.mark.parametrize(("service", "name"), QUERY)
def test_a_query_service_reads_and_is_read(service: str, name: str) -> None:
    chance = random.Random(name)
    operation = service_model(service).operations[name]
    model = SESSION.get_service_model(service).operation_model(name)
    members = _sendable(operation.input, chance)
    sent = botocore.serialize.create_serializer("query", False).serialize_to_request(members, model)
    form = "&".join(f"{key}={str(value).replace(' ', '+')}" for key, value in sent["body"].items())
    found = of_form(read_form(form.encode()), operation.input)
    assert {key: value for key, value in found.items() if key not in ("Action", "Version")} == members
    answered = _answered(operation, chance)
    reply = query_answer(operation, answered, service_model(service).namespace)
    assert isinstance(reply.body, bytes)
    parser = botocore.parsers.create_parser("query")
    read = parser.parse({"status_code": 200, "headers": {}, "body": reply.body}, model.output_shape)
    read.pop("ResponseMetadata")
    assert read == answered


@pytest.mark.parametrize(
    ("protocol", "parser"),
    [
        (Protocol.S3, "rest-xml"),
        (Protocol.QUERY, "query"),
        (Protocol.JSON_1_1, "json"),
        (Protocol.REST_JSON, "rest-json"),
        (Protocol.CBOR, "smithy-rpc-v2-cbor"),
    ],
)
@pytest.mark.parametrize("message", ["plain", 'a <b> & "c"', "\x00\x1f\ufffe", "ü😀"])
def test_an_error_is_read_in_every_protocol(protocol: Protocol, parser: str, message: str) -> None:
    reply = error_answer(ServiceError("TheCode", message, 409), protocol)
    shape = SESSION.get_service_model("s3").operation_model("ListParts").output_shape
    answer = {"status_code": reply.status, "headers": {k.lower(): v for k, v in reply.headers}, "body": reply.body}
    found = botocore.parsers.create_parser(parser).parse(answer, shape)
    assert found["Error"]["Code"] == "TheCode"
    assert found["ResponseMetadata"]["HTTPStatusCode"] == 409
    expected = message if message.isprintable() or "json" in parser or "cbor" in parser else "\ufffd" * 3
    assert found["Error"]["Message"] == expected
