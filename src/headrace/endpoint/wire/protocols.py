"""What a service refuses, and the protocols of AWS: which one a caller speaks.

A caller understands an error in the protocol of its own request only. In another one boto3 shows ``400`` in place of
the code, or fails while it parses.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

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
