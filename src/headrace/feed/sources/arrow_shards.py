"""Arrow files, of the file or the stream form, as `datasets` writes them too.

Files are mapped into memory: a row is read where it lies, and nothing is decoded ahead. Of objects a record batch is
read as a whole, in one GET, and kept, within a limit of bytes for all shards of a source: so rows should be asked for
in an order that stays in a few batches for a while (`feed.Window`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import ShardError
from headrace.feed.sources.arrow_messages import BATCH, FILE_MARK, ArrowMessage, arrow_messages, needed
from headrace.feed.sources.arrow_rows import DecodedBatches, Rows, RowsOfBatch, require_pyarrow
from headrace.feed.sources.byte_ranges import CountedFile
from headrace.feed.sources.s3_objects import ObjectPath
from headrace.feed.sources.shard_format import Columns, Counted, Reader, ShardPath

Decode = Callable[[bytes, str], tuple[Rows, int]]


def index(path: ShardPath) -> tuple[int, Columns]:
    """See `shard_format`. Columns: `begin`, first row of every record batch, and the number of rows; and the messages.

    Those are `kind`, `at`, `end` and `identity`, as in `ArrowMessage`.
    """
    found = arrow_messages(path)
    counts = [each.rows for each in found if each.kind == BATCH]
    begin = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.uint64)
    return int(begin[-1]), {
        "begin": begin,
        "kind": np.array([each.kind for each in found], np.uint8),
        "at": np.array([each.begin for each in found], np.uint64),
        "end": np.array([each.end for each in found], np.uint64),
        "identity": np.array([each.identity for each in found], np.int64),
    }


class ArrowFormat:
    """Rows of Arrow files: dicts of column to value.

    Args:
        memory: limit of the record batches of objects that a process keeps, bytes.
        decode: makes rows, and tells their bytes, of a stream of one record batch; it is told where that lies.
    """

    def __init__(self, memory: int, decode: Decode | None = None) -> None:
        self._memory, self._decode = memory, decode or decoded
        self._batches = DecodedBatches(memory)

    def __getstate__(self) -> tuple[int, Decode]:
        """What is decoded stays here."""
        return self._memory, self._decode

    def __setstate__(self, state: tuple[int, Decode]) -> None:
        ArrowFormat.__init__(self, *state)

    def open(self, path: ShardPath, counted: Counted, columns: Columns) -> Reader:
        """See `shard_format.Format`."""
        if isinstance(path, ObjectPath):
            return ObjectBatches(path, columns, self._batches, self._decode)
        return _MappedBatches(path, counted, columns["begin"].tolist())


def decoded(stream: bytes, where: str) -> tuple[Rows, int]:
    """Returns the rows of a stream of one record batch, and their bytes. Raises pyarrow.ArrowException, ShardError."""
    batch = require_pyarrow().ipc.open_stream(stream).read_next_batch()
    return RowsOfBatch(where, batch.schema.names, batch.columns), batch.nbytes


class _MappedBatches:
    def __init__(self, path: Path, counted: Counted, begin: list[int]) -> None:
        self._file = CountedFile(path, counted)
        self._batches = [
            RowsOfBatch(f"{path}, record batch {number}", batch.schema.names, batch.columns)
            for number, batch in enumerate(_mapped(path))
        ]
        self._file.require_at_path()
        self._begin = begin

    def row(self, number: int) -> dict[str, Any]:
        batch = bisect_right(self._begin, number) - 1
        found = self._batches[batch].row(number - self._begin[batch])
        self._file.require_same()
        return found

    def close(self) -> None:
        self._batches.clear()
        self._file.close()


def _mapped(path: Path) -> list[Any]:
    pyarrow = require_pyarrow()
    try:
        with path.open("rb") as file:
            whole = file.read(len(FILE_MARK)) == FILE_MARK
        source = pyarrow.memory_map(str(path))
        if not whole:
            return list(pyarrow.ipc.open_stream(source))
        reader = pyarrow.ipc.open_file(source)
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (pyarrow.ArrowException, OSError) as error:
        raise ShardError(f"{path} is no Arrow file, or is broken: {error}") from error


class ObjectBatches:
    """Record batches of one object, each read when a row of it is asked for.

    Args:
        path: the object.
        columns: its index.
        held: where batches stay decoded.
        decode: see `ArrowFormat`.
    """

    def __init__(self, path: ObjectPath, columns: Columns, held: DecodedBatches, decode: Decode) -> None:
        self._path, self._held, self._decode = path, held, decode
        self._begin: list[int] = columns["begin"].tolist()
        fields = (columns[name].tolist() for name in ("kind", "at", "end", "identity"))
        self._messages = [
            ArrowMessage(kind, at, end, identity=identity) for kind, at, end, identity in zip(*fields, strict=True)
        ]
        self._batches = [number for number, each in enumerate(self._messages) if each.kind == BATCH]
        self._heads: dict[int, bytes] = {}  # schema and dictionaries, by their offsets

    def row(self, number: int) -> Any:
        """See `shard_format.Reader`."""
        batch = bisect_right(self._begin, number) - 1
        rows = self._held.rows(self._path, batch, lambda: self._read(batch))
        return rows.row(number - self._begin[batch])

    def close(self) -> None:
        """Nothing is open."""
        self._heads.clear()

    def _read(self, batch: int) -> tuple[Rows, int]:
        at = self._batches[batch]
        heads = needed(self._messages, at)
        self._heads = {each.begin: self._heads.get(each.begin) or self._bytes(each) for each in heads}
        where = f"{self._path}, record batch {batch}"
        stream = b"".join([*self._heads.values(), self._bytes(self._messages[at])])
        try:
            return self._decode(stream, where)
        except (require_pyarrow().ArrowException, OSError) as error:
            raise ShardError(f"{where}, cannot be read: {error}") from error

    def _bytes(self, message: ArrowMessage) -> bytes:
        return self._path.read(message.begin, message.end)
