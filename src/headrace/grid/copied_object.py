"""Objects as S3 lists them, what of two objects can be compared, and why a copy failed. Pure, but for the listing.

An ETag is the MD5 of the content of an object that was written as a whole, and a digest of its parts' MD5s where it
was written in parts. Under a KMS key, under a customer's key and in directory buckets it is neither. A checksum of
the whole content, which S3 keeps of most new objects, is compared where both have one of the same kind.

The marker of a copy is an object beside the copied ones, written when all of them were verified.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import msgspec

from headrace.aws_errors import AwsFault, fault_of
from headrace.errors import HeadraceError, ObjectChanged, ObjectMissing, StorageError, UsageError
from headrace.instance.s3 import S3


class CopyFailure(Enum):
    """What went wrong."""

    SOURCE_MISSING = "the data are not there"
    SOURCE_CHANGED = "the data changed while they were copied"
    ARCHIVED = "the data are archived and must be restored first"
    TARGET_MISSING = "the place of the copy is not there"
    TARGET_DIFFERS = "the copy is not what was copied"
    WRONG_REGION = "a bucket is in another region than was said"
    OVERLAP = "the place of the copy lies in the data"
    DENIED = "the credentials may not do that"
    CREDENTIALS = "the credentials are wrong, too old or not there"
    THROTTLED = "the service asks for fewer requests"
    NO_ANSWER = "no answer"
    UPLOAD_LOST = "an unfinished upload was removed by somebody else"
    STOPPED = "stopped on request"
    OTHER = "the service refused"


PASSING = frozenset((CopyFailure.THROTTLED, CopyFailure.NO_ANSWER, CopyFailure.UPLOAD_LOST, CopyFailure.STOPPED))
"""What may go well another time though nobody changes anything."""

_FAULTS = {
    AwsFault.DENIED: CopyFailure.DENIED,
    **dict.fromkeys((AwsFault.BAD_KEYS, AwsFault.EXPIRED), CopyFailure.CREDENTIALS),
    **dict.fromkeys((AwsFault.BUSY, AwsFault.INTERNAL), CopyFailure.THROTTLED),
}


class CopyFailed(StorageError):
    """A copy is not whole. What was copied stays, and is not copied again by the next attempt.

    Args:
        failure: what went wrong.
        message: with the place that it is about.
        hint: what to do.
    """

    def __init__(self, failure: CopyFailure, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.failure = failure

    @property
    def passing(self) -> bool:
        """Whether another attempt may go well though nobody changes anything."""
        return self.failure in PASSING


def copy_failed(error: HeadraceError, *, writing: bool) -> CopyFailed:
    """Returns what an error of S3 is to a copy.

    Args:
        error: as `headrace.instance.s3.S3` raises it.
        writing: it was raised by a request to the place of the copy.
    """
    if isinstance(error, CopyFailed):
        return error
    return CopyFailed(_failure(error, writing), error.message, error.hint)


def _failure(error: HeadraceError, writing: bool) -> CopyFailure:
    if isinstance(error, UsageError):
        return CopyFailure.CREDENTIALS  # or the profile is none
    if isinstance(error, ObjectChanged):
        return CopyFailure.SOURCE_CHANGED
    response: dict[str, Any] | None = getattr(error.__cause__, "response", None)
    code = str((response or {}).get("Error", {}).get("Code", ""))
    if code == "NoSuchKey":
        return CopyFailure.SOURCE_CHANGED  # it was listed
    if code == "NoSuchUpload":
        return CopyFailure.UPLOAD_LOST
    if isinstance(error, ObjectMissing):
        return CopyFailure.TARGET_MISSING if writing else CopyFailure.SOURCE_MISSING
    if code == "InvalidObjectState":
        return CopyFailure.ARCHIVED
    if response is None:
        return CopyFailure.NO_ANSWER
    return _FAULTS.get(fault_of(code), CopyFailure.OTHER)


MARKER = "headrace-copy.json"
OBJECTS = "objects/"
BYTES_OF_GIGABYTE = 10**9
_VERSION = 1


class CopyMarker(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a whole copy.

    Attributes:
        place: ``s3://`` place of the data.
        source_region: where they are.
        objects: how many.
        bytes: of all of them.
        source_digest: of the listing that was copied.
        copy_digest: of the listing of the copy.
        compared: how many objects by what, see `headrace.grid.copied_object.Compared`.
        owner: who made the copy, and pays for it.
        finished: seconds since the epoch.
        version: of this form.
    """

    place: str
    source_region: str
    objects: Annotated[int, msgspec.Meta(ge=1)]
    bytes: int
    source_digest: str
    copy_digest: str
    compared: dict[str, int]
    owner: str
    finished: float
    version: int = _VERSION


_decoder = msgspec.json.Decoder(CopyMarker)


def read_marker(s3: S3, bucket: str, root: str) -> CopyMarker | None:
    """Returns the marker below a prefix; None when there is none, or what is there is none of this version.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        found = _decoder.decode(s3.get(bucket, root + MARKER))
    except (ObjectMissing, msgspec.DecodeError):
        return None
    return found if found.version == _VERSION else None


def write_marker(s3: S3, bucket: str, root: str, marker: CopyMarker) -> None:
    """Writes the marker. Raises StorageError."""
    s3.put(msgspec.json.format(msgspec.json.encode(marker)), bucket, root + MARKER)


ARCHIVES = frozenset(("GLACIER", "DEEP_ARCHIVE"))
_MD5 = re.compile(r"[0-9a-f]{32}")
_WHOLE = "FULL_OBJECT"
_CHECKSUMS = ("ChecksumCRC64NVME", "ChecksumSHA256", "ChecksumSHA1", "ChecksumCRC32C", "ChecksumCRC32")


class Compared(Enum):
    """By what an object and its copy were found to be the same."""

    ETAG = "etag"
    """Equal ETags."""
    CHECKSUM = "checksum"
    """Equal checksums of the whole content."""
    SIZE = "size"
    """Nothing but their sizes: S3 has no other figure that both of them have."""


@dataclass(frozen=True)
class ListedObject:
    """An object.

    Attributes:
        key: its key.
        size: bytes.
        etag: S3's, with its quotation marks.
        storage: class of its storage, which may change while the object stays the same.
    """

    key: str
    size: int
    etag: str
    storage: str = field(default="", compare=False)

    @property
    def parts(self) -> int:
        """In how many parts it was written; 0 when as a whole."""
        number = self.etag.strip('"').rpartition("-")[2]
        return int(number) if "-" in self.etag and number.isdecimal() else 0


@dataclass(frozen=True)
class Look:
    """What more S3 says of an object.

    Attributes:
        checksums: of the whole content, by S3's names of them.
        plain: its ETag is made of MD5s.
    """

    checksums: Mapping[str, str]
    plain: bool


def list_objects(s3: S3, bucket: str, prefix: str) -> tuple[ListedObject, ...]:
    """Lists all objects whose keys begin with a prefix, by their keys; folders' markers too.

    Raises:
        StorageError, UsageError: it cannot be listed.
    """
    found: list[ListedObject] = []
    with s3.told(f"s3://{bucket}/{prefix}"):
        for page in s3.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", ()):
                found.append(ListedObject(entry["Key"], entry["Size"], entry["ETag"], entry.get("StorageClass", "")))
    return tuple(sorted(found, key=lambda each: each.key.encode()))


def bucket_region(s3: S3, bucket: str) -> str:
    """Returns the region of a bucket; empty where a server of somebody else has it. Raises StorageError."""
    with s3.told(f"s3://{bucket}"):
        answer = s3.client.head_bucket(Bucket=bucket)
    return str(answer.get("BucketRegion", "")) if s3.of_aws else ""


def look_at(s3: S3, bucket: str, key: str) -> Look:
    """Asks for what more can be compared of an object. Raises StorageError."""
    with s3.told(f"s3://{bucket}/{key}"):
        answer = s3.client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    whole = answer.get("ChecksumType", _WHOLE) == _WHOLE
    sums = {name: str(answer[name]) for name in _CHECKSUMS if whole and name in answer and "-" not in answer[name]}
    encrypted = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in answer
    return Look(sums, not encrypted and not bucket.endswith("--x-s3"))


def compared(source: tuple[str, Look], copy: tuple[str, Look]) -> Compared | None:
    """Tells by what two objects of one size are the same; None when they differ.

    >>> old, new = Look({}, True), Look({}, False)
    >>> md5 = "0" * 32
    >>> compared((md5, old), (md5, new)), compared((md5, old), ("1" * 32, old)), compared((md5, old), ("1" * 32, new))
    (<Compared.ETAG: 'etag'>, None, <Compared.SIZE: 'size'>)

    Args:
        source: ETag, and what more is known.
        copy: the same of the copy.
    """
    etags = source[0].strip('"'), copy[0].strip('"')
    if etags[0] == etags[1]:
        return Compared.ETAG
    common = [name for name in _CHECKSUMS if name in source[1].checksums and name in copy[1].checksums]
    if common:
        same = all(source[1].checksums[name] == copy[1].checksums[name] for name in common)
        return Compared.CHECKSUM if same else None
    comparable = source[1].plain and copy[1].plain and all(_MD5.fullmatch(etag) for etag in etags)
    return None if comparable else Compared.SIZE


def digest_of_objects(objects: Iterable[ListedObject]) -> str:
    """Returns what tells two listings apart: names, sizes and ETags."""
    digest = hashlib.sha256()
    for each in objects:
        digest.update(f"{each.size} {each.etag} {len(each.key)} {each.key}\n".encode())
    return digest.hexdigest()
