"""Buckets, and the lists of what is in them: keys in S3's order, that of their UTF-8 bytes, from any place on.

A folder is sorted as if its name ended with /, so ``a-`` comes before ``a/b`` and after ``a``. Names of a large folder
are kept between pages, until the folder changes.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import os
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.catalog.prices import DEFAULT_REGION, is_region
from headrace.endpoint.auth.signatures import Malformed, read_signature
from headrace.endpoint.s3.multipart_uploads import MultipartUploads
from headrace.endpoint.s3.object_store import KEY_BYTES, ObjectStore
from headrace.endpoint.s3.s3_errors import S3Error
from headrace.endpoint.s3.s3_request import S3Request, moment, number, shown_key
from headrace.endpoint.wire.requests import Members

_KEPT_NAMES = 300_000
_SETTLED_NS = 50_000_000  # a folder that changed later may change again within the same tick of the file system's clock


@dataclass(frozen=True)
class Page:
    """Part of a list.

    Attributes:
        keys: in order.
        prefixes: of keys that have the delimiter after the prefix, in order.
        last: the last of both, from which the next page goes on; empty if there is none.
        more: there is a next page.
    """

    keys: list[bytes]
    prefixes: list[bytes]
    last: bytes
    more: bool


class KeyListing:
    """Lists the keys of a store.

    Args:
        store: the objects.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[tuple[int, int, int], list[bytes]]] = OrderedDict()

    def page(self, bucket: str, prefix: bytes, delimiter: bytes, after: bytes, limit: int) -> Page:
        """Returns part of the keys of a bucket.

        Args:
            bucket: its name.
            prefix: that keys begin with.
            delimiter: keys that have it after the prefix are shown as one prefix; empty: all are shown.
            after: the key or prefix that the part begins after.
            limit: keys and prefixes that it may have.

        Raises:
            S3Error: there is no such bucket.
        """
        keys: list[bytes] = []
        prefixes: list[bytes] = []
        last = shown = b""
        root = os.fsencode(self._store.bucket_path(bucket))
        for key in self._keys(root, b"", prefix, after, folders=delimiter == b"/"):
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            common = key[: at + len(delimiter)] if at >= 0 else b""
            if common and common in (shown, after):
                continue
            if len(keys) + len(prefixes) >= limit:
                return Page(keys, prefixes, last, limit > 0)
            if common:
                prefixes.append(common)
                shown = common
            else:
                keys.append(key)
            last = common or key
        return Page(keys, prefixes, last, more=False)

    def _keys(
        self, root: bytes, base: bytes, prefix: bytes, after: bytes, *, folders: bool, above: tuple[object, ...] = ()
    ) -> Iterator[bytes]:
        """Yields the keys in a folder and below; of a folder after the prefix only its first, if `folders` is true.

        Args:
            root: folder of the bucket.
            base: the folder's own name there, with / at its end; empty for the bucket's.
            prefix: that keys begin with.
            after: that they come after.
            folders: see above.
            above: the folders in which it is, which a link may lead to.
        """
        path = os.path.join(root, base) if base else root  # noqa: PTH118 - bytes
        try:
            found = os.stat(path)  # noqa: PTH116 - bytes
        except OSError:
            return  # it was removed meanwhile
        here = (found.st_dev, found.st_ino)
        if here in above:
            return
        begin = after[len(base) :] if after.startswith(base) else b""
        for name in _from(self._names(path, found), prefix[len(base) :], begin):
            key = base + name
            if len(key) > KEY_BYTES:
                continue
            if not name.endswith(b"/"):
                if key > after:
                    yield key
            elif not folders or len(key) <= len(prefix):
                yield from self._keys(root, key, prefix, after, folders=folders, above=(*above, here))
            elif key != after:
                below = self._keys(root, key, key, max(after, key), folders=False, above=(*above, here))
                yield from itertools.islice(below, 1)

    def _names(self, path: bytes, found: os.stat_result) -> list[bytes]:
        """Returns the names in a folder, those of folders with / at their end, in order."""
        state = (found.st_dev, found.st_ino, found.st_mtime_ns)
        place = os.fsdecode(path)
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None and kept[0] == state:
                self._kept.move_to_end(place)
                return kept[1]
        settled = time.time_ns() - found.st_mtime_ns > _SETTLED_NS
        names = sorted(_read(path))
        with self._lock:
            self._kept.pop(place, None)
            if settled and len(names) <= _KEPT_NAMES:
                self._kept[place] = (state, names)
                while sum(len(each) for _, each in self._kept.values()) > _KEPT_NAMES:
                    self._kept.popitem(last=False)
        return names


def _from(names: list[bytes], prefix: bytes, after: bytes) -> Iterator[bytes]:
    """Yields the names that can lead to keys which begin with `prefix` and come after `after`."""
    outer, slash, _ = max(prefix, after).partition(b"/")
    for at in range(bisect_left(names, outer + slash), len(names)):
        name = names[at]
        if name.startswith(prefix) or (name.endswith(b"/") and prefix.startswith(name)):
            yield name
        elif name > prefix:
            return


def _read(path: bytes) -> Iterator[bytes]:
    try:
        with os.scandir(path) as entries:
            for each in entries:
                try:
                    each.name.decode()  # a key is UTF-8
                    if each.is_dir():
                        yield each.name + b"/"
                    elif each.is_file():
                        yield each.name
                except (UnicodeDecodeError, OSError):
                    continue
    except OSError:
        return  # it was removed meanwhile, or may not be read


_PAGE = 1000


class BucketOperations:
    """Answers what is asked of buckets.

    Args:
        store: the objects.
        listing: of their keys.
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
        self._owner = {"ID": account, "DisplayName": "headrace"}
        self._region = region

    def list_buckets(self, members: Members, _: S3Request) -> Members:
        """ListBuckets, all in one page."""
        with self._store.lock:
            names = [name for name in self._store.bucket_names() if name.startswith(members.get("Prefix", ""))]
            created = [moment(self._store.bucket_record(name, self._region)[0]) for name in names]
        buckets = [{"Name": name, "CreationDate": time} for name, time in zip(names, created, strict=True)]
        return {"Owner": self._owner, "Buckets": buckets}

    def create_bucket(self, members: Members, request: S3Request) -> Members:
        """CreateBucket. Raises S3Error: it is there, or cannot have that name or region."""
        name = members["Bucket"]
        region = members.get("CreateBucketConfiguration", {}).get("LocationConstraint", "")
        _check_region(region, _signed_region(request) or self._region)
        with self._store.lock:
            is_new = self._store.create_bucket(name)
            there = self._store.bucket_record(name, (region or DEFAULT_REGION) if is_new else self._region)[1]
        if not is_new and ((region or DEFAULT_REGION) != DEFAULT_REGION or there != DEFAULT_REGION):
            raise S3Error("BucketAlreadyOwnedByYou", BucketName=name)
        return {"Location": f"/{name}"}

    def head_bucket(self, members: Members, _: S3Request) -> Members:
        """HeadBucket. Raises S3Error: there is none."""
        return {"BucketRegion": self._region_of(members)}

    def bucket_location(self, members: Members, _: S3Request) -> Members:
        """GetBucketLocation. Raises S3Error: there is none."""
        region = self._region_of(members)
        return {"LocationConstraint": "" if region == DEFAULT_REGION else region}

    def bucket_versioning(self, members: Members, _: S3Request) -> Members:
        """GetBucketVersioning: there are no versions. Raises S3Error: there is no such bucket."""
        self._store.bucket_path(members["Bucket"])
        return {}

    def delete_bucket(self, members: Members, _: S3Request) -> Members:
        """DeleteBucket. Raises S3Error: there is none, or it holds something."""
        self._store.delete_bucket(members["Bucket"])
        self._uploads.remove_folders()
        return {}

    def list_objects(self, members: Members, _: S3Request) -> Members:
        """ListObjects, the first version. Raises S3Error: there is no such bucket, or a parameter is wrong."""
        marker = members.get("Marker", "").encode()
        page, answer = self._listed(members, marker, owner=True)
        answer["Marker"] = shown_key(marker, members)
        if page.more and members.get("Delimiter"):
            answer["NextMarker"] = shown_key(page.last, members)
        return answer

    def list_objects_v2(self, members: Members, _: S3Request) -> Members:
        """ListObjectsV2. Raises S3Error: there is no such bucket, or a parameter is wrong."""
        token, start = members.get("ContinuationToken"), members.get("StartAfter", "").encode()
        page, answer = self._listed(
            members, start if token is None else _from_token(token), owner=members.get("FetchOwner", False)
        )
        answer["KeyCount"] = len(page.keys) + len(page.prefixes)
        if token is not None:
            answer["ContinuationToken"] = token
        if page.more:
            answer["NextContinuationToken"] = base64.urlsafe_b64encode(page.last).decode()
        if start:
            answer["StartAfter"] = shown_key(start, members)
        return answer

    def _listed(self, members: Members, after: bytes, *, owner: bool) -> tuple[Page, dict[str, Any]]:
        """Returns a page of keys, and what both versions of the list show of it."""
        bucket = members["Bucket"]
        limit = number(members, "MaxKeys", _PAGE, 0, 2**31 - 1)
        prefix, delimiter = members.get("Prefix", "").encode(), members.get("Delimiter", "").encode()
        page = self._listing.page(bucket, prefix, delimiter, after, min(limit, _PAGE))
        contents: list[dict[str, Any]] = []
        for info in self._store.infos(bucket, page.keys):  # without those that were removed meanwhile
            entry = {
                "Key": shown_key(info.key, members),
                "LastModified": moment(info.modified),
                "ETag": f'"{info.etag}"',
                "Size": info.size,
                "StorageClass": "STANDARD",
            }
            if info.known.checksums:
                names = [name.upper() for name in info.known.checksums]
                entry |= {"ChecksumAlgorithm": names, "ChecksumType": info.known.kind}
            contents.append(entry | ({"Owner": self._owner} if owner else {}))
        answer = {
            "Name": bucket,
            "Prefix": shown_key(prefix, members),
            "MaxKeys": limit,
            "IsTruncated": page.more,
            "Contents": contents,
            "CommonPrefixes": [{"Prefix": shown_key(each, members)} for each in page.prefixes],
        }
        if delimiter:
            answer["Delimiter"] = shown_key(delimiter, members)
        if members.get("EncodingType"):
            answer["EncodingType"] = "url"
        return page, answer

    def _region_of(self, members: Members) -> str:
        return self._store.bucket_record(members["Bucket"], self._region)[1]


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


def _from_token(token: str) -> bytes:
    try:
        if not token:
            raise ValueError
        return base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise S3Error(
            "InvalidArgument", "The continuation token provided is incorrect", ArgumentName="continuation-token"
        ) from None
