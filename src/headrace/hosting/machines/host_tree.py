"""What a host made, on its way to the leader: files, folders and links of its /opt/ml, as they are.

The leader puts them where they would lie if the host were one of its machine, so that `collect` merges all hosts there.
Links come last and nothing is written through one. A piece may be sent twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.hosting.helpers.artefacts import Merged, merge
from headrace.instance.kept_files import FOLDER, LINK, OTHER, resolve
from headrace.instance.paths import TreePaths

PIECE_BYTES = 4 << 20
COMING = "coming"  # folder beside model and output: files that are not whole yet
_MADE = ("model", "output/data", "output/intermediate", "output/failure")


class TreePiece(msgspec.Struct, frozen=True, array_like=True):
    """A part of what a host made: one file, folder or link below its /opt/ml.

    Attributes:
        path: relative to there, as the file system has it.
        kind: ``file``, ``folder``, ``link`` or ``other``.
        mode: permission bits.
        mtime: seconds since the epoch.
        offset: where the data stand in a file.
        data: of a file; the target of a link.
        last: the file, or what else it is, is complete with this piece.
    """

    path: bytes
    kind: str
    mode: int = 0o644
    mtime: float = 0.0
    offset: int = 0
    data: bytes = b""
    last: bool = True


def made_by(host: str, base: Path) -> Iterator[TreePiece]:
    """Yields what a host made, in pieces: folders before what is in them, links at the end.

    A link that leads out of its folder is what it leads to, as in `merge`: that is only here.

    Raises:
        StorageError, OSError: a file cannot be read.
    """
    tree = TreePaths(base)
    links: list[TreePiece] = []
    unread: list[Merged] = []
    for folder in (tree.model, tree.output_data, tree.output_intermediate):
        below = f"{folder.relative_to(base)}/"
        merged = merge([(host, base, folder)])
        for entry in merged.entries:
            if entry.kind == LINK:
                links.append(TreePiece(os.fsencode(below + entry.name), LINK, data=os.fsencode(entry.target)))
            elif entry.kind == FOLDER:
                yield TreePiece(os.fsencode(below + entry.name), FOLDER, stat.S_IMODE(entry.path.stat().st_mode))
            else:
                yield from _file(os.fsencode(below + entry.name), entry.path)
        for left_out in merged.left_out:
            yield TreePiece(os.fsencode(below + left_out.partition(":")[2]), OTHER)
        for _, entry in merged.lost:  # the leader cannot store a link that leads nowhere either, and says so
            if entry.name and entry.path.is_symlink():
                target = os.readlink(entry.path)  # noqa: PTH115
                links.append(TreePiece(os.fsencode(below + entry.name), LINK, data=os.fsencode(target)))
            else:
                unread.append(merged)
    with contextlib.suppress(OSError):  # as `read_failure`
        failure = resolve(base, tree.failure)
        if failure.is_file():
            yield from _file(os.fsencode(tree.failure.relative_to(base)), failure)
    yield from links
    for merged in unread:
        merged.raise_lost()


def _file(name: bytes, path: Path) -> Iterator[TreePiece]:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        offset, data = 0, file.read(PIECE_BYTES)
        while True:
            following = file.read(PIECE_BYTES) if len(data) == PIECE_BYTES else b""
            yield TreePiece(name, "file", mode, status.st_mtime, offset, data, not following)
            if not following:
                return
            offset, data = offset + len(data), following


def put(base: Path, piece: TreePiece) -> None:
    """Puts a piece into the tree of a host. A file is there when its last piece has come, and not before.

    Args:
        base: of that host, on this machine.
        piece: what came.

    Raises:
        ValueError: it does not belong there.
        OSError: it cannot be written.
    """
    name = os.fsdecode(piece.path)
    parts = Path(name).parts
    if ".." in parts or not any(name == each or name.startswith(f"{each}/") for each in _MADE):
        raise ValueError(f"{name!r} is nothing that a host makes")
    path = base
    base.mkdir(parents=True, exist_ok=True)
    for part in parts[:-1]:  # one by one: nothing is made behind a link
        path /= part
        if path.is_symlink():
            raise ValueError(f"{name!r} leads out of the host's tree")
        path.mkdir(exist_ok=True)
    path = base / name
    if path.is_symlink():
        path.unlink()
    if piece.kind == FOLDER:
        path.mkdir(exist_ok=True)
        path.chmod(piece.mode | stat.S_IRWXU)
    elif piece.kind == LINK:
        path.symlink_to(os.fsdecode(piece.data))
    elif piece.kind == OTHER:
        if not os.path.exists(path):
            os.mkfifo(path)
    else:
        _write(base, path, piece)


def _write(base: Path, path: Path, piece: TreePiece) -> None:
    coming = base / COMING / hashlib.sha256(piece.path).hexdigest()
    coming.parent.mkdir(mode=0o700, exist_ok=True)
    if piece.offset and not coming.exists():
        if path.is_file() and path.stat().st_size >= piece.offset + len(piece.data):
            return  # it came before: the file is whole
        raise ValueError(f"the beginning of {os.fsdecode(piece.path)!r} has not come")
    descriptor = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not piece.offset:
            os.ftruncate(descriptor, 0)
        data, offset = memoryview(piece.data), piece.offset
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
        os.fchmod(descriptor, piece.mode)
        os.utime(descriptor, (piece.mtime, piece.mtime))
    finally:
        os.close(descriptor)
    if piece.last:
        coming.replace(path)


def all_has_come(base: Path) -> None:
    """Removes what was needed while a host's files came."""
    shutil.rmtree(base / COMING, ignore_errors=True)


def forget_made(base: Path) -> None:
    """Removes what came of a host for an attempt that is over. Raises OSError."""
    all_has_come(base)
    for name in _MADE:
        path = base / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            path.mkdir()
        else:
            path.unlink(missing_ok=True)
