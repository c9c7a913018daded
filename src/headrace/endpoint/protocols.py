"""The forms in which AWS services answer and refuse: which one a caller expects, and how it is written.

A caller understands an error in the protocol of its own request only. In another one boto3 shows ``400`` in place of
the code, or fails while it parses.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from xml.sax.saxutils import escape

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
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


def protocol_of(target: str, content_type: str, smithy: str, query: str, service: str) -> Protocol:
    """Returns the protocol that a caller speaks. Pure.

    Args:
        target: the header ``X-Amz-Target``.
        content_type: of the request.
        smithy: the header ``Smithy-Protocol``.
        query: of the address.
        service: that the request is signed for; empty when that is not known.
    """
    if smithy == "rpc-v2-cbor":
        return Protocol.CBOR
    if target:
        return Protocol.JSON_1_0 if content_type.startswith(f"{JSON_TYPE}1.0") else Protocol.JSON_1_1
    if service == "s3":
        return Protocol.S3
    if content_type.startswith(FORM_TYPE) or query.startswith("Action=") or "&Action=" in query:
        return Protocol.QUERY
    return Protocol.REST_JSON if service else Protocol.S3


def request_id() -> str:
    """Returns an id for an answer."""
    text = secrets.token_hex(16)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def json_body(value: object) -> bytes:
    """Returns the JSON of an answer; times are numbers, seconds since the epoch."""
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return round(value.timestamp(), 3)
    raise TypeError(f"{type(value).__name__} is no value of an answer")


def json_head(protocol: Protocol) -> dict[str, str]:
    """Returns the headers of a JSON answer."""
    kind = f"{JSON_TYPE}{protocol.value}" if protocol.is_json else "application/json"
    return {"Content-Type": kind, "x-amzn-RequestId": request_id(), "Cache-Control": "no-store"}


def query_body(action: str, result: Mapping[str, object], namespace: str) -> bytes:
    """Returns the XML of an answer in the Query protocol. Lists become ``member`` elements."""
    inner = f"<{action}Result>{_xml(result)}</{action}Result>"
    meta = f"<ResponseMetadata><RequestId>{request_id()}</RequestId></ResponseMetadata>"
    return f'<{action}Response xmlns="{namespace}">{inner}{meta}</{action}Response>'.encode(errors="replace")


def _xml(value: object) -> str:
    if isinstance(value, Mapping):
        return "".join(f"<{name}>{_xml(each)}</{name}>" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return "".join(f"<member>{_xml(each)}</member>" for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return escape("".join(letter for letter in str(value) if letter >= " " or letter in "\t\n\r"))


def error_answer(error: ServiceError, protocol: Protocol) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers and body of an error in the caller's protocol."""
    one = request_id()
    head = {"x-amzn-RequestId": one, "Cache-Control": "no-store"}
    if protocol is Protocol.S3:
        text = f"<Code>{escape(error.code)}</Code><Message>{_xml(error.message)}</Message><RequestId>{one}</RequestId>"
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{text}</Error>'
        return error.status, {**head, "Content-Type": "application/xml"}, body.encode(errors="replace")
    if protocol is Protocol.QUERY:
        kind = "Receiver" if error.status >= 500 else "Sender"
        inner = f"<Type>{kind}</Type><Code>{escape(error.code)}</Code><Message>{_xml(error.message)}</Message>"
        body = f"<ErrorResponse><Error>{inner}</Error><RequestId>{one}</RequestId></ErrorResponse>"
        return error.status, {**head, "Content-Type": "text/xml"}, body.encode(errors="replace")
    if protocol is Protocol.CBOR:
        head |= {"Content-Type": "application/cbor", "Smithy-Protocol": "rpc-v2-cbor"}
        return error.status, head, _cbor({"__type": error.code, "message": error.message})
    head |= {"x-amzn-ErrorType": error.code, **json_head(protocol), "x-amzn-RequestId": one}
    return error.status, head, json_body({"__type": error.code, "message": error.message})


def _cbor(texts: Mapping[str, str]) -> bytes:
    parts = (part.encode(errors="replace") for pair in texts.items() for part in pair)
    return bytes([0xA0 | len(texts)]) + b"".join(b"\x79" + len(part).to_bytes(2, "big") + part for part in parts)
