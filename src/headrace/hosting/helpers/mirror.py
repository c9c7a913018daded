"""Keeps a place up to date with a folder that programs write to: new and changed files go there, none is removed there.

A file is copied when no process has it open for writing (the kernel is asked for a read lease, which is given back at
once) and it has not changed between two looks. It is copied or uploaded under a check that it has not changed
meanwhile, so that a place never has half a file. Where the kernel gives no leases (another user's file, a network file
system), it must not have changed for `QUIET_SECONDS`.

Several folders may have the same place, as all hosts of a job have one for checkpoints. The last writer of a name wins,
as on the service; a name with more than one content is counted as a clash. Folders of other machines are not seen here:
of what was brought there the digests are told (`versions`), and whoever reads the record of the run compares them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import HeadraceError, ObjectChanged, ObjectMissing, StorageError
from headrace.hosting.helpers.merge_hosts import not_stored
from headrace.instance import storage
from headrace.instance.kept_files import FILE, LOST, OTHER, walk
from headrace.instance.storage import THREADS, Object, Store

QUIET_SECONDS = 5.0


@dataclass
class Folder:
    """A folder and its place.

    Attributes:
        host: whose it is.
        base: its tree.
        path: the folder in it; it need not exist yet.
        uri: the place.
        known: name below the folder to the version (etag) that is at the place.
        seen: the versions of the last look.
    """

    host: str
    base: Path
    path: Path
    uri: str
    known: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """A version of a file that is not at its place yet."""

    folder: Folder
    name: str
    file: Object


class Mirror:
    """The folders of all hosts.

    Args:
        store: what writes.
        folders: what is kept up to date.
        of_many: other machines write to the places, too.

    Attributes:
        versions: place to the last content (its digest, and when it was brought there) from here; only when `of_many`.
        files: place to bytes, of all files that were brought there; those of earlier attempts may be put in.
        clashes: place to the hosts that wrote it with different content, the one whose file is there last.
        left_out: what of the last look holds no data and is not stored, as ``host:path``.
        lost: what of the last look holds data and cannot be stored; while programs run the next may find it mended.
    """

    def __init__(self, store: Store, folders: Sequence[Folder], of_many: bool = False) -> None:
        self._store = store
        self._folders = folders
        self._of_many = of_many
        self.versions: dict[str, tuple[str, float]] = {}
        self._writers: dict[str, str] = {}
        self.files: dict[str, int] = {}
        self.clashes: dict[str, list[str]] = {}
        self.left_out: list[str] = []
        self.lost: StorageError | None = None

    def look(self, last: bool = False) -> list[Change]:
        """Returns what can be taken now.

        Args:
            last: no program writes any more: everything is taken.
        """
        changes = []
        self.left_out, self.lost = [], None
        for folder in self._folders:
            now: dict[str, str] = {}
            for entry in walk(folder.base, folder.path, links=False):
                if entry.kind == OTHER:
                    self.left_out.append(f"{folder.host}:{entry.name}")
                elif entry.kind == LOST:
                    self.lost = self.lost or not_stored(folder.host, entry)
                if entry.kind != FILE:
                    continue
                try:
                    file = storage.local_object(entry.path)
                except HeadraceError:  # a program has removed it meanwhile; the next look is complete
                    continue
                now[entry.name] = file.etag
                if folder.known.get(entry.name) == file.etag:
                    continue
                if last or (folder.seen.get(entry.name) == file.etag and is_settled(file)):
                    changes.append(Change(folder, entry.name, file))
            folder.seen = now
        return changes

    def take(self, changes: Iterable[Change]) -> HeadraceError | None:
        """Brings files to their places, several at once.

        Returns:
            The first error of those that another try may mend; a file that has changed or gone meanwhile is none.
        """
        trouble: HeadraceError | None = None
        queues: dict[str, list[Change]] = {}
        for change in changes:
            queues.setdefault(storage.join(change.folder.uri, change.name), []).append(change)
        for queue in queues.values():
            queue.sort(key=lambda change: _changed_at(change.file))  # the last writer of a name wins
        while queues:
            now = [queue.pop(0) for queue in queues.values()]
            queues = {uri: queue for uri, queue in queues.items() if queue}
            with ThreadPoolExecutor(min(THREADS, len(now)), "headrace-mirror") as pool:
                for change, error in zip(now, pool.map(self._try, now), strict=True):
                    if error is None:
                        self._taken(change)
                    elif not isinstance(error, ObjectChanged | ObjectMissing) or not _is_other(change):
                        trouble = trouble or error
        return trouble

    def _try(self, change: Change) -> HeadraceError | None:
        uri = storage.join(change.folder.uri, change.name)
        try:
            self._store.upload(change.file.uri, uri, change.file)
        except HeadraceError as error:
            return error
        if self._of_many:
            digest = _digest(Path(change.file.uri))
            if digest and not _is_other(change):  # else the next look takes it, or it has gone
                self.versions[uri] = digest, time.time()
        return None

    def _taken(self, change: Change) -> None:
        uri = storage.join(change.folder.uri, change.name)
        change.folder.known[change.name] = change.file.etag
        self.files[uri] = change.file.size
        before = self._writers.get(uri)
        if before is not None and before != change.folder.host and not self._same_elsewhere(change):
            hosts = self.clashes.setdefault(uri, [before])
            hosts[:] = [host for host in hosts if host != change.folder.host] + [change.folder.host]
        self._writers[uri] = change.folder.host

    def _same_elsewhere(self, change: Change) -> bool:
        """Whether the other hosts' files of that name hold the same now."""
        others = [
            folder.path / change.name
            for folder in self._folders
            if folder is not change.folder and folder.uri == change.folder.uri
        ]
        return all(same_content(other, Path(change.file.uri)) for other in others if other.is_file())


def _digest(path: Path) -> str:
    """Returns a digest of a file's content; empty if it cannot be read."""
    found = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            for piece in _pieces(file.read):
                found.update(piece)
    except OSError:
        return ""
    return found.hexdigest()


def _changed_at(file: Object) -> int:
    try:
        return Path(file.uri).stat().st_mtime_ns
    except OSError:
        return 0  # it has gone meanwhile


def _is_other(change: Change) -> bool:
    """Whether a file is no longer what it was when it was looked at: the next look will see it."""
    try:
        return storage.local_object(change.file.uri).etag != change.file.etag
    except HeadraceError:
        return True


def same_content(one: Path, other: Path) -> bool:
    """Tells whether two files hold the same; not if one cannot be read."""
    try:
        with one.open("rb") as a, other.open("rb") as b:
            if os.fstat(a.fileno()).st_size != os.fstat(b.fileno()).st_size:
                return False
            return all(x == y for x, y in zip(_pieces(a.read), _pieces(b.read), strict=True))
    except (OSError, ValueError):
        return False


def _pieces(read: Callable[[int], bytes]) -> Iterable[bytes]:
    return iter(lambda: read(1 << 20), b"")


def is_settled(file: Object) -> bool:
    """Tells whether no process is writing to a file. The process must ignore SIGIO."""
    try:
        descriptor = os.open(file.uri, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
    except OSError as error:
        if error.errno == errno.EAGAIN:  # a process has it open for writing
            return False
        return time.time() - os.fstat(descriptor).st_mtime > QUIET_SECONDS
    finally:
        os.close(descriptor)
