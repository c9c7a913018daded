"""Reading files that grow: every complete line once, in order, without waiting.

A `Tail` reads one file, a `Tree` finds the files of a directory as they appear, and a `TailSet` joins both and
decodes the lines. Nothing here sleeps: the caller decides when to look again. Memory is bounded by one chunk a file
(and the longest line). A last line without its newline is torn or still being written: it is kept back.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from headrace.record_files import LINE_BYTES, check_kind, open_record

CHUNK = 256 << 10
_SETTLED = 1.0  # seconds after which a directory's mtime tells its changes apart

T = TypeVar("T")


class Tail:
    """The complete lines of one file that may grow or not exist yet.

    Args:
        path: the file.
        last: of the lines that it has at first, give the last so many only; None for all.

    Attributes:
        path: the file.
        given_up: a line was longer than `LINE_BYTES`, so neither it nor anything behind it is read.
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        self.path = path
        self._given = 0
        self._read = self._begin = _place_of_last(path, last) if last is not None else 0
        self._parts: list[bytes] = []
        self._part_bytes = 0
        self.given_up = False
        self._ready: deque[bytes] = deque()

    def lines(self) -> Iterator[bytes]:
        """Yields the complete lines not given yet, up to the size that the file has now.

        An iterator that is left early loses nothing: the next one goes on where it stopped.

        Raises:
            OSError: if the file cannot be read; a missing file has no lines.
        """
        yield from self._drain()
        try:
            status = self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        check_kind(self.path, status)
        size = status.st_size
        if size <= self._read or self.given_up:
            return
        with os.fdopen(open_record(self.path), "rb", buffering=0) as file:
            file.seek(self._read)
            while self._read < size:
                chunk = file.read(min(CHUNK, size - self._read))
                if not chunk:
                    return
                self._read += len(chunk)
                first, *others = chunk.split(b"\n")
                self._parts.append(first)
                self._part_bytes += len(first)
                if self._part_bytes > LINE_BYTES:
                    self._parts, self.given_up = [], True
                    return
                if others:
                    self._ready.append(b"".join(self._parts))
                    self._ready.extend(others[:-1])
                    self._parts, self._part_bytes = [others[-1]], len(others[-1])
                yield from self._drain()

    def _drain(self) -> Iterator[bytes]:
        while self._ready:
            self._given += 1
            yield self._ready.popleft()

    @property
    def line(self) -> int:
        """Number of the last line given, from 1. Asking reads what was passed over at the beginning."""
        with os.fdopen(open_record(self.path), "rb") as file:
            chunks = (file.read(min(CHUNK, self._begin - at)) for at in range(0, self._begin, CHUNK))
            return self._given + sum(chunk.count(b"\n") for chunk in chunks)


def _place_of_last(path: Path, lines: int) -> int:
    """Returns where the last complete lines of a file begin: 0 when it has fewer, or cannot be read now."""
    try:
        with os.fdopen(open_record(path), "rb", buffering=0) as file:
            end, breaks = file.seek(0, os.SEEK_END), lines + 1  # the break before the first of them counts too
            seen = end
            while end > 0:
                begin = max(0, end - CHUNK)
                file.seek(begin)
                chunk = file.read(end - begin)
                count = chunk.count(b"\n")
                if count >= breaks:
                    place = len(chunk)
                    for _ in range(breaks):
                        place = chunk.rindex(b"\n", 0, place)
                    return begin + place + 1
                breaks -= count
                seen = end if count else seen
                end = begin
                if seen - end > LINE_BYTES:  # no line of a record: reading from the beginning tells
                    return 0
    except OSError:  # reading its lines tells
        return 0
    return 0


class Tree:
    """Finds the files ``root/*/.../*<suffix>`` at one depth as they appear.

    Args:
        root: directory, which need not exist yet.
        depth: path components of a file below `root`.
        suffix: how the name of a file ends.

    Attributes:
        unreadable: folders that cannot be listed, and why.
    """

    def __init__(self, root: Path, depth: int, suffix: str) -> None:
        self._root = root
        self._depth = depth
        self._suffix = suffix
        self._known: dict[Path, int] = {}
        self._children: dict[Path, list[Path]] = {}
        self._found: set[Path] = set()
        self.unreadable: dict[Path, str] = {}

    def new(self) -> list[Path]:
        """Returns the files that were not there before, in the order of their names."""
        fresh: list[Path] = []
        self._visit(self._root, 1, fresh)
        return sorted(fresh)

    def _visit(self, directory: Path, depth: int, fresh: list[Path]) -> None:
        for child in self.children(directory):
            if depth < self._depth:
                self._visit(child, depth + 1, fresh)
            elif child not in self._found and child.name.endswith(self._suffix):
                self._found.add(child)
                fresh.append(child)

    def children(self, directory: Path) -> list[Path]:
        """Returns what a directory holds; the same list as before where it has not changed."""
        try:
            modified = directory.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unreadable[directory] = error.strerror or str(error)
            return []
        if self._known.get(directory) == modified:
            return self._children[directory]
        try:
            self._children[directory] = [Path(entry.path) for entry in os.scandir(directory)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unreadable[directory] = error.strerror or str(error)
            return []
        # Two changes within one tick of the file system's clock have the same mtime: trust only an old one.
        if time.time() - modified / 1e9 > _SETTLED:
            self._known[directory] = modified
        return self._children[directory]


class Damage(msgspec.Struct, frozen=True):
    """A line of a run's file that cannot be read. It is left out.

    Attributes:
        path: the file.
        line: its number, from 1; 0 when the whole file cannot be read.
        reason: what is wrong with it.
    """

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.path}, line {self.line}" if self.line else self.path
        return f"{where}: {self.reason}"


class Newer(msgspec.Struct, frozen=True):
    """Records of a kind that this headrace does not know: a newer one wrote them. They are left out.

    Attributes:
        path: the file.
        kind: in words, e.g. ``event 'gpu_lost'``.
        count: how many the file has so far.
    """

    path: str
    kind: str
    count: int


class UnknownKind(Exception):
    """A line holds a record of a kind that this headrace does not know.

    Attributes:
        kind: in words, e.g. ``event 'gpu_lost'``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


Told = Callable[[Damage | Newer], None]
"""Is told of what is left out: of each damaged line and unreadable file once, of each record of an unknown kind."""


class TailSet(Generic[T]):
    """All lines of all files of a tree, decoded.

    Args:
        tree: finds the files.
        decoder: makes the decoder of a file from its path; None leaves the file out. The decoder raises UnknownKind,
            and ValueError or msgspec.DecodeError for a damaged line.
        on_damage: told of what is left out.
        last: of the lines that a file has at first, give the last so many only; None for all.
    """

    def __init__(
        self,
        tree: Tree,
        decoder: Callable[[Path], Callable[[bytes], T] | None],
        on_damage: Told,
        last: int | None = None,
    ) -> None:
        self._tree = tree
        self._last = last
        self._decoder = decoder
        self._on_damage = on_damage
        self._newer: dict[tuple[str, str], int] = {}
        self._tails: dict[Path, tuple[Tail, Callable[[bytes], T]]] = {}
        self._unreadable: set[Path] = set()

    def discover(self) -> None:
        """Looks for new files."""
        for path in self._tree.new():
            decode = self._decoder(path)
            if decode is not None:
                self._tails[path] = (Tail(path, self._last), decode)
        self._last = None  # what comes later is new, from its first line on
        for folder, why in self._tree.unreadable.items():
            self._unread(folder, 0, f"cannot be read: {why}")

    @property
    def paths(self) -> list[Path]:
        """The files found so far."""
        return list(self._tails)

    def iterators(self) -> list[Iterator[T]]:
        """Returns one iterator a file over what is new in it, up to the end that it has when it is reached."""
        return [self._records(tail, decode) for tail, decode in self._tails.values()]

    def _records(self, tail: Tail, decode: Callable[[bytes], T]) -> Iterator[T]:
        try:
            for line in tail.lines():
                try:
                    yield decode(line)
                except UnknownKind as unknown:
                    key = (str(tail.path), unknown.kind)
                    self._newer[key] = self._newer.get(key, 0) + 1
                    self._on_damage(Newer(*key, self._newer[key]))
                except (ValueError, msgspec.DecodeError) as error:
                    self._on_damage(Damage(str(tail.path), tail.line, f"damaged line left out ({error})"))
            if tail.given_up and tail.path not in self._unreadable:
                reason = f"a line of more than {LINE_BYTES} bytes: what follows is left out"
                self._unread(tail.path, tail.line + 1, reason)
        except OSError as error:
            self._unread(tail.path, 0, f"cannot be read: {error.strerror or error}")

    def _unread(self, path: Path, line: int, reason: str) -> None:
        if path not in self._unreadable:
            self._unreadable.add(path)
            self._on_damage(Damage(str(path), line, reason))
