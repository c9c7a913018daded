"""What operations of S3 have in common: the request, its numbers and conditions, what is kept of an upload."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import quote, unquote_to_bytes

from headrace.endpoint.auth.job_rights import JobRights
from headrace.endpoint.http.http_message import HttpRequest
from headrace.endpoint.s3.object_store import KEY_BYTES, Known, ObjectInfo
from headrace.endpoint.s3.s3_errors import S3Error
from headrace.endpoint.wire.requests import Members

KEPT = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Expires")
_META_BYTES = 2048


@dataclass(frozen=True)
class S3Request:
    """A request as it came, and what its sender may do; None: all."""

    http: HttpRequest
    rights: JobRights | None = None


def key_of(members: Members) -> bytes:
    """Returns the key that a request is about."""
    return str(members["Key"]).encode()


def number(members: Members, name: str, default: int, least: int, most: int) -> int:
    """Returns a number of a request. Raises S3Error: it is out of its range."""
    value: int = members.get(name, default)
    if name in members and not least <= value <= most:
        words = f"{name} has to be a number from {least} to {most}"
        raise S3Error("InvalidArgument", words, ArgumentName=name, ArgumentValue=str(value))
    return value


def moment(seconds: float) -> datetime:
    """Returns a time as answers have it: whole seconds, as S3 keeps them."""
    return datetime.fromtimestamp(int(seconds), timezone.utc)


def shown_key(key: bytes, members: Members) -> str:
    """Returns a key as a list shows it. Raises S3Error: the client asks for another encoding than ``url``."""
    encoding = members.get("EncodingType", "")
    if encoding not in ("", "url"):
        raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request", ArgumentName="encoding-type")
    return quote(key, safe="/") if encoding else key.decode()


def checksums_of(known: Known) -> dict[str, str]:
    """Returns the members that show an object's checksums."""
    members = {f"Checksum{name.upper()}": value for name, value in known.checksums.items()}
    return members | ({"ChecksumType": known.kind} if members else {})


def kept_members(members: Members) -> dict[str, object]:
    """Returns the members of an upload that are kept with the object.

    Raises:
        S3Error: the user's metadata is too large.
    """
    kept = {name: members[name] for name in KEPT if name in members}
    if "ContentEncoding" in kept:  # the framing of the upload is none of the object's
        codings = [each.strip() for each in kept["ContentEncoding"].split(",")]
        kept["ContentEncoding"] = ", ".join(each for each in codings if each and each.lower() != "aws-chunked")
        if not kept["ContentEncoding"]:
            del kept["ContentEncoding"]
    size = sum(len(name) + len(value.encode()) for name, value in members["Metadata"].items())
    if size > _META_BYTES:
        raise S3Error("MetadataTooLarge", Size=str(size), MaxSizeAllowed=str(_META_BYTES))
    return {"ContentType": "binary/octet-stream", **kept, "Metadata": members["Metadata"]}


def copy_source(members: Members) -> tuple[str, bytes]:
    """Returns bucket and key of what is to be copied. Raises S3Error: the header names none."""
    name, _, version = str(members["CopySource"]).partition("?")
    bucket, _, key = unquote_to_bytes(name).removeprefix(b"/").partition(b"/")
    try:
        key.decode()
        if version not in ("", "versionId=null") or not bucket or not 0 < len(key) <= KEY_BYTES:
            raise ValueError
        return bucket.decode(), key
    except ValueError:
        raise S3Error("InvalidArgument", "Invalid copy source", ArgumentName="x-amz-copy-source") from None


def check_conditions(members: Members, info: ObjectInfo, beginning: str = "") -> None:
    """Checks the conditions under which an object is wanted.

    Args:
        members: of the request.
        info: the object.
        beginning: of the conditions' names: ``CopySource`` for the source of a copy.

    Raises:
        S3Error: one does not hold: NotModified or PreconditionFailed.
    """
    match, none_match = members.get(f"{beginning}IfMatch"), members.get(f"{beginning}IfNoneMatch")
    since = _time(members.get(f"{beginning}IfModifiedSince"))
    unmodified = _time(members.get(f"{beginning}IfUnmodifiedSince"))
    if match:
        if not _same_etag(match, info.etag):
            raise S3Error("PreconditionFailed", Condition="If-Match")
    elif unmodified is not None and int(info.modified) > unmodified:
        raise S3Error("PreconditionFailed", Condition="If-Unmodified-Since")
    changed = not _same_etag(none_match, info.etag) if none_match else since is None or int(info.modified) > since
    if not changed and beginning:
        raise S3Error("PreconditionFailed", Condition="x-amz-copy-source-If-None-Match")
    if not changed:
        modified = formatdate(int(info.modified), usegmt=True)
        raise S3Error("NotModified", headers=(("ETag", f'"{info.etag}"'), ("Last-Modified", modified)))


def check_replaced(members: Members, info: ObjectInfo | None) -> None:
    """Checks the conditions under which an object may be replaced or removed. Raises S3Error: one does not hold."""
    if "IfNoneMatch" in members:
        if members["IfNoneMatch"] != "*":
            raise S3Error("NotImplemented", Header="If-None-Match")
        if info is not None:
            raise S3Error("PreconditionFailed", Condition="If-None-Match")
    if "IfMatch" in members:
        check_etag(members["IfMatch"], info)


def check_etag(etags: str, info: ObjectInfo | None) -> None:
    """Checks that an object is there, and is the one that a client names by its ETag. Raises S3Error."""
    if info is None:
        raise S3Error("NoSuchKey")
    if not _same_etag(etags, info.etag):
        raise S3Error("PreconditionFailed", Condition="If-Match")


def _same_etag(etags: str, etag: str) -> bool:
    """Tells whether a list of ETags, as conditions name them, has an object's."""
    listed = [each.strip().removeprefix("W/").strip('"') for each in etags.split(",")]
    return "*" in listed or etag in listed


def _time(text: str | None) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp()) if text is not None else None
    except (ValueError, OverflowError):
        return None  # as S3 does, and RFC 9110 asks for
