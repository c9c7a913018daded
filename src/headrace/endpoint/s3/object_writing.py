"""PutObject, CopyObject, DeleteObject and DeleteObjects."""

from __future__ import annotations

import os
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

from headrace.endpoint.http.http_message import HttpReply
from headrace.endpoint.s3.file_copy import copy_bytes, md5_of
from headrace.endpoint.s3.object_checksums import HEADER, digest_of, encode
from headrace.endpoint.s3.object_reading import check_conditions, checksum_headers
from headrace.endpoint.s3.object_store import KEY_BYTES, Known, ObjectInfo, ObjectStore
from headrace.endpoint.s3.s3_errors import S3Error, request_id
from headrace.endpoint.s3.s3_request import S3Request, check_etag, check_replaced, kept_headers
from headrace.endpoint.s3.s3_xml import Element, parse, text_of, time_text, xml_reply
from headrace.endpoint.s3.upload_body import receive, receive_small

_DELETED_AT_ONCE = 1000
_DELETE_BYTES = 8 << 20


def put_object(store: ObjectStore, request: S3Request) -> HttpReply:
    """Answers PutObject.

    Raises:
        S3Error: the object cannot be put, or its bytes did not come.
    """
    store.check_place(request.bucket, request.key)
    headers = kept_headers(request.http)
    with store.incoming() as (descriptor, path):
        received = receive(request.http, descriptor)
        known = Known(headers, received.checksums)
        info = store.place(
            path, request.bucket, request.key, received.md5, known, lambda there: check_replaced(request.http, there)
        )
    shown = (("x-amz-request-id", request_id()), ("ETag", f'"{info.etag}"'), *checksum_headers(info))
    return HttpReply(200, shown)


def copy_source(request: S3Request) -> tuple[str, bytes]:
    """Returns bucket and key of what is to be copied.

    Raises:
        S3Error: the header names none.
    """
    name, _, version = request.http.headers["x-amz-copy-source"].partition("?")
    bucket, _, key = unquote_to_bytes(name).removeprefix(b"/").partition(b"/")
    if version not in ("", "versionId=null") or not bucket or not 0 < len(key) <= KEY_BYTES:
        raise S3Error("InvalidArgument", "Invalid copy source", ArgumentName="x-amz-copy-source")
    try:
        key.decode()
        return bucket.decode(), key
    except UnicodeDecodeError:
        raise S3Error("InvalidArgument", "Invalid copy source", ArgumentName="x-amz-copy-source") from None


def copy_object(store: ObjectStore, request: S3Request) -> HttpReply:
    """Answers CopyObject.

    Raises:
        S3Error: there is no such object, or it cannot be copied there.
    """
    bucket, key = copy_source(request)
    store.check_place(request.bucket, request.key)
    replaces = request.http.headers.get("x-amz-metadata-directive", "COPY").upper()
    if replaces not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", "Unknown metadata directive.", ArgumentName="x-amz-metadata-directive")
    info, source = store.open(bucket, key)
    try:
        check_conditions(request.http.headers, info, "x-amz-copy-source-")
        if (bucket, key) == (request.bucket, request.key) and replaces == "COPY":
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself without changing the "
                "object's metadata, storage class, website redirect location or encryption attributes.",
            )
        with store.incoming() as (descriptor, path):
            copy_bytes(source, 0, info.size, descriptor, 0)
            etag = info.etag if "-" not in info.etag else md5_of(descriptor, 0, info.size)
            headers = kept_headers(request.http) if replaces == "REPLACE" else info.known.headers
            checksums = info.known.checksums if info.known.kind == "FULL_OBJECT" else {}
            if algorithm := request.http.headers.get(f"{HEADER}algorithm").lower():
                checksums = {algorithm: encode(digest_of(algorithm, descriptor, 0, info.size))}
            placed = store.place(
                path, request.bucket, request.key, etag, Known(headers, checksums),
                lambda there: check_replaced(request.http, there),
            )  # fmt: skip
    finally:
        os.close(source)
    return xml_reply("CopyObjectResult", copied(placed))


def copied(info: ObjectInfo) -> list[Element]:
    """Returns the elements that tell of a copy."""
    checksums = [(f"Checksum{name.upper()}", value) for name, value in info.known.checksums.items()]
    return [("LastModified", time_text(info.modified)), ("ETag", f'"{info.etag}"'), *checksums]


def delete_object(store: ObjectStore, request: S3Request) -> HttpReply:
    """Answers DeleteObject; there need be none.

    Raises:
        S3Error: there is no such bucket, or the object lies in a linked store.
    """
    store.remove(request.bucket, request.key, lambda there: check_replaced(request.http, there))
    return HttpReply(204, (("x-amz-request-id", request_id()),))


def delete_objects(store: ObjectStore, request: S3Request) -> HttpReply:
    """Answers DeleteObjects.

    Raises:
        S3Error: there is no such bucket, or the list is none.
    """
    store.bucket_path(request.bucket)
    wanted = parse(receive_small(request.http, _DELETE_BYTES), "Delete")
    found = {text_of(each, "Key"): each for each in wanted.findall("Object")}
    if not 0 < len(found) <= _DELETED_AT_ONCE or not all(found):
        raise S3Error("MalformedXML")
    quiet = text_of(wanted, "Quiet").lower() == "true"
    told: list[Element] = []
    for key, each in found.items():
        try:
            if request.rights is not None and not request.rights.writes(request.bucket, key.encode()):
                raise S3Error("AccessDenied")
            _remove_one(store, request.bucket, key.encode(), each)
        except S3Error as error:
            told.append(("Error", [("Key", key), ("Code", error.code), ("Message", error.message)]))
        else:
            if not quiet:
                told.append(("Deleted", [("Key", key)]))
    return xml_reply("DeleteResult", told)


def _remove_one(store: ObjectStore, bucket: str, key: bytes, wanted: ElementTree.Element) -> None:
    """Removes one object of a list, under the conditions that stand beside its key."""
    if text_of(wanted, "VersionId") not in ("", "null"):
        raise S3Error("NoSuchVersion")
    for name in ("LastModifiedTime", "Size"):
        if text_of(wanted, name):
            raise S3Error("NotImplemented", f"objects are not deleted by {name} here")
    etag = text_of(wanted, "ETag")
    store.remove(bucket, key, lambda there: check_etag(etag, there) if etag else None)
