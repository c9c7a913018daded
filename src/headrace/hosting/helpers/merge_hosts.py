"""Several hosts' folders become one: which file of which host is kept, and what clashes.

A name that several hosts have with the same content is no clash: one copy is kept. With different content the file of
the first host that has it is kept and the clash is reported; a file where another host has a folder is a clash as well.

Links that lead to something inside their folder stay links. Other links are replaced by what they lead to, seen from
inside the instance, see `headrace.instance.kept_files`: what holds no data is left out and reported, what holds some
and cannot be read is `lost`.
"""

from __future__ import annotations

import filecmp
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import StorageError
from headrace.instance.kept_files import FILE, FOLDER, LINK, LOST, OTHER, Entry, walk
from headrace.runs import Clash


@dataclass
class Merged:
    """The folders of all hosts as one.

    Attributes:
        entries: folders before what is in them, else by name.
        clashes: names with more than one content.
        left_out: what holds no data and is not stored, as ``host:path``.
        lost: what holds data and cannot be stored, as the host and an entry that says why.
    """

    entries: list[Entry] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    lost: list[tuple[str, Entry]] = field(default_factory=list)

    @property
    def files(self) -> int:
        """How many files there are."""
        return sum(entry.kind == FILE for entry in self.entries)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def raise_lost(self) -> None:
        """Raises StorageError if there is anything that cannot be stored."""
        if self.lost:
            more = f" (and {len(self.lost) - 1} more)" if len(self.lost) > 1 else ""
            raise not_stored(*self.lost[0], more)


def merge(folders: Sequence[tuple[str, Path, Path]]) -> Merged:
    """Merges folders.

    Args:
        folders: of each host its name, its base directory (what it sees as /opt/ml) and the folder. The first host
            that has a name keeps it.

    Raises:
        StorageError: something cannot be compared.
    """
    merged = Merged()
    kept: dict[str, tuple[str, Entry]] = {}
    dropped: dict[str, list[str]] = {}
    for host, base, folder in folders:
        blocked: list[str] = []
        for entry in walk(base, folder, links=True):
            if entry.kind == OTHER:
                merged.left_out.append(f"{host}:{entry.name}")
                continue
            if entry.kind == LOST:
                merged.lost.append((host, entry))
                continue
            if any(entry.name.startswith(name) for name in blocked):
                continue  # below a folder that is a file or a link of another host
            _, first = kept.setdefault(entry.name, (host, entry))
            if first is not entry and not _same(first, entry):
                dropped.setdefault(entry.name, []).append(host)
                if entry.kind == FOLDER:
                    blocked.append(f"{entry.name}/")
    merged.entries = [kept[name][1] for name in sorted(kept, key=lambda name: name.split("/"))]
    merged.clashes = [Clash(name, kept[name][0], tuple(hosts)) for name, hosts in sorted(dropped.items())]
    return merged


def not_stored(host: str, entry: Entry, more: str = "") -> StorageError:
    """Returns the error for what holds data and cannot be stored."""
    return StorageError(
        f"{host}: {text(str(entry.path))} cannot be stored: {text(entry.target)}{more}",
        "let the program put a readable copy there",
    )


def text(name: str) -> str:
    """Returns a file's name for a record: bytes that are not UTF-8 as ``\\udc80``."""
    return name.encode(errors="backslashreplace").decode()


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
