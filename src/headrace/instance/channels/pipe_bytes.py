"""Pipe: the bytes of one epoch of a channel, for one host.

Without wrapping, the contents of the objects follow each other as they are. With RecordIO every object is one record,
and so is every attribute of every line of an augmented manifest. With Gzip each object is decompressed on its own.

Objects are fetched ahead of the reader, `AHEAD` at once, and the parts of a large one as well; so no more than
2 * `AHEAD` parts of `PART` bytes wait for a reader.
"""

from __future__ import annotations

import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from headrace.errors import HeadraceError, StorageError
from headrace.instance.channels import recordio
from headrace.instance.channels.download import named
from headrace.instance.channels.manifest import Line, Part, Ref
from headrace.instance.channels.object_listing import Item, ObjectReader
from headrace.instance.channels.shares import share, shuffled
from headrace.instance.channels.stage_orders import GZIP, RECORD_IO, ChannelOrder
from headrace.instance.storage import Object

PART = 4 << 20
AHEAD = 4
SPOOLED = 8 << 20  # bytes of a decompressed record that stay in memory; more go to a temporary file

_GZIP = 16 + zlib.MAX_WBITS

T = TypeVar("T")


@dataclass(frozen=True)
class _Opened:
    """An object, or a value of a manifest, with its first part."""

    name: str
    size: int
    first: bytes
    source: Object | None = None


class Epochs:
    """The epochs of a channel, as one host gets them.

    Args:
        channel: a Pipe channel.
        contents: its objects, or the lines of its augmented manifest.
        place: which share is the host's.
        store: where the objects are.
        pool: threads that fetch.
    """

    def __init__(
        self,
        channel: ChannelOrder,
        contents: list[Item] | list[Line],
        place: int,
        store: ObjectReader,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._channel = channel
        self._contents = contents
        self._place = place
        self._store = store
        self._pool = pool

    def pieces(self, epoch: int) -> Iterator[bytes]:
        """Yields the bytes of an epoch.

        Raises:
            HeadraceError: an object cannot be read, or is no longer what was listed; the channel is named.
        """
        order = shuffled(list[Item | Line](self._contents), self._channel.seed, epoch)
        own = share(order, self._place, self._channel.shares)
        try:
            for opened in self._ahead(partial(self._open, part) for part in _parts(own)):
                parts = self._parts_of(opened)
                size = opened.size
                if self._channel.compression == GZIP and opened.source is not None:
                    parts, size = _inflated(opened.name, parts), -1
                yield from parts if self._channel.record_wrapping != RECORD_IO else _record(opened.name, size, parts)
        except HeadraceError as error:
            raise named(self._channel.name, error) from error

    def _open(self, part: Object | Part) -> _Opened:
        if isinstance(part, bytes):
            return _Opened("a value of the manifest", len(part), part)
        source = self._store.look(part.uri) if isinstance(part, Ref) else part
        return _Opened(source.uri, source.size, self._store.read_range(source, 0, PART), source)

    def _parts_of(self, opened: _Opened) -> Iterator[bytes]:
        if opened.first:
            yield opened.first
        source = opened.source
        if source is not None and source.size > PART:
            starts = range(PART, source.size, PART)
            yield from self._ahead(partial(self._store.read_range, source, start, PART) for start in starts)

    def _ahead(self, tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Yields the results of tasks in order, and does the next ones meanwhile."""
        waiting: deque[Future[T]] = deque()
        try:
            for task in tasks:
                waiting.append(self._pool.submit(task))
                if len(waiting) == AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _parts(own: Iterable[Item | Line]) -> Iterator[Object | Part]:
    for content in own:
        if isinstance(content, Item):
            yield content.source
        else:
            yield from content.parts


def _inflated(name: str, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Decompresses an object, which may be several gzip files in a row."""
    inflate = zlib.decompressobj(_GZIP)
    fresh = True
    try:
        for part in parts:
            rest = part
            while rest:
                if inflate.eof:
                    inflate, fresh = zlib.decompressobj(_GZIP), True
                data = inflate.decompress(rest, PART)
                fresh = False
                if data:
                    yield data
                rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        while not fresh and not inflate.eof:  # what zlib still holds
            data = inflate.decompress(inflate.unconsumed_tail, PART)
            if not data:
                raise zlib.error("the compressed data is not complete")
            yield data
    except zlib.error as error:
        raise StorageError(f"{name} is not gzip: {error}", "compression: None, or compress every object") from error


def _record(name: str, size: int, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Wraps an object as a record; `size` is -1 when it is known only at the end."""
    if size < 0:
        with tempfile.SpooledTemporaryFile(SPOOLED) as file:
            for part in parts:
                file.write(part)
                _check_record(name, file.tell())
            size = file.tell()
            file.seek(0)
            yield from _record(name, size, iter(lambda: file.read(PART), b""))
        return
    _check_record(name, size)
    yield recordio.header(size)
    yield from parts
    yield recordio.padding(size)


def _check_record(name: str, size: int) -> None:
    if size > recordio.MAX_LENGTH:
        raise StorageError(
            f"{name} is larger than a RecordIO record can be ({recordio.MAX_LENGTH} bytes)",
            "cut it into smaller objects, or write RecordIO files and leave record_wrapping out",
        )
