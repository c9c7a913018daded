"""Parts of indexes on their way between hosts that have no common folder: a folder that a host's processes share.

    out/KEY.NUMBER.part    what this host has counted; its feed server takes it, and sends it on
    in/KEY.NUMBER.part     what another host has counted; put there by the feed server, found by `index_parts`

A key names the index that a part belongs to. The folder is there only while somebody opens a pipeline. It is used only
while it is this user's alone: once its name was seen, another user could make it when it is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from headrace.feed.sources import shard_index
from headrace.feed.sources.shard_index import IndexedShard
from headrace.private_folders import is_private, open_private, write_private

VARIABLE = "HEADRACE_FEED_INDEX_PARTS"
MAX_PART = 4 << 20  # bytes; a shard whose columns are larger is counted by every host for itself
MAX_KEY = 120  # characters
KEY = re.compile(r"[0-9a-f]+-[a-z]+-[0-9a-f]+\.index")
_END = ".part"
_HEAD = 4096  # bytes of a part that are no columns, at least


class IndexMail:
    """See the module.

    Args:
        folder: it; it need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._out, self._in = folder / "out", folder / "in"

    @classmethod
    def new(cls) -> IndexMail:
        """Returns one for a feed server and its executors."""
        return cls(Path(tempfile.gettempdir()) / f"headrace-index-{secrets.token_hex(8)}")

    @classmethod
    def here(cls) -> IndexMail | None:
        """Returns that of this executor's feed server; None in other processes."""
        folder = os.environ.get(VARIABLE)
        return cls(Path(folder)) if folder else None

    # The executors

    def send(self, key: str, shards: Mapping[str, IndexedShard]) -> None:
        """Has the other hosts told of shards that were counted; nothing if nobody is there who tells them."""
        group: dict[str, IndexedShard] = {}
        size = 0
        for name, shard in shards.items():
            length = len(shard.packed) + len(name.encode()) + _HEAD
            if length > MAX_PART:
                continue
            if size + length > MAX_PART:
                self._put(key, group)
                group, size = {}, 0
            group[name] = shard
            size += length
        self._put(key, group)

    def _put(self, key: str, shards: Mapping[str, IndexedShard]) -> None:
        if shards and is_private(self.folder):
            with contextlib.suppress(OSError):  # the others count these shards themselves
                shard_index.write(self._out / f"{key}.{secrets.token_hex(8)}{_END}", shards)

    def received(self, key: str) -> list[Path]:
        """Returns what has come from other hosts for an index."""
        return list(self._in.glob(f"{key}.*{_END}")) if is_private(self.folder) else []

    # The feed server

    def open(self) -> None:
        """A pipeline is opened now, or soon: parts may be sent. Where the folder cannot be made, none are."""
        with contextlib.suppress(OSError):
            for folder in (self.folder, self._out, self._in):
                folder.mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        """Nobody opens a pipeline any more."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def collect(self) -> list[tuple[str, bytes]]:
        """Returns what this host has counted since the last call: keys and parts."""
        found = []
        for path in self._out.glob(f"*{_END}") if is_private(self.folder) else ():
            with contextlib.suppress(OSError):
                found.append((path.name.removesuffix(_END).rpartition(".")[0], path.read_bytes()))
                path.unlink()
        return found

    def deliver(self, key: str, part: bytes) -> None:
        """Puts a part of another host where the executors find it.

        Raises:
            ValueError: that is no key.
        """
        if not KEY.fullmatch(key):
            raise ValueError(f"no key of an index: {key[:MAX_KEY]!r}")
        with contextlib.suppress(OSError):  # then this host counts these shards itself
            os.close(open_private(self.folder))
            write_private(self._in / f"{key}.{secrets.token_hex(8)}{_END}", part)
