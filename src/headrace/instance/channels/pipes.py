"""Pipe: the FIFOs of a host, ``<channel>_<epoch>`` in its input/data, served by one thread a channel.

The FIFO of epoch 0 is there before the programs start. As soon as a reader has opened the FIFO of epoch e, that of
epoch e + 1 is there too: a reader that has read e to its end, or has left it, finds the next one. A FIFO is read once;
its name is removed when its data have been read.

Invariants:
* a reader that leaves early, or never comes, blocks nothing else;
* a reader sees the end of the data only when all of them came: on an error the FIFO stays open until the process
  ends, and its end fails the job.

Which host gets what, and in which order an epoch delivers it. Pure.

`ShardedByS3Key` deals objects as cards are dealt: the objects, sorted by key, go round robin to the hosts that have
the channel, in the order in which the job lists them. So the shares depend on keys and hosts only, differ by one
object at most, and with fewer objects than hosts the last hosts get none.

With a shuffle seed, epoch e has the order that `random.Random(seed + e)` gives; it is dealt after that, so that a host
of a sharded channel sees other objects in another epoch, as on SageMaker.

The framing of RecordIO, as MXNet's dmlc library defines it. Pure.

A record is: the magic number, a word with the length of the data in its lower 29 bits, the data, zeros up to the next
multiple of 4. Both words are little-endian. The upper three bits of the length are 0: the record is whole. (dmlc's
writer cuts records at a magic number inside the data, so that a file can be searched from its middle. A stream is
only read from its start, by readers that go by the length, and some of them know whole records only.)

Pipe: the bytes of one epoch of a channel, for one host.

Without wrapping, the contents of the objects follow each other as they are. With RecordIO every object is one record,
and so is every attribute of every line of an augmented manifest. With Gzip each object is decompressed on its own.

Objects are fetched ahead of the reader, `AHEAD` at once, and the parts of a large one as well; so no more than
2 * `AHEAD` parts of `PART` bytes wait for a reader.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from headrace.errors import HeadraceError, StorageError
from headrace.instance.channels.download import named
from headrace.instance.channels.object_listing import Item, Line, Part, Ref
from headrace.instance.channels.stage_orders import GZIP, RECORD_IO, ChannelOrder
from headrace.instance.storage import Object, Store

PART = 4 << 20
AHEAD = 4
SPOOLED = 8 << 20  # bytes of a decompressed record that stay in memory; more go to a temporary file

_GZIP = 16 + zlib.MAX_WBITS


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
        store: Store,
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
    yield record_header(size)
    yield from parts
    yield record_padding(size)


def _check_record(name: str, size: int) -> None:
    if size > MAX_RECORD:
        raise StorageError(
            f"{name} is larger than a RecordIO record can be ({MAX_RECORD} bytes)",
            "cut it into smaller objects, or write RecordIO files and leave record_wrapping out",
        )


MAGIC = 0xCED7230A
MAX_RECORD = (1 << 29) - 1
"""Bytes of data that one record can hold."""

_HEADER = struct.Struct("<II")


def record_header(length: int) -> bytes:
    """Returns what stands before the data of a record.

    Raises:
        ValueError: the data are too long for one record.
    """
    if length > MAX_RECORD:
        raise ValueError(f"{length} bytes are more than a RecordIO record can hold ({MAX_RECORD})")
    return _HEADER.pack(MAGIC, length)


def record_padding(length: int) -> bytes:
    """Returns what stands after the data of a record."""
    return bytes(-length % 4)


T = TypeVar("T")


def share(items: Sequence[T], place: int, hosts: int) -> list[T]:
    """Returns what one host gets of the items.

    >>> share(["a", "b", "c"], 0, 2), share(["a", "b", "c"], 1, 2)
    (['a', 'c'], ['b'])

    Args:
        items: in order.
        place: the host's place among those that share, from 0.
        hosts: how many share; 1 means that the host gets all.
    """
    if not 0 <= place < hosts:
        raise ValueError(f"place {place} is none of {hosts}")
    return list(items[place::hosts])


def shuffled(items: Sequence[T], seed: int | None, epoch: int) -> list[T]:
    """Returns the items in the order of an epoch; without a seed in their own."""
    order = list(items)
    if seed is not None:
        random.Random(seed + epoch).shuffle(order)
    return order


CAPACITY = 1 << 20  # bytes of a FIFO; the most that an ordinary user may ask for


class Pipe:
    """The FIFOs of one channel on one host.

    Args:
        folder: input/data of the host.
        channel: the channel's name.
        pieces: gives the bytes of an epoch.
        on_error: told of an error, in this pipe's thread; the FIFO being served then stays open.
    """

    def __init__(
        self,
        folder: Path,
        channel: str,
        pieces: Callable[[int], Iterator[bytes]],
        on_error: Callable[[BaseException], object],
    ) -> None:
        self._folder = folder
        self._channel = channel
        self._pieces = pieces
        self._on_error = on_error

    def path(self, epoch: int) -> Path:
        """The FIFO of an epoch."""
        return self._folder / f"{self._channel}_{epoch}"

    def start(self) -> threading.Thread:
        """Makes the first FIFO and begins to serve. Raises OSError."""
        os.mkfifo(self.path(0))
        thread = threading.Thread(target=self._run, name=f"pipe {self._channel}", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        epoch = 0
        try:
            while True:
                self._serve(epoch)
                epoch += 1
        except BaseException as error:  # noqa: BLE001  (the boundary of the thread: its starter gets the error)
            self._on_error(error)

    def _serve(self, epoch: int) -> None:
        path = self.path(epoch)
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # waits for a reader, without a limit
        os.mkfifo(self.path(epoch + 1))
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, CAPACITY)
        except OSError:  # the user has too many pipes: it is slower, and still right
            pass
        pieces = self._pieces(epoch)
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        except BrokenPipeError:  # the reader has closed its end
            pass
        # On any other error the descriptor is left open, see the module.
        pieces.close()  # type: ignore[attr-defined]  # a generator: it lets go of what it has fetched
        path.unlink()
        os.close(descriptor)
