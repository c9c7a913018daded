"""S3 over a folder: which operation a request is, what it may ask for, and its answer.

What an operation does not understand of a query or of conditions is refused: it must not be done in another way.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from headrace.endpoint.auth.job_rights import JobRights
from headrace.endpoint.http.http_message import BodyProblem, ClientGone, HttpReply, HttpRequest
from headrace.endpoint.s3.bucket_operations import BucketOperations, KeyListing
from headrace.endpoint.s3.multipart_uploads import MultipartUploads
from headrace.endpoint.s3.object_operations import ObjectOperations
from headrace.endpoint.s3.object_store import KEY_BYTES, ObjectStore
from headrace.endpoint.s3.s3_errors import S3Error
from headrace.endpoint.s3.s3_request import KEPT, S3Request, copy_source, key_of
from headrace.endpoint.s3.upload_body import of_body, receive_small, require_checksums
from headrace.endpoint.wire.answers import error_answer, rest_answer
from headrace.endpoint.wire.models import OperationModel, Protocol, ServiceError, service_model
from headrace.endpoint.wire.requests import Members, read_rest, read_xml

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_DOCUMENT_BYTES = 8 << 20
_log = logging.getLogger(__name__)

_SIGNING = frozenset(["awsaccesskeyid", "signature", "expires"])  # of version 2; those of version 4 begin with x-
_REFUSED = (
    "x-amz-server-side-encryption-customer-", "x-amz-object-lock-", "x-amz-write-offset-bytes", "x-amz-tagging",
    "x-amz-website-redirect-location", "x-amz-copy-source-server-side-encryption-customer-",
)  # fmt: skip
"""Beginnings of headers that ask for what is not done here, and whose absence a client would notice."""
_CONDITIONS = ("if-", "x-amz-if-", "x-amz-copy-source-if-")
_PATH = ("{Bucket}", "{Key+}")
_LISTED = "Prefix Delimiter EncodingType MaxKeys"
_READ_IF = "IfMatch IfNoneMatch IfModifiedSince IfUnmodifiedSince"
_READ = " ".join(["VersionId PartNumber", _READ_IF, *(f"Response{name}" for name in KEPT)])
_COPY_IF = " ".join(f"CopySource{name}" for name in _READ_IF.split())
_REPLACE_IF = "IfMatch IfNoneMatch"


class _Row(NamedTuple):
    """An operation, and all that it understands.

    Attributes:
        answer: answers it.
        names: members of the query and conditions that it understands, beside those without which it is not asked.
        document: outermost element of its answer; empty: a member, or it has none.
    """

    answer: Callable[[Members, S3Request], Members]
    names: str = ""
    document: str = ""


class S3Face:
    """Answers requests to S3.

    Args:
        root: the folder of the buckets' folders; it is made if it is not there. One server at a time uses it.
        account: the account's number, twelve digits.
        region: of buckets that were not created by a request.

    Raises:
        UsageError: another server uses the folder, it cannot be written, or a library is missing.
    """

    def __init__(self, root: Path, account: str = "000000000000", region: str = "us-east-1") -> None:
        require_checksums()
        self._account = account
        self._store = store = ObjectStore(root)
        parts = MultipartUploads(store)
        self._listing = KeyListing(store)
        buckets = BucketOperations(store, self._listing, parts, account, region)
        objects = ObjectOperations(store)
        self._rows = {
            "ListBuckets": _Row(buckets.list_buckets, "MaxBuckets ContinuationToken Prefix", "ListAllMyBucketsResult"),
            "CreateBucket": _Row(buckets.create_bucket),
            "HeadBucket": _Row(buckets.head_bucket),
            "DeleteBucket": _Row(buckets.delete_bucket),
            "GetBucketLocation": _Row(buckets.bucket_location),
            "GetBucketVersioning": _Row(buckets.bucket_versioning, "", "VersioningConfiguration"),
            "ListObjects": _Row(buckets.list_objects, f"{_LISTED} Marker", "ListBucketResult"),
            "ListObjectsV2": _Row(
                buckets.list_objects_v2, f"{_LISTED} ContinuationToken FetchOwner StartAfter", "ListBucketResult"
            ),
            "ListMultipartUploads": _Row(
                parts.list_uploads,
                "Prefix Delimiter EncodingType KeyMarker MaxUploads UploadIdMarker",
                "ListMultipartUploadsResult",
            ),
            "GetObject": _Row(objects.get, _READ),
            "HeadObject": _Row(objects.head, _READ),
            "PutObject": _Row(objects.put, _REPLACE_IF),
            "CopyObject": _Row(objects.copy, f"{_REPLACE_IF} {_COPY_IF}"),
            "DeleteObject": _Row(objects.delete, "VersionId IfMatch"),
            "DeleteObjects": _Row(objects.delete_several, "", "DeleteResult"),
            "CreateMultipartUpload": _Row(parts.create, "", "InitiateMultipartUploadResult"),
            "UploadPart": _Row(parts.upload_part),
            "UploadPartCopy": _Row(parts.upload_part_copy, _COPY_IF),
            "CompleteMultipartUpload": _Row(parts.complete, _REPLACE_IF, "CompleteMultipartUploadResult"),
            "AbortMultipartUpload": _Row(parts.abort),
            "ListParts": _Row(parts.list_parts, "MaxParts PartNumberMarker", "ListPartsResult"),
        }

    def handle(self, request: HttpRequest, rights: JobRights | None = None) -> HttpReply:
        """Answers one request, whose sender has been verified.

        Args:
            request: what was asked.
            rights: what the sender may do; None: all.
        """
        try:
            return self._answer(request, rights)
        except ServiceError as problem:
            error = problem
        except ClientGone:
            raise
        except BodyProblem as problem:
            error = of_body(problem)
        except OSError as problem:
            _log.warning("%s %s: %s", request.method, request.raw_path[:200], problem)
            error = _of_system(problem)
        return error_answer(error, Protocol.S3, bare=request.method == "HEAD")

    def create_bucket(self, bucket: str) -> None:
        """Creates a bucket, unless it is there. Raises S3Error."""
        self._store.create_bucket(bucket)

    def local_path(self, bucket: str, key: str) -> Path | None:
        """Returns the path of an object or a prefix; None when there is no such bucket, or the key has no path."""
        try:
            return self._store.local_path(bucket, key)
        except S3Error:
            return None

    def first_key(self, bucket: str, prefix: str) -> str | None:
        """Returns the first key that begins with a prefix; None when there is none, or no such bucket."""
        try:
            keys = self._listing.page(bucket, prefix.encode(), b"", b"", 1).keys
        except S3Error:
            return None
        return keys[0].decode(errors="surrogateescape") if keys else None

    def close(self) -> None:
        """Ends the use of the folder; no request may be answered any more."""
        self._store.close()

    def _answer(self, request: HttpRequest, rights: JobRights | None) -> HttpReply:
        place, query = _address(request)
        self._check_head(request, query)
        operation = self._operation(request, place, query)
        row = self._rows[operation.name]
        members = {**place, **read_rest(operation.input, query, request.headers)}
        if rights is not None and not _allowed(operation.name, members, rights):
            raise S3Error("AccessDenied")
        for name, wire in operation.required.items():
            if name not in members:
                raise S3Error("InvalidArgument", f"{wire} is missing", ArgumentName=wire)
        members |= _document(operation, request)
        return rest_answer(operation, row.answer(members, S3Request(request, rights)), NAMESPACE, row.document)

    def _check_head(self, request: HttpRequest, query: Mapping[str, str]) -> None:
        for name, value in request.headers:
            if name.lower().startswith(_REFUSED):
                raise S3Error("NotImplemented", Header=name)
            owner = name.lower() in ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner")
            if owner and value != self._account:
                raise S3Error("AccessDenied")
        if query.get("versionId", "null") != "null":
            raise S3Error("InvalidArgument", "Invalid version id specified", ArgumentName="versionId")

    def _operation(self, request: HttpRequest, place: Members, query: Mapping[str, str]) -> OperationModel:
        """Returns the operation that a request is: of those with its method, the one whose own names are most there."""
        path, headers = "/" + "/".join(_PATH[: len(place)]), request.headers
        ranked: list[tuple[int, int, OperationModel]] = []
        for each in service_model("s3").operations.values():
            if (each.method, each.path) != (request.method, path) or not each.literals <= query.keys():
                continue
            there = sum(name in query or name in headers for name in each.required.values())
            if there or not each.required:
                ranked.append((there + len(each.literals), -len(each.required), each))
        operation = max(ranked, key=lambda entry: entry[:2])[2] if ranked else None
        names = {*operation.literals, *self._understood(operation)} if operation else set()
        asked = {name for name in query if not (name.lower() in _SIGNING or name.lower().startswith("x-"))}
        if other := sorted(asked - names):
            raise S3Error("NotImplemented", f"?{other[0]} is not implemented by headrace serve")
        if operation is None:
            raise S3Error("MethodNotAllowed", Method=request.method)
        understood = {name.lower() for name in names}
        for name, _ in headers:
            if name.lower().startswith(_CONDITIONS) and name.lower() not in understood:
                raise S3Error("NotImplemented", Header=name)
        return operation

    def _understood(self, operation: OperationModel) -> set[str]:
        """Returns what an operation understands of query and conditions, as the wire names it."""
        members = operation.input.members
        names = {members[name].name for name in self._rows[operation.name].names.split()}
        return names | {*operation.required.values()}


def _address(request: HttpRequest) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns bucket and key that a request names, and its query: the first of each name. Raises S3Error."""
    try:
        path = unquote_to_bytes(request.raw_path.removeprefix("/"))
        pairs = parse_qsl(request.raw_query, keep_blank_values=True, errors="strict", max_num_fields=100)
        bucket, _, key = path.decode().partition("/")
    except ValueError:
        raise S3Error("InvalidURI") from None
    if len(key.encode()) > KEY_BYTES:
        raise S3Error("KeyTooLongError", Size=str(len(key.encode())), MaxSizeAllowed=str(KEY_BYTES))
    place = {"Bucket": bucket, "Key": key} if key else {"Bucket": bucket} if bucket else {}
    return place, dict(reversed(pairs))


def _document(operation: OperationModel, request: HttpRequest) -> dict[str, Any]:
    """Returns the member that is the document of a request, if it has one."""
    name = operation.input.payload
    shape = operation.input.members.get(name)
    if shape is None or shape.kind != "structure" or request.body.length == 0:
        return {}
    if operation.name == "CompleteMultipartUpload":  # its checksums are about the object, not about this document
        data = request.body.read_all(_DOCUMENT_BYTES)
    else:
        data = receive_small(request, _DOCUMENT_BYTES)
    return {name: read_xml(data, shape.name or name, shape)} if data.strip() else {}


def _allowed(operation: str, members: Members, rights: JobRights) -> bool:
    """Tells whether the sender may do what a request asks for. Keys that stand in its body are looked at there."""
    bucket = members.get("Bucket", "")
    if operation in ("GetObject", "HeadObject"):
        return rights.reads(bucket, key_of(members))
    if "Key" in members:
        return rights.writes(bucket, key_of(members)) and (
            "CopySource" not in members or rights.reads(*copy_source(members))
        )
    if operation in ("ListObjects", "ListObjectsV2", "ListMultipartUploads"):
        allows = rights.writes if operation == "ListMultipartUploads" else rights.reads
        return allows(bucket, members.get("Prefix", "").encode())
    if operation == "CreateBucket":
        return bucket in rights.default
    return bool(bucket) and operation != "DeleteBucket" and rights.knows(bucket)


def _of_system(error: OSError) -> S3Error:
    """Returns the error for what this machine's file system refuses; clients repeat what may work later."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return S3Error("AccessDenied", f"the folder of objects: {error.strerror}")
    return S3Error("InternalError", f"the folder of objects: {error.strerror or error}")
