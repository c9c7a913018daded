"""Objects as files: where the file of a key lies, and how it is put there, found and removed.

The object ``a/b.txt`` of a bucket is the file ``a/b.txt`` of the bucket's folder, so programs read it there, and a
folder that somebody else filled is a bucket. A key that no file can have (``a//b``, ``a/``, ``..``, NUL, a name of more
than 255 bytes), and the key ``a`` while ``a/b`` exists, is an *odd* one: its file lies in the store's own folder, under
another name. A folder in a bucket may be a symbolic link: what is behind it can be read and is never changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.endpoint.s3.object_index import Known, ObjectIndex, ObjectRow
from headrace.endpoint.s3.s3_errors import S3Error
from headrace.errors import UsageError
from headrace.held_file import hold
from headrace.private_folders import make_folders

OWN = ".headrace-s3"
KEY_BYTES = 1024
_NAME_BYTES = 255
_BUCKET = re.compile(r"(?!\d+\.\d+\.\d+\.\d+$)(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


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


class ObjectFolder:
    """The files of a store. One process at a time uses it.

    Args:
        root: the folder of the buckets' folders.

    Raises:
        UsageError: another server uses it, or it cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = root / OWN
        try:
            for folder in (root, self.own, self.own / "odd", self.own / "incoming", self.own / "uploads"):
                make_folders(folder)
            lock_file = hold(self.own / "lock")
        except OSError as error:
            raise UsageError(f"the folder of objects {root} cannot be used: {error.strerror or error}") from error
        if lock_file is None:
            words = f"another server uses the folder of objects {root}"
            raise UsageError(words, hint="stop it, or name another folder with --buckets")
        self._lock_file = lock_file
        try:
            self.index = ObjectIndex(self.own / "index.sqlite")
            for left in (self.own / "incoming").iterdir():
                left.unlink()
        except BaseException:
            os.close(lock_file)
            raise

    def close(self) -> None:
        """Ends the use of the folder."""
        self.index.close()
        os.close(self._lock_file)

    def bucket_names(self) -> list[str]:
        """Returns the buckets there are, in order."""
        with os.scandir(self.root) as entries:
            return sorted(each.name for each in entries if _BUCKET.fullmatch(each.name) and each.is_dir())

    def bucket_path(self, bucket: str) -> Path:
        """Returns a bucket's folder.

        Raises:
            S3Error: there is no such bucket.
        """
        path = self.root / bucket
        if not _BUCKET.fullmatch(bucket) or not path.is_dir():
            raise S3Error("NoSuchBucket", BucketName=bucket)
        return path

    def create_bucket(self, bucket: str) -> bool:
        """Creates a bucket. Returns False if it was there.

        Raises:
            S3Error: a bucket cannot have that name.
        """
        if not _BUCKET.fullmatch(bucket):
            raise S3Error("InvalidBucketName", BucketName=bucket)
        with self.index.lock:
            try:
                (self.root / bucket).mkdir(mode=0o700)
            except FileExistsError:
                return False
            return True

    def delete_bucket(self, bucket: str) -> None:
        """Removes a bucket that has no object, with the empty folders in it.

        Raises:
            S3Error: there is no such bucket, or it holds something.
        """
        with self.index.lock:
            path = self.bucket_path(bucket)
            if path.is_symlink():
                raise S3Error("AccessDenied", f"the bucket {bucket} is a linked folder, which is only read")
            if next(self.index.odd_keys(bucket, b"", b""), None) is not None or _holds_a_file(path):
                raise S3Error("BucketNotEmpty", BucketName=bucket)
            for folder, _, _ in os.walk(path, topdown=False):
                Path(folder).rmdir()
            self.index.forget_bucket(bucket)

    def link(self, bucket: str, prefix: str, folder: Path) -> None:
        """Shows a folder of the user's as a prefix of a bucket. Nothing is copied, and nothing is ever changed in it.

        Args:
            bucket: is created if it is not there.
            prefix: without a / at its end; empty: the folder is the whole bucket.
            folder: what the link points to.

        Raises:
            UsageError: something else is there, or a key's name cannot be that.
        """
        target = folder.resolve()
        with self.index.lock:
            if prefix:
                self.create_bucket(bucket)
            path = self.regular_path(bucket, prefix.encode()) if prefix else self.root / bucket
            if path is None or not _BUCKET.fullmatch(bucket):
                raise UsageError(f"s3://{bucket}/{prefix} cannot be a folder")
            if path.is_symlink() and path.resolve() == target:
                return
            if path.is_symlink() or path.exists():
                raise UsageError(f"s3://{bucket}/{prefix} exists already")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target, target_is_directory=True)

    def regular_path(self, bucket: str, key: bytes) -> Path | None:
        """Returns where the file of a key lies, if a file can have that name; None if the key is an odd one."""
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
        row = self.index.row(bucket, key.encode())
        if row is not None and row.odd:
            return self._odd_path(row.odd)
        path = self.regular_path(bucket, key.removesuffix("/").encode()) if key else folder
        if path is None:
            raise S3Error("NoSuchKey", f"no file or folder of this machine can be called {key!r}")
        return path

    def open(self, bucket: str, key: bytes) -> tuple[ObjectInfo, int]:
        """Returns an object, and a descriptor of its file.

        Raises:
            S3Error: there is no such bucket or object.
        """
        with self.index.lock:
            self.bucket_path(bucket)
            row = self.index.row(bucket, key)
            path = self._path_of(bucket, key, row)
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

    def info(self, bucket: str, key: bytes, row: ObjectRow | None) -> ObjectInfo | None:
        """Returns an object without opening it; None if there is none."""
        path = self._path_of(bucket, key, row)
        try:
            found = path.stat() if path is not None else None
        except OSError:
            return None
        return info_of(key, found, row) if found is not None and stat.S_ISREG(found.st_mode) else None

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
        with self.index.lock:
            self.bucket_path(bucket)
            old = self.index.row(bucket, key)
            if allowed is not None:
                allowed(self.info(bucket, key, old))
            path = self._make_place(bucket, key)
            odd = None if path is not None else _odd_name(bucket, key)
            if size is not None:
                os.truncate(file, size)
            file.rename(path or self._odd_path(odd))
            if old is not None and old.odd and odd is None:
                self._odd_path(old.odd).unlink(missing_ok=True)
            found = (path or self._odd_path(odd)).stat()
            row = ObjectRow(odd, found.st_ino, found.st_size, found.st_mtime_ns, etag, known.to_json())
            self.index.set_row(bucket, key, row)
        return info_of(key, found, row)

    def remove(self, bucket: str, key: bytes, allowed: Callable[[ObjectInfo | None], None] | None = None) -> None:
        """Removes an object, if it is there, and the folders that are empty without it.

        Args:
            bucket: its name.
            key: of the object.
            allowed: is asked before, with the object that is there now; raises S3Error if it may not be removed.

        Raises:
            S3Error: there is no such bucket, or the key lies in a linked folder.
        """
        with self.index.lock:
            self.bucket_path(bucket)
            row = self.index.row(bucket, key)
            if allowed is not None:
                allowed(self.info(bucket, key, row))
            self.index.forget(bucket, key)
            if row is not None and row.odd:
                self._odd_path(row.odd).unlink(missing_ok=True)
                return
            path = self.regular_path(bucket, key)
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

    def _odd_path(self, name: str | None) -> Path:
        assert name is not None
        return self.own / "odd" / name

    def _path_of(self, bucket: str, key: bytes, row: ObjectRow | None) -> Path | None:
        return self._odd_path(row.odd) if row is not None and row.odd else self.regular_path(bucket, key)

    def _check_not_linked(self, bucket: str, path: Path) -> None:
        for folder in path.parents:
            if folder.is_symlink():
                name = folder.relative_to(self.root)
                raise S3Error("AccessDenied", f"s3://{name}/ is a linked folder, which is only read")
            if folder == self.root / bucket:
                return

    def _make_place(self, bucket: str, key: bytes) -> Path | None:
        """Returns the path at which a file can be placed now, with its folders made; None for an odd key."""
        path = self.regular_path(bucket, key)
        if path is None:
            return None
        self._check_not_linked(bucket, path)
        names = key.split(b"/")
        for count in range(1, len(names)):
            outer = b"/".join(names[:count])
            folder = self.root / bucket / os.fsdecode(outer)
            if folder.is_dir():
                continue
            if folder.is_symlink() or folder.exists():
                self._make_odd(bucket, outer, folder)
            folder.mkdir()
        if path.is_dir():
            with contextlib.suppress(OSError):
                path.rmdir()  # an empty folder is no object
        return None if path.is_dir() else path

    def _make_odd(self, bucket: str, key: bytes, path: Path) -> None:
        """Gives the object of a key that is to be a folder's name another place."""
        row = self.index.row(bucket, key)
        try:
            found = path.stat()
        except OSError:  # a link that leads nowhere is no object
            path.unlink()
            return
        if not stat.S_ISREG(found.st_mode):
            raise S3Error("AccessDenied", f"{path} is neither a file nor a folder")
        if path.is_symlink():
            raise S3Error(
                "AccessDenied", f"s3://{bucket}/{key.decode()} is a linked file, which cannot be a folder too"
            )
        info = info_of(key, found, row)
        odd = _odd_name(bucket, key)
        path.rename(self._odd_path(odd))
        kept = ObjectRow(odd, found.st_ino, found.st_size, found.st_mtime_ns, info.etag, info.known.to_json())
        self.index.set_row(bucket, key, kept)


def info_of(key: bytes, found: os.stat_result, row: ObjectRow | None) -> ObjectInfo:
    """Returns the object that a file is; `row` counts if it is about this very file."""
    if row is not None and (row.inode, row.size, row.changed) == (found.st_ino, found.st_size, found.st_mtime_ns):
        return ObjectInfo(key, found.st_size, found.st_mtime, row.etag, Known.from_json(row.known))
    mark = f"{found.st_mtime_ns}-{found.st_size}-{found.st_ino}".encode()
    # The part's number says that this is no MD5 of the bytes, as for objects that were uploaded in parts.
    return ObjectInfo(
        key, found.st_size, found.st_mtime, f"{hashlib.md5(mark, usedforsecurity=False).hexdigest()}-1", Known()
    )


def _odd_name(bucket: str, key: bytes) -> str:
    return hashlib.sha256(bucket.encode() + b"/" + key).hexdigest()


def _holds_a_file(path: Path) -> bool:
    for folder, folders, files in os.walk(path):
        if files or any((Path(folder) / each).is_symlink() for each in folders):
            return True
    return False
