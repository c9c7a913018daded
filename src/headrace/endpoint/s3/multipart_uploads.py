"""Uploads in parts. Parts of equal size are written where they belong in the object's file, so nothing is copied later.

How large parts are is told by the first that can be no last one: part 1, or one of 5 MiB and more. A part that
does not fit, or comes a second time, has a file of its own, and then the object is put together by copying; so it is
when another part is still being written into the file, for nobody may write into an object's. While an upload is
completed no part of it begins, and whoever deletes its rows leaves its folder to the completion.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.endpoint.http.http_message import HttpRequest
from headrace.endpoint.s3.object_store import Known, ObjectInfo, ObjectStore, copy_bytes, read_known
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
)
from headrace.endpoint.s3.upload_body import (
    COMPOSITE,
    FULL,
    check,
    decode,
    digest_of,
    encode,
    expected_size,
    make_digest,
    of_parts,
    receive,
    stated_checksums,
)
from headrace.endpoint.wire.requests import Members

SMALLEST_PART = 5 << 20
_DATA = "data"
AGE_SECONDS = 7 * 86400.0
_MOST_PARTS = 10_000
_PAGE = 1000
_KINDS = {
    FULL: ("crc32", "crc32c", "crc64nvme"),
    COMPOSITE: ("crc32", "crc32c", "sha1", "sha256", "sha512", "md5"),
}
_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{1,19})")


@dataclass(frozen=True)
class Upload:
    """An upload that was begun. `completed` is the ETag of the object that it became; None until then."""

    id: str
    bucket: str
    key: bytes
    known: Known
    algorithm: str
    kind: str
    began: float
    part_bytes: int | None
    completed: str | None


@dataclass(frozen=True)
class Part:
    """A part that came. `file` names its own file; None: it lies where it belongs in the object's."""

    number: int
    size: int
    md5: str
    checksum: str
    file: str | None
    changed: float


class MultipartUploads:
    """Answers what is asked of uploads in parts.

    Args:
        store: the objects.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._busy: set[tuple[str, int]] = set()  # places in the objects' files that are being written
        self._completing: set[str] = set()
        self.remove_folders()
        self.age_out(AGE_SECONDS)

    def age_out(self, seconds: float) -> int:
        """Gives up the uploads that were begun so long ago. Returns how many."""
        old = self._store.execute("SELECT id FROM uploads WHERE began < ?", time.time() - seconds)
        for (identifier,) in old:
            self._forget(identifier)
        return len(old)

    def remove_folders(self) -> None:
        """Removes the folders of uploads that are open no more, as those of a bucket that is gone."""
        with self._store.lock:
            rows = self._store.execute("SELECT id FROM uploads WHERE completed IS NULL")
            used = self._completing.union(identifier for (identifier,) in rows)
            unused = [folder for folder in (self._store.own / "uploads").iterdir() if folder.name not in used]
        for folder in unused:
            self._remove(folder.name)

    def create(self, members: Members, _: S3Request) -> Members:
        """CreateMultipartUpload. Raises S3Error: there is no such bucket, or the checksum is not known here."""
        algorithm, kind = members.get("ChecksumAlgorithm", "").lower(), ""
        if algorithm:
            make_digest(algorithm)
            kind = members.get("ChecksumType", "").upper() or (FULL if algorithm == "crc64nvme" else COMPOSITE)
            if algorithm not in _KINDS.get(kind, ()):
                raise S3Error("InvalidRequest", f"The {kind} checksum type cannot be used with {algorithm}.")
        known, bucket, key = Known(kept_members(members)), members["Bucket"], key_of(members)
        self.age_out(AGE_SECONDS)
        identifier = secrets.token_hex(24)
        with self._store.lock:
            self._store.check_place(bucket, key)
            self._place(identifier).mkdir(mode=0o700)
            self._store.execute(
                "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
                identifier, bucket, key, known.to_json(), algorithm, kind, time.time(),
            )  # fmt: skip
        chosen = {"ChecksumAlgorithm": algorithm.upper(), "ChecksumType": kind} if algorithm else {}
        return {**_named(members), "UploadId": identifier, **chosen}

    def upload_part(self, members: Members, request: S3Request) -> Members:
        """UploadPart. Raises S3Error: there is no such upload, or the part did not come."""
        place = number(members, "PartNumber", 0, 1, _MOST_PARTS)
        with self._writing(members, place, expected_size(request.http)) as (upload, descriptor, offset, own):
            received = receive(request.http, descriptor, offset)
            checksum = received.checksums.get(upload.algorithm, "")
            if upload.algorithm and not checksum and upload.kind == COMPOSITE:
                raise S3Error(
                    "InvalidRequest",
                    f"Checksum Type mismatch occurred, expected checksum Type: {upload.algorithm}, actual: null",
                )
            self._keep(members, Part(place, received.size, received.md5, checksum, own, time.time()))
        checksums = {f"Checksum{name.upper()}": value for name, value in received.checksums.items()}
        return {"ETag": f'"{received.md5}"', **checksums}

    def upload_part_copy(self, members: Members, _: S3Request) -> Members:
        """UploadPartCopy. Raises S3Error: there is no such upload or object, or the range lies outside."""
        place = number(members, "PartNumber", 0, 1, _MOST_PARTS)
        info, source = self._store.open(*copy_source(members))
        try:
            check_conditions(members, info, "CopySource")
            begin, size = _copied_range(members.get("CopySourceRange", ""), info.size)
            with self._writing(members, place, size) as (upload, descriptor, offset, own):
                copy_bytes(source, begin, size, descriptor, offset)
                md5 = digest_of("md5", descriptor, offset, size).hex()
                checksum = encode(digest_of(upload.algorithm, descriptor, offset, size)) if upload.algorithm else ""
                self._keep(members, Part(place, size, md5, checksum, own, time.time()))
        finally:
            os.close(source)
        return {"CopyPartResult": {"LastModified": moment(time.time()), "ETag": f'"{md5}"'}}

    def complete(self, members: Members, request: S3Request) -> Members:
        """CompleteMultipartUpload; once more, when a client asks again.

        Raises:
            S3Error: there is no such upload, or a part is missing, too small or another one.
        """
        bucket, key, http = members["Bucket"], key_of(members), request.http
        with self._store.lock:
            upload, old = self._find_open(members, completed=True), self._store.info(bucket, key)
            if upload.completed is None:
                parts = self._chosen(members, upload)
                check_replaced(members, old)
                in_place = not any(identifier == upload.id for identifier, _ in self._busy)
                self._completing.add(upload.id)
        if upload.completed is None:
            new = self._completed(members, http, upload, parts, in_place=in_place)
            etag, known = new.etag, new.known
        else:
            etag = upload.completed
            known = old.known if old is not None and old.etag == etag else Known()
        address = f"{'https' if http.secure else 'http'}://{http.headers.get('host')}/{bucket}/{quote(key)}"
        return {"Location": address, **_named(members), "ETag": f'"{etag}"', **checksums_of(known)}

    def abort(self, members: Members, _: S3Request) -> Members:
        """AbortMultipartUpload. Raises S3Error: there is no such upload."""
        with self._store.lock:
            self._forget(self._find_open(members).id)
        return {}

    def list_parts(self, members: Members, _: S3Request) -> Members:
        """ListParts. Raises S3Error: there is no such upload."""
        limit = number(members, "MaxParts", _PAGE, 0, 2**31 - 1)
        after = number(members, "PartNumberMarker", 0, 0, 2**31 - 1)
        with self._store.lock:
            upload = self._find(members)
            left = [part for part in self._parts(upload) if part.number > after]
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
            **_named(members), "UploadId": upload.id, "StorageClass": "STANDARD", "PartNumberMarker": after,
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
        rows = self._store.execute(
            "SELECT * FROM uploads WHERE bucket = ? AND completed IS NULL ORDER BY key, began, id", bucket
        )
        uploads = [upload for upload in map(_upload, rows) if upload.key.startswith(prefix)]
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

    def _find(self, members: Members, *, completed: bool = False) -> Upload:
        """Returns the upload of a request; with `completed` also one that has become an object. Raises S3Error."""
        identifier, bucket = members["UploadId"], members["Bucket"]
        self._store.bucket_path(bucket)
        rows = self._store.execute(
            "SELECT * FROM uploads WHERE id = ? AND bucket = ? AND key = ?", identifier, bucket, key_of(members)
        )
        upload = next(map(_upload, rows), None)
        if upload is None or (upload.completed is not None and not completed):
            raise S3Error("NoSuchUpload", UploadId=identifier)
        return upload

    def _find_open(self, members: Members, *, completed: bool = False) -> Upload:
        """Returns what `_find` does, if nobody completes it just now. Raises S3Error."""
        upload = self._find(members, completed=completed)
        if upload.completed is None and upload.id in self._completing:
            raise S3Error("OperationAborted", "the upload is being completed")
        return upload

    def _parts(self, upload: Upload) -> list[Part]:
        """Returns the parts that came, by number."""
        rows = self._store.execute(
            "SELECT number, size, md5, checksum, file, changed FROM parts WHERE upload = ? ORDER BY number", upload.id
        )
        return [Part(*row) for row in rows]

    @contextlib.contextmanager
    def _writing(
        self, members: Members, number: int, size: int | None
    ) -> Iterator[tuple[Upload, int, int, str | None]]:
        """Yields where a part is to be written: upload, descriptor, offset, and the name of its own file or None.

        Args:
            members: name the upload.
            number: its place, from 1.
            size: its bytes, None if nobody knows.

        Raises:
            S3Error: there is no such upload, or it is being completed.
        """
        with self._store.lock:
            upload = self._find_open(members)
            offset = self._reserve(upload, number, size)
            own = None if offset is not None else f"{number}-{secrets.token_hex(8)}"
            path = self._place(upload.id) / (own or _DATA)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if own is None:
                self._busy.add((upload.id, number))
        kept = False
        try:
            yield upload, descriptor, offset or 0, own
            kept = True
        finally:
            os.close(descriptor)
            if own is None:
                with self._store.lock:
                    self._busy.discard((upload.id, number))
            elif not kept:
                path.unlink(missing_ok=True)

    def _keep(self, members: Members, part: Part) -> None:
        """Keeps a part that was written; one of the same number that came before is gone.

        Raises:
            S3Error: the upload was aborted or completed meanwhile.
        """
        with self._store.lock:
            upload = self._find_open(members)
            old = self._store.execute("SELECT file FROM parts WHERE upload = ? AND number = ?", upload.id, part.number)
            if old and old[0][0] is not None:
                (self._place(upload.id) / old[0][0]).unlink(missing_ok=True)
            self._store.execute(
                "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?)",
                upload.id, part.number, part.size, part.md5, part.checksum, part.file, part.changed,
            )  # fmt: skip

    def _completed(
        self, members: Members, http: HttpRequest, upload: Upload, parts: Sequence[Part], *, in_place: bool
    ) -> ObjectInfo:
        """Makes an object of parts. Until it is accepted, nothing of the upload changes.

        Raises:
            S3Error: the object is another one, or the upload is gone.
        """
        try:
            size = sum(part.size for part in parts)
            if members.get("MpuObjectSize") not in (None, size):
                words = f"The provided 'x-amz-mp-object-size' header does not match what was computed: {size}"
                raise S3Error("InvalidRequest", words)
            path = self._assembled(upload, parts, in_place=in_place)
            md5s = b"".join(bytes.fromhex(part.md5) for part in parts)
            etag = f"{hashlib.md5(md5s, usedforsecurity=False).hexdigest()}-{len(parts)}"
            checksums = {}
            if upload.algorithm and all(part.checksum for part in parts):
                values = [(decode(part.checksum, upload.algorithm), part.size) for part in parts]
                checksums[upload.algorithm] = of_parts(upload.algorithm, upload.kind, values)
            _check_stated(stated_checksums(http), checksums, path, size)
            sizes = tuple(part.size for part in parts)
            known = Known(upload.known.members, checksums, upload.kind if checksums else FULL, sizes)
            with self._store.lock:
                self._find(members)  # its bucket may have been deleted meanwhile
                info = self._store.place(
                    path, upload.bucket, upload.key, etag, known, lambda old: check_replaced(members, old), size
                )
                self._store.execute("UPDATE uploads SET completed = ? WHERE id = ?", etag, upload.id)
                self._store.execute("DELETE FROM parts WHERE upload = ?", upload.id)
            return info
        finally:
            with self._store.lock:
                self._completing.discard(upload.id)
                still_open = self._store.execute("SELECT 1 FROM uploads WHERE id = ? AND completed IS NULL", upload.id)
            if not still_open:
                self._remove(upload.id)

    def _place(self, identifier: str) -> Path:
        return self._store.own / "uploads" / identifier

    def _remove(self, identifier: str) -> None:
        """Removes the folder of an upload. A part that is still being written may remove its file meanwhile."""
        shutil.rmtree(self._place(identifier), ignore_errors=True)

    def _reserve(self, upload: Upload, number: int, size: int | None) -> int | None:
        """Returns where a part belongs in the object's file, if it can be written there."""
        part_bytes = upload.part_bytes
        if part_bytes is None and size and (number == 1 or size >= SMALLEST_PART):
            part_bytes = size
            self._store.execute("UPDATE uploads SET part_bytes = ? WHERE id = ?", size, upload.id)
        if part_bytes is None or size is None or size > part_bytes or (upload.id, number) in self._busy:
            return None
        if self._store.execute("SELECT 1 FROM parts WHERE upload = ? AND number = ?", upload.id, number):
            return None  # what came before stays whole until this one is
        return (number - 1) * part_bytes

    def _chosen(self, members: Members, upload: Upload) -> list[Part]:
        """Returns the parts that a client names, which are those that came.

        Raises:
            S3Error: a part is missing, too small or another one, or the upload has other checksums.
        """
        asked = members.get("MultipartUpload", {}).get("Parts", ())
        numbers = [number({"PartNumber": 0, **part}, "PartNumber", 0, 1, _MOST_PARTS) for part in asked]
        kind = members.get("ChecksumType", "").upper()
        if kind and kind != (upload.kind or FULL):
            raise S3Error("InvalidRequest", f"The upload was not created with the checksum type {kind}.")
        if not numbers:
            raise S3Error("MalformedXML")
        if any(b <= a for a, b in itertools.pairwise(numbers)):
            raise S3Error("InvalidPartOrder", UploadId=upload.id)
        parts, chosen = {part.number: part for part in self._parts(upload)}, []
        for place, named in zip(numbers, asked, strict=True):
            part, etag = parts.get(place), named.get("ETag", "").strip('"')
            checksum = named.get(f"Checksum{upload.algorithm.upper()}", "")
            if part is None or part.md5 != etag or (checksum and checksum != part.checksum):
                raise S3Error("InvalidPart", UploadId=upload.id, PartNumber=str(place), ETag=etag)
            chosen.append(part)
        for part in chosen[:-1]:
            if part.size < SMALLEST_PART:
                raise S3Error(
                    "EntityTooSmall", ProposedSize=str(part.size), MinSizeAllowed=str(SMALLEST_PART),
                    PartNumber=str(part.number), ETag=part.md5,
                )  # fmt: skip
        return chosen

    def _assembled(self, upload: Upload, parts: Sequence[Part], *, in_place: bool) -> Path:
        """Returns the file that begins with the parts, one after the other: with `in_place` the one they lie in."""
        part_bytes = upload.part_bytes or 0
        place = self._place(upload.id)
        if in_place and all(
            part.file is None and part.number == at and (part.size == part_bytes or at == len(parts))
            for at, part in enumerate(parts, start=1)
        ):
            return place / _DATA
        whole = place / "whole"
        with contextlib.ExitStack() as stack:
            target = os.open(whole, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            stack.callback(os.close, target)
            at = 0
            for part in parts:
                source = os.open(place / (part.file or _DATA), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    offset = (part.number - 1) * part_bytes if part.file is None else 0
                    copy_bytes(source, offset, part.size, target, at)
                finally:
                    os.close(source)
                at += part.size
        return whole

    def _forget(self, identifier: str) -> None:
        with self._store.lock:
            self._store.execute("DELETE FROM parts WHERE upload = ?", identifier)
            self._store.execute("DELETE FROM uploads WHERE id = ?", identifier)
            completing = identifier in self._completing
        if not completing:
            self._remove(identifier)


def _check_stated(stated: Mapping[str, str], checksums: Mapping[str, str], path: Path, size: int) -> None:
    """Checks the checksums that a client states. Those that the parts do not tell are computed."""
    for algorithm, value in stated.items():
        if "-" in checksums.get(algorithm, ""):  # COMPOSITE, which some clients state without the number of parts
            if value.partition("-")[0] != checksums[algorithm].partition("-")[0]:
                raise S3Error("BadDigest", f"The {algorithm} you specified did not match what we received.")
            continue
        if algorithm in checksums:
            digest = decode(checksums[algorithm], algorithm)
        else:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                digest = digest_of(algorithm, descriptor, 0, size)
            finally:
                os.close(descriptor)
        check(value, digest, algorithm)


def _upload(row: Mapping[str, Any]) -> Upload:
    return Upload(**{**row, "known": read_known(row["known"])})


def _named(members: Members) -> dict[str, object]:
    return {"Bucket": members["Bucket"], "Key": members["Key"]}


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
