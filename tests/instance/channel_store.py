"""An object store in memory that can go wrong: objects that change, vanish, end too early, or stand still."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ObjectChanged, ObjectMissing, StorageError
from headrace.instance.storage import Object, split


def etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


class FakeStore:
    """Does what `headrace.instance.storage.Store` does, one object after the other.

    Attributes:
        objects: uri to content.
        before: called with the uri before every read.
        downloads: uris that were downloaded, in order.
        short: uris whose downloads end too early, unnoticed by the transport.
    """

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.before: Callable[[str], object] = lambda _: None
        self.downloads: list[str] = []
        self.reads: list[tuple[str, int, int]] = []
        self.short: set[str] = set()
        self.lock = threading.Lock()

    def _object(self, uri: str) -> Object:
        data = self.objects[uri]
        return Object(uri, split(uri)[1], len(data), etag(data))

    def list(self, uri: str, data: bool = False) -> list[Object]:
        return [self._object(each) for each in sorted(self.objects, key=str.encode) if each.startswith(uri)]

    def look(self, uri: str) -> Object:
        if uri not in self.objects:
            raise ObjectMissing(f"{uri}: there is no such object", "look")
        return self._object(uri)

    def _content(self, source: Object) -> bytes:
        self.before(source.uri)
        data = self.objects.get(source.uri)
        if data is None:
            raise ObjectMissing(f"{source.uri}: there is no such object", "look")
        if etag(data) != source.etag:
            raise ObjectChanged(f"{source.uri} changed while it was read", "let nobody write")
        return data

    def read_range(self, source: Object, start: int, length: int) -> bytes:
        with self.lock:
            self.reads.append((source.uri, start, length))
        return self._content(source)[start : start + length]

    def download_all(self, pairs: list[tuple[Object, Path]], done: Callable[[Object], object]) -> None:
        for source, path in pairs:
            data = self._content(source)
            self.downloads.append(source.uri)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.write_bytes(data[:-1] if source.uri in self.short else data)
            except OSError as error:
                raise StorageError(f"{path} cannot be written: {error.strerror}", "the disk is full") from error
            done(source)
