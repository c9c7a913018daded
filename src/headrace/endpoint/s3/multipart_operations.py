"""Uploads in parts, as requests ask for them."""

from __future__ import annotations

import os
import re
import time
from urllib.parse import quote

from headrace.endpoint.s3.multipart_uploads import MultipartUploads, Part, Stated, Upload, WantedPart
from headrace.endpoint.s3.object_checksums import COMPOSITE, FULL, digest_of, encode, make_digest
from headrace.endpoint.s3.object_store import Known, ObjectStore, copy_bytes
from headrace.endpoint.s3.s3_errors import S3Error
from headrace.endpoint.s3.s3_request import (
    S3Request,
    check_conditions,
    check_replaced,
    checksums_of,
    copy_source,
    kept_members,
    key_of,
    moment,
    number,
    shown_key,
    stated_checksums,
)
from headrace.endpoint.s3.upload_body import expected_size, receive
from headrace.endpoint.wire.requests import Members

_MOST_PARTS = 10_000
_PAGE = 1000
_KINDS = {
    FULL: ("crc32", "crc32c", "crc64nvme"),
    COMPOSITE: ("crc32", "crc32c", "sha1", "sha256", "sha512", "md5"),
}
_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{1,19})")


class MultipartOperations:
    """Answers what is asked of uploads in parts.

    Args:
        store: the objects.
        uploads: that have begun.
    """

    def __init__(self, store: ObjectStore, uploads: MultipartUploads) -> None:
        self._store = store
        self._uploads = uploads

    def create(self, members: Members, _: S3Request) -> Members:
        """CreateMultipartUpload. Raises S3Error: there is no such bucket, or the checksum is not known here."""
        algorithm, kind = members.get("ChecksumAlgorithm", "").lower(), ""
        if algorithm:
            make_digest(algorithm)
            kind = members.get("ChecksumType", "").upper() or (FULL if algorithm == "crc64nvme" else COMPOSITE)
            if algorithm not in _KINDS.get(kind, ()):
                raise S3Error("InvalidRequest", f"The {kind} checksum type cannot be used with {algorithm}.")
        known = Known(kept_members(members))
        identifier = self._uploads.begin(members["Bucket"], key_of(members), known, algorithm, kind)
        chosen = {"ChecksumAlgorithm": algorithm.upper(), "ChecksumType": kind} if algorithm else {}
        return {**_place(members), "UploadId": identifier, **chosen}

    def upload_part(self, members: Members, request: S3Request) -> Members:
        """UploadPart. Raises S3Error: there is no such upload, or the part did not come."""
        upload, place = self._upload(members), number(members, "PartNumber", 0, 1, _MOST_PARTS)
        with self._uploads.writing(upload, place, expected_size(request.http)) as (descriptor, offset, own):
            received = receive(request.http, descriptor, offset)
            checksum = received.checksums.get(upload.algorithm, "")
            if upload.algorithm and not checksum and upload.kind == COMPOSITE:
                raise S3Error(
                    "InvalidRequest",
                    f"Checksum Type mismatch occurred, expected checksum Type: {upload.algorithm}, actual: null",
                )
            self._uploads.keep(upload, Part(place, received.size, received.md5, checksum, own, time.time()))
        checksums = {f"Checksum{name.upper()}": value for name, value in received.checksums.items()}
        return {"ETag": f'"{received.md5}"', **checksums}

    def upload_part_copy(self, members: Members, _: S3Request) -> Members:
        """UploadPartCopy. Raises S3Error: there is no such upload or object, or the range lies outside."""
        upload, place = self._upload(members), number(members, "PartNumber", 0, 1, _MOST_PARTS)
        info, source = self._store.open(*copy_source(members))
        try:
            check_conditions(members, info, "CopySource")
            begin, size = _copied_range(members.get("CopySourceRange", ""), info.size)
            with self._uploads.writing(upload, place, size) as (descriptor, offset, own):
                copy_bytes(source, begin, size, descriptor, offset)
                md5 = digest_of("md5", descriptor, offset, size).hex()
                checksum = encode(digest_of(upload.algorithm, descriptor, offset, size)) if upload.algorithm else ""
                self._uploads.keep(upload, Part(place, size, md5, checksum, own, time.time()))
        finally:
            os.close(source)
        return {"CopyPartResult": {"LastModified": moment(time.time()), "ETag": f'"{md5}"'}}

    def complete(self, members: Members, request: S3Request) -> Members:
        """CompleteMultipartUpload; once more, when a client asks again.

        Raises:
            S3Error: there is no such upload, or a part is missing, too small or another one.
        """
        bucket, key = members["Bucket"], key_of(members)
        upload = self._uploads.find(members["UploadId"], bucket, key, completed=True)
        if upload.completed is not None:
            info = self._store.info(bucket, key, self._store.row(bucket, key))
            etag = upload.completed
            known = info.known if info is not None and info.etag == etag else Known()
        else:
            checksum = f"Checksum{upload.algorithm.upper()}"
            parts = [
                WantedPart(
                    number({"PartNumber": 0, **part}, "PartNumber", 0, 1, _MOST_PARTS),
                    part.get("ETag", "").strip('"'),
                    part.get(checksum, ""),
                )
                for part in members.get("MultipartUpload", {}).get("Parts", ())
            ]
            stated = _stated(members, request, upload)
            info = self._uploads.complete(upload, parts, lambda old: check_replaced(members, old), stated)
            etag, known = info.etag, info.known
        http = request.http
        address = f"{'https' if http.secure else 'http'}://{http.headers.get('host')}/{bucket}/{quote(key)}"
        return {"Location": address, **_place(members), "ETag": f'"{etag}"', **checksums_of(known)}

    def abort(self, members: Members, _: S3Request) -> Members:
        """AbortMultipartUpload. Raises S3Error: there is no such upload."""
        self._uploads.abort(members["UploadId"], members["Bucket"], key_of(members))
        return {}

    def list_parts(self, members: Members, _: S3Request) -> Members:
        """ListParts. Raises S3Error: there is no such upload."""
        upload = self._upload(members)
        limit = number(members, "MaxParts", _PAGE, 0, 2**31 - 1)
        after = number(members, "PartNumberMarker", 0, 0, 2**31 - 1)
        left = [part for part in self._uploads.parts(upload) if part.number > after]
        shown = left[: min(limit, _PAGE)]
        algorithm = upload.algorithm.upper()
        parts = [
            {
                "PartNumber": part.number, "LastModified": moment(part.changed), "ETag": f'"{part.md5}"',
                "Size": part.size, **({f"Checksum{algorithm}": part.checksum} if part.checksum else {}),
            }
            for part in shown
        ]  # fmt: skip
        chosen = {"ChecksumAlgorithm": algorithm, "ChecksumType": upload.kind} if algorithm else {}
        return {
            **_place(members), "UploadId": upload.id, "StorageClass": "STANDARD", "PartNumberMarker": after,
            "NextPartNumberMarker": shown[-1].number if shown else 0, "MaxParts": limit,
            "IsTruncated": len(left) > len(shown), **chosen, "Parts": parts,
        }  # fmt: skip

    def list_uploads(self, members: Members, _: S3Request) -> Members:
        """ListMultipartUploads. Raises S3Error: there is no such bucket, or a parameter is not done here."""
        bucket = members["Bucket"]
        self._store.bucket_path(bucket)
        if members.get("Delimiter"):
            raise S3Error("NotImplemented", "uploads are listed without a delimiter")
        limit = number(members, "MaxUploads", _PAGE, 1, _PAGE)
        prefix, marker = members.get("Prefix", "").encode(), members.get("KeyMarker", "").encode()
        after = members.get("UploadIdMarker", "")
        uploads = [upload for upload in self._uploads.all_of(bucket) if upload.key.startswith(prefix)]
        places = [at for at, upload in enumerate(uploads) if (upload.key, upload.id) == (marker, after)]
        left = uploads[places[0] + 1 :] if places else [upload for upload in uploads if upload.key > marker]
        shown = left[:limit]
        listed = [
            {
                "Key": shown_key(upload.key, members), "UploadId": upload.id, "StorageClass": "STANDARD",
                "Initiated": moment(upload.began),
            }
            for upload in shown
        ]  # fmt: skip
        answer = {
            "Bucket": bucket, "KeyMarker": shown_key(marker, members), "UploadIdMarker": after,
            "Prefix": shown_key(prefix, members), "MaxUploads": limit, "IsTruncated": len(left) > len(shown),
            "Uploads": listed,
        }  # fmt: skip
        if len(left) > len(shown):
            answer |= {"NextKeyMarker": shown_key(shown[-1].key, members), "NextUploadIdMarker": shown[-1].id}
        if members.get("EncodingType"):
            answer["EncodingType"] = "url"
        return answer

    def _upload(self, members: Members) -> Upload:
        return self._uploads.find(members["UploadId"], members["Bucket"], key_of(members))


def _place(members: Members) -> dict[str, object]:
    return {"Bucket": members["Bucket"], "Key": members["Key"]}


def _stated(members: Members, request: S3Request, upload: Upload) -> Stated:
    """Returns what a client says of the object that an upload becomes."""
    kind = members.get("ChecksumType", "").upper()
    if kind and kind != (upload.kind or FULL):
        raise S3Error("InvalidRequest", f"The upload was not created with the checksum type {kind}.")
    return Stated(members.get("MpuObjectSize"), stated_checksums(request.http))


def _copied_range(asked: str, size: int) -> tuple[int, int]:
    if not asked:
        return 0, size
    match = _RANGE.fullmatch(asked)
    if match is None or not int(match[1]) <= int(match[2]) < size:
        raise S3Error(
            "InvalidArgument", f"Range specified is not valid for source object of size: {size}",
            ArgumentName="x-amz-copy-source-range", ArgumentValue=asked,
        )  # fmt: skip
    return int(match[1]), int(match[2]) + 1 - int(match[1])
