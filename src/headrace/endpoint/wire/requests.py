"""The members of a request, however they came: in JSON, as a form, in an address, in headers, in XML. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree

from headrace.endpoint.http.http_message import Headers
from headrace.endpoint.wire.models import ServiceError
from headrace.errors import Broken, Problem
from headrace.job.problems.finding import JobSource
from headrace.job.sagemaker.check import CLIENT, Shape, check_shape

Members = Mapping[str, Any]
_MOST_FIELDS = 5000
_DEPTH = 60
_CONSTRAINT = "failed to satisfy constraint: "
_INDEX = re.compile(r"\[(\d+)\]")
_MOST_ERRORS = 10


def read_json(body: bytes) -> dict[str, Any]:
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


def read_form(body: bytes, query: str = "") -> dict[str, Any]:
    """Returns the members of a form, still as texts: ``Name.member.1.Key=x`` is a list of mappings.

    Raises:
        ServiceError: it is no form, or contradicts itself.
    """
    try:
        text = "&".join(filter(None, [query, body.decode()]))
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise ServiceError("MalformedQueryString", "the query string or form is malformed") from error
    tree: dict[str, Any] = {}
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


def of_form(value: Any, shape: Shape) -> Any:
    """Gives the texts of a form the types of a shape; what does not fit stays, for `check_members` to find."""
    if shape.kind == "structure" and isinstance(value, dict):
        return {
            name: of_form(each, shape.members[name]) if name in shape.members else each for name, each in value.items()
        }
    if shape.kind == "list":
        items = value.get("member", {}) if isinstance(value, dict) else {}
        numbers = filter(str.isdecimal, items) if isinstance(items, dict) else ()
        return [
            of_form(items[number], shape.inner["member"]) for number in sorted(numbers, key=lambda text: int(text[:9]))
        ]
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


def read_rest(shape: Shape, query: Mapping[str, str], headers: Headers) -> dict[str, Any]:
    """Returns the members of a request that stand in its query and its headers; an empty number is none.

    Raises:
        ServiceError: a number is none.
    """
    members: dict[str, Any] = {}
    for name, member in shape.members.items():
        source: Mapping[str, str] | Headers | None = (
            query if member.place == "querystring" else headers if member.place == "header" else None
        )
        if member.place == "headers":
            texts: dict[str, str] = {}
            for header, text in headers:
                if header.lower().startswith(member.name):
                    key = header.lower().removeprefix(member.name)
                    texts[key] = f"{texts[key]},{text}" if key in texts else text
            members[name] = texts
        elif source is not None and member.name in source:
            text = source[member.name]
            if text or member.kind != "integer":
                members[name] = _scalar(text, member, member.name)
    return members


def read_xml(data: bytes, name: str, shape: Shape) -> dict[str, Any]:
    """Returns the members of a document.

    Args:
        data: the body.
        name: that its outermost element has to have.
        shape: of it.

    Raises:
        ServiceError: it is no such document.
    """
    malformed = ServiceError(
        "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema"
    )
    try:
        # Whatever its first line says: in another encoding the next look sees nothing.
        decoded = data.decode("utf-8-sig")
        if "\0" in decoded or "<!DOCTYPE" in decoded or "<!ENTITY" in decoded:
            raise malformed
        root = ElementTree.fromstring(decoded)
    except (ElementTree.ParseError, ValueError, LookupError):
        raise malformed from None
    for element in root.iter():
        element.tag = str(element.tag).rpartition("}")[2]
    if root.tag != name:
        raise malformed
    members: dict[str, Any] = _of_element(root, shape, name)
    return members


def _of_element(element: ElementTree.Element, shape: Shape, name: str) -> Any:
    if shape.kind == "list":
        return [_of_element(each, shape.inner["member"], name) for each in element]
    if shape.kind != "structure":
        return _scalar(element.text or "", shape, name)
    members: dict[str, Any] = {}
    for member, inner in shape.members.items():
        children = element.findall(inner.name or member)
        if children and inner.flat:
            members[member] = [_of_element(each, inner.inner["member"], member) for each in children]
        elif children:
            members[member] = _of_element(children[0], inner, member)
    return members


def _scalar(text: str, shape: Shape, name: str) -> str | int | bool:
    if shape.kind == "integer":
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            details = {"ArgumentName": name, "ArgumentValue": text}
            raise ServiceError("InvalidArgument", f"{name} has to be a number", details=details)
        return int(text)
    return text.lower() == "true" if shape.kind == "boolean" else text


def check_members(request: Mapping[str, object], shape: Shape, code: str = "ValidationException") -> None:
    """Checks a request against its shape.

    Args:
        request: its members.
        shape: of the operation's request.
        code: what the service calls a value that is not allowed.

    Raises:
        ServiceError: with everything that is wrong.
    """
    source = JobSource()
    problems = [source.problem(finding) for finding in check_shape(request, shape)]
    if problems:
        raise refusal(problems, code)


def refusal(problems: Iterable[Problem], code: str = "ValidationException") -> ServiceError:
    """Returns the error that a service answers with, of what is wrong with a request."""
    found = list(problems)
    for each in found:
        if each.broken is Broken.TYPE:
            return ServiceError("SerializationException", f"{each.field}: {each.message} (got {each.value})")
    told = [_sentence(each) for each in found[:_MOST_ERRORS]]
    if len(found) > _MOST_ERRORS:
        told.append(f"and {len(found) - _MOST_ERRORS} more")
    if all(each.broken in (Broken.LIMIT, Broken.MISSING) for each in found):
        count = f"{len(found)} validation error{'s' if len(found) > 1 else ''} detected: "
        return ServiceError(code, count + "; ".join(told))
    return ServiceError(code, "; ".join(told))


def _sentence(problem: Problem) -> str:
    if problem.broken is Broken.MISSING:
        return f"Value null at '{member_path(problem.field)}' {_CONSTRAINT}Member must not be null"
    if problem.broken is Broken.LIMIT:
        value = problem.value if problem.value[:1] in {"'", '"'} else f"'{problem.value}'"
        return f"Value {value} at '{member_path(problem.field)}' {problem.message}"
    seen = f" (got {problem.value})" if problem.value else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    bare = problem.code in ("", CLIENT) or problem.message[:1].islower()  # not a whole sentence of the service
    place = f"{problem.field}: " if bare else ""
    return f"{place}{problem.message}{seen}{hint if bare else ''}"


def member_path(field: str) -> str:
    """Returns a place in a request as the service names it.

    >>> member_path("ResourceConfig.InstanceGroups[1].InstanceType")
    'resourceConfig.instanceGroups.2.member.instanceType'
    """
    text = _INDEX.sub(lambda found: f".{int(found[1]) + 1}.member", field)
    return ".".join(part[:1].lower() + part[1:] for part in text.split("."))
