"""GetObject and HeadObject: conditions, ranges, and the file's bytes by the kernel."""

from __future__ import annotations

import os
import re
from email.utils import formatdate, parsedate_to_datetime

from headrace.endpoint.http.http_message import FileSlice, Headers, HttpReply
from headrace.endpoint.s3.object_checksums import HEADER
from headrace.endpoint.s3.object_store import ObjectInfo, ObjectStore
from headrace.endpoint.s3.s3_errors import S3Error, request_id
from headrace.endpoint.s3.s3_request import S3Request, same_etag

_RANGE = re.compile(r"bytes=(?:(\d{1,19})-(\d{0,19})|-(\d{1,19}))")
OVERRIDES = (
    "content-type", "cache-control", "content-disposition", "content-encoding", "content-language", "expires"
)  # fmt: skip


def get_object(store: ObjectStore, request: S3Request) -> HttpReply:
    """Answers GetObject and HeadObject.

    Raises:
        S3Error: there is no such object, a condition does not hold, or the range lies outside.
    """
    info, descriptor = store.open(request.bucket, request.key)
    try:
        headers = request.http.headers
        check_conditions(headers, info)
        begin, end, partial = _extent(request, info)
        shown = (*_headers(request, info, partial=partial), ("Content-Length", str(end - begin)))
        if partial:
            shown += (("Content-Range", f"bytes {begin}-{end - 1}/{info.size}"),)
        if request.http.method == "HEAD":
            os.close(descriptor)
            return HttpReply(206 if partial else 200, shown)
        return HttpReply(206 if partial else 200, shown, FileSlice(descriptor, begin, end - begin))
    except S3Error:
        os.close(descriptor)
        raise


def check_conditions(headers: Headers, info: ObjectInfo, beginning: str = "") -> None:
    """Checks the conditions under which an object is wanted.

    Args:
        headers: of the request.
        info: the object.
        beginning: of the conditions' names: ``x-amz-copy-source-`` for the source of a copy.

    Raises:
        S3Error: one does not hold: NotModified or PreconditionFailed.
    """
    copied = bool(beginning)
    match, none_match = headers.get(f"{beginning}if-match"), headers.get(f"{beginning}if-none-match")
    since = _time(headers, f"{beginning}if-modified-since")
    unmodified = _time(headers, f"{beginning}if-unmodified-since")
    if match:
        if not same_etag(match, info.etag):
            raise S3Error("PreconditionFailed", Condition="If-Match")
    elif unmodified is not None and int(info.modified) > unmodified:
        raise S3Error("PreconditionFailed", Condition="If-Unmodified-Since")
    changed = not same_etag(none_match, info.etag) if none_match else since is None or int(info.modified) > since
    if not changed and copied:
        raise S3Error("PreconditionFailed", Condition="x-amz-copy-source-If-None-Match")
    if not changed:
        raise S3Error("NotModified", headers=(("ETag", f'"{info.etag}"'), ("Last-Modified", http_time(info))))


def http_time(info: ObjectInfo) -> str:
    """Returns when an object was changed, as headers show it."""
    return formatdate(int(info.modified), usegmt=True)


def checksum_headers(info: ObjectInfo) -> tuple[tuple[str, str], ...]:
    """Returns the headers that show an object's checksums."""
    found = tuple((HEADER + name, value) for name, value in info.known.checksums.items())
    return (*found, (f"{HEADER}type", info.known.kind)) if found else ()


def _time(headers: Headers, name: str) -> int | None:
    if name not in headers:
        return None
    try:
        return int(parsedate_to_datetime(headers[name]).timestamp())
    except (ValueError, OverflowError):
        return None  # as S3 does, and RFC 9110 asks for


def _extent(request: S3Request, info: ObjectInfo) -> tuple[int, int, bool]:
    """Returns begin and end of the bytes that are wanted, and whether they were asked for."""
    if "partNumber" in request.query:
        number = request.number("partNumber", 1, 1, 10_000)
        sizes = info.known.parts or (info.size,)
        if number > len(sizes):
            raise S3Error("InvalidPartNumber", PartNumberRequested=str(number), ActualPartCount=str(len(sizes)))
        begin = sum(sizes[: number - 1])
        return begin, begin + sizes[number - 1], info.size > 0
    given = request.http.headers.get("range")
    found = _RANGE.fullmatch(given.replace(" ", ""))
    if found is None:
        return 0, info.size, False  # also for several ranges, as S3 does
    first, last, suffix = found.groups()
    begin = int(first) if suffix is None else max(0, info.size - int(suffix))
    end = min(info.size, int(last) + 1) if last else info.size
    if last and int(last) < int(first):
        return 0, info.size, False
    if begin >= info.size or suffix == "0":
        raise S3Error(
            "InvalidRange", headers=(("Content-Range", f"bytes */{info.size}"),),
            RangeRequested=given, ActualObjectSize=str(info.size),
        )  # fmt: skip
    return begin, end, True


def _headers(request: S3Request, info: ObjectInfo, *, partial: bool) -> tuple[tuple[str, str], ...]:
    kept = {"content-type": "binary/octet-stream", **info.known.headers}
    for name in OVERRIDES:
        if given := request.query.get(f"response-{name}"):
            if not given.isprintable():
                raise S3Error("InvalidArgument", ArgumentName=f"response-{name}")
            kept[name] = given
    found = (
        ("x-amz-request-id", request_id()),
        ("Last-Modified", http_time(info)),
        ("ETag", f'"{info.etag}"'),
        ("Accept-Ranges", "bytes"),
        *kept.items(),
    )
    if "partNumber" in request.query and info.known.parts:
        found += (("x-amz-mp-parts-count", str(len(info.known.parts))),)
    if not partial and request.http.headers.get("x-amz-checksum-mode").lower() == "enabled":
        found += checksum_headers(info)
    return found
