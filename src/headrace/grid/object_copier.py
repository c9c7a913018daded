"""Copies one object: by S3 itself where source and target are of one service, else through this machine.

A copy has the parts that its source has, so that their ETags can be compared. An upload that was broken off goes on
with the parts that are there.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

from headrace.catalog.aws_facts import partition_of
from headrace.errors import ObjectMissing, StorageError
from headrace.grid.copied_object import ListedObject, copy_failed
from headrace.instance.s3 import S3

LARGEST_COPY = 5 * 10**9
"""Bytes that S3 copies in one request: 5 GB, and less than 5 GiB."""
OWN_PART = 512 << 20
"""Bytes of a part where the source does not say which ones it has. 10,000 of them hold S3's largest object."""
IN_MEMORY = 16 << 20
_KEPT = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "Expires",
    "Metadata",
)


class Bucket(NamedTuple):
    """A bucket and the client of its region."""

    s3: S3
    name: str


class Piece(NamedTuple):
    """A part: its number from 1, its first byte, and how many it has."""

    number: int
    start: int
    size: int


Through = Callable[[Callable[[Piece], str], Sequence[Piece]], Iterable[str]]


def same_service(one: S3, other: S3) -> bool:
    """Tells whether S3 can copy between what two clients reach: all regions of AWS in one partition are one service."""
    if one.of_aws and other.of_aws:
        return partition_of(str(one.client.meta.region_name)) == partition_of(str(other.client.meta.region_name))
    return one.endpoint == other.endpoint


@dataclass
class ObjectCopier:
    """Copies objects of a bucket to another one. Safe for use by several threads.

    Attributes:
        source: where they are.
        target: where they go.
        uploads: unfinished uploads there, by key.
        by_service: S3 copies them; else their bytes pass through this machine.
    """

    source: Bucket
    target: Bucket
    uploads: dict[str, str] = field(default_factory=dict)
    by_service: bool = True

    def copy(self, entry: ListedObject, key: str, through: Through = map) -> str:
        """Copies an object. It is there as a whole or not at all.

        Args:
            entry: as it was listed; another one is not copied.
            key: of the copy.
            through: calls a function for every part, and returns the results in their order.

        Returns:
            The ETag of the copy.

        Raises:
            CopyFailed: it cannot be copied.
        """
        pieces = self._pieces(entry) if entry.parts or entry.size > LARGEST_COPY else []
        return self._in_parts(entry, key, pieces, through) if pieces else self._at_once(entry, key)

    def _at_once(self, entry: ListedObject, key: str) -> str:
        place = {"Bucket": self.target.name, "Key": key}
        if self.by_service:
            with self._writing(key):
                answer = self.target.s3.client.copy_object(**place, **self._copied(entry))
            return str(answer["CopyObjectResult"]["ETag"])
        kept = self._headers(entry)
        with self._bytes(entry, Piece(1, 0, entry.size)) as body, self._writing(key):
            return str(self.target.s3.client.put_object(**place, **kept, Body=body)["ETag"])

    def _in_parts(self, entry: ListedObject, key: str, pieces: list[Piece], through: Through) -> str:
        place = {"Bucket": self.target.name, "Key": key}
        try:
            there: dict[int, tuple[int, str]] = {}
            identifier = self.uploads.get(key)
            if identifier is None:
                kept = self._headers(entry)
                with self._writing(key):
                    identifier = self.target.s3.client.create_multipart_upload(**place, **kept)["UploadId"]
            else:
                there = self._parts_there(place | {"UploadId": identifier})
            upload = place | {"UploadId": identifier}

            def send(piece: Piece) -> str:
                size, etag = there.get(piece.number, (-1, ""))
                return etag if size == piece.size else self._part(entry, piece, upload)

            etags = through(send, pieces)
            parts = [{"PartNumber": piece.number, "ETag": etag} for piece, etag in zip(pieces, etags, strict=True)]
            with self._writing(key, missing=False):
                answer = self.target.s3.client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
            return str(answer["ETag"])
        except ObjectMissing as error:
            # The upload has ended: by this very request, whose answer was lost, or by another one who copies the same.
            try:
                size, etag = self.target.s3.head(self.target.name, key)
            except StorageError:
                raise copy_failed(error, writing=True) from error
            if size != entry.size:
                raise copy_failed(error, writing=True) from error
            return etag

    def _part(self, entry: ListedObject, piece: Piece, upload: dict[str, Any]) -> str:
        number = {"PartNumber": piece.number}
        client = self.target.s3.client
        if self.by_service:
            extent = f"bytes={piece.start}-{piece.start + piece.size - 1}"
            with self._writing(upload["Key"], missing=False):
                answer = client.upload_part_copy(**upload, **number, **self._copied(entry), CopySourceRange=extent)
            return str(answer["CopyPartResult"]["ETag"])
        with self._bytes(entry, piece) as body, self._writing(upload["Key"], missing=False):
            return str(client.upload_part(**upload, **number, Body=body)["ETag"])

    def _pieces(self, entry: ListedObject) -> list[Piece]:
        """Returns the parts that the source has. Where it does not say: none, or those that a large object needs."""
        sizes: list[int] = []
        place = {"Bucket": self.source.name, "Key": entry.key}
        for number in range(1, entry.parts + 1):
            with self._reading(entry.key):
                answer = self.source.s3.client.head_object(**place, PartNumber=number)
            if answer.get("PartsCount") != entry.parts:
                sizes.clear()
                break
            sizes.append(answer["ContentLength"])
        if sum(sizes) != entry.size:
            if entry.size <= LARGEST_COPY:
                return []
            sizes = [min(OWN_PART, entry.size - start) for start in range(0, entry.size, OWN_PART)]
        starts = itertools.accumulate(sizes, initial=0)
        return [Piece(number, start, size) for number, (start, size) in enumerate(zip(starts, sizes, strict=False), 1)]

    def _parts_there(self, upload: dict[str, Any]) -> dict[int, tuple[int, str]]:
        found: dict[int, tuple[int, str]] = {}
        with self._writing(upload["Key"], missing=False):
            for page in self.target.s3.client.get_paginator("list_parts").paginate(**upload):
                for part in page.get("Parts", ()):
                    found[part["PartNumber"]] = part["Size"], part["ETag"]
        return found

    def _copied(self, entry: ListedObject) -> dict[str, object]:
        source = {"Bucket": self.source.name, "Key": entry.key}
        return {"CopySource": source, "CopySourceIfMatch": entry.etag}

    def _headers(self, entry: ListedObject) -> dict[str, object]:
        with self._reading(entry.key):
            answer = self.source.s3.client.head_object(Bucket=self.source.name, Key=entry.key, IfMatch=entry.etag)
        return {name: answer[name] for name in _KEPT if answer.get(name)}

    @contextmanager
    def _bytes(self, entry: ListedObject, piece: Piece) -> Iterator[IO[bytes]]:
        """A file with the bytes of a part, on disk where they are many."""
        read = self.source.s3.read
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as file:
            if piece.size:
                with self._reading(entry.key):
                    read(self.source.name, entry.key, entry.etag, piece.start, piece.size, file.write)
            file.seek(0)
            yield file

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            with self.source.s3.told(f"s3://{self.source.name}/{key}"):
                yield
        except StorageError as error:
            raise copy_failed(error, writing=False) from error

    @contextmanager
    def _writing(self, key: str, *, missing: bool = True) -> Iterator[None]:
        """Makes CopyFailed of errors; with `missing` false, an upload that is not there stays an ObjectMissing."""
        try:
            with self.target.s3.told(f"s3://{self.target.name}/{key}", verb="written"):
                yield
        except ObjectMissing as error:
            if missing:
                raise copy_failed(error, writing=True) from error
            raise
        except StorageError as error:
            raise copy_failed(error, writing=True) from error
