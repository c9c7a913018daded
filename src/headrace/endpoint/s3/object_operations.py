"""Objects: read in whole or in part, put, copied, deleted. Bytes go by the kernel where it can."""

from __future__ import annotations

import os
import re
from typing import Any

from headrace.endpoint.http.http_message import FileSlice
from headrace.endpoint.s3.object_store import Known, ObjectInfo, ObjectStore, copy_bytes
from headrace.endpoint.s3.s3_errors import S3Error
from headrace.endpoint.s3.s3_request import (
    KEPT,
    S3Request,
    check_conditions,
    check_etag,
    check_replaced,
    checksums_of,
    copy_source,
    kept_members,
    key_of,
    moment,
    number,
)
from headrace.endpoint.s3.upload_body import digest_of, encode, receive
from headrace.endpoint.wire.requests import Members

_RANGE = re.compile(r"bytes=(?:(\d{1,19})-(\d{0,19})|-(\d{1,19}))")
_DELETED_AT_ONCE = 1000


class ObjectOperations:
    """Answers what is asked of objects.

    Args:
        store: the objects.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, members: Members, _: S3Request) -> Members:
        """GetObject. Raises S3Error: it is not there, a condition does not hold, or the range lies outside."""
        answer, descriptor, begin = self._opened(members)
        return {**answer, "Body": FileSlice(descriptor, begin, answer["ContentLength"])}

    def head(self, members: Members, _: S3Request) -> Members:
        """HeadObject. Raises S3Error as `get`."""
        answer, descriptor, _begin = self._opened(members)
        os.close(descriptor)
        return answer

    def _opened(self, members: Members) -> tuple[dict[str, Any], int, int]:
        """Returns the answer about an object, its open file, and where the bytes begin that are wanted."""
        info, descriptor = self._store.open(members["Bucket"], key_of(members))
        try:
            check_conditions(members, info)
            begin, end, partial = _extent(members, info)
            answer = {
                "LastModified": moment(info.modified),
                "ETag": f'"{info.etag}"',
                "AcceptRanges": "bytes",
                "ContentType": "binary/octet-stream",
                **info.known.members,
                **_overrides(members),
                "ContentLength": end - begin,
            }
            if "PartNumber" in members and info.known.parts:
                answer["PartsCount"] = len(info.known.parts)
            if partial:
                answer["ContentRange"] = f"bytes {begin}-{end - 1}/{info.size}"
            elif str(members.get("ChecksumMode")).lower() == "enabled":
                answer |= checksums_of(info.known)
        except S3Error:
            os.close(descriptor)
            raise
        return answer, descriptor, begin

    def put(self, members: Members, request: S3Request) -> Members:
        """PutObject. Raises S3Error: the object cannot be put, or its bytes did not come."""
        bucket, key = members["Bucket"], key_of(members)
        self._store.check_place(bucket, key)
        kept = kept_members(members)
        with self._store.incoming() as (descriptor, path):
            received = receive(request.http, descriptor)
            known = Known(kept, received.checksums)
            info = self._store.place(path, bucket, key, received.md5, known, lambda old: check_replaced(members, old))
        return {"ETag": f'"{info.etag}"', **checksums_of(info.known)}

    def copy(self, members: Members, _: S3Request) -> Members:
        """CopyObject. Raises S3Error: there is no such object, or it cannot be copied there."""
        source, target = copy_source(members), (members["Bucket"], key_of(members))
        self._store.check_place(*target)
        replaces = members.get("MetadataDirective", "COPY").upper()
        if replaces not in ("COPY", "REPLACE"):
            raise S3Error("InvalidArgument", "Unknown metadata directive.", ArgumentName="x-amz-metadata-directive")
        info, file = self._store.open(*source)
        try:
            check_conditions(members, info, "CopySource")
            if source == target and replaces == "COPY":
                raise S3Error(
                    "InvalidRequest",
                    "This copy request is illegal because it is trying to copy an object to itself without changing "
                    "the object's metadata, storage class, website redirect location or encryption attributes.",
                )
            with self._store.incoming() as (descriptor, path):
                copy_bytes(file, 0, info.size, descriptor, 0)
                etag = info.etag if "-" not in info.etag else digest_of("md5", descriptor, 0, info.size).hex()
                kept = kept_members(members) if replaces == "REPLACE" else info.known.members
                checksums = info.known.checksums if info.known.kind == "FULL_OBJECT" else {}
                if algorithm := members.get("ChecksumAlgorithm", "").lower():
                    checksums = {algorithm: encode(digest_of(algorithm, descriptor, 0, info.size))}
                placed = self._store.place(
                    path, *target, etag, Known(kept, checksums), lambda old: check_replaced(members, old)
                )
        finally:
            os.close(file)
        result = {"LastModified": moment(placed.modified), "ETag": f'"{placed.etag}"', **checksums_of(placed.known)}
        return {"CopyObjectResult": result}

    def delete(self, members: Members, _: S3Request) -> Members:
        """DeleteObject; there need be none. Raises S3Error: no such bucket, or it lies in a linked folder."""
        self._store.remove(members["Bucket"], key_of(members), lambda old: check_replaced(members, old))
        return {}

    def delete_several(self, members: Members, request: S3Request) -> Members:
        """DeleteObjects. Raises S3Error: there is no such bucket, or the list is none."""
        bucket = members["Bucket"]
        self._store.bucket_path(bucket)
        asked = members.get("Delete", {})
        entries = {entry.get("Key", ""): entry for entry in asked.get("Objects", ())}
        if not 0 < len(entries) <= _DELETED_AT_ONCE or not all(entries):
            raise S3Error("MalformedXML")
        deleted: list[Members] = []
        errors: list[Members] = []
        for key, entry in entries.items():
            try:
                if request.rights is not None and not request.rights.writes(bucket, key.encode()):
                    raise S3Error("AccessDenied")
                self._delete_entry(bucket, key.encode(), entry)
                deleted.append({"Key": key})
            except S3Error as error:
                errors.append({"Key": key, "Code": error.code, "Message": error.message})
        return {"Deleted": [] if asked.get("Quiet") else deleted, "Errors": errors}

    def _delete_entry(self, bucket: str, key: bytes, entry: Members) -> None:
        """Removes one object of a list, under the conditions that stand beside its key."""
        if entry.get("VersionId", "null") not in ("", "null"):
            raise S3Error("NoSuchVersion")
        for name in ("LastModifiedTime", "Size"):
            if name in entry:
                raise S3Error("NotImplemented", f"objects are not deleted by {name} here")
        etag = entry.get("ETag")
        self._store.remove(bucket, key, lambda old: check_etag(etag, old) if etag else None)


def _extent(members: Members, info: ObjectInfo) -> tuple[int, int, bool]:
    """Returns begin and end of the bytes that are wanted, and whether they were asked for."""
    if "PartNumber" in members:
        place = number(members, "PartNumber", 1, 1, 10_000)
        sizes = info.known.parts or (info.size,)
        if place > len(sizes):
            raise S3Error("InvalidPartNumber", PartNumberRequested=str(place), ActualPartCount=str(len(sizes)))
        begin = sum(sizes[: place - 1])
        return begin, begin + sizes[place - 1], info.size > 0
    asked = members.get("Range", "")
    match = _RANGE.fullmatch(asked.replace(" ", ""))
    if match is None:
        return 0, info.size, False  # also for several ranges, as S3 does
    first, last, suffix = match.groups()
    begin = int(first) if suffix is None else max(0, info.size - int(suffix))
    end = min(info.size, int(last) + 1) if last else info.size
    if last and int(last) < int(first):
        return 0, info.size, False
    if begin >= info.size or suffix == "0":
        raise S3Error(
            "InvalidRange", headers=(("Content-Range", f"bytes */{info.size}"),),
            RangeRequested=asked, ActualObjectSize=str(info.size),
        )  # fmt: skip
    return begin, end, True


def _overrides(members: Members) -> dict[str, str]:
    asked = {name: members[f"Response{name}"] for name in KEPT if members.get(f"Response{name}")}
    for name, text in asked.items():
        if not text.isprintable():
            raise S3Error("InvalidArgument", ArgumentName=f"Response{name}")
    return asked
