"""Buckets, and the lists of what is in them."""

from __future__ import annotations

import base64
import binascii

from headrace.catalog.prices import DEFAULT_REGION, is_region
from headrace.endpoint.auth.signatures import Malformed, read_signature
from headrace.endpoint.http.http_message import HttpReply
from headrace.endpoint.s3.key_listing import KeyListing, Page
from headrace.endpoint.s3.multipart_uploads import MultipartUploads
from headrace.endpoint.s3.object_store import ObjectStore
from headrace.endpoint.s3.s3_errors import S3Error, request_id
from headrace.endpoint.s3.s3_request import S3Request
from headrace.endpoint.s3.s3_xml import Element, key_text, parse, text_of, time_text, xml_reply
from headrace.endpoint.s3.upload_body import receive_small

_PAGE = 1000
_CONFIGURATION_BYTES = 1 << 16


class BucketOperations:
    """Answers what is asked of buckets.

    Args:
        store: the objects.
        listing: of its keys.
        uploads: that have begun.
        account: the account's number, twelve digits.
        region: of buckets that were not created by a request.
    """

    def __init__(
        self, store: ObjectStore, listing: KeyListing, uploads: MultipartUploads, account: str, region: str
    ) -> None:
        self._store = store
        self._listing = listing
        self._uploads = uploads
        self._account = account
        self._region = region

    def list_buckets(self, request: S3Request) -> HttpReply:
        """Answers ListBuckets, all in one page."""
        prefix = request.query.get("prefix", "")
        shown: list[Element] = []
        for name in self._store.bucket_names():
            if name.startswith(prefix):
                created, _ = self._store.bucket_record(name, self._region)
                shown.append(("Bucket", [("Name", name), ("CreationDate", time_text(created))]))
        return xml_reply("ListAllMyBucketsResult", [("Owner", self._owner()), ("Buckets", shown)])

    def create_bucket(self, request: S3Request) -> HttpReply:
        """Answers CreateBucket.

        Raises:
            S3Error: it is there, or cannot have that name or region.
        """
        data = receive_small(request.http, _CONFIGURATION_BYTES) if _has_body(request) else b""
        region = text_of(parse(data, "CreateBucketConfiguration"), "LocationConstraint") if data.strip() else ""
        _check_region(region, _signed_region(request) or self._region)
        if not self._store.create_bucket(request.bucket):
            _, there = self._store.bucket_record(request.bucket, self._region)
            if (region or DEFAULT_REGION) != DEFAULT_REGION or there != DEFAULT_REGION:
                raise S3Error("BucketAlreadyOwnedByYou", BucketName=request.bucket)
        self._store.bucket_record(request.bucket, region or DEFAULT_REGION)
        return HttpReply(200, (("x-amz-request-id", request_id()), ("Location", f"/{request.bucket}")))

    def head_bucket(self, request: S3Request) -> HttpReply:
        """Answers HeadBucket.

        Raises:
            S3Error: there is no such bucket.
        """
        self._store.bucket_path(request.bucket)
        _, region = self._store.bucket_record(request.bucket, self._region)
        headers = (("x-amz-request-id", request_id()), ("x-amz-bucket-region", region))
        return HttpReply(200, (("Content-Type", "application/xml"), *headers))

    def bucket_location(self, request: S3Request) -> HttpReply:
        """Answers GetBucketLocation.

        Raises:
            S3Error: there is no such bucket.
        """
        self._store.bucket_path(request.bucket)
        _, region = self._store.bucket_record(request.bucket, self._region)
        return xml_reply("LocationConstraint", [] if region == DEFAULT_REGION else region)

    def bucket_versioning(self, request: S3Request) -> HttpReply:
        """Answers GetBucketVersioning: there are no versions.

        Raises:
            S3Error: there is no such bucket.
        """
        self._store.bucket_path(request.bucket)
        return xml_reply("VersioningConfiguration", [])

    def delete_bucket(self, request: S3Request) -> HttpReply:
        """Answers DeleteBucket.

        Raises:
            S3Error: there is no such bucket, or it holds something.
        """
        self._store.delete_bucket(request.bucket)
        self._uploads.forget_all(request.bucket)
        return HttpReply(204, (("x-amz-request-id", request_id()),))

    def list_objects(self, request: S3Request) -> HttpReply:
        """Answers ListObjects, the first version.

        Raises:
            S3Error: there is no such bucket, or a parameter is wrong.
        """
        query = request.query
        marker = query.get("marker", "")
        page, limit = self._page(request, marker.encode())
        encoded = _encoded(request)
        head: list[Element] = [
            ("Name", request.bucket),
            ("Prefix", key_text(query.get("prefix", "").encode(), encoded=encoded)),
            ("Marker", key_text(marker.encode(), encoded=encoded)),
            ("MaxKeys", limit),
            *_delimiter(request, encoded=encoded),
            ("IsTruncated", page.more),
        ]
        if page.more and query.get("delimiter"):
            head.append(("NextMarker", key_text(page.last, encoded=encoded)))
        return xml_reply("ListBucketResult", [*head, *self._contents(request, page, owner=True)])

    def list_objects_v2(self, request: S3Request) -> HttpReply:
        """Answers ListObjectsV2.

        Raises:
            S3Error: there is no such bucket, or a parameter is wrong.
        """
        query = request.query
        token, start = query.get("continuation-token"), query.get("start-after", "")
        page, limit = self._page(request, _from_token(token) if token is not None else start.encode())
        encoded = _encoded(request)
        head: list[Element] = [
            ("Name", request.bucket),
            ("Prefix", key_text(query.get("prefix", "").encode(), encoded=encoded)),
            ("MaxKeys", limit),
            *_delimiter(request, encoded=encoded),
            ("KeyCount", len(page.keys) + len(page.prefixes)),
            ("IsTruncated", page.more),
        ]
        if token is not None:
            head.append(("ContinuationToken", token))
        if page.more:
            head.append(("NextContinuationToken", base64.urlsafe_b64encode(page.last).decode()))
        if start:
            head.append(("StartAfter", key_text(start.encode(), encoded=encoded)))
        owner = query.get("fetch-owner") == "true"
        return xml_reply("ListBucketResult", [*head, *self._contents(request, page, owner=owner)])

    def _page(self, request: S3Request, after: bytes) -> tuple[Page, int]:
        query = request.query
        limit = request.number("max-keys", _PAGE, 0, 2**31 - 1)
        prefix, delimiter = query.get("prefix", "").encode(), query.get("delimiter", "").encode()
        return self._listing.page(request.bucket, prefix, delimiter, after, min(limit, _PAGE)), limit

    def _contents(self, request: S3Request, page: Page, *, owner: bool) -> list[Element]:
        encoded = _encoded(request)
        rows = self._store.rows(request.bucket, page.keys)
        shown: list[Element] = []
        for key in page.keys:
            info = self._store.info(request.bucket, key, rows.get(key))
            if info is None:
                continue  # it was removed meanwhile
            found: list[Element] = [
                ("Key", key_text(key, encoded=encoded)),
                ("LastModified", time_text(info.modified)),
                ("ETag", f'"{info.etag}"'),
                *(("ChecksumAlgorithm", name.upper()) for name in info.known.checksums),
                *([("ChecksumType", info.known.kind)] if info.known.checksums else []),
                ("Size", info.size),
                ("StorageClass", "STANDARD"),
            ]
            shown.append(("Contents", [*found, ("Owner", self._owner())] if owner else found))
        shown += [("CommonPrefixes", [("Prefix", key_text(each, encoded=encoded))]) for each in page.prefixes]
        return shown

    def _owner(self) -> list[Element]:
        return [("ID", self._account), ("DisplayName", "headrace")]


def _signed_region(request: S3Request) -> str:
    """Returns the region that a request is signed for, whose endpoint its client means; empty when that is none."""
    try:
        signed = read_signature(request.http)
    except Malformed:
        signed = None
    return signed.region if signed is not None and is_region(signed.region) else ""


def _check_region(region: str, endpoint: str) -> None:
    """Checks where a bucket is to be, as the service does at the endpoint of a region. Raises S3Error."""
    if DEFAULT_REGION != endpoint != region:
        raise S3Error(
            "IllegalLocationConstraintException",
            f"The {region or 'unspecified'} location constraint is incompatible for the region specific endpoint "
            "this request was sent to.",
        )
    if region and (region == DEFAULT_REGION or not (region == "EU" or is_region(region))):
        raise S3Error("InvalidLocationConstraint", LocationConstraint=region)


def _has_body(request: S3Request) -> bool:
    return request.http.body.length != 0


def _encoded(request: S3Request) -> bool:
    given = request.query.get("encoding-type", "")
    if given not in ("", "url"):
        raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request", ArgumentName="encoding-type")
    return given == "url"


def _delimiter(request: S3Request, *, encoded: bool) -> list[Element]:
    found: list[Element] = []
    if delimiter := request.query.get("delimiter"):
        found.append(("Delimiter", key_text(delimiter.encode(), encoded=encoded)))
    if encoded:
        found.append(("EncodingType", "url"))
    return found


def _from_token(token: str) -> bytes:
    try:
        if not token:
            raise ValueError
        return base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise S3Error(
            "InvalidArgument", "The continuation token provided is incorrect", ArgumentName="continuation-token"
        ) from None
