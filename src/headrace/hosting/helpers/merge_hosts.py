"""Several hosts' folders become one: which file of which host is kept, and what clashes.

A name that several hosts have with the same content is no clash: one copy is kept. With different content the file of
the first host that has it is kept and the clash is reported; a file where another host has a folder is a clash as well.

Links that lead to something inside their folder stay links. Other links are replaced by what they lead to, seen from
inside the instance; a link that leads nowhere, a socket, a FIFO and a device are left out and reported.
"""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from headrace.errors import StorageError
from headrace.instance.files import told
from headrace.instance.paths import DEFAULT_BASE
from headrace.runs import Clash

FILE, FOLDER, LINK = "file", "folder", "link"


@dataclass(frozen=True)
class Entry:
    """One thing in the merged folder.

    Attributes:
        name: its path there, relative.
        kind: ``file``, ``folder`` or ``link``.
        path: where it is on this machine.
        host: whose it is.
        size: bytes of a file.
        target: of a link.
    """

    name: str
    kind: str
    path: Path
    host: str
    size: int = 0
    target: str = ""


@dataclass
class Merged:
    """The folders of all hosts as one.

    Attributes:
        entries: folders before what is in them, else by name.
        clashes: names with more than one content.
        left_out: what cannot be stored, as ``host:path``.
    """

    entries: list[Entry] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def files(self) -> int:
        """How many files there are."""
        return sum(entry.kind == FILE for entry in self.entries)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)


def merge(folders: Sequence[tuple[str, Path, Path]]) -> Merged:
    """Merges folders.

    Args:
        folders: of each host its name, its base directory (what it sees as /opt/ml) and the folder. The first host
            that has a name keeps it.

    Raises:
        StorageError: something cannot be read.
    """
    merged = Merged()
    kept: dict[str, Entry] = {}
    dropped: dict[str, list[str]] = {}
    for host, base, folder in folders:
        if not folder.is_dir():
            continue
        blocked: list[str] = []
        with told(str(folder)):
            for entry in _walk(host, base, folder, "", merged.left_out, ()):
                if any(entry.name.startswith(name) for name in blocked):
                    continue  # below a folder that is a file or a link of another host
                first = kept.setdefault(entry.name, entry)
                if first is not entry and not _same(first, entry):
                    dropped.setdefault(entry.name, []).append(host)
                    if entry.kind == FOLDER:
                        blocked.append(f"{entry.name}/")
    merged.entries = [kept[name] for name in sorted(kept, key=lambda name: name.split("/"))]
    merged.clashes = [Clash(name, kept[name].host, tuple(hosts)) for name, hosts in sorted(dropped.items())]
    return merged


def text(name: str) -> str:
    """Returns a file's name for a record: bytes that are not UTF-8 as ``\\udc80``."""
    return name.encode(errors="backslashreplace").decode()


def _walk(
    host: str, base: Path, folder: Path, below: str, left_out: list[str], above: tuple[tuple[int, int], ...]
) -> Iterator[Entry]:
    status = folder.stat()
    own = (status.st_dev, status.st_ino)
    if own in above:  # a link to a folder above would never end
        left_out.append(f"{host}:{below.rstrip('/')}")
        return
    for path in sorted(folder.iterdir()):
        name = below + path.name
        mode = path.lstat().st_mode
        real = path
        if stat.S_ISLNK(mode):
            target = os.readlink(path)  # noqa: PTH115  (as it is written)
            if _stays_inside(name, target):
                yield Entry(name, LINK, path, host, target=target)
                continue
            real = _outside(path, target, base)
            if not os.path.exists(real):
                left_out.append(f"{host}:{name}")
                continue
            mode = real.stat().st_mode
        if stat.S_ISDIR(mode):
            yield Entry(name, FOLDER, real, host)
            yield from _walk(host, base, real, f"{name}/", left_out, (*above, own))
        elif stat.S_ISREG(mode):
            yield Entry(name, FILE, real, host, size=real.stat().st_size)
        else:
            left_out.append(f"{host}:{name}")


def _stays_inside(name: str, target: str) -> bool:
    """Whether a link leads to a place below the folder in which its name is, by how it is written."""
    if target.startswith("/"):
        return False
    depth = len(PurePosixPath(name).parts) - 1
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def _outside(path: Path, target: str, base: Path) -> Path:
    """Returns where a link leads to on this machine; /opt/ml is the host's own."""
    if PurePosixPath(target).is_relative_to(DEFAULT_BASE):
        return base / PurePosixPath(target).relative_to(DEFAULT_BASE)
    return path.parent / target


def _same(one: Entry, other: Entry) -> bool:
    if one.kind != other.kind:
        return False
    if one.kind == LINK:
        return one.target == other.target
    if one.kind == FOLDER:
        return True
    try:
        return one.size == other.size and filecmp.cmp(one.path, other.path, shallow=False)
    except OSError as error:
        raise StorageError(f"{error.filename or other.path} cannot be read: {error.strerror}") from error
