"""FastFile: a read-only file system whose files are objects, read when a program reads them.

    /<channel>/<share>/<name>

It is mounted once a run, in the file system that all instances see, before their programs start. The kernel keeps what
it has read (objects do not change, see below), so a second epoch costs a request only for what fell out of its cache.

Invariants:
* it is never written to;
* a program reads what was listed or gets an error: the objects are asked for by their ETag;
* an error that is not the program's own is passed to the serving process, because it must end the job.

Needs the library `mfusepy` (extra ``headrace[fastfile]``) and libfuse; see `mounts.why_not`.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.instance.channels.blocks import Blocks
from headrace.instance.channels.download import named
from headrace.instance.channels.mounts import KIND
from headrace.instance.channels.object_listing import Item
from headrace.instance.storage import Object

mfusepy: Any = importlib.import_module("mfusepy")  # it has no types

_CACHED = 3600.0  # seconds for which the kernel need not ask again; nothing changes
_READ_ONLY = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


@dataclass
class _Folder:
    children: dict[str, _Folder | Object] = field(default_factory=dict)


@dataclass
class _Reader:
    """An open file: where the next sequential read would begin."""

    source: Object
    next: int = 0


THREADS = 10
"""Threads of libfuse that answer at once: its own default."""


class FileSystem(mfusepy.Operations):  # type: ignore[misc]
    """The operations of the file system.

    Args:
        shares: (channel, share) to its files.
        blocks: where bytes come from.
        on_ready: called when the kernel has taken the mount.
        on_error: told of an object that cannot be read.
    """

    use_ns = True

    def __init__(
        self,
        shares: Mapping[tuple[str, int], Sequence[Item]],
        blocks: Blocks,
        on_ready: Callable[[], object],
        on_error: Callable[[HeadraceError], object],
    ) -> None:
        self._root = _Folder()
        for (channel, place), items in shares.items():
            self._folder((channel, str(place)))
            for item in items:
                *parents, name = item.name.split("/")
                self._folder((channel, str(place), *parents)).children[name] = item.source
        self._blocks = blocks
        self._on_ready = on_ready
        self._on_error = on_error
        self._readers: dict[int, _Reader] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        now = time.time_ns()
        self._common = {
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            "st_atime": now,
            "st_mtime": now,
            "st_ctime": now,
        }

    def init(self, path: str) -> None:
        """The kernel has taken the mount."""
        self._on_ready()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """Returns the attributes of a file or folder."""
        entry = self._find(path)
        if isinstance(entry, _Folder):
            return {**self._common, "st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2, "st_size": 4096}
        blocks = -(-entry.size // 512)
        return {
            **self._common,
            "st_mode": stat.S_IFREG | 0o444,
            "st_nlink": 1,
            "st_size": entry.size,
            "st_blocks": blocks,
        }

    def readdir(self, path: str, fh: int) -> Iterable[tuple[str, dict[str, int], int]]:
        """Returns the names in a folder."""
        folder = self._find(path)
        if not isinstance(folder, _Folder):
            raise mfusepy.FuseOSError(errno.ENOTDIR)
        kinds = {True: stat.S_IFDIR | 0o555, False: stat.S_IFREG | 0o444}
        entries = [(name, {"st_mode": kinds[isinstance(child, _Folder)]}, 0) for name, child in folder.children.items()]
        return [(".", {"st_mode": kinds[True]}, 0), ("..", {"st_mode": kinds[True]}, 0), *entries]

    def open(self, path: str, flags: int) -> int:
        """Opens a file for reading."""
        entry = self._find(path)
        if isinstance(entry, _Folder):
            raise mfusepy.FuseOSError(errno.EISDIR)
        if flags & _READ_ONLY:
            raise mfusepy.FuseOSError(errno.EROFS)
        with self._lock:
            number = next(self._numbers)
            self._readers[number] = _Reader(entry)
        return number

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Reads from a file."""
        reader = self._readers[fh]
        ahead = offset <= reader.next <= offset + size or offset == reader.next
        reader.next = offset + size
        try:
            return self._blocks.read(reader.source, offset, size, ahead)
        except HeadraceError as error:
            self._on_error(named(path.split("/")[1], error))
            raise mfusepy.FuseOSError(errno.EIO) from error

    def release(self, path: str, fh: int) -> int:
        """Closes a file."""
        with self._lock:
            self._readers.pop(fh, None)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """Returns the numbers of a full, read-only disk."""
        return {"f_bsize": 4096, "f_frsize": 4096, "f_namemax": 255}

    def _folder(self, parts: Iterable[str]) -> _Folder:
        folder = self._root
        for part in parts:
            child = folder.children.setdefault(part, _Folder())
            assert isinstance(child, _Folder), "names were checked when they were listed"
            folder = child
        return folder

    def _find(self, path: str) -> _Folder | Object:
        entry: _Folder | Object = self._root
        for part in path.split("/"):
            if part:
                child = entry.children.get(part) if isinstance(entry, _Folder) else None
                if child is None:
                    raise mfusepy.FuseOSError(errno.ENOENT)
                entry = child
        return entry


def mount(system: FileSystem, path: Path, name: str) -> None:
    """Mounts the file system and serves it until it is unmounted. Call it with SIGTERM and SIGINT blocked.

    Args:
        system: the file system.
        path: an empty folder.
        name: what the mount is called in the mount table; it says whose it is.

    Raises:
        RuntimeError: it cannot be mounted.
    """
    options: dict[str, object] = {"allow_other": True} if os.getuid() == 0 else {}
    if (mfusepy.fuse_version_major, mfusepy.fuse_version_minor) >= (3, 2):
        # libfuse 3.12 to 3.14 complains on standard error of its own default, the greatest number.
        options["max_idle_threads"] = THREADS
    mfusepy.FUSE(
        system,
        str(path),
        foreground=True,
        ro=True,
        nosuid=True,
        nodev=True,
        auto_unmount=True,  # a process of libfuse's own unmounts when this one was killed
        default_permissions=True,
        fsname=name,
        subtype=KIND,
        kernel_cache=True,
        attr_timeout=_CACHED,
        entry_timeout=_CACHED,
        negative_timeout=_CACHED,
        **options,
    )
