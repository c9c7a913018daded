"""Parts of an index: what the hosts that open the same shards have counted so far, each part a small index file.

Every host counts the shards that are missing in an order of its own, writes what it has counted now and then, and
takes what it finds in the parts of the others. Nobody waits for another one, and no shard belongs to anybody: a host
that dies costs the shards that it was counting. Two hosts may count the same shard at the same time.

Parts lie beside the index, for hosts that share its folder. A shard is taken from one only if size and time of change
are the same here, for an object its ETag (`ShardIndex.indexed`).
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headrace.errors import ShardError
from headrace.feed.sources import shard_index
from headrace.feed.sources.byte_ranges import Stamp
from headrace.feed.sources.index_program import Outcome
from headrace.feed.sources.shard_index import IndexedShard, ShardIndex
from headrace.feed.sources.shard_objects import ObjectFolder

_SECONDS = 0.5  # between two looks at what others wrote, and between two parts
_END = ".part"


class IndexParts:
    """The shards that are still to be counted, by this process and the others. Threads may share it.

    Args:
        index: the file that the index will be.
        folder: of the shards.
        stamps: of all its shards, by name.
        names: those that are missing in it.

    Attributes:
        taken: what others have counted, by name.
    """

    def __init__(
        self, index: Path, folder: Path | ObjectFolder, stamps: Mapping[str, Stamp], names: Sequence[str]
    ) -> None:
        self._index, self._folder, self._stamps = index, folder, stamps
        self._left = list(names)
        random.SystemRandom().shuffle(self._left)
        self._own, self._written = f"{index.name}.{secrets.token_hex(6)}", 0
        self._seen: set[tuple[str, int]] = {(index.name, _inode(index))}
        self._looked, self._put = -_SECONDS, time.monotonic()  # at first: one that died may have left parts
        self._counted: dict[str, IndexedShard] = {}
        self._guard = threading.Lock()
        self.taken: dict[str, IndexedShard] = {}

    def __len__(self) -> int:
        return len(self._left)

    def take(self, most: int = 1) -> list[str]:
        """Returns names of shards to count next, fewer than `most` at the end."""
        with self._guard:
            if self._left and time.monotonic() > self._looked + _SECONDS:
                self._look()
                self._looked = time.monotonic()
            names, self._left = self._left[:most], self._left[most:]
            return names

    def put(self, outcomes: Iterable[Outcome]) -> None:
        """Takes what this process has counted; now and then it is written for the others."""
        with self._guard:
            self._counted |= {each.name: each.indexed for each in outcomes if each.indexed is not None}
            if self._counted and time.monotonic() > self._put + _SECONDS:
                with contextlib.suppress(OSError):  # the others count these shards themselves
                    part = self._index.with_name(f"{self._own}-{self._written}{_END}")
                    shard_index.write(part, self._counted)
                self._written += 1
                self._counted, self._put = {}, time.monotonic()

    def clear(self) -> None:
        """Removes all parts: the index has everything now."""
        for path in self._parts():
            with contextlib.suppress(OSError):  # another one has removed it
                path.unlink()

    def _parts(self) -> list[Path]:
        return [path for path in self._index.parent.glob(f"{self._index.name}.*{_END}") if path.is_file()]

    def _look(self) -> None:
        for path in (self._index, *self._parts()):
            known = (path.name, _inode(path))
            if known in self._seen or path.name.startswith(f"{self._own}-"):
                continue
            self._seen.add(known)
            found = ShardIndex.open(path)
            for name in found.entries if found is not None else ():
                if name in self.taken or name not in self._stamps or found is None:
                    continue
                with contextlib.suppress(ShardError, OSError):  # damaged: it is counted here, which says what is wrong
                    shard = found.indexed(name, self._folder / name, self._stamps[name])
                    self.taken |= {name: shard} if shard is not None else {}
        self._left = [name for name in self._left if name not in self.taken]


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
