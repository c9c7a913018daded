"""What a service refuses, the protocols of AWS, and the operations that are answered here, as botocore has them.

A caller understands an error in the protocol of its own request only. In another one boto3 shows ``400`` in place of
the code, or fails while it parses.

A model of botocore takes 20 MB while it is read, and another botocore has another one; so what is needed of it lies in
`operations.json`, from `scripts/wire_shapes.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from headrace.endpoint.http.http_message import HttpRequest
from headrace.job.sagemaker.check import Shape, read_shape

JSON_TYPE = "application/x-amz-json-"
FORM_TYPE = "application/x-www-form-urlencoded"


class Protocol(Enum):
    """A form of requests and answers."""

    JSON_1_0 = "1.0"
    JSON_1_1 = "1.1"
    QUERY = "query"
    REST_JSON = "rest-json"
    S3 = "s3"
    CBOR = "cbor"

    @property
    def is_json(self) -> bool:
        """Whether it is one of the two with an ``X-Amz-Target``."""
        return self in (Protocol.JSON_1_0, Protocol.JSON_1_1)


class ServiceError(Exception):
    """What a service refuses.

    Args:
        code: the service's name for it.
        message: its words.
        status: of the HTTP answer.
        details: further elements of an error of S3.
        headers: of the answer.
    """

    def __init__(
        self, code: str, message: str, status: int = 400,
        details: Mapping[str, str] | None = None, headers: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.details = details or {}
        self.headers = headers


def protocol_of(request: HttpRequest, service: str) -> Protocol:
    """Returns the protocol that a caller speaks. Pure.

    Args:
        request: what was asked.
        service: that it is signed for; empty when that is not known.
    """
    header, query = request.headers.get, request.raw_query
    if header("smithy-protocol") == "rpc-v2-cbor":
        return Protocol.CBOR
    if header("x-amz-target"):
        return Protocol.JSON_1_0 if header("content-type").startswith(f"{JSON_TYPE}1.0") else Protocol.JSON_1_1
    if service == "s3":
        return Protocol.S3
    if header("content-type").startswith(FORM_TYPE) or query.startswith("Action=") or "&Action=" in query:
        return Protocol.QUERY
    return Protocol.REST_JSON if service else Protocol.S3


FILE = Path(__file__).with_name("operations.json")


@dataclass(frozen=True)
class OperationModel:
    """An operation.

    Attributes:
        name: of it.
        method: of HTTP.
        path: with its variables in braces, without a query.
        literals: names in the query that make a request this operation.
        status: of an answer.
        input, output: shapes of request and answer.
    """

    name: str
    method: str
    path: str
    literals: frozenset[str]
    status: int
    input: Shape
    output: Shape

    @cached_property
    def required(self) -> Mapping[str, str]:
        """The members that must be in the head or the query of a request: name to its name on the wire."""
        members = self.input.members
        return {
            name: members[name].name for name in self.input.required if members[name].place in ("header", "querystring")
        }


@dataclass(frozen=True)
class ServiceModel:
    """A service: what stands before an operation in ``X-Amz-Target``, the namespace of its XML, its operations."""

    target: str
    namespace: str
    operations: Mapping[str, OperationModel]


@cache
def service_model(name: str) -> ServiceModel:
    """Returns a service by botocore's name of it."""
    model = json.loads(FILE.read_text(encoding="utf-8"))["services"][name]
    operations = {each: _operation(each, of, model["shapes"]) for each, of in model["operations"].items()}
    return ServiceModel(model["metadata"]["targetPrefix"], model["metadata"]["xmlNamespace"], operations)


def _operation(name: str, model: Mapping[str, Any], shapes: Mapping[str, Any]) -> OperationModel:
    http = model["http"]
    path, _, query = http["requestUri"].partition("?")
    literals = frozenset(part.partition("=")[0] for part in query.split("&") if part)
    sides = [read_shape(shapes, model[side]) if side in model else Shape("structure") for side in ("input", "output")]
    return OperationModel(name, http["method"], path, literals, http.get("responseCode", 200), *sides)
