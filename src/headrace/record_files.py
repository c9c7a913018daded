"""Opens the files of a run's record, whoever has written them. Every room may import this module.

A record may be somebody else's, or damaged, and the job's own code writes into it while it runs. So nothing but a
regular file is opened, and no link in its place: no FIFO for which a reader waits, no device that never ends. A file
that is read as a whole has a limit, and what is nested too deep is damage as any other.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

WHOLE_BYTES = 64 << 20
"""A file that is read as a whole and is larger is no file of a record."""
LINE_BYTES = 16 << 20
"""A line of a file that grows, if it is longer, is no line of a record: programs' lines are cut at half of it."""

Time = Annotated[float, msgspec.Meta(ge=0, lt=253_402_300_800)]
"""Seconds since the epoch, of a year that calendars have."""

T = TypeVar("T")


def open_record(path: Path) -> int:
    """Returns a descriptor of a file that is read. Raises OSError: also for what is no regular file."""
    check_kind(path, path.lstat())  # before it is opened: that alone moves some devices
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_kind(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_record(path: Path) -> bytes:
    """Returns the content of a file. Raises OSError: also for one that is too large, or is no regular file."""
    with os.fdopen(open_record(path), "rb") as file:
        content = file.read(WHOLE_BYTES + 1)
    if len(content) > WHOLE_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {WHOLE_BYTES} bytes", str(path))
    return content


def decode_record(decoder: msgspec.json.Decoder[T], content: bytes | str) -> T:
    """Returns what JSON says. Raises msgspec.DecodeError: also for what is nested too deep."""
    try:
        return decoder.decode(content)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deep") from error


def read_json(path: Path, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns what a file of JSON says. Raises OSError, msgspec.DecodeError, as `read_record` and `decode_record`."""
    return decode_record(decoder, read_record(path))


def check_kind(path: Path, status: os.stat_result) -> None:
    """Checks that a file is a regular one. Raises OSError."""
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, and no regular file", str(path))


_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
