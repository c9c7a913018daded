"""Copies between files, by the kernel where it can."""

from __future__ import annotations

import errno
import hashlib
import os

from headrace.endpoint.http.http_message import CHUNK_BYTES

_KERNEL_BYTES = 1 << 30
_CANNOT = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}


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


def md5_of(source: int, offset: int, size: int) -> str:
    """Returns the MD5 of part of a file, hexadecimal.

    Args:
        source: descriptor.
        offset: where the part begins.
        size: its bytes.
    """
    digest = hashlib.md5(usedforsecurity=False)
    end = offset + size
    while offset < end and (data := os.pread(source, min(CHUNK_BYTES, end - offset), offset)):
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()
