"""A folder of shards as a source. Readers of shards stay open, a bounded number of them in every process."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

from headrace.errors import ShardError
from headrace.feed.sources.index_shards import FOLDER, find_index
from headrace.feed.sources.shard_format import Format, Reader
from headrace.feed.sources.source import Source

OPEN_SHARDS = 128


class ShardFiles(Source):
    """See the module.

    Args:
        folder: of the shards.
        pattern: that their names match, as in `Path.glob`.
        kind: one of `index_program.KINDS`.
        form: reads them.

    Raises:
        ShardError: no shard is there, or one is broken.
    """

    def __init__(self, folder: str | os.PathLike[str], pattern: str, kind: str, form: Format) -> None:
        self._folder = _local(folder)
        names = _names(self._folder, pattern)
        self._index = find_index(kind, self._folder, pattern, names)
        self._form = form
        self._names = names
        self._readers: OrderedDict[int, Reader] = OrderedDict()
        super().__init__([(name, self._index.entries[name].rows) for name in names], declared=True)

    def __getstate__(self) -> dict[str, Any]:
        """Open shards stay here."""
        return vars(self) | {"_readers": OrderedDict()}

    def read(self, shard: int, row: int) -> Any:
        """See `Source.read`."""
        reader = self._readers.get(shard)
        if reader is None:
            reader = self._open(shard)
        elif len(self._readers) == OPEN_SHARDS:
            self._readers.move_to_end(shard)
        return reader.row(row)

    def _open(self, shard: int) -> Reader:
        if len(self._readers) >= OPEN_SHARDS:
            self._readers.popitem(last=False)[1].close()
        name = self._names[shard]
        reader = self._form.open(self._folder / name, self._index.entries[name].stamp, self._index.columns(name))
        self._readers[shard] = reader
        return reader


def _local(folder: str | os.PathLike[str]) -> Path:
    given = os.fspath(folder)
    if "://" in given:
        raise ShardError(
            f"{given} is not a folder of this host",
            hint="make it an input channel of the job (input_mode FastFile reads objects as files) and pass "
            "feed.channel(name)",
        )
    path = Path(given)
    if not path.is_dir():
        raise ShardError(f"there is no folder {path}", "pass the folder of the shards, and a pattern of their names")
    return path


def _names(folder: Path, pattern: str) -> list[str]:
    found = (path for path in folder.glob(pattern) if path.is_file())
    names = sorted(path.relative_to(folder).as_posix() for path in found)
    names = [name for name in names if not name.startswith(f"{FOLDER}/")]
    if not names:
        there = sorted(path.name for path in folder.iterdir())
        shown = ", ".join(there[:5]) + (", ..." if len(there) > 5 else "")
        raise ShardError(f"no file in {folder} matches {pattern!r}; there is: {shown or 'nothing'}")
    return names
