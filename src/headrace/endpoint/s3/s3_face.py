"""S3 over a folder: which operation a request is, and its answer."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

from headrace.endpoint.http.http_message import BodyProblem, ClientGone, HttpReply, HttpRequest
from headrace.endpoint.s3.bucket_operations import BucketOperations
from headrace.endpoint.s3.key_listing import KeyListing
from headrace.endpoint.s3.multipart_operations import MultipartOperations
from headrace.endpoint.s3.multipart_uploads import MultipartUploads
from headrace.endpoint.s3.object_checksums import require_checksums
from headrace.endpoint.s3.object_folder import ObjectFolder
from headrace.endpoint.s3.object_reading import get_object
from headrace.endpoint.s3.object_writing import copy_object, delete_object, delete_objects, put_object
from headrace.endpoint.s3.s3_errors import S3Error, error_reply
from headrace.endpoint.s3.s3_request import S3Request, read_request
from headrace.endpoint.s3.upload_body import of_body

Operation = Callable[[S3Request], HttpReply]
_log = logging.getLogger(__name__)

_OTHER_RESOURCES = frozenset(
    [
        "accelerate", "acl", "analytics", "attributes", "cors", "encryption", "intelligent-tiering", "inventory",
        "legal-hold", "lifecycle", "logging", "metadataTable", "metrics", "notification", "object-lock",
        "ownershipControls", "policy", "policyStatus", "publicAccessBlock", "replication", "requestPayment", "restore",
        "retention", "select", "session", "tagging", "torrent", "versions", "website",
    ]
)  # fmt: skip
"""Names in a query by which it asks for something else than the object or the bucket."""


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
        self._folder = folder = ObjectFolder(root)
        uploads = MultipartUploads(folder)
        buckets = BucketOperations(folder, KeyListing(folder), uploads, account, region)
        parts = MultipartOperations(folder, uploads)
        # The first row that fits counts; * stands for no name in particular.
        self._service: dict[tuple[str, str], Operation] = {("GET", "*"): buckets.list_buckets}
        self._bucket: dict[tuple[str, str], Operation] = {
            ("GET", "location"): buckets.bucket_location,
            ("GET", "versioning"): buckets.bucket_versioning,
            ("GET", "uploads"): parts.list_uploads,
            ("GET", "list-type"): buckets.list_objects_v2,
            ("GET", "*"): buckets.list_objects,
            ("HEAD", "*"): buckets.head_bucket,
            ("PUT", "*"): buckets.create_bucket,
            ("DELETE", "*"): buckets.delete_bucket,
            ("POST", "delete"): lambda request: delete_objects(folder, request),
        }
        self._object: dict[tuple[str, str], Operation] = {
            ("GET", "uploadId"): parts.list_parts,
            ("GET", "*"): lambda request: get_object(folder, request),
            ("HEAD", "*"): lambda request: get_object(folder, request),
            ("PUT", "uploadId"): lambda request: (
                parts.upload_part_copy(request) if _copies(request) else parts.upload_part(request)
            ),
            ("PUT", "*"): lambda request: (
                copy_object(folder, request) if _copies(request) else put_object(folder, request)
            ),
            ("POST", "uploads"): parts.create,
            ("POST", "uploadId"): parts.complete,
            ("DELETE", "uploadId"): parts.abort,
            ("DELETE", "*"): lambda request: delete_object(folder, request),
        }

    def handle(self, request: HttpRequest, bucket_from_host: str | None) -> HttpReply:
        """Answers one request, whose sender has been verified.

        Args:
            request: what was asked.
            bucket_from_host: the bucket that the Host header names; None if the path names it.
        """
        try:
            asked = read_request(request, bucket_from_host)
            self._check_owner(request)
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
        self._folder.create_bucket(bucket)

    def local_path(self, bucket: str, key: str) -> Path:
        """Returns the path of an object or a prefix, see `ObjectFolder.local_path`. Raises S3Error."""
        return self._folder.local_path(bucket, key)

    def link(self, bucket: str, prefix: str, folder: Path) -> None:
        """Shows a folder of the user's as a prefix of a bucket. Nothing is copied, and nothing is ever changed in it.

        Args:
            bucket: is created if it is not there.
            prefix: without a / at its end; empty: the folder is the whole bucket.
            folder: what is shown.

        Raises:
            UsageError: something else is there, or a key's name cannot be that.
        """
        self._folder.link(bucket, prefix, folder)

    def close(self) -> None:
        """Ends the use of the folder; no request may be answered any more."""
        self._folder.close()

    def _operation(self, request: S3Request) -> Operation:
        table = self._object if request.key else self._bucket if request.bucket else self._service
        if other := next((name for name in request.query if name in _OTHER_RESOURCES), None):
            raise S3Error("NotImplemented", f"?{other} is not implemented by headrace serve")
        method = request.http.method
        for (each, name), operation in table.items():
            if each == method and (name == "*" or name in request.query):
                return operation
        raise S3Error("MethodNotAllowed", Method=method)

    def _check_owner(self, request: HttpRequest) -> None:
        for name in ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"):
            if request.headers.get(name, self._account) != self._account:
                raise S3Error("AccessDenied")


def _of_system(error: OSError) -> S3Error:
    """Returns the error for what this machine's file system refuses; clients repeat what may work later."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return S3Error("AccessDenied", f"the folder of objects: {error.strerror}")
    return S3Error("InternalError", f"the folder of objects: {error.strerror or error}")


def _copies(request: S3Request) -> bool:
    return "x-amz-copy-source" in request.http.headers
