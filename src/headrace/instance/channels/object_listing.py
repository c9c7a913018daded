"""The objects of a channel: what a prefix or a manifest stands for at this moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from headrace.errors import ObjectMissing, StorageError, UsageError
from headrace.instance.channels.manifest import Line, parse_augmented, parse_manifest
from headrace.instance.channels.object_paths import check_names, name_of
from headrace.instance.channels.stage_orders import AUGMENTED, MANIFEST, ChannelOrder
from headrace.instance.storage import Object, is_s3, local_path, split

LISTING = "listing.json"
MAX_MANIFEST = 1 << 30  # bytes; it is read as a whole
_LOOKERS = 16  # requests at once

T = TypeVar("T")
R = TypeVar("R")


class ObjectReader(Protocol):
    """What channels need of `headrace.instance.storage.Store`."""

    def list(self, uri: str) -> list[Object]:
        """Objects whose place begins so, sorted."""

    def look(self, uri: str) -> Object:
        """One object."""

    def read_range(self, source: Object, start: int, length: int) -> bytes:
        """Bytes of an object."""


@dataclass(frozen=True)
class Item:
    """One file of a channel.

    Attributes:
        name: its path below the channel's directory.
        source: where it comes from.
    """

    name: str
    source: Object


def list_items(channel: ChannelOrder, store: ObjectReader) -> list[Item]:
    """Returns the files of a channel: sorted by key, or as the manifest names them.

    Raises:
        UsageError: a prefix without objects, names that cannot lie in one directory, no manifest.
        StorageError: it cannot be listed.
    """
    if channel.data_type == MANIFEST:
        manifest = parse_manifest(channel.name, read_manifest(channel, store), channel.uri)
        prefix = manifest.prefix
        objects = looked_at(channel, store, [prefix + suffix for suffix in manifest.suffixes])
    else:
        prefix = channel.uri if channel.is_s3 else str(local_path(channel.uri))
        objects = _listed(channel, store)
    start = split(prefix)[1] if is_s3(prefix) else prefix
    items = [Item(name_of(each.key, start), each) for each in objects]
    check_names(channel.name, ((item.name, item.source.key) for item in items))
    return items


def list_lines(channel: ChannelOrder, store: ObjectReader) -> list[Line]:
    """Returns the lines of an augmented manifest. Raises UsageError or StorageError."""
    assert channel.data_type == AUGMENTED
    return parse_augmented(channel.name, read_manifest(channel, store), channel.uri, channel.attributes)


def looked_at(channel: ChannelOrder, store: ObjectReader, uris: Sequence[str]) -> list[Object]:
    """Returns the objects of these places, several asked for at once.

    Raises:
        StorageError: one is not there; the channel is named.
    """

    def look(uri: str) -> Object:
        try:
            return store.look(uri)
        except ObjectMissing as error:
            raise ObjectMissing(
                f"channel {channel.name!r}: {channel.uri} names {uri}, which is not there", error.hint
            ) from error

    return in_threads(look, uris)


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Returns `work` of every item, in order, several at once; the first error ends the others."""
    with ThreadPoolExecutor(_LOOKERS, "headrace-channel") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def read_manifest(channel: ChannelOrder, store: ObjectReader) -> bytes:
    """Returns the content of a channel's manifest. Raises StorageError."""
    source = store.look(channel.uri)
    if source.size > MAX_MANIFEST:
        raise StorageError(f"channel {channel.name!r}: manifest {channel.uri} has {source.size} bytes", "cut it")
    return store.read_range(source, 0, source.size)


def _listed(channel: ChannelOrder, store: ObjectReader) -> list[Object]:
    objects = store.list(channel.uri)
    if not objects:
        raise empty(channel)
    return objects


def empty(channel: ChannelOrder) -> UsageError:
    """Returns the error of a channel without data."""
    what = "no object whose key begins so" if channel.is_s3 else "no file"
    return UsageError(
        f"channel {channel.name!r}: {channel.uri}: there is {what}",
        "check its place: `inputs` in a job file, InputDataConfig in a request",
    )


def save(items: Sequence[Item], area: Path) -> None:
    """Keeps a listing in a channel's area, for the process that serves the channel. Raises OSError."""
    area.mkdir(parents=True, exist_ok=True)
    temporary = area / f".{LISTING}"
    temporary.write_bytes(msgspec.json.encode(items))
    temporary.replace(area / LISTING)


def load(area: Path) -> list[Item]:
    """Returns the listing that was kept. Raises FileNotFoundError or msgspec.DecodeError."""
    return msgspec.json.decode((area / LISTING).read_bytes(), type=list[Item])
