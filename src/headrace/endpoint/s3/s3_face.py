"""S3 over a folder: which operation a request is, and its answer."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.endpoint.auth.job_rights import JobRights
from headrace.endpoint.http.http_message import BodyProblem, ClientGone, HttpReply, HttpRequest
from headrace.endpoint.s3.bucket_operations import BucketOperations
from headrace.endpoint.s3.key_listing import KeyListing
from headrace.endpoint.s3.multipart_operations import MultipartOperations
from headrace.endpoint.s3.multipart_uploads import MultipartUploads
from headrace.endpoint.s3.object_checksums import require_checksums
from headrace.endpoint.s3.object_reading import OVERRIDES, get_object
from headrace.endpoint.s3.object_store import ObjectStore
from headrace.endpoint.s3.object_writing import copy_object, copy_source, delete_object, delete_objects, put_object
from headrace.endpoint.s3.s3_errors import S3Error, error_reply
from headrace.endpoint.s3.s3_request import S3Request, read_request
from headrace.endpoint.s3.upload_body import of_body

Operation = Callable[[S3Request], HttpReply]
_log = logging.getLogger(__name__)

_SIGNING = frozenset(["awsaccesskeyid", "signature", "expires"])  # of version 2; those of version 4 begin with x-
_LISTED = ("prefix", "delimiter", "encoding-type", "max-keys")
_READ = ("versionId", "partNumber", *(f"response-{name}" for name in OVERRIDES))
_REPLACES = ("if-match", "if-none-match")
_COPIES = tuple(
    f"x-amz-copy-source-if-{name}" for name in ("match", "none-match", "modified-since", "unmodified-since")
)
_CONDITIONS = ("if-", "x-amz-if-", "x-amz-copy-source-if-")


class _Row(NamedTuple):
    """An operation, and all that it understands: what it is not told of, it must not do in its own way.

    Attributes:
        method: of HTTP.
        name: in the query, which makes it this one; empty: none in particular.
        answer: answers it.
        names: further names in its query.
        conditions: headers with conditions that it keeps; None: all that HTTP has for reading.
    """

    method: str
    name: str
    answer: Operation
    names: tuple[str, ...] = ()
    conditions: tuple[str, ...] | None = ()


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
        uploads = MultipartUploads(store)
        self._listing = KeyListing(store)
        buckets = BucketOperations(store, self._listing, uploads, account, region)
        parts = MultipartOperations(store, uploads)
        # The first row whose name is there counts.
        self._service = [_Row("GET", "", buckets.list_buckets, ("max-buckets", "continuation-token", "prefix"))]
        self._bucket = [
            _Row("GET", "location", buckets.bucket_location),
            _Row("GET", "versioning", buckets.bucket_versioning),
            _Row("GET", "uploads", parts.list_uploads, (*_LISTED[:3], "key-marker", "max-uploads", "upload-id-marker")),
            _Row(
                "GET",
                "list-type",
                buckets.list_objects_v2,
                (*_LISTED, "continuation-token", "fetch-owner", "start-after"),
            ),
            _Row("GET", "", buckets.list_objects, (*_LISTED, "marker")),
            _Row("HEAD", "", buckets.head_bucket),
            _Row("PUT", "", buckets.create_bucket),
            _Row("DELETE", "", buckets.delete_bucket),
            _Row("POST", "delete", lambda request: delete_objects(store, request)),
        ]
        self._object = [
            _Row("GET", "uploadId", parts.list_parts, ("max-parts", "part-number-marker")),
            _Row("GET", "", lambda request: get_object(store, request), _READ, None),
            _Row("HEAD", "", lambda request: get_object(store, request), _READ, None),
            _Row("PUT", "uploadId", parts.upload_part, ("partNumber",)),
            _Row("PUT", "", lambda request: put_object(store, request), (), _REPLACES),
            _Row("POST", "uploads", parts.create),
            _Row("POST", "uploadId", parts.complete, (), _REPLACES),
            _Row("DELETE", "uploadId", parts.abort),
            _Row("DELETE", "", lambda request: delete_object(store, request), ("versionId",), ("if-match",)),
        ]
        self._copies = [
            _Row("PUT", "uploadId", parts.upload_part_copy, ("partNumber",), _COPIES),
            _Row("PUT", "", lambda request: copy_object(store, request), (), (*_REPLACES, *_COPIES)),
        ]

    def handle(self, request: HttpRequest, rights: JobRights | None = None) -> HttpReply:
        """Answers one request, whose sender has been verified.

        Args:
            request: what was asked.
            rights: what the sender may do; None: all.
        """
        try:
            asked = read_request(request, rights)
            self._check_owner(request)
            if rights is not None and not _allowed(asked, rights):
                raise S3Error("AccessDenied")
            return self._operation(asked)(asked)
        except S3Error as error:
            return error_reply(request, error)
        except ClientGone:
            raise
        except BodyProblem as problem:
            return error_reply(request, of_body(problem))
        except OSError as error:
            _log.warning("%s %s: %s", request.method, request.raw_path[:200], error)
            return error_reply(request, _of_system(error))

    def create_bucket(self, bucket: str) -> None:
        """Creates a bucket, unless it is there. Raises S3Error."""
        self._store.create_bucket(bucket)

    def local_path(self, bucket: str, key: str) -> Path:
        """Returns the path of an object or a prefix, see `ObjectStore.local_path`. Raises S3Error."""
        return self._store.local_path(bucket, key)

    def first_key(self, bucket: str, prefix: str) -> str | None:
        """Returns the first key that begins with a prefix, None when there is none. Raises S3Error: no such bucket."""
        keys = self._listing.page(bucket, prefix.encode(), b"", b"", 1).keys
        return keys[0].decode(errors="surrogateescape") if keys else None

    def link(self, bucket: str, prefix: str, folder: Path) -> None:
        """Shows a folder of the user's as a prefix of a bucket. Nothing is copied, and nothing is ever changed in it.

        Args:
            bucket: is created if it is not there.
            prefix: without a / at its end; empty: the folder is the whole bucket.
            folder: what is shown.

        Raises:
            UsageError: something else is there, or a key's name cannot be that.
        """
        self._store.link(bucket, prefix, folder)

    def close(self) -> None:
        """Ends the use of the folder; no request may be answered any more."""
        self._store.close()

    def _operation(self, request: S3Request) -> Operation:
        headers, method = request.http.headers, request.http.method
        table = self._object if request.key else self._bucket if request.bucket else self._service
        if request.key and "x-amz-copy-source" in headers:
            table = self._copies
        row = next((row for row in table if row.method == method and (not row.name or row.name in request.query)), None)
        asked = {name for name in request.query if not (name.lower() in _SIGNING or name.lower().startswith("x-"))}
        if other := sorted(asked - ({row.name, *row.names} if row is not None else set())):
            raise S3Error("NotImplemented", f"?{other[0]} is not implemented by headrace serve")
        if row is None:
            raise S3Error("MethodNotAllowed", Method=method)
        for name, _ in headers:
            if (
                row.conditions is not None
                and name.lower().startswith(_CONDITIONS)
                and name.lower() not in row.conditions
            ):
                raise S3Error("NotImplemented", Header=name)
        return row.answer

    def _check_owner(self, request: HttpRequest) -> None:
        for name in ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"):
            if request.headers.get(name, self._account) != self._account:
                raise S3Error("AccessDenied")


def _allowed(request: S3Request, rights: JobRights) -> bool:
    """Tells whether the sender may do what a request asks for. Keys that stand in its body are looked at there."""
    method, bucket, key, query = request.http.method, request.bucket, request.key, request.query
    if key and method in ("GET", "HEAD") and "uploadId" not in query:
        return rights.reads(bucket, key)
    if key:
        copies = "x-amz-copy-source" in request.http.headers
        return rights.writes(bucket, key) and (not copies or rights.reads(*copy_source(request)))
    if method == "GET" and bucket and not {"location", "versioning"} & query.keys():
        prefix = query.get("prefix", "").encode()
        return rights.writes(bucket, prefix) if "uploads" in query else rights.reads(bucket, prefix)
    if method == "PUT":
        return bucket in rights.default
    return bool(bucket) and method != "DELETE" and rights.knows(bucket)


def _of_system(error: OSError) -> S3Error:
    """Returns the error for what this machine's file system refuses; clients repeat what may work later."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return S3Error("AccessDenied", f"the folder of objects: {error.strerror}")
    return S3Error("InternalError", f"the folder of objects: {error.strerror or error}")
