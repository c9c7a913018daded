"""The keys of a bucket in S3's order, that of their UTF-8 bytes, from any place on.

A folder is sorted as if its name ended with /, so ``a-`` comes before ``a/b`` and after ``a``. Names of a large folder
are kept between pages, until the folder changes.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.endpoint.s3.object_store import KEY_BYTES, ObjectStore

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
        for key in self._keys(root, prefix, after, folders=delimiter == b"/"):
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

    def _keys(self, root: bytes, prefix: bytes, after: bytes, *, folders: bool) -> Iterator[bytes]:
        """Yields the keys; of a folder after the prefix only its first, if `folders` is true."""
        above: list[tuple[bytes, Iterator[bytes], tuple[int, int]]] = []
        self._descend(root, b"", prefix, after, above)
        while above:
            base, names, _ = above[-1]
            name = next(names, None)
            if name is None:
                above.pop()
                continue
            key = base + name
            if len(key) > KEY_BYTES:
                continue
            if not name.endswith(b"/"):
                if key > after:
                    yield key
            elif folders and len(key) > len(prefix):
                if key != after:
                    yield from itertools.islice(self._keys(root, key, max(after, key), folders=False), 1)
            else:
                self._descend(root, key, prefix, after, above)

    def _descend(
        self, root: bytes, base: bytes, prefix: bytes, after: bytes,
        above: list[tuple[bytes, Iterator[bytes], tuple[int, int]]],
    ) -> None:  # fmt: skip
        path = os.path.join(root, base) if base else root  # noqa: PTH118 - bytes
        try:
            found = os.stat(path)  # noqa: PTH116 - bytes
        except OSError:
            return  # it was removed meanwhile
        here = (found.st_dev, found.st_ino)
        if any(here == each for _, _, each in above):
            return  # a link to a folder above
        names = self._names(path, found)
        above.append(
            (base, _from(names, prefix[len(base) :], after[len(base) :] if after.startswith(base) else b""), here)
        )

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
    begin = max(prefix, after)
    outer, slash, _ = begin.partition(b"/")
    inner, divided, _ = prefix.partition(b"/")
    at = bisect_left(names, outer + slash)
    while at < len(names):
        name = names[at]
        if divided:
            if name > inner + divided:
                return
            if name == inner + divided:
                yield name
        elif name.startswith(prefix):
            yield name
        elif name > prefix:
            return
        at += 1


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
