"""The objects of a channel: what a prefix or a manifest stands for at this moment.

Where an object lies below its channel's directory. Pure.

SageMaker takes every key that begins with the prefix, whatever the prefix is: a folder, a folder without its slash,
the beginning of names, or one whole key. The name of a file is what a user who wrote that prefix means:

    prefix      key              name
    data/       data/x/a.csv     x/a.csv         a folder
    data        data/x/a.csv     x/a.csv         the same folder
    data/x      data/x1/a.csv    x1/a.csv        the beginning of names: the key without the prefix's folder
    data/a.csv  data/a.csv       a.csv           one object
                data/a.csv       data/a.csv      a whole bucket

A key that ends in a slash is a folder's marker, no file. Two keys can come to one name, and an S3 key can be what no
file system allows; both are errors that name the key.

Manifest files and augmented manifest files. Pure: bytes in, URIs or lines out.

A manifest is a JSON list: ``{"prefix": "s3://bucket/folder/"}``, then texts that are appended to the prefix, as they
are. An augmented manifest has a JSON object on every line; a channel delivers some of its attributes. One whose name
ends in ``-ref`` holds the URI of an object, whose content is delivered; the value of another one is delivered itself:
a text as it is, anything else as compact JSON.

Beyond SageMaker, URIs may also be ``file://`` and paths, which are relative to the manifest's folder.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.errors import ObjectMissing, StorageError, UsageError
from headrace.instance.channels.stage_orders import AUGMENTED, MANIFEST, ChannelOrder
from headrace.instance.storage import Object, Store, is_s3, local_path, split
from headrace.private_folders import write_atomically

REF = "-ref"
_HINT = 'a manifest looks like [{"prefix": "s3://bucket/folder/"}, "a.csv", "b.csv"]'


@dataclass(frozen=True)
class Manifest:
    """What a manifest file says.

    Attributes:
        prefix: an absolute path or an ``s3://`` URI.
        suffixes: what is appended to it, one for each object, in the manifest's order.
    """

    prefix: str
    suffixes: tuple[str, ...]


@dataclass(frozen=True)
class Ref:
    """A value that is the content of an object."""

    uri: str


Part = bytes | Ref


@dataclass(frozen=True)
class Line:
    """One line of an augmented manifest.

    Attributes:
        number: from 1.
        parts: the values of the channel's attributes, in their order.
    """

    number: int
    parts: tuple[Part, ...]


def parse_manifest(channel: str, data: bytes, uri: str) -> Manifest:
    """Reads a manifest.

    Args:
        channel: for messages.
        data: the file.
        uri: where it was: an absolute path or ``s3://...``.

    Raises:
        UsageError: it is none.
    """
    where = f"channel {channel!r}: manifest {uri}"
    try:
        content = json.loads(data)
    except ValueError as error:
        raise UsageError(f"{where} is no JSON: {error}", _HINT) from None
    head = content[0] if isinstance(content, list) and content else None
    prefix = head.get("prefix") if isinstance(head, dict) and len(head) == 1 else None
    if not isinstance(prefix, str) or not prefix:
        raise UsageError(f'{where} must be a list that begins with {{"prefix": "..."}}', _HINT)
    suffixes = content[1:]
    for index, suffix in enumerate(suffixes, 1):
        if not isinstance(suffix, str) or not suffix:
            raise UsageError(f"{where}: entry {index} must be a text (got {json.dumps(suffix)[:80]})", _HINT)
    if not suffixes:
        raise UsageError(f"{where} names no object", _HINT)
    twice = next((name for name, count in Counter(suffixes).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{where} names {twice!r} twice", "name every object once")
    return Manifest(resolve(channel, prefix, uri), tuple(suffixes))


def parse_augmented(channel: str, data: bytes, uri: str, attributes: Sequence[str]) -> list[Line]:
    """Reads an augmented manifest.

    Args:
        channel: for messages.
        data: the file.
        uri: where it was.
        attributes: those that are wanted.

    Raises:
        UsageError: a line that is no JSON object, or lacks an attribute.
    """
    lines = []
    for number, text in enumerate(data.splitlines(), 1):
        if not text.strip():
            continue
        where = f"channel {channel!r}: {uri}:{number}"
        try:
            content = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{where}: no JSON: {error}", "an augmented manifest has one JSON object a line") from None
        if not isinstance(content, dict):
            raise UsageError(f"{where}: must be a JSON object", "an augmented manifest has one JSON object a line")
        lines.append(Line(number, tuple(_part(channel, where, content, name, uri) for name in attributes)))
    if not lines:
        raise UsageError(f"channel {channel!r}: {uri} has no line", "an augmented manifest has one JSON object a line")
    return lines


def resolve(channel: str, uri: str, manifest: str) -> str:
    """Returns an absolute path or ``s3://`` URI for what a manifest names.

    Raises:
        UsageError: another scheme, or something of this machine in a manifest that is not.
    """
    if uri.startswith("s3://"):
        return uri
    if "://" in uri and not uri.startswith("file://"):
        raise UsageError(f"channel {channel!r}: {manifest} names {uri!r}", "use s3:// or file:// URIs, or paths")
    path = uri.removeprefix("file://")
    if path.startswith("/"):
        return path
    if manifest.startswith("s3://"):
        raise UsageError(f"channel {channel!r}: {manifest} names {uri!r}, no s3:// URI", "write the whole URI")
    return posixpath.join(posixpath.dirname(manifest), path)


def _part(channel: str, where: str, content: dict[str, object], name: str, uri: str) -> Part:
    if name not in content:
        names = ", ".join(repr(key) for key in content) or "none"
        raise UsageError(f"{where}: no attribute {name!r}; there is {names}", "check attribute_names of the channel")
    value = content[name]
    if name.endswith(REF):
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where}: {name} must be the URI of an object", "an attribute that ends in -ref is one")
        return Ref(resolve(channel, value, uri))
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


MAX_NAME = 255  # bytes of one component, on all common file systems


def name_of(key: str, prefix: str) -> str:
    """Returns the path of an object below the channel's directory.

    >>> name_of("data/x/a.csv", "data"), name_of("data/x1/a.csv", "data/x"), name_of("data/a.csv", "data/a.csv")
    ('x/a.csv', 'x1/a.csv', 'a.csv')

    Args:
        key: the object's key, which begins with `prefix`.
        prefix: the prefix, as the user gave it.

    Returns:
        The relative path; empty for a folder's marker.
    """
    if key.endswith("/"):
        return ""
    rest = key[len(prefix) :]
    if rest and (not prefix or prefix.endswith("/")):
        return rest
    if rest.startswith("/"):
        return rest[1:]
    return key[prefix.rfind("/") + 1 :]


def check_names(channel: str, named: Iterable[tuple[str, str]]) -> None:
    """Checks that all objects of a channel can lie in one directory.

    Args:
        channel: the channel's name, for messages.
        named: name and key of every object.

    Raises:
        UsageError: a name that no file can have, or that two objects claim.
    """
    keys: dict[str, str] = {}
    for name, key in named:
        why = _impossible(name)
        if why:
            raise UsageError(
                f"channel {channel!r}: {key!r} cannot be a file: {why}",
                "rename the object, or choose a prefix or manifest without it",
            )
        if name in keys:
            raise _clash(channel, name, [keys[name], key])
        keys[name] = key
    for name, key in keys.items():
        for end in (index for index, letter in enumerate(name) if letter == "/"):
            if name[:end] in keys:
                raise _clash(channel, name[:end], [keys[name[:end]], key])


def _impossible(name: str) -> str:
    parts = name.split("/")
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        return "its name is not UTF-8"
    if "\0" in name:
        return "its name holds a zero byte"
    if "" in parts:
        return "its path has an empty part"
    if "." in parts or ".." in parts:
        return "its path holds '.' or '..'"
    if any(len(part.encode()) > MAX_NAME for part in parts):
        return f"a part of its path is longer than {MAX_NAME} bytes"
    return ""


def _clash(channel: str, name: str, keys: Sequence[str]) -> UsageError:
    return UsageError(
        f"channel {channel!r}: {keys[0]!r} and {keys[1]!r} would both lie at {name!r}",
        "end the prefix with '/', or name the objects in a manifest",
    )


LISTING = "listing.json"
MAX_MANIFEST = 1 << 30  # bytes; it is read as a whole
_LOOKERS = 16  # requests at once

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Item:
    """One file of a channel.

    Attributes:
        name: its path below the channel's directory.
        source: where it comes from.
    """

    name: str
    source: Object


def list_items(channel: ChannelOrder, store: Store) -> list[Item]:
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
        objects = store.list(channel.uri, data=True)
        if not objects:
            raise empty(channel)
    start = split(prefix)[1] if is_s3(prefix) else prefix
    items = [Item(name_of(source.key, start), source) for source in objects]
    check_names(channel.name, ((item.name, item.source.key) for item in items))
    return items


def list_lines(channel: ChannelOrder, store: Store) -> list[Line]:
    """Returns the lines of an augmented manifest. Raises UsageError or StorageError."""
    assert channel.data_type == AUGMENTED
    return parse_augmented(channel.name, read_manifest(channel, store), channel.uri, channel.attributes)


def looked_at(channel: ChannelOrder, store: Store, uris: Sequence[str]) -> list[Object]:
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


def read_manifest(channel: ChannelOrder, store: Store) -> bytes:
    """Returns the content of a channel's manifest. Raises StorageError."""
    source = store.look(channel.uri)
    if source.size > MAX_MANIFEST:
        raise StorageError(f"channel {channel.name!r}: manifest {channel.uri} has {source.size} bytes", "cut it")
    return store.read_range(source, 0, source.size)


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
    write_atomically(area / LISTING, msgspec.json.encode(items))


def load(area: Path) -> list[Item]:
    """Returns the listing that was kept. Raises FileNotFoundError or msgspec.DecodeError."""
    return msgspec.json.decode((area / LISTING).read_bytes(), type=list[Item])
