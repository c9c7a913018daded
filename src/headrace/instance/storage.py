"""Where data and artefacts lie outside the instances: folders of this machine and S3 buckets, with one interface.

A place is a path, ``file://`` and a path, or ``s3://bucket/key``. Objects are listed as S3 lists them: by prefix, in
the order of their keys' UTF-8 bytes. What is written, here or there, appears under its name as a whole or not at all:
a local file is made under a hidden name (`is_temporary`) and renamed. No other module talks to an object store.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

from headrace.errors import ObjectChanged, ObjectMissing, StorageError, UsageError
from headrace.instance.files import (
    INDEX_FOLDER,
    Object,
    check_same,
    copy,
    folders_of,
    is_temporary,
    list_files,
    look,
    new_file,
    opened,
    storage_errors,
    unnamed,
)
from headrace.instance.s3 import AS_ENVIRONMENT, S3, S3Access

T = TypeVar("T")

S3_SCHEME = "s3://"
FILE_SCHEME = "file://"
__all__ = ["Object", "Store", "inside", "is_s3", "is_temporary", "join", "local_object", "local_path", "split"]

THREADS = 8  # more cost CPU time and win nothing (measured on 2 cores with 4, 8 and 16)


def is_s3(uri: str) -> bool:
    """Tells whether a place is in a bucket."""
    return uri.startswith(S3_SCHEME)


def split(uri: str) -> tuple[str, str]:
    """Returns (bucket, key) of an s3:// place; the key may be empty. Raises UsageError."""
    bucket, _, key = uri.removeprefix(S3_SCHEME).partition("/")
    if not is_s3(uri) or not bucket:
        raise UsageError(f"{uri!r} names no bucket", "write s3://bucket/prefix")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{uri!r}: keys of S3 are UTF-8", "rename the file") from None
    return bucket, key


def local_path(uri: str, base: str | os.PathLike[str] = ".") -> Path:
    """Returns the path of a place on this machine, absolute and without ``..``: a link before one of these is followed.

    Args:
        uri: a path, or ``file://`` and a path.
        base: what a relative path is relative to.

    Raises:
        UsageError: another scheme.
    """
    path = uri.removeprefix(FILE_SCHEME)
    if "://" in path:
        raise UsageError(f"{uri!r}: headrace cannot read or write there", "use a path, file:// or s3://")
    parts = Path(base, path).absolute().parts
    behind = len(parts) - parts[::-1].index("..") if ".." in parts else 0
    return Path(os.path.realpath(Path(*parts[:behind])), *parts[behind:]) if behind else Path(*parts)


def local_object(path: str | os.PathLike[str]) -> Object:
    """Returns a file of this machine as it is now. Raises ObjectMissing or StorageError."""
    return look(Path(path).absolute())


def join(uri: str, *names: str) -> str:
    """Returns the place of that relative name below another: one slash between any two parts."""
    return "/".join([uri.rstrip("/"), *(name.strip("/") for name in names)])


def inside(folder: str | os.PathLike[str], name: str) -> Path:
    """Returns the path of a relative name below a folder.

    Raises:
        StorageError: the name leads out of the folder, or is no name of a file.
    """
    parts = name.split("/")
    if not name or any(part in {"", ".", ".."} for part in parts) or "\0" in name:
        raise StorageError(f"{name!r} cannot be the name of a file below {folder}", "rename the object")
    return Path(folder, *parts)


def _not_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Returns what is directly in a folder of this machine; nothing if it is not there."""
    with storage_errors(folder):
        try:
            return list(os.scandir(local_path(folder)))
        except FileNotFoundError:
            return []


class Store:
    """Lists, reads and writes. Safe for use by several threads; close it, or use it in `with`.

    Args:
        timeout: seconds without an answer of an object store after which a request is tried again.
        attempts: how often a request is made at most; 0 means as AWS_MAX_ATTEMPTS says, else 3.
        threads: how many objects are moved at once by `download_all` and `upload_all`.
        access: how S3 is reached, where that is not as the environment says.
    """

    def __init__(
        self, timeout: float = 20.0, attempts: int = 0, threads: int = THREADS, access: S3Access = AS_ENVIRONMENT
    ) -> None:
        self._timeout = timeout
        self._attempts = attempts
        self._threads = threads
        self._access = access
        self._client: S3 | None = None
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. What other threads are moving ends with an error."""
        self._cancelled.set()
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    # --- looking -------------------------------------------------------------------------------------------------

    def list(self, uri: str, data: bool = False) -> list[Object]:
        """Lists the objects whose place begins with `uri`, sorted by the UTF-8 bytes of their keys.

        Here a folder means all files below it, links followed; any other path means the files and folders whose
        paths begin as it does, as a prefix does in S3. Incomplete files and folder markers are left out.

        Args:
            uri: the place.
            data: they are a user's data: the feed's indexes are none, and on this machine what is neither file nor
                folder is an error.

        Raises:
            ObjectMissing: no such bucket or folder; a prefix without objects in a bucket that is there gives [].
            StorageError, UsageError: it cannot be listed.
        """
        if is_s3(uri):
            # Directory buckets, and some servers, do not sort.
            return sorted(self._objects(uri, data), key=lambda item: item.key.encode())
        with storage_errors(uri):
            return sorted(list_files(local_path(uri), uri.endswith("/"), data), key=lambda item: os.fsencode(item.key))

    def first(self, uri: str) -> Object | None:
        """Returns some object of a user's data whose place begins with `uri`; None when there is none. In S3 it is one
        request, and one more for each thousand objects of an index before it.

        Raises:
            ObjectMissing: no such bucket.
            StorageError, UsageError: it cannot be listed.
        """
        if not is_s3(uri):
            return next(iter(self.list(uri, data=True)), None)
        return next(self._objects(uri, data=True), None)

    def _objects(self, uri: str, data: bool) -> Iterator[Object]:
        bucket, prefix = split(uri)
        for key, size, etag in self._s3.list(bucket, prefix):
            if not (data and f"/{INDEX_FOLDER}/" in f"/{key[prefix.rfind('/') + 1 :]}"):
                yield Object(f"{S3_SCHEME}{bucket}/{key}", key, size, etag)

    def names(self, uri: str, after: str = "") -> Sequence[str]:
        """Returns the names of the objects directly in a folder, sorted by their UTF-8 bytes; none if it is not there.

        Args:
            uri: the folder.
            after: only names behind this one, which an object store is asked for.

        Raises:
            ObjectMissing: no such bucket.
            StorageError, UsageError: it cannot be listed.
        """
        if is_s3(uri):
            bucket, prefix = split(join(uri, ""))
            keys = (key for key, _, _ in self._s3.list(bucket, prefix, after and prefix + after))
            names = [key[len(prefix) :] for key in keys if "/" not in key[len(prefix) :]]
        else:
            names = [entry.name for entry in _entries(uri) if entry.is_file() and not is_temporary(entry.name)]
        return sorted((name for name in names if name > after), key=os.fsencode)

    def folders(self, uri: str, beginning: str = "") -> Sequence[str]:
        """Returns the names of the folders directly in a folder that begin so, sorted; as `names`."""
        if is_s3(uri):
            bucket, prefix = split(join(uri, ""))
            return sorted(key[len(prefix) : -1] for key in self._s3.folders(bucket, prefix + beginning))
        return sorted(entry.name for entry in _entries(uri) if entry.is_dir() and entry.name.startswith(beginning))

    def look(self, uri: str) -> Object:
        """Returns one object. Raises ObjectMissing, StorageError or UsageError."""
        if is_s3(uri):
            bucket, key = split(uri)
            return Object(uri, key, *self._s3.head(bucket, key))
        return look(local_path(uri))

    def check_writable(self, uri: str) -> None:
        """Checks early that one can write below a place: the bucket answers, or the folder can be made.

        Raises:
            StorageError, UsageError: one cannot.
        """
        if is_s3(uri):
            self._s3.check_bucket(split(uri)[0])
            return
        with storage_errors(uri, "written"):
            path = local_path(uri)
            while not path.exists():
                path = path.parent
            if not path.is_dir():
                raise StorageError(f"{uri} cannot be written: {path} is no folder", "name another place")
            if not os.access(path, os.W_OK | os.X_OK):
                code = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
                raise OSError(code, os.strerror(code), str(path))

    # --- reading -------------------------------------------------------------------------------------------------

    def download(self, source: Object, path: str | os.PathLike[str]) -> None:
        """Copies an object to a local file, which is there at once and as a whole. Folders are made.

        Raises:
            ObjectMissing, ObjectChanged: it is not, or no longer, what was listed.
            StorageError, UsageError: it cannot be read, or the file not written.
        """
        with new_file(Path(path)) as descriptor:
            if is_s3(source.uri):
                bucket, key = split(source.uri)
                if source.size:
                    self._s3.read(
                        bucket, key, source.etag, 0, source.size, lambda piece: self._write(descriptor, piece, path)
                    )
            else:
                copy(source, descriptor, str(path), self._cancelled.is_set)

    def download_all(
        self,
        pairs: Iterable[tuple[Object, str | os.PathLike[str]]],
        done: Callable[[Object], object] = lambda _: None,
    ) -> None:
        """Downloads many objects, several at once.

        Args:
            pairs: what goes where.
            done: told of each, in the caller's thread, as it is complete.

        Raises:
            as `download`; the first error ends the others.
        """
        self._all(pairs, self.download, done)

    def read(self, uri: str) -> bytes:
        """Returns the whole of a small object. Raises ObjectMissing, StorageError or UsageError."""
        if is_s3(uri):
            return self._s3.get(*split(uri))
        with storage_errors(uri):
            return local_path(uri).read_bytes()

    def read_range(self, source: Object, start: int, length: int) -> bytes:
        """Returns bytes of an object; less than `length` only at its end. Raises as `download`."""
        length = max(0, min(length, source.size - start))
        if not length:
            return b""
        pieces: list[bytes] = []
        if is_s3(source.uri):
            self._s3.read(*split(source.uri), source.etag, start, length, pieces.append)
            return b"".join(pieces)
        with storage_errors(source.uri), opened(source) as descriptor:
            data = os.pread(descriptor, length, start)
            if len(data) < length:
                raise ObjectChanged(f"{source.uri} changed while it was read")
            return data

    # --- writing -------------------------------------------------------------------------------------------------

    def upload(self, path: str | os.PathLike[str], uri: str, version: Object | None = None) -> None:
        """Copies a local file to a place, where it is there at once and as a whole. Folders are made.

        Args:
            path: the file.
            uri: the place.
            version: what the file must be, as `local_object` saw it; None for what it is now.

        Raises:
            ObjectMissing: no such file or bucket.
            ObjectChanged: it is another, or changes meanwhile; what was at the place stays.
            StorageError, UsageError: it cannot be read or written.
        """
        source = version or look(Path(path).absolute())
        if not is_s3(uri):
            with new_file(local_path(uri)) as descriptor:
                copy(source, descriptor, uri, self._cancelled.is_set)
            return
        bucket, key = split(uri)
        with storage_errors(source.uri), opened(source) as descriptor:
            self._s3.upload(descriptor, source.size, bucket, key, lambda: check_same(descriptor, source))

    @contextlib.contextmanager
    def create(self, uri: str, scratch: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
        """Opens a place for writing: it is there as a whole when the block ends, and not at all after an error.

        Args:
            uri: the place.
            scratch: a folder of this machine with room for what goes to an object store.

        Raises:
            StorageError, UsageError: it cannot be written. Also the block's own OSError becomes a StorageError.
        """
        if not is_s3(uri):
            with (
                folders_of(local_path(uri)),
                new_file(local_path(uri)) as descriptor,
                storage_errors(uri, "written"),
                open(descriptor, "wb", closefd=False) as file,
            ):
                yield file
            return
        bucket, key = split(uri)
        with storage_errors(str(scratch), "written"), unnamed(Path(scratch)) as descriptor:
            with open(descriptor, "wb", closefd=False) as file:
                yield file
            self._s3.upload(descriptor, os.fstat(descriptor).st_size, bucket, key, lambda: None)

    def upload_all(self, pairs: Iterable[tuple[str | os.PathLike[str], str]]) -> None:
        """Uploads many files, several at once; as `download_all`."""
        self._all(pairs, self.upload, lambda _: None)

    def write(self, data: bytes, uri: str) -> None:
        """Writes bytes to a place. Raises StorageError or UsageError."""
        if is_s3(uri):
            self._s3.put(data, *split(uri))
            return
        with new_file(local_path(uri)) as descriptor:
            self._write(descriptor, data, uri)

    def remove(self, uri: str) -> None:
        """Removes an object or a file, if it is there. Raises StorageError, UsageError."""
        if is_s3(uri):
            self._s3.remove(*split(uri))
            return
        with storage_errors(uri, "removed"):
            local_path(uri).unlink(missing_ok=True)

    def remove_others(self, folder: str, kept: Collection[str] = ()) -> None:
        """Removes all that is below a folder but what is kept; folders of this machine that are empty then, too.

        Args:
            folder: the folder, which need not be there. Links in it are removed, and not followed.
            kept: the places of what stays.

        Raises:
            StorageError, UsageError: something cannot be listed or removed.
        """
        if is_s3(folder):
            for item in self.list(join(folder, "")):
                if item.uri not in kept:
                    self.remove(item.uri)
            return
        with storage_errors(folder, "removed"):
            for root, folders, files in os.walk(local_path(folder), topdown=False, onerror=_not_missing):
                for path in (Path(root, name) for name in files + folders):
                    if path.is_dir() and not path.is_symlink():
                        with contextlib.suppress(OSError):  # something in it is kept
                            path.rmdir()
                    elif str(path) not in kept:
                        path.unlink()

    # --- objects of a bucket only ----------------------------------------------------------------------------------

    def has(self, uri: str) -> bool:
        """Returns whether an object is there. Raises StorageError, UsageError."""
        try:
            self.look(uri)
        except ObjectMissing:
            return False
        return True

    def copy(self, source: str, target: str) -> None:
        """Has S3 copy an object of at most 5 GB. Raises ObjectMissing, StorageError, UsageError."""
        self._s3.copy(split(source), *split(target))

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _s3(self) -> S3:
        with self._lock:
            if self._client is None:
                self._client = S3(self._timeout, self._attempts, max(self._threads, 10), self._access)
            return self._client

    def _all(self, pairs: Iterable[tuple[T, object]], move: Callable[..., None], done: Callable[[T], object]) -> None:
        left = iter(pairs)
        running: dict[Future[None], T] = {}
        with ThreadPoolExecutor(self._threads, "headrace-storage") as pool:
            try:
                while True:
                    for source, target in itertools.islice(left, 2 * self._threads - len(running)):
                        running[pool.submit(move, source, target)] = source
                    if not running:
                        return
                    ended, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in ended:
                        source = running.pop(future)
                        future.result()
                        done(source)
            except BaseException:
                self._cancelled.set()
                pool.shutdown(wait=True, cancel_futures=True)
                self._cancelled.clear()
                raise

    def _write(self, descriptor: int, data: bytes, path: str | os.PathLike[str]) -> None:
        if self._cancelled.is_set():
            raise StorageError(f"{path}: cancelled")
        rest = memoryview(data)
        with storage_errors(str(path), "written"):
            while rest:
                rest = rest[os.write(descriptor, rest) :]
