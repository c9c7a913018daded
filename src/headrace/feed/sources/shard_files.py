"""A folder of shards as a source. Readers of shards stay open, a bounded number of them in every process."""

from __future__ import annotations

import fnmatch
import os
from collections import OrderedDict
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.feed.sources.index_shards import FOLDER, find_index
from headrace.feed.sources.object_stores import SCHEMES
from headrace.feed.sources.shard_format import Format, Reader
from headrace.feed.sources.shard_objects import ObjectFolder, is_hidden
from headrace.feed.sources.source import Source

OPEN_SHARDS = 128


class ShardFiles(Source):
    """See the module.

    Args:
        folder: of the shards, or ``s3://bucket/prefix/``; likewise ``gs``, ``az``, ``https``.
        pattern: that their names match, as in a shell.
        kind: one of `index_program.KINDS`.
        form: reads them.

    Raises:
        ShardError: no shard is there, or one is broken.
    """

    def __init__(self, folder: str | os.PathLike[str], pattern: str, kind: str, form: Format) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not isinstance(pattern, str):
            raise TypeError(
                f"shards are opened by their folder, a path or 's3://bucket/prefix/', and a pattern of their names, "
                f"got {folder!r} and {pattern!r}"
            )
        self._folder = _opened(folder)
        found = self._folder
        names = found.names(pattern) if isinstance(found, ObjectFolder) else _names(found, pattern)
        self._index = find_index(kind, self._folder, pattern, names)
        self._form = form
        self._names = names
        self._readers: OrderedDict[int, Reader] = OrderedDict()
        entries = [self._index.entries[name] for name in names]
        counts = [(name, entry.rows) for name, entry in zip(names, entries, strict=True)]
        super().__init__(counts, declared=True, digests=[entry.digest for entry in entries])

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

    def lengths(self) -> NDArray[np.int64]:
        """See `Source.lengths`."""
        measure = getattr(self._form, "lengths", None)
        if measure is None:
            return super().lengths()
        return np.concatenate([measure(self._index.columns(name)) for name in self._names]).astype(np.int64)

    def _open(self, shard: int) -> Reader:
        if len(self._readers) >= OPEN_SHARDS:
            self._readers.popitem(last=False)[1].close()
        name = self._names[shard]
        reader = self._form.open(self._folder / name, self._index.entries[name].counted, self._index.columns(name))
        self._readers[shard] = reader
        return reader


def _opened(folder: str | os.PathLike[str]) -> Path | ObjectFolder:
    given = os.fspath(folder)
    if given.startswith(SCHEMES):
        return ObjectFolder(given)
    if given.lower().startswith(tuple(scheme[:-1] for scheme in SCHEMES)):
        raise ShardError(f"{given} is no folder", hint="write objects as text, not as a Path: 's3://bucket/prefix/'")
    if "://" in given:
        raise ShardError(
            f"{given} is not a folder of this host",
            hint=f"pass a folder, {', '.join(SCHEMES[:4])}, or the input channel of a job: feed.channel(name)",
        )
    path = Path(given)
    if path.is_file():
        hint = f"pass its folder, and its name as the pattern: {str(path.parent)!r}, {path.name!r}"
        raise ShardError(f"{path} is a file, not a folder of shards", hint)
    if not path.is_dir():
        raise ShardError(f"there is no folder {path}", "pass the folder of the shards, and a pattern of their names")
    return path


def _names(folder: Path, pattern: str) -> list[str]:
    names: list[str] = []
    for path in folder.glob(pattern):
        name = path.relative_to(folder).as_posix()
        if name.startswith(FOLDER) or is_hidden(name, pattern):
            continue
        if path.is_file():
            names.append(name)
        elif not path.is_dir():
            what = "a link to a file that is not there" if path.is_symlink() else "no ordinary file"
            raise ShardError(
                f"{path} is {what}", "put the shard there, or take this name away: it is never passed over"
            )
        elif "." in PurePath(pattern).name:  # not a folder that `*` or `**` goes through
            raise ShardError(
                f"{path} matches {pattern!r} and is a folder, not a shard",
                hint="pass that folder, or a pattern that leads into it, or give it another name",
            )
    names.sort()
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ShardError(
                f"the name of the shard {os.fsencode(name)!r} in {folder} is not UTF-8", "give it another name"
            ) from None
    if not names:
        there = sorted(path.name for path in folder.iterdir() if path.name != FOLDER)
        shown = ", ".join(there[:5]) + (", ..." if len(there) > 5 else "")
        if any(fnmatch.fnmatch(name, f"{pattern}.*") for name in there):
            hint = "compressed shards cannot be read from the middle: decompress them, once"
        else:
            hint = "give the pattern of the shards' names; `**/` goes through folders"
        raise ShardError(f"no file in {folder} matches {pattern!r}; there is: {shown or 'nothing'}", hint)
    return names
