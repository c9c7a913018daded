"""Shards that are objects of a store: which there are, and their bytes, by ranged GETs through obstore.

An object is what it was when it was listed: every GET names its ETag, so one that was replaced since is an error that
names it, never other bytes.

obstore tries again, with growing pauses, where a service throttles or a connection breaks. Credentials are found as
the store's own tools find them; those of S3, its region and its endpoint by botocore where that is installed (profiles,
SSO), else by obstore. Stores belong to a process. obstore's threads do not survive a fork, and a request would wait for
them without end: a forked process loads the library anew, from memory of its own. Needs `headrace[objects]`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import importlib
import importlib.machinery
import importlib.util
import io
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.errors import HeadraceError, ObjectChanged, ObjectMissing, ShardError, StorageError, UsageError
from headrace.feed.identifiers import positive
from headrace.install_hint import install_hint

SCHEMES = ("s3://", "gs://", "az://", "https://", "http://")
RETRIES = 10
FIRST_PAUSE = timedelta(seconds=0.1)  # before the second attempt; each later one is longer
RETRY_TIME = timedelta(minutes=3)
_CLIENT = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=20),  # without a byte
    "timeout": timedelta(minutes=15),
    "allow_http": True,
}
_STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_NOT_SHOWN = re.compile(r"(?s:\n\nDebug source:.*)|(?<=[^\s<])\?[^\s\"')]*")
_LEAVE = "do not change data that a running job reads"
_KEY_LIFE = timedelta(minutes=10)  # then botocore is asked again, which renews a key before it ends

_stores: dict[str, Any] = {}
_left_behind: list[Any] = []  # of the process that this one was forked from: to free them may wait for its threads


class _Loaded:
    """Of the library in this process."""

    stale = False  # its threads are in the process that this one was forked from


def _forked() -> None:
    _Loaded.stale = "obstore" in sys.modules
    _left_behind.append(dict(_stores))
    _stores.clear()


os.register_at_fork(after_in_child=_forked)


def _library() -> Any:
    """Returns obstore. Raises UsageError: it is not there, or cannot be loaded a second time."""
    try:
        if _Loaded.stale:
            _load_anew()
            _Loaded.stale = False
        return importlib.import_module("obstore")
    except ModuleNotFoundError as error:
        message = f"object stores need a library that is not installed: {error.name}"
        raise UsageError(message, install_hint("objects")) from error
    except (ImportError, OSError) as error:
        raise UsageError(
            f"obstore cannot be loaded a second time, in a process that was forked from one that uses it: {error}",
            "give the loader multiprocessing_context='forkserver', or read no rows before its workers start",
        ) from error


def _load_anew() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        _left_behind.append(sys.modules.pop(name))
    package, name = importlib.util.find_spec("obstore"), "obstore._obstore"
    places = package.submodule_search_locations if package is not None else None
    origin = importlib.machinery.PathFinder.find_spec(name, places)
    if origin is None or origin.origin is None:
        raise ModuleNotFoundError(name=name)
    with os.fdopen(os.memfd_create("obstore"), "wb") as copy:  # another file: one that is loaded is not loaded again
        copy.write(Path(origin.origin).read_bytes())
        copy.flush()
        path = f"/proc/self/fd/{copy.fileno()}"
        loader = importlib.machinery.ExtensionFileLoader(name, path)
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)


class Entry(NamedTuple):
    """An object, as it was listed.

    Attributes:
        key: below the root.
        size: bytes.
        version: its ETag, or the time of its last change where it has none.
    """

    key: str
    size: int
    version: str


def list_entries(root: str, prefix: str) -> Iterator[Entry]:
    """Yields the objects whose keys begin with a prefix, which ends with a slash or is empty.

    Args:
        root: ``s3://bucket``, ``gs://bucket`` or ``az://container``.
        prefix: of the keys.

    Raises:
        UsageError, StorageError, ObjectMissing: they cannot be listed.
    """
    with _told(f"{root}/{prefix}") as library:
        listed = [_entry(meta) for page in library.list(_store(root), prefix or None) for meta in page]
    folders = {key.rpartition("/")[0] for key, _, _ in listed}
    yield from (entry for entry in listed if entry.size or entry.key not in folders)  # an object may mark a folder


def find_entry(root: str, key: str) -> Entry:
    """Returns one object. Raises ObjectMissing, UsageError, StorageError."""
    with _told(f"{root}/{key}") as library:
        entry = _entry(library.head(_store(root), key))
    if not entry.version:
        raise StorageError(f"{root}/{key} has neither an ETag nor a time of change, so that other bytes could come")
    return entry


def read_range(root: str, entry: Entry, begin: int, end: int) -> bytes:
    """Returns a range of an object. Raises ObjectChanged, ObjectMissing, UsageError, StorageError."""
    uri = f"{root}/{entry.key}"
    condition = {"if_match": entry.version} if entry.version.startswith('"') else {}
    with _told(uri) as library:
        answer = library.get(_store(root), entry.key, options={"range": (begin, end), **condition})
        if _entry(answer.meta)[1:] != entry[1:]:  # a server that knows no conditions
            raise ObjectChanged(f"{uri} changed while it was read", _LEAVE)
        return bytes(answer.bytes())


def _entry(meta: Any) -> Entry:
    changed = meta["last_modified"]
    return Entry(meta["path"], meta["size"], meta["e_tag"] or (changed.isoformat() if changed is not None else ""))


def _store(root: str) -> Any:
    if root not in _stores:
        library = importlib.import_module("obstore.store")
        scheme, _, name = root.partition("://")
        common = {
            "client_options": _CLIENT,
            "retry_config": {
                "max_retries": RETRIES,
                "retry_timeout": RETRY_TIME,
                "backoff": {"init_backoff": FIRST_PAUSE},
            },
        }
        if scheme in _STORES:
            options = _by_botocore(name) if scheme == "s3" else {}
            _stores[root] = getattr(library, _STORES[scheme])(name, **options, **common)
        else:
            _stores[root] = library.HTTPStore(root, **common)
    return _stores[root]


def _by_botocore(bucket: str) -> dict[str, Any]:
    """Returns region, endpoint and credentials as botocore finds them; nothing if it is not installed."""
    if importlib.util.find_spec("botocore") is None:
        return {}
    from headrace.instance.s3 import S3

    client = S3()
    endpoint, region = client.place_of(bucket)
    options: dict[str, Any] = {"region": region} | ({"endpoint": endpoint} if endpoint else {})
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return options
    client.key()  # says what is missing

    def provider() -> dict[str, Any]:
        key = client.key()
        until = datetime.now(timezone.utc) + _KEY_LIFE
        return {"access_key_id": key[0], "secret_access_key": key[1], "token": key[2], "expires_at": until}

    return options | {"credential_provider": provider}


@contextlib.contextmanager
def _told(uri: str) -> Iterator[Any]:
    """Gives the library, and turns what it raises into headrace's errors."""
    library = _library()
    kinds = library.exceptions
    try:
        yield library
    except HeadraceError:
        raise
    except FileNotFoundError as error:
        what = "object" if uri.count("/") > 2 + uri.endswith("/") else "bucket"
        raise ObjectMissing(
            f"{uri}: there is no such {what}", "check the name, and the account that it is asked of"
        ) from error
    except kinds.PreconditionError as error:
        raise ObjectChanged(f"{uri} changed while it was read", _LEAVE) from error
    except (kinds.PermissionDeniedError, kinds.UnauthenticatedError) as error:
        raise StorageError(
            f"{uri} cannot be read: {_words(error)}", "these credentials may not do that, or are wrong or too old"
        ) from error
    except (kinds.BaseError, ValueError) as error:
        raise StorageError(f"{uri} cannot be read: {_words(error)}") from error


def _words(error: Exception) -> str:
    """Returns the words of an error of obstore, in which no URL has a query: it may hold a key."""
    return _NOT_SHOWN.sub("", str(error))


AHEAD = 1 << 20  # bytes read ahead where the next piece is likely to be near
BLOCK = 1 << 20  # bytes; rows that are smaller are read by such blocks
MOST_BLOCKS = 8  # in one GET, where rows follow each other
BLOCKS_MEMORY = 256 << 20  # bytes that a process keeps
_LEAST_USED = 0.2  # share of a block: below, rows are read one by one
_PROBE = 32  # then so often a block all the same
_NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class ObjectPath:
    """One object, as it was listed.

    Attributes:
        root: of its store, as ``s3://bucket``.
        entry: its key, and what it must be.
    """

    root: str
    entry: Entry

    def __str__(self) -> str:
        return f"{self.root}/{self.entry.key}"

    @property
    def size(self) -> int:
        """Bytes."""
        return self.entry.size

    @property
    def stamp(self) -> tuple[int, int]:
        """Size and version, the latter as a number."""
        digest = hashlib.blake2b(self.entry.version.encode(), digest_size=7).digest()
        return self.entry.size, int.from_bytes(digest, "big")

    def read(self, begin: int, end: int) -> bytes:
        """Returns the bytes from `begin` to `end` - 1. Raises ShardError if it is gone or another, StorageError."""
        if end <= begin:
            return b""
        try:
            return read_range(self.root, self.entry, begin, end)
        except ObjectChanged as error:
            raise ShardError(
                f"{self} was changed since its rows were counted",
                hint="build the loader again; do not change shards while they are read",
            ) from error
        except ObjectMissing as error:
            raise ShardError(
                f"{self} is gone: it was there when the shards were listed",
                "put it back, or build the loader again",
            ) from error


@dataclass
class ObjectFolder:
    """The objects whose keys begin with a prefix, as they were when they were looked for.

    Args:
        uri: ``s3://bucket/prefix``; likewise with ``gs``, ``az``, ``https``.

    Raises:
        ShardError: the URI names no bucket.
    """

    uri: str
    objects: dict[str, ObjectPath] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        scheme, _, rest = self.uri.partition("://")
        bucket, _, prefix = rest.partition("/")
        if f"{scheme}://" not in SCHEMES or not bucket:
            raise ShardError(f"{self.uri} names no bucket", f"write {scheme}://bucket/prefix/")
        self._root = f"{scheme}://{bucket}"
        self._prefix = prefix + ("/" if prefix and not prefix.endswith("/") else "")
        self.uri = f"{self._root}/{self._prefix}"

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> ObjectPath:
        return self.objects[name]

    def names(self, pattern: str) -> list[str]:
        """Looks for the objects whose names match a pattern, as in a shell. Returns their names, sorted.

        Raises:
            ShardError: none does.
            StorageError: they cannot be looked for.
        """
        if self._root.startswith("http"):  # such a server lists nothing
            self._look_up(_expanded(pattern))
            return sorted(self.objects)
        entries = list_entries(self._root, self._prefix)
        self.objects = {entry.key[len(self._prefix) :]: ObjectPath(self._root, entry) for entry in entries}
        parts = pattern.split("/")
        names = sorted(
            name for name in self.objects if _matches(name.split("/"), parts) and not is_hidden(name, pattern)
        )
        if not names:
            others = sorted(self.objects)
            shown = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
            above, _, last = self.uri.rstrip("/").rpartition("/")
            raise ShardError(
                f"no object in {self} matches {pattern!r}; there is: {shown or 'nothing'}",
                hint=f"pass what stands before the objects' names, and a pattern of these: '{above}/', {last!r}"
                if "." in last and not others
                else "pass what stands before the objects' names, and a pattern of these, as in a shell",
            )
        return names

    def _look_up(self, names: list[str]) -> None:
        for name in names:
            if any(sign in name for sign in "*?[{"):
                raise ShardError(
                    f"{self} cannot be listed, so {name!r} matches nothing",
                    hint="name the shards: one, or numbered ones as 'train-{0000..0146}.tar'",
                )
            self.objects[name] = ObjectPath(self._root, find_entry(self._root, self._prefix + name))


def _expanded(pattern: str) -> list[str]:
    """Returns the names of numbered shards, ``a-{00..12}.tar``; the pattern itself if it is none."""
    numbers = _NUMBERS.search(pattern)
    if numbers is None:
        return [pattern]
    begin, end = numbers.groups()
    middle = [f"{number:0{len(begin)}}" for number in range(int(begin), int(end) + 1)]
    return [name for number in middle for name in _expanded(pattern.replace(numbers[0], number, 1))]


def is_hidden(name: str, pattern: str) -> bool:
    """Whether a file, or a folder above it, has a name that begins with a dot, for which the pattern has no part."""
    dotted = [part for part in pattern.split("/") if part.startswith(".")]
    hidden = [part for part in name.split("/") if part.startswith(".")]
    return not all(any(fnmatch.fnmatchcase(part, own) for own in dotted) for part in hidden)


def _matches(name: list[str], pattern: list[str]) -> bool:
    if not pattern or not name:
        return not name and not pattern
    if pattern[0] == "**":
        return _matches(name, pattern[1:]) or _matches(name[1:], pattern)
    return fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


class ObjectBytes:
    """The bytes of an object, for those who walk through it: pieces that are near each other share a GET.

    Attributes:
        size: bytes.
    """

    def __init__(self, path: ObjectPath) -> None:
        self._path = path
        self.size = path.size
        self._held, self._begin, self._last = b"", 0, 0

    def pread(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes, fewer only at the end. Raises ShardError, StorageError."""
        end = min(offset + size, self.size)
        at = offset - self._begin
        if not (at >= 0 and end - self._begin <= len(self._held)):
            ahead = AHEAD if 0 <= offset - self._last <= AHEAD // 2 else 0
            self._held, self._begin = self._path.read(offset, min(self.size, max(end, offset + ahead))), offset
            at = 0
        self._last = offset
        return self._held[at : at + max(0, end - offset)]


class ObjectFile(io.RawIOBase):
    """An object as a file that is open for reading, for libraries that take one."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self._path, self._at = path, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position. Returns it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._path.size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes, in one GET; fewer only at the end."""
        end = self._path.size if size < 0 else min(self._path.size, self._at + size)
        content = self._path.read(self._at, end)
        self._at += len(content)
        return content


K = TypeVar("K")
V = TypeVar("V")


class LastUsed(Generic[K, V]):
    """What was read or decoded and used last, within a limit of bytes. One that is larger is kept until the next comes.

    Args:
        limit: bytes.
        dropped: called with what is given up.
    """

    def __init__(self, limit: int, dropped: Callable[[V], None] = lambda _: None) -> None:
        self._limit, self._dropped = positive("memory, a number of bytes,", limit), dropped
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def get(self, key: K) -> V | None:
        """Returns what is kept, which is the last one used then."""
        value = self._held.get(key)
        if value is None:
            return None
        self._held.move_to_end(key)
        return value[0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Keeps a value of so many bytes; `trim` gives others up for it."""
        before = self._held.pop(key, None)
        self._held[key] = value, size
        self._bytes += size - (before[1] if before is not None else 0)

    def trim(self) -> None:
        """Gives up the first ones until the others are within the limit."""
        while self._bytes > self._limit and len(self._held) > 1:
            _, (value, size) = self._held.popitem(last=False)
            self._bytes -= size
            self._dropped(value)


class _Block:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.used = 0


class _Blocks:
    """Blocks of objects that rows were read from, the last used ones. Blocks that hardly serve are not fetched."""

    def __init__(self, limit: int) -> None:
        self._held = LastUsed[tuple[ObjectPath, int], _Block](limit, self._dropped)
        self._worth = 1.0  # share of a block that was used, of those that were given up lately
        self._misses = 0

    def read(self, path: ObjectPath, begin: int, end: int, *, follows: bool) -> bytes:
        """Returns bytes of an object, by blocks where that pays."""
        first, last = begin // BLOCK, (end - 1) // BLOCK
        if end - begin >= BLOCK or end <= begin:
            return path.read(begin, end)
        missing = [number for number in range(first, last + 1) if (path, number) not in self._held]
        if missing:
            self._misses += 1
            if not follows and self._worth < _LEAST_USED and self._misses % _PROBE:
                return path.read(begin, end)
            self._fetch(path, missing[0], last, MOST_BLOCKS if follows else 1)
        content = b"".join(self._part(path, number, begin, end) for number in range(first, last + 1))
        self._held.trim()
        return content

    def _fetch(self, path: ObjectPath, first: int, last: int, most: int) -> None:
        stop = max(last + 1, min(first + most, -(-path.size // BLOCK)))
        content = path.read(first * BLOCK, min(path.size, stop * BLOCK))
        for number in range(first, stop):
            block = _Block(content[(number - first) * BLOCK : (number - first + 1) * BLOCK])
            self._held.keep((path, number), block, len(block.content))

    def _part(self, path: ObjectPath, number: int, begin: int, end: int) -> bytes:
        block = self._held.get((path, number))
        assert block is not None, "it was fetched"
        part = block.content[max(0, begin - number * BLOCK) : end - number * BLOCK]
        block.used += len(part)
        return part

    def _dropped(self, block: _Block) -> None:
        self._worth += 0.05 * (min(1.0, block.used / len(block.content)) - self._worth)


_blocks: dict[int, _Blocks] = {}  # by process


class ObjectRanges:
    """Reads rows of one object by their offsets; see `ByteRanges`."""

    def __init__(self, path: ObjectPath) -> None:
        self.path = path

    def read(self, begin: int, end: int, *, follows: bool) -> bytes:
        """See `ByteRanges.read`."""
        blocks = _blocks.setdefault(os.getpid(), _Blocks(BLOCKS_MEMORY))
        return blocks.read(self.path, begin, end, follows=follows)

    def close(self) -> None:
        """Nothing is open."""
