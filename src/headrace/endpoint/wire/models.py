"""The operations that are answered here, as botocore has them: `operations.json`, from `scripts/wire_shapes.py`.

A model takes 20 MB while it is read, and another botocore has another one; so what is needed of it lies beside this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from headrace.job.sagemaker.check import Shape, read_shape

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
