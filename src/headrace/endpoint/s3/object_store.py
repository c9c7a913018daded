"""Objects as files, and what is kept of them beside their bytes, in a SQLite database; one lock guards both.

The object ``a/b.txt`` of a bucket is the file ``a/b.txt`` of the bucket's folder, so programs read it there, and a
folder that somebody else filled is a bucket. A key that no file can have (``a//b``, ``a/``, ``..``, NUL, a name of more
than 255 bytes), and the key ``a`` beside ``a/b``, cannot be put. A folder in a bucket may be a symbolic link: what is
behind it can be read and is never changed.

A row belongs to a file as long as inode, size and time of change are those of the row. So whoever writes into a
bucket's folder without asking S3 is never told what was true of another file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.catalog.aws_facts import why_no_bucket
from headrace.endpoint.http.http_message import CHUNK_BYTES
from headrace.endpoint.s3.s3_errors import S3Error
from headrace.errors import UsageError
from headrace.held_file import hold
from headrace.ledger import Ledger
from headrace.private_folders import make_folders

_KERNEL_BYTES = 1 << 30
_CANNOT = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
OWN = ".headrace-s3"
KEY_BYTES = 1024
_NAME_BYTES = 255
_BATCH = 500


_SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, created REAL NOT NULL, region TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT NOT NULL, key BLOB NOT NULL, inode INTEGER NOT NULL, size INTEGER NOT NULL,
    changed INTEGER NOT NULL, etag TEXT NOT NULL, known TEXT NOT NULL, PRIMARY KEY (bucket, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY, bucket TEXT NOT NULL, key BLOB NOT NULL, known TEXT NOT NULL, algorithm TEXT NOT NULL,
    kind TEXT NOT NULL, began REAL NOT NULL, part_bytes INTEGER, completed TEXT);
CREATE TABLE IF NOT EXISTS parts (
    upload TEXT NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, md5 TEXT NOT NULL, checksum TEXT NOT NULL,
    file TEXT, changed REAL NOT NULL, PRIMARY KEY (upload, number)) WITHOUT ROWID;
"""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """What a client said of an object, and what was computed of it.

    Attributes:
        members: of its answers: ContentType and the like, and the user's Metadata.
        checksums: algorithm to value, as headers hold it.
        kind: FULL_OBJECT or COMPOSITE: what the checksums are of.
        parts: bytes of each part, if it was uploaded in parts.
    """

    members: dict[str, object] = {}
    checksums: dict[str, str] = {}
    kind: str = "FULL_OBJECT"
    parts: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Returns it as text."""
        return msgspec.json.encode(self).decode()


_known = msgspec.json.Decoder(Known)
read_known = _known.decode
"""Reads what `Known.to_json` has written."""

ObjectRow = Mapping[str, Any]
"""What is known of one object, and the file that it is true of: inode, size, changed, etag, known."""


@dataclass(frozen=True)
class ObjectInfo:
    """An object.

    Attributes:
        key: UTF-8.
        size: bytes.
        modified: seconds since 1970.
        etag: without quotes.
        known: what was said of it when it was put; nothing for a file that came in another way.
    """

    key: bytes
    size: int
    modified: float
    etag: str
    known: Known


class ObjectStore:
    """The files and rows of a store. One process at a time uses it; `lock` guards what belongs together.

    Args:
        root: the folder of the buckets' folders.

    Raises:
        UsageError: another server uses it, or it cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = root / OWN
        try:
            for folder in (root, self.own, self.own / "incoming", self.own / "uploads"):
                make_folders(folder)
            lock_file = hold(self.own / "lock")
        except OSError as error:
            raise UsageError(f"the folder of objects {root} cannot be used: {error.strerror or error}") from error
        if lock_file is None:
            words = f"another server uses the folder of objects {root}"
            raise UsageError(words, hint="stop it, or name another folder with --buckets")
        self._lock_file = lock_file
        try:
            self._ledger = Ledger(self.own / "objects.sqlite", (_SCHEMA,), durable=False)
            self._ledger.execute("PRAGMA cache_size=-4000")
            self.lock, self.execute = self._ledger.lock, self._ledger.execute
            for left in (self.own / "incoming").iterdir():
                left.unlink()
        except BaseException:
            os.close(lock_file)
            raise

    def close(self) -> None:
        """Ends the use of the folder."""
        self._ledger.close()
        os.close(self._lock_file)

    def bucket_names(self) -> list[str]:
        """Returns the buckets there are, in order."""
        with os.scandir(self.root) as entries:
            return sorted(each.name for each in entries if not why_no_bucket(each.name) and each.is_dir())

    def bucket_path(self, bucket: str) -> Path:
        """Returns a bucket's folder.

        Raises:
            S3Error: there is no such bucket.
        """
        path = self.root / bucket
        if why_no_bucket(bucket) or not path.is_dir():
            raise S3Error("NoSuchBucket", BucketName=bucket)
        return path

    def create_bucket(self, bucket: str) -> bool:
        """Creates a bucket. Returns False if it was there.

        Raises:
            S3Error: a bucket cannot have that name.
        """
        if why_no_bucket(bucket):
            raise S3Error("InvalidBucketName", BucketName=bucket)
        with self.lock:
            try:
                (self.root / bucket).mkdir(mode=0o700)
            except FileExistsError:
                return False
            return True

    def delete_bucket(self, bucket: str) -> None:
        """Removes a bucket that has no object, with the empty folders in it and the rows of its uploads.

        Raises:
            S3Error: there is no such bucket, or it holds something.
        """
        with self.lock:
            path = self.bucket_path(bucket)
            if path.is_symlink():
                raise S3Error("AccessDenied", f"the bucket {bucket} is a linked folder, which is only read")
            if _holds_a_file(path):
                raise S3Error("BucketNotEmpty", BucketName=bucket)
            _remove_folders(path)
            self.execute("DELETE FROM parts WHERE upload IN (SELECT id FROM uploads WHERE bucket = ?)", bucket)
            self.execute("DELETE FROM uploads WHERE bucket = ?", bucket)
            self.execute("DELETE FROM objects WHERE bucket = ?", bucket)
            self.execute("DELETE FROM buckets WHERE name = ?", bucket)

    def bucket_record(self, bucket: str, region: str) -> tuple[float, str]:
        """Returns when a bucket was created, and its region; a folder that is new here becomes one now.

        Raises:
            S3Error: there is no such bucket.
        """
        with self.lock:
            self.bucket_path(bucket)
            self.execute("INSERT OR IGNORE INTO buckets VALUES (?, ?, ?)", bucket, time.time(), region)
            created, where = self.execute("SELECT created, region FROM buckets WHERE name = ?", bucket)[0]
        return float(created), str(where)

    def path_of(self, bucket: str, key: bytes) -> Path | None:
        """Returns where the file of a key lies; None if no file can have that name."""
        for name in key.split(b"/"):
            if name in (b"", b".", b"..") or len(name) > _NAME_BYTES or b"\0" in name:
                return None
        return self.root / bucket / os.fsdecode(key)

    def local_path(self, bucket: str, key: str) -> Path:
        """Returns the file of an object, or where it would be; for a prefix, with or without / at its end, the folder.

        Args:
            bucket: its name.
            key: of the object, or prefix of objects.

        Raises:
            S3Error: there is no such bucket, or no file can be called that.
        """
        folder = self.bucket_path(bucket)
        path = self.path_of(bucket, key.removesuffix("/").encode()) if key else folder
        if path is None:
            raise S3Error("NoSuchKey", f"no file or folder of this machine can be called {key!r}")
        return path

    def open(self, bucket: str, key: bytes) -> tuple[ObjectInfo, int]:
        """Returns an object, and a descriptor of its file.

        Raises:
            S3Error: there is no such bucket or object.
        """
        with self.lock:
            self.bucket_path(bucket)
            row = self._rows(bucket, [key]).get(key)
            path = self.path_of(bucket, key)
            if path is None:
                raise S3Error("NoSuchKey", Key=key.decode())
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except PermissionError:
                raise S3Error("AccessDenied") from None
            except OSError:
                raise S3Error("NoSuchKey", Key=key.decode()) from None
            found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise S3Error("NoSuchKey", Key=key.decode())
        return info_of(key, found, row), descriptor

    def info(self, bucket: str, key: bytes) -> ObjectInfo | None:
        """Returns an object without opening it; None if there is none."""
        return next(iter(self.infos(bucket, [key])), None)

    def infos(self, bucket: str, keys: Sequence[bytes]) -> list[ObjectInfo]:
        """Returns those of several objects that are there, without opening them."""
        infos = []
        with self.lock:
            rows = self._rows(bucket, keys)
            for key in keys:
                path = self.path_of(bucket, key)
                try:
                    status = path.stat() if path is not None else None
                except OSError:
                    continue
                if status is not None and stat.S_ISREG(status.st_mode):
                    infos.append(info_of(key, status, rows.get(key)))
        return infos

    def _rows(self, bucket: str, keys: Sequence[bytes]) -> dict[bytes, ObjectRow]:
        rows: dict[bytes, ObjectRow] = {}
        for begin in range(0, len(keys), _BATCH):
            batch = keys[begin : begin + _BATCH]
            statement = (
                "SELECT key, inode, size, changed, etag, known FROM objects"
                f" WHERE bucket = ? AND key IN ({','.join('?' * len(batch))})"
            )
            rows |= {row["key"]: row for row in self.execute(statement, bucket, *batch)}
        return rows

    @contextlib.contextmanager
    def incoming(self) -> Iterator[tuple[int, Path]]:
        """Yields a new file, as descriptor and path. It is removed afterwards if it has not been placed."""
        path = self.own / "incoming" / secrets.token_hex(12)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            yield descriptor, path
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)

    def place(
        self, file: Path, bucket: str, key: bytes, etag: str, known: Known,
        allowed: Callable[[ObjectInfo | None], None] | None = None, size: int | None = None,
    ) -> ObjectInfo:  # fmt: skip
        """Makes a file the object of a key, in one step: a reader sees the old object or the new one.

        Args:
            file: in the store's own folder.
            bucket: its name.
            key: whose object it becomes.
            etag: of the object.
            known: what is kept of it.
            allowed: is asked before, with the object that is there now; raises S3Error if it may not be replaced.
            size: of the object; what the file holds behind it is cut off when nothing can refuse it any more.

        Raises:
            S3Error: there is no such bucket, or the key lies in a linked folder.
        """
        with self.lock:
            path = self.check_place(bucket, key)
            if allowed is not None:
                allowed(self.info(bucket, key))
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                _remove_folders(path)  # empty ones are no objects
            if size is not None:
                os.truncate(file, size)
            file.rename(path)
            status = path.stat()
            self.execute(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
                bucket, key, status.st_ino, status.st_size, status.st_mtime_ns, etag, known.to_json(),
            )  # fmt: skip
        return ObjectInfo(key, status.st_size, status.st_mtime, etag, known)

    def check_place(self, bucket: str, key: bytes) -> Path:
        """Returns where the file of an object can be put now.

        Raises:
            S3Error: there is no such bucket, the key lies in a linked folder, or no file can lie there.
        """
        root, path = self.bucket_path(bucket), self.path_of(bucket, key)
        if path is None:
            raise _no_place(
                key, f"the names between its slashes have 1 to {_NAME_BYTES} bytes without NUL, and are not . or .."
            )
        self._check_not_linked(bucket, path)
        for folder in path.parents:
            if folder == root:
                break
            if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
                raise _no_place(key, f"{folder.relative_to(root)} is an object, so none lies below it")
        if path.is_dir() and (path.is_symlink() or _holds_a_file(path)):
            raise _no_place(key, "there are objects below it, so it is a folder")
        return path

    def remove(self, bucket: str, key: bytes, allowed: Callable[[ObjectInfo | None], None] | None = None) -> None:
        """Removes an object, if it is there, and the folders that are empty without it.

        Args:
            bucket: its name.
            key: of the object.
            allowed: is asked before, with the object that is there now; raises S3Error if it may not be removed.

        Raises:
            S3Error: there is no such bucket, or the key lies in a linked folder.
        """
        with self.lock:
            self.bucket_path(bucket)
            if allowed is not None:
                allowed(self.info(bucket, key))
            self.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", bucket, key)
            path = self.path_of(bucket, key)
            if path is None or not path.is_file():
                return
            self._check_not_linked(bucket, path)
            path.unlink()
            for folder in path.parents:
                if folder == self.root / bucket:
                    return
                try:
                    folder.rmdir()
                except OSError:
                    return

    def _check_not_linked(self, bucket: str, path: Path) -> None:
        for folder in path.parents:
            if folder.is_symlink():
                name = folder.relative_to(self.root)
                raise S3Error("AccessDenied", f"s3://{name}/ is a linked folder, which is only read")
            if folder == self.root / bucket:
                return


def info_of(key: bytes, found: os.stat_result, row: ObjectRow | None) -> ObjectInfo:
    """Returns the object that a file is; `row` counts if it is about this very file."""
    file = (found.st_ino, found.st_size, found.st_mtime_ns)
    if row is not None and (row["inode"], row["size"], row["changed"]) == file:
        return ObjectInfo(key, found.st_size, found.st_mtime, row["etag"], read_known(row["known"]))
    mark = f"{found.st_mtime_ns}-{found.st_size}-{found.st_ino}".encode()
    # The part's number says that this is no MD5 of the bytes, as for objects that were uploaded in parts.
    return ObjectInfo(
        key, found.st_size, found.st_mtime, f"{hashlib.md5(mark, usedforsecurity=False).hexdigest()}-1", Known()
    )


def _no_place(key: bytes, why: str) -> S3Error:
    """Returns the refusal of a key, which says why no file of the bucket's folder can have it."""
    words = f"objects are files here, and no file can be this key: {why}"
    return S3Error("InvalidArgument", words, ArgumentName="key", ArgumentValue=key.decode())


def _holds_a_file(path: Path) -> bool:
    for folder, folders, files in os.walk(path):
        if files or any((Path(folder) / each).is_symlink() for each in folders):
            return True
    return False


def _remove_folders(path: Path) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        Path(folder).rmdir()


def copy_bytes(source: int, offset: int, size: int, target: int, at: int) -> None:
    """Copies part of a file; shares the blocks where the file system can do that.

    Args:
        source: descriptor.
        offset: where the part begins.
        size: its bytes.
        target: descriptor.
        at: where they go.

    Raises:
        OSError: it cannot be read or written, or is shorter.
    """
    while size:
        try:
            copied = os.copy_file_range(source, target, min(size, _KERNEL_BYTES), offset, at)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            copied = _copy_one(source, offset, size, target, at)
        if not copied:
            raise OSError(errno.EIO, "a file became shorter while it was copied")
        offset, at, size = offset + copied, at + copied, size - copied


def _copy_one(source: int, offset: int, size: int, target: int, at: int) -> int:
    data = os.pread(source, min(size, CHUNK_BYTES), offset)
    return os.pwrite(target, data, at) if data else 0
