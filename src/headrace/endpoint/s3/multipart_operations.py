"""Uploads in parts, as requests ask for them."""

from __future__ import annotations

import os
import re
import time
from urllib.parse import quote

from headrace.endpoint.http.http_message import HttpReply
from headrace.endpoint.s3.file_copy import copy_bytes, md5_of
from headrace.endpoint.s3.multipart_uploads import MultipartUploads, Part, Stated, Upload, WantedPart
from headrace.endpoint.s3.object_checksums import COMPOSITE, FULL, HEADER, digest_of, encode, make_digest
from headrace.endpoint.s3.object_reading import check_conditions
from headrace.endpoint.s3.object_store import Known, ObjectStore
from headrace.endpoint.s3.object_writing import copy_source
from headrace.endpoint.s3.s3_errors import S3Error, request_id
from headrace.endpoint.s3.s3_request import S3Request, check_replaced, kept_headers
from headrace.endpoint.s3.s3_xml import Element, key_text, parse, text_of, time_text, xml_reply
from headrace.endpoint.s3.upload_body import expected_size, receive

_MOST_PARTS = 10_000
_LIST_BYTES = 4 << 20
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

    def create(self, request: S3Request) -> HttpReply:
        """Answers CreateMultipartUpload.

        Raises:
            S3Error: there is no such bucket, or the checksum is not known here.
        """
        headers = request.http.headers
        algorithm = headers.get(f"{HEADER}algorithm").lower()
        kind = ""
        if algorithm:
            make_digest(algorithm)
            kind = headers.get(f"{HEADER}type").upper() or (FULL if algorithm == "crc64nvme" else COMPOSITE)
            if algorithm not in _KINDS.get(kind, ()):
                raise S3Error("InvalidRequest", f"The {kind} checksum type cannot be used with {algorithm}.")
        known = Known(kept_headers(request.http))
        identifier = self._uploads.begin(request.bucket, request.key, known, algorithm, kind)
        shown: list[Element] = [*_of(request), ("UploadId", identifier)]
        told = ((f"{HEADER}algorithm", algorithm.upper()), (f"{HEADER}type", kind)) if algorithm else ()
        return xml_reply("InitiateMultipartUploadResult", shown, told)

    def upload_part(self, request: S3Request) -> HttpReply:
        """Answers UploadPart.

        Raises:
            S3Error: there is no such upload, or the part did not come.
        """
        upload, number = self._upload(request), _part_number(request)
        with self._uploads.writing(upload, number, expected_size(request.http)) as (descriptor, offset, own):
            received = receive(request.http, descriptor, offset)
            checksum = received.checksums.get(upload.algorithm, "")
            if upload.algorithm and not checksum and upload.kind == COMPOSITE:
                raise S3Error(
                    "InvalidRequest",
                    f"Checksum Type mismatch occurred, expected checksum Type: {upload.algorithm}, actual: null",
                )
            self._uploads.keep(upload, Part(number, received.size, received.md5, checksum, own, time.time()))
        checksums = tuple((HEADER + name, value) for name, value in received.checksums.items())
        return HttpReply(200, (("x-amz-request-id", request_id()), ("ETag", f'"{received.md5}"'), *checksums))

    def upload_part_copy(self, request: S3Request) -> HttpReply:
        """Answers UploadPartCopy.

        Raises:
            S3Error: there is no such upload or object, or the range lies outside.
        """
        upload, number = self._upload(request), _part_number(request)
        info, source = self._store.open(*copy_source(request))
        try:
            check_conditions(request.http.headers, info, "x-amz-copy-source-")
            begin, size = _copied_range(request, info.size)
            with self._uploads.writing(upload, number, size) as (descriptor, offset, own):
                copy_bytes(source, begin, size, descriptor, offset)
                md5 = md5_of(descriptor, offset, size)
                checksum = encode(digest_of(upload.algorithm, descriptor, offset, size)) if upload.algorithm else ""
                self._uploads.keep(upload, Part(number, size, md5, checksum, own, time.time()))
        finally:
            os.close(source)
        return xml_reply("CopyPartResult", [("LastModified", time_text(time.time())), ("ETag", f'"{md5}"')])

    def complete(self, request: S3Request) -> HttpReply:
        """Answers CompleteMultipartUpload; once more, when a client asks again.

        Raises:
            S3Error: there is no such upload, or a part is missing, too small or another one.
        """
        upload = self._uploads.find(request.query["uploadId"], request.bucket, request.key, completed=True)
        # Headers of checksums are about the object that is made, not about this document.
        root = parse(request.http.body.read_all(_LIST_BYTES), "CompleteMultipartUpload")
        if upload.completed is not None:
            row = self._store.rows(request.bucket, [request.key]).get(request.key)
            info = self._store.info(request.bucket, request.key, row)
            known = info.known if info is not None and info.etag == upload.completed else Known()
            return self._completed(request, upload.completed, dict(known.checksums), known.kind)
        wanted = []
        for each in root.findall("Part"):
            number = text_of(each, "PartNumber")
            if not (number.isascii() and number.isdigit() and 0 < int(number) <= _MOST_PARTS):
                raise S3Error("InvalidArgument", "PartNumber must be an integer between 1 and 10000")
            checksum = text_of(each, f"Checksum{upload.algorithm.upper()}") if upload.algorithm else ""
            wanted.append(WantedPart(int(number), text_of(each, "ETag").strip('"'), checksum))
        info = self._uploads.complete(
            upload, wanted, lambda there: check_replaced(request.http, there), _stated(request, upload)
        )
        return self._completed(request, info.etag, dict(info.known.checksums), info.known.kind)

    def abort(self, request: S3Request) -> HttpReply:
        """Answers AbortMultipartUpload.

        Raises:
            S3Error: there is no such upload.
        """
        self._uploads.abort(request.query["uploadId"], request.bucket, request.key)
        return HttpReply(204, (("x-amz-request-id", request_id()),))

    def list_parts(self, request: S3Request) -> HttpReply:
        """Answers ListParts.

        Raises:
            S3Error: there is no such upload.
        """
        upload = self._upload(request)
        limit = request.number("max-parts", _PAGE, 0, 2**31 - 1)
        after = request.number("part-number-marker", 0, 0, 2**31 - 1)
        left = [each for each in self._uploads.parts(upload) if each.number > after]
        shown = left[: min(limit, _PAGE)]
        algorithm = upload.algorithm.upper()
        listed: list[Element] = [
            ("Part", [
                ("PartNumber", each.number), ("LastModified", time_text(each.changed)), ("ETag", f'"{each.md5}"'),
                ("Size", each.size), *([(f"Checksum{algorithm}", each.checksum)] if each.checksum else []),
            ])
            for each in shown
        ]  # fmt: skip
        head: list[Element] = [
            *_of(request), ("UploadId", upload.id), ("StorageClass", "STANDARD"), ("PartNumberMarker", after),
            ("NextPartNumberMarker", shown[-1].number if shown else 0), ("MaxParts", limit),
            ("IsTruncated", len(left) > len(shown)),
        ]  # fmt: skip
        if algorithm:
            head += [("ChecksumAlgorithm", algorithm), ("ChecksumType", upload.kind)]
        return xml_reply("ListPartsResult", [*head, *listed])

    def list_uploads(self, request: S3Request) -> HttpReply:
        """Answers ListMultipartUploads.

        Raises:
            S3Error: there is no such bucket, or a parameter is not done here.
        """
        self._store.bucket_path(request.bucket)
        query = request.query
        if query.get("delimiter"):
            raise S3Error("NotImplemented", "uploads are listed without a delimiter")
        limit = request.number("max-uploads", _PAGE, 1, _PAGE)
        prefix, marker = query.get("prefix", "").encode(), query.get("key-marker", "").encode()
        known = [each for each in self._uploads.all_of(request.bucket) if each.key.startswith(prefix)]
        if after := query.get("upload-id-marker"):
            places = [at for at, each in enumerate(known) if (each.key, each.id) == (marker, after)]
            left = known[places[0] + 1 :] if places else [each for each in known if each.key > marker]
        else:
            left = [each for each in known if each.key > marker]
        shown, encoded = left[:limit], query.get("encoding-type") == "url"
        listed: list[Element] = [
            ("Upload", [
                ("Key", key_text(each.key, encoded=encoded)), ("UploadId", each.id), ("StorageClass", "STANDARD"),
                ("Initiated", time_text(each.began)),
            ])
            for each in shown
        ]  # fmt: skip
        more = len(left) > len(shown)
        head: list[Element] = [
            ("Bucket", request.bucket), ("KeyMarker", key_text(marker, encoded=encoded)),
            ("UploadIdMarker", after or ""), ("Prefix", key_text(prefix, encoded=encoded)), ("MaxUploads", limit),
            ("IsTruncated", more),
        ]  # fmt: skip
        if more:
            head += [("NextKeyMarker", key_text(shown[-1].key, encoded=encoded)), ("NextUploadIdMarker", shown[-1].id)]
        if encoded:
            head.append(("EncodingType", "url"))
        return xml_reply("ListMultipartUploadsResult", [*head, *listed])

    def _upload(self, request: S3Request) -> Upload:
        return self._uploads.find(request.query["uploadId"], request.bucket, request.key)

    @staticmethod
    def _completed(request: S3Request, etag: str, checksums: dict[str, str], kind: str) -> HttpReply:
        host = request.http.headers.get("host")
        location = f"{'https' if request.http.secure else 'http'}://{host}/{request.bucket}/{quote(request.key)}"
        shown: list[Element] = [("Location", location), *_of(request), ("ETag", f'"{etag}"')]
        for name, value in checksums.items():
            shown += [(f"Checksum{name.upper()}", value), ("ChecksumType", kind)]
        return xml_reply("CompleteMultipartUploadResult", shown)


def _of(request: S3Request) -> list[Element]:
    return [("Bucket", request.bucket), ("Key", request.key.decode())]


def _part_number(request: S3Request) -> int:
    if "partNumber" not in request.query:
        raise S3Error("InvalidArgument", "partNumber is missing", ArgumentName="partNumber")
    return request.number("partNumber", 0, 1, _MOST_PARTS)


def _stated(request: S3Request, upload: Upload) -> Stated:
    """Returns what a client says of the object that an upload becomes."""
    headers = request.http.headers
    size = headers.get("x-amz-mp-object-size")
    if size and not (size.isascii() and size.isdigit() and len(size) < 20):
        raise S3Error("InvalidRequest", "Value for x-amz-mp-object-size header is invalid.")
    kind = headers.get(f"{HEADER}type").upper()
    if kind and kind != (upload.kind or FULL):
        raise S3Error("InvalidRequest", f"The upload was not created with the checksum type {kind}.")
    named = (name.lower().removeprefix(HEADER) for name, _ in headers if name.lower().startswith(HEADER))
    checksums = {name: headers[HEADER + name] for name in named if name not in ("type", "algorithm", "mode")}
    return Stated(int(size) if size else None, checksums)


def _copied_range(request: S3Request, size: int) -> tuple[int, int]:
    given = request.http.headers.get("x-amz-copy-source-range")
    if not given:
        return 0, size
    found = _RANGE.fullmatch(given)
    if found is None or not int(found[1]) <= int(found[2]) < size:
        raise S3Error(
            "InvalidArgument", f"Range specified is not valid for source object of size: {size}",
            ArgumentName="x-amz-copy-source-range", ArgumentValue=given,
        )  # fmt: skip
    return int(found[1]), int(found[2]) + 1 - int(found[1])
