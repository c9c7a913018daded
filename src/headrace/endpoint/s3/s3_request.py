"""What a request asks of S3: bucket, key and the query's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

from headrace.endpoint.auth.job_rights import JobRights
from headrace.endpoint.http.http_message import HttpRequest
from headrace.endpoint.s3.object_store import KEY_BYTES, ObjectInfo
from headrace.endpoint.s3.s3_errors import S3Error

_KEPT_HEADERS = (
    "content-type", "cache-control", "content-disposition", "content-encoding", "content-language", "expires"
)  # fmt: skip
META = "x-amz-meta-"
_META_BYTES = 2048
_REFUSED = (
    "x-amz-server-side-encryption-customer-", "x-amz-object-lock-", "x-amz-write-offset-bytes", "x-amz-tagging",
    "x-amz-website-redirect-location", "x-amz-copy-source-server-side-encryption-customer-",
)  # fmt: skip
"""Beginnings of headers that ask for what is not done here, and whose absence a client would notice."""


@dataclass(frozen=True)
class S3Request:
    """A request.

    Attributes:
        http: as it came.
        bucket: empty if the request is about none.
        key: UTF-8; empty if the request is about the bucket.
        query: parameters, the first of each name.
        rights: what the sender may do; None: all.
    """

    http: HttpRequest
    bucket: str
    key: bytes
    query: Mapping[str, str]
    rights: JobRights | None = None

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Returns a number of the query.

        Raises:
            S3Error: it is none, or out of its range.
        """
        given = self.query.get(name, "")
        if not given:
            return default
        if not (given.isascii() and given.isdigit() and len(given) < 11 and least <= int(given) <= most):
            raise S3Error(
                "InvalidArgument", f"{name} has to be a number from {least} to {most}",
                ArgumentName=name, ArgumentValue=given,
            )  # fmt: skip
        return int(given)


def read_request(http: HttpRequest, rights: JobRights | None = None) -> S3Request:
    """Reads a request.

    Args:
        http: as it came.
        rights: what the sender may do; None: all.

    Raises:
        S3Error: it is malformed, or asks for what is not done here.
    """
    try:
        path = unquote_to_bytes(http.raw_path.removeprefix("/"))
        pairs = parse_qsl(http.raw_query, keep_blank_values=True, errors="strict", max_num_fields=100)
        first, _, key = path.partition(b"/")
        bucket = first.decode()
        key.decode()
    except ValueError:
        raise S3Error("InvalidURI") from None
    if len(key) > KEY_BYTES:
        raise S3Error("KeyTooLongError", Size=str(len(key)), MaxSizeAllowed=str(KEY_BYTES))
    query: dict[str, str] = {}
    for name, value in pairs:
        query.setdefault(name, value)
    for name, _ in http.headers:
        if name.lower().startswith(_REFUSED):
            raise S3Error("NotImplemented", Header=name)
    if query.get("versionId", "null") != "null":
        raise S3Error("InvalidArgument", "Invalid version id specified", ArgumentName="versionId")
    return S3Request(http, bucket, key, query, rights)


def kept_headers(http: HttpRequest) -> dict[str, str]:
    """Returns the headers of an upload that are kept with the object.

    Raises:
        S3Error: the user's metadata is too large.
    """
    found = {name: http.headers[name] for name in _KEPT_HEADERS if name in http.headers}
    if "content-encoding" in found:  # the framing of the upload is none of the object's
        codings = [each.strip() for each in found["content-encoding"].split(",")]
        left = ", ".join(each for each in codings if each and each.lower() != "aws-chunked")
        found["content-encoding"] = left
        if not left:
            del found["content-encoding"]
    found.setdefault("content-type", "binary/octet-stream")
    meta: dict[str, str] = {}
    for name, value in http.headers:
        if name.lower().startswith(META):
            known = meta.get(name.lower())
            meta[name.lower()] = value if known is None else f"{known},{value}"
    size = sum(len(name) - len(META) + len(value.encode()) for name, value in meta.items())
    if size > _META_BYTES:
        raise S3Error("MetadataTooLarge", Size=str(size), MaxSizeAllowed=str(_META_BYTES))
    return found | meta


def same_etag(given: str, etag: str) -> bool:
    """Tells whether a list of ETags, as conditions name them, has an object's."""
    wanted = [each.strip().removeprefix("W/").strip('"') for each in given.split(",")]
    return "*" in wanted or etag in wanted


def check_replaced(http: HttpRequest, there: ObjectInfo | None) -> None:
    """Checks the conditions under which an object may be replaced or removed.

    Raises:
        S3Error: one does not hold.
    """
    if "if-none-match" in http.headers:
        if http.headers["if-none-match"] != "*":
            raise S3Error("NotImplemented", Header="If-None-Match")
        if there is not None:
            raise S3Error("PreconditionFailed", Condition="If-None-Match")
    if "if-match" in http.headers:
        check_etag(http.headers["if-match"], there)


def check_etag(given: str, there: ObjectInfo | None) -> None:
    """Checks that an object is there, and is the one that a client names by its ETag. Raises S3Error."""
    if there is None:
        raise S3Error("NoSuchKey")
    if not same_etag(given, there.etag):
        raise S3Error("PreconditionFailed", Condition="If-Match")
