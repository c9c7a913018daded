"""Answers and errors in the caller's protocol: JSON, the XML of Query, headers and XML of REST. Pure, but for ids."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from email.utils import formatdate
from typing import Any

from headrace.endpoint.http.http_message import FileSlice, HttpReply
from headrace.endpoint.wire.models import JSON_TYPE, OperationModel, Protocol, ServiceError
from headrace.endpoint.wire.requests import Members
from headrace.job.sagemaker.check import Shape

_SPECIAL = re.compile('[\x00-\x08\x0a-\x1f&<>"\x7f\ufffe\uffff]')
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # in no document of XML
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_ERROR = Shape("string")


def request_id() -> str:
    """Returns an id for an answer."""
    text = secrets.token_hex(16)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def json_answer(members: Members, protocol: Protocol) -> HttpReply:
    """Returns an answer in JSON; times are numbers, seconds since the epoch."""
    return HttpReply(200, _head(_json_type(protocol), "x-amzn-RequestId", request_id()), _json(members))


def query_answer(operation: OperationModel, members: Members, namespace: str) -> HttpReply:
    """Returns an answer in the XML of Query."""
    identifier, name = request_id(), operation.name
    result = _element(f"{name}Result", members, operation.output, _legal)
    meta = f"<ResponseMetadata><RequestId>{identifier}</RequestId></ResponseMetadata>"
    body = f'<{name}Response xmlns="{namespace}">{result}{meta}</{name}Response>'
    return HttpReply(200, _head("text/xml", "x-amzn-RequestId", identifier), body.encode(errors="replace"))


def rest_answer(operation: OperationModel, members: Members, namespace: str, document: str = "") -> HttpReply:
    """Returns an answer of REST: headers, and the bytes of an object or a document.

    Args:
        operation: that is answered.
        members: of the answer.
        namespace: of the document.
        document: name of its outermost element; empty: it is a member, if there is one.
    """
    headers = [("x-amz-request-id", request_id())]
    body: bytes | FileSlice | Iterator[bytes] = b""
    elements: dict[str, Any] = {}
    for name, value in members.items():
        shape = operation.output.members[name]
        if shape.place == "header":
            headers.append((shape.name, _header(value)))
        elif shape.place == "headers":
            headers += [(f"{shape.name}{key}", text) for key, text in value.items()]
        elif shape.kind == "blob":
            body = value
        else:
            elements[name] = value
    if document or elements:
        content, shape = elements, operation.output
        if not document:
            ((document, content),) = elements.items()
            shape = shape.members[document]
        body = (_HEAD + _element(document, content, shape, _escaped, f' xmlns="{namespace}"')).encode(errors="replace")
        headers.append(("Content-Type", "application/xml"))
    return HttpReply(206 if "ContentRange" in members else operation.status, tuple(headers), body)


def error_answer(error: ServiceError, protocol: Protocol, *, bare: bool = False) -> HttpReply:
    """Returns an error in the caller's protocol; a bare one has no body."""
    identifier = request_id()
    texts = {"Code": error.code, "Message": error.message}
    if protocol is Protocol.S3:
        head = (*_head("application/xml", "x-amz-request-id", identifier), *error.headers)
        if bare or error.status == 304:
            return HttpReply(error.status, head)
        body = _HEAD + _texts("Error", **texts, **error.details, RequestId=identifier, HostId="headrace")
        return HttpReply(error.status, head, body.encode(errors="replace"))
    if protocol is Protocol.QUERY:
        inner = _texts("Error", Type="Receiver" if error.status >= 500 else "Sender", **texts)
        body = f"<ErrorResponse>{inner}<RequestId>{identifier}</RequestId></ErrorResponse>"
        return HttpReply(error.status, _head("text/xml", "x-amzn-RequestId", identifier), body.encode(errors="replace"))
    plain = {"__type": error.code, "message": error.message}
    if protocol is Protocol.CBOR:
        head = (*_head("application/cbor", "x-amzn-RequestId", identifier), ("Smithy-Protocol", "rpc-v2-cbor"))
        parts = (part.encode(errors="replace") for pair in plain.items() for part in pair)
        cbor = bytes([0xA0 | len(plain)]) + b"".join(b"\x79" + len(part).to_bytes(2, "big") + part for part in parts)
        return HttpReply(error.status, head, cbor)
    head = (*_head(_json_type(protocol), "x-amzn-RequestId", identifier), ("x-amzn-ErrorType", error.code))
    return HttpReply(error.status, head, _json(plain))


def _head(kind: str, name: str, identifier: str) -> tuple[tuple[str, str], ...]:
    return (("Content-Type", kind), (name, identifier), ("Cache-Control", "no-store"))


def _json_type(protocol: Protocol) -> str:
    return f"{JSON_TYPE}{protocol.value}" if protocol.is_json else "application/json"


def _json(value: object) -> bytes:
    return json.dumps(value, default=_seconds, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _seconds(value: object) -> object:
    if isinstance(value, datetime):
        return round(value.timestamp(), 3)
    raise TypeError(f"{type(value).__name__} is no value of an answer")


def _header(value: object) -> str:
    if isinstance(value, datetime):
        return formatdate(int(value.timestamp()), usegmt=True)
    return _plain(value)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _element(name: str, value: Any, shape: Shape, escape: Callable[[str], str], attributes: str = "") -> str:
    if shape.flat:
        return "".join(_element(name, each, shape.inner["member"], escape) for each in value)
    if shape.kind == "structure":
        members = shape.members
        inner = "".join(_element(members[key].name or key, each, members[key], escape) for key, each in value.items())
    elif shape.kind == "list":
        item = shape.inner["member"]
        inner = "".join(_element(item.name or "member", each, item, escape) for each in value)
    elif isinstance(value, datetime):
        inner = value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    else:
        inner = escape(_plain(value))
    return f"<{name}{attributes}>{inner}</{name}>"


def _texts(name: str, **texts: str) -> str:
    return f"<{name}>{''.join(_element(key, text, _ERROR, _legal) for key, text in texts.items())}</{name}>"


def _escaped(content: str) -> str:
    """Returns a text as S3 shows it: a key may hold what no document of XML may."""
    return _SPECIAL.sub(lambda match: f"&#x{ord(match[0]):x};", content)


def _legal(content: str) -> str:
    return _escaped(_ILLEGAL.sub("\ufffd", content))
