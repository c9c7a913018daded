"""One service: its operations by name, their requests in JSON or as a form, their answers in the caller's protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from urllib.parse import parse_qsl

from headrace.endpoint.auth.gatekeeper import Caller
from headrace.endpoint.http.http_message import HttpReply, HttpRequest
from headrace.endpoint.protocols import Protocol, ServiceError, json_body, json_head, query_body, request_id
from headrace.endpoint.services.service_models import check_members, request_shapes
from headrace.job.sagemaker.shapes import Shape

Members = Mapping[str, object]
Operation = Callable[[Members, Caller], Mapping[str, object]]
_MOST_FIELDS = 5000
_DEPTH = 60


@dataclass(frozen=True)
class Service:
    """A service.

    Attributes:
        name: as requests are signed for it.
        operations: by name.
        models: botocore's models of the service, with the operations whose requests are checked against their shapes.
        shapes: of these requests; `with_shapes` reads them.
        namespace: of its XML answers; empty when it speaks JSON only.
        target: what stands before the operation in ``X-Amz-Target``; empty when it speaks Query only.
        wrong: its code for a value that is not allowed.
        paths: method and path of the operations that are asked for by these, e.g. ``PUT /BatchPutMetrics``.
    """

    name: str
    operations: Mapping[str, Operation]
    models: Mapping[str, Collection[str]] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    namespace: str = ""
    target: str = ""
    wrong: str = "ValidationException"
    paths: Mapping[str, str] = field(default_factory=dict)

    def answer(self, request: HttpRequest, body: bytes, caller: Caller, protocol: Protocol) -> HttpReply:
        """Answers a request.

        Args:
            request: its head.
            body: all of it.
            caller: who sent it.
            protocol: that the caller speaks.

        Raises:
            ServiceError: as the operation does.
        """
        rest = self.paths.get(f"{request.method} {request.raw_path}") if protocol is Protocol.REST_JSON else None
        if rest is not None:
            result = self._call(rest, self.operations[rest], read_json(body), caller)
            return HttpReply(200, tuple(json_head(protocol).items()), json_body(result))
        if request.method != "POST":
            raise ServiceError("MethodNotAllowed", f"{self.name} is asked with POST, not {request.method[:20]}", 405)
        if protocol.is_json and self.target:
            target = request.headers.get("x-amz-target")
            prefix, _, name = target.partition(".")
            operation = self._find(name if prefix == self.target else target, "UnknownOperationException")
            result = self._call(name, operation, read_json(body), caller)
            head, content = json_head(protocol), json_body(result)
        elif protocol is Protocol.QUERY and self.namespace:
            members = read_form(body, request.raw_query)
            name = str(members.pop("Action", ""))
            members.pop("Version", None)
            operation = self._find(name, "InvalidAction")
            result = self._call(name, operation, _typed(members, self.shapes[name]), caller)
            head = {"Content-Type": "text/xml", "x-amzn-RequestId": request_id(), "Cache-Control": "no-store"}
            content = query_body(name, result, self.namespace)
        else:
            raise ServiceError(
                "UnknownOperationException", f"{self.name} is not asked in this protocol ({protocol.value})"
            )
        return HttpReply(200, tuple(head.items()), content)

    def _find(self, name: str, code: str) -> Operation:
        operation = self.operations.get(name)
        if operation is None:
            known = ", ".join(self.operations)
            raise ServiceError(code, f"headrace serve has no {self.name} operation {name[:80]!r}; it has {known}")
        return operation

    def _call(
        self, name: str, operation: Operation, members: dict[str, object], caller: Caller
    ) -> Mapping[str, object]:
        if name in self.shapes:
            check_members(members, self.shapes[name], self.wrong)
        return operation(members, caller)


def with_shapes(services: Iterable[Service]) -> list[Service]:
    """Returns services with the shapes of their requests.

    Raises:
        UsageError: botocore is not installed, or has no such operation.
    """
    found = list(services)
    shapes = request_shapes({model: names for each in found for model, names in each.models.items()})
    return [
        replace(each, shapes={name: shapes[model][name] for model, names in each.models.items() for name in names})
        for each in found
    ]


def read_json(body: bytes) -> dict[str, object]:
    """Returns the members of a JSON request; those that are null are left out, as services do.

    Raises:
        ServiceError: it is no JSON object.
    """
    try:
        value = json.loads(body or b"{}", parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode()  # a half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise ServiceError("SerializationException", "the body is not JSON") from error
    if not isinstance(value, dict):
        raise ServiceError("SerializationException", "the body is not a JSON object")
    return {str(name): _without_nulls(each, _DEPTH) for name, each in value.items() if each is not None}


def _no_number(text: str) -> None:
    raise ValueError(text)


def _without_nulls(value: object, depth: int) -> object:
    if depth == 0:
        raise ServiceError("SerializationException", "the body is nested too deeply")
    if isinstance(value, dict):
        return {name: _without_nulls(each, depth - 1) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each, depth - 1) for each in value]
    return value


def read_form(body: bytes, query: str = "") -> dict[str, object]:
    """Returns the members of a form: ``Name.member.1.Key=x`` is a list of mappings.

    Raises:
        ServiceError: it is no form, or contradicts itself.
    """
    try:
        text = "&".join(filter(None, [query, body.decode()]))
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise ServiceError("MalformedQueryString", "the query string or form is malformed") from error
    tree: dict[str, object] = {}
    for name, value in pairs:
        *above, last = name.split(".")[:40]
        place = tree
        for step in above:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                raise ServiceError("MalformedInput", f"{name[:80]} is a value and has members")
            place = inner
        if isinstance(place.get(last), dict):
            raise ServiceError("MalformedInput", f"{name[:80]} is a value and has members")
        place[last] = value
    return tree


def _typed(members: Mapping[str, object], shape: Shape) -> dict[str, object]:
    """Gives the texts of a form the types of a shape; what does not fit stays, for `check_members` to find."""
    return {
        name: _value(each, shape.members[name]) if name in shape.members else each for name, each in members.items()
    }


def _value(value: object, shape: Shape) -> object:
    if shape.kind == "structure" and isinstance(value, dict):
        return _typed(value, shape)
    if shape.kind == "list":
        items = value.get("member", {}) if isinstance(value, dict) else {}
        numbers = (
            sorted(filter(str.isdecimal, items), key=lambda text: int(text[:9])) if isinstance(items, dict) else []
        )
        return [_value(items[number], shape.inner["member"]) for number in numbers]
    if isinstance(value, str) and shape.kind in ("integer", "number"):
        return _number(value, shape.kind)
    if isinstance(value, str) and shape.kind == "boolean":
        return {"true": True, "false": False}.get(value, value)
    return value


def _number(text: str, kind: str) -> object:
    try:
        if len(text) > 40:
            return text
        return int(text) if kind == "integer" else float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if kind == "number" else text
    except ValueError:
        return text
