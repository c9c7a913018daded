"""Folders of shards, and Hugging Face's datasets (`feed.hf`), as map-style datasets.

@feed.pipeline
def train(channel: str = "training") -> feed.Source:
    return feed.tar(feed.channel(channel), "*.tar").map(decode)
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import PipelineError, ShardError
from headrace.feed.sources.byte_ranges import Format, Reader
from headrace.feed.sources.index_shards import find_index
from headrace.feed.sources.shard_objects import SCHEMES, ObjectFolder, is_hidden
from headrace.feed.sources.source import Source
from headrace.install_hint import install_hint
from headrace.instance.files import INDEX_FOLDER

OPEN_SHARDS = 128


Folder = str | os.PathLike[str]


class ShardFiles(Source):
    """A folder of shards as a source. Readers of shards stay open, a bounded number of them in every process.

    Args:
        folder: of the shards, or ``s3://bucket/prefix/``; likewise ``gs``, ``az``, ``https``.
        pattern: that their names match, as in a shell.
        form: counts and reads them; that of a row of `sources.KINDS`.

    Raises:
        ShardError: no shard is there, or one is broken.
    """

    def __init__(self, folder: str | os.PathLike[str], pattern: str, form: Format) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not isinstance(pattern, str):
            raise TypeError(
                f"shards are opened by their folder, a path or 's3://bucket/prefix/', and a pattern of their names, "
                f"got {folder!r} and {pattern!r}"
            )
        self._folder = _opened(folder)
        place = self._folder
        names = place.names(pattern) if isinstance(place, ObjectFolder) else _names(place, pattern)
        self._index = find_index(form, self._folder, pattern, names)
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
        measured = [self._form.lengths(self._index.columns(name)) for name in self._names]
        lengths = [shard for shard in measured if shard is not None]
        return np.concatenate(lengths).astype(np.int64) if lengths else super().lengths()

    def _open(self, shard: int) -> Reader:
        if len(self._readers) >= OPEN_SHARDS:
            self._readers.popitem(last=False)[1].close()
        name = self._names[shard]
        reader = self._form.open(self._folder / name, self._index.entries[name].counted, self._index.columns(name))
        self._readers[shard] = reader
        return reader


def _opened(folder: str | os.PathLike[str]) -> Path | ObjectFolder:
    name = os.fspath(folder)
    if not name:
        raise ShardError("the folder of the shards is an empty text", "pass the folder, or '.' for the current one")
    if name.startswith(SCHEMES):
        return ObjectFolder(name)
    if name.lower().startswith(tuple(scheme[:-1] for scheme in SCHEMES)):
        raise ShardError(f"{name} is no folder", hint="write objects as text, not as a Path: 's3://bucket/prefix/'")
    if "://" in name:
        raise ShardError(
            f"{name} is not a folder of this host",
            hint=f"pass a folder, {', '.join(SCHEMES[:4])}, or the input channel of a job: feed.channel(name)",
        )
    path = Path(name)
    if path.is_file():
        hint = f"pass its folder, and its name as the pattern: {str(path.parent)!r}, {path.name!r}"
        raise ShardError(f"{path} is a file, not a folder of shards", hint)
    if not path.is_dir():
        raise ShardError(f"there is no folder {path}", "pass the folder of the shards, and a pattern of their names")
    return path


def _require_readable(folder: Path, ways: Iterable[Path], pattern: str) -> None:
    """Raises ShardError if a folder that a pattern leads through may not be read: its shards would be passed over."""
    for way in ways:
        name = way.relative_to(folder).as_posix()
        hidden = way != folder and (name.startswith(INDEX_FOLDER) or is_hidden(name, pattern))
        if hidden or not os.path.isdir(way):
            continue
        try:
            with os.scandir(way):
                (way / "..").stat()  # needs the right to enter it
        except PermissionError as error:
            hint = "give this user the rights to it, or a pattern that does not lead there: it is never passed over"
            raise ShardError(f"the folder {way} cannot be read", hint) from error


def _names(folder: Path, pattern: str) -> list[str]:
    names: list[str] = []
    _require_readable(folder, [folder], pattern)
    try:
        for prefix in itertools.accumulate(pattern.split("/")[:-1], "{}/{}".format):
            _require_readable(folder, folder.glob(prefix), pattern)
        matches = [*folder.glob(pattern)]
    except (ValueError, IndexError, NotImplementedError) as error:
        raise ShardError(
            f"{pattern!r} is no pattern of names: {error}", "give one such as '*.tar' or '**/*.tar'"
        ) from error
    for path in matches:
        name = path.relative_to(folder).as_posix()
        if name.startswith(INDEX_FOLDER) or is_hidden(name, pattern):
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
        others = sorted(path.name for path in folder.iterdir() if path.name != INDEX_FOLDER)
        shown = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        if any(fnmatch.fnmatch(name, f"{pattern}.*") for name in others):
            hint = "compressed shards cannot be read from the middle: decompress them, once"
        else:
            hint = "give the pattern of the shards' names; `**/` goes through folders"
        raise ShardError(f"no file in {folder} matches {pattern!r}; there is: {shown or 'nothing'}", hint)
    return names


class HuggingFaceRows(Source):
    """Rows of a dataset of the library `datasets`, as its own features and format give them. It has a count.

    Args:
        dataset: a `datasets.Dataset`, or the folder that `save_to_disk` wrote.

    Raises:
        PipelineError: it is something else, or the library is not installed.
        ShardError: the folder holds no dataset.
    """

    def __init__(self, dataset: Any) -> None:
        try:
            import datasets
        except ModuleNotFoundError as error:
            raise PipelineError("feed.hf needs the library datasets", hint=install_hint("datasets")) from error
        folder = None
        if isinstance(dataset, (str, os.PathLike)):
            folder = Path(dataset)
            try:
                dataset = datasets.load_from_disk(folder)
            except (OSError, ValueError) as error:
                hint = "write one with dataset.save_to_disk(folder), or pass the dataset itself"
                raise ShardError(f"{folder} holds no dataset of save_to_disk: {error}", hint) from error
        if isinstance(dataset, dict):
            names = ", ".join(map(str, dataset))
            first = next(iter(dataset), "train")
            example = repr(str(folder / str(first))) if folder is not None else f"dataset[{first!r}]"
            raise PipelineError(f"this is a dict of the splits {names}", hint=f"pass one: {example}")
        if not isinstance(dataset, datasets.Dataset):
            raise PipelineError(
                f"feed.hf takes a datasets.Dataset, got one of type {type(dataset).__name__}: "
                "a plan needs the number of rows",
                hint="load it without streaming=True, and save it with save_to_disk; or give it to the loader as it "
                "is, with num_shards=",
            )
        self._dataset = dataset
        digest = _digest_of(dataset)
        super().__init__([("", len(dataset))], declared=False, digests=[digest])  # every host has all of it

    def read(self, shard: int, row: int) -> Any:
        """See `Source.read`."""
        del shard
        return self._dataset[row]


def _digest_of(dataset: Any) -> str:
    """Returns a digest of the columns, and of the first, middle and last row as they are stored."""
    stored, rows = dataset.with_format("arrow"), len(dataset)
    digest = hashlib.blake2b(repr(dataset.features).encode(), digest_size=8, person=b"shard")
    for row in sorted({0, rows // 2, rows - 1}) if rows else ():
        digest.update(repr(stored[row].to_pylist()).encode())
    return digest.hexdigest()


def hf(dataset: Any) -> Source:
    """Opens a dataset of Hugging Face's library. A row is what the dataset's features and format make of it.

    Args:
        dataset: a `datasets.Dataset`, or the folder that `save_to_disk` wrote.

    Raises:
        PipelineError: it has no count (`streaming=True`), or the library is not installed.
        ShardError: the folder holds no dataset, or is none of a disk.
    """
    refuse_objects("feed.hf", dataset)
    return HuggingFaceRows(dataset)


def refuse_objects(what: str, folder: Any) -> None:
    """Raises ShardError if the folder of what can be read on a disk only is a prefix of objects."""
    if isinstance(folder, str) and folder.startswith(SCHEMES):
        raise ShardError(
            f"{what} maps Arrow files of a disk, and {folder} is an object",
            hint="bring them to the hosts by a channel in File mode, or write Parquet, which is read there",
        )
