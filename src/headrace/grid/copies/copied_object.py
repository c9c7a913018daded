"""Objects as S3 lists them, and what of two objects can be compared. Pure, but for the listing.

An ETag is the MD5 of the content of an object that was written as a whole, and a digest of its parts' MD5s where it
was written in parts. Under a KMS key, under a customer's key and in directory buckets it is neither. A checksum of
the whole content, which S3 keeps of most new objects, is compared where both have one of the same kind.

The marker of a copy is an object beside the copied ones, written when all of them were verified.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import msgspec

from headrace.errors import ObjectMissing
from headrace.instance.s3 import S3

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
        compared: how many objects by what, see `headrace.grid.copies.copied_object.Compared`.
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
    """Asks for the checksums of an object. Raises StorageError."""
    with s3.told(f"s3://{bucket}/{key}"):
        return look_of(s3.client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED"), bucket)


def look_of(answer: Mapping[str, Any], bucket: str) -> Look:
    """Returns what an answer of HeadObject says that can be compared."""
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
    for line in _lines(objects):
        digest.update(line)
    return digest.hexdigest()


def _lines(objects: Iterable[ListedObject]) -> Iterator[bytes]:
    for each in objects:
        yield f"{each.size} {each.etag} {len(each.key)} {each.key}\n".encode()
