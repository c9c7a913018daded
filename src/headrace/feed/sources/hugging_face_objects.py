"""A dataset that `save_to_disk` wrote to S3 as a source: its record batches are read when a row of theirs is asked for.

Its files are Arrow streams, so they are indexed and read as `arrow_shards` are. What a row is, the library itself makes
of the batch, with the dataset's features and format.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import Any

import msgspec

from headrace.errors import ShardError
from headrace.feed.sources.arrow_rows import Rows, require_pyarrow
from headrace.feed.sources.arrow_shards import ArrowFormat
from headrace.feed.sources.hugging_face import dataset_digest, require_datasets
from headrace.feed.sources.index_shards import find_index
from headrace.feed.sources.s3_objects import ObjectFolder
from headrace.feed.sources.shard_format import Reader
from headrace.feed.sources.source import Source

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct, rename=lambda name: f"_{name}"):
    """What the library writes of a dataset's files and format; it puts a line before each name."""

    data_files: list[_DataFile]
    fingerprint: str
    format_type: str | None = None
    format_kwargs: dict[str, Any] = {}
    format_columns: list[str] | None = None
    output_all_columns: bool = False
    split: str | None = None


class _Splits(msgspec.Struct):
    splits: list[str]


_decode_state = msgspec.json.Decoder(_State).decode
_decode_splits = msgspec.json.Decoder(_Splits).decode
_decode_info = msgspec.json.Decoder(dict[str, Any]).decode


class HuggingFaceObjects(Source):
    """Rows of a dataset, as its own features and format give them.

    Args:
        uri: ``s3://bucket/prefix/`` that `save_to_disk` wrote to.
        memory: limit of the record batches that a process keeps, bytes.

    Raises:
        PipelineError: the library is not installed.
        ShardError: no dataset is there, or a file of it is broken.
        StorageError: the objects cannot be read.
    """

    def __init__(self, uri: str, memory: int) -> None:
        require_datasets()
        folder = ObjectFolder(uri)
        decode = _described(folder)
        names = [file.filename for file in decode.state.data_files]
        if missing := [name for name in names if name not in folder.objects]:
            raise ShardError(f"{folder} lacks {missing[0]}, which its {_STATE} names", "save the dataset again")
        self._folder, self._names = folder, names
        self._index = find_index("arrow", folder, _STATE, sorted(names))
        self._format = ArrowFormat(memory, decode)
        self._readers: dict[int, Reader] = {}
        counts = [self._index.entries[name].rows for name in names]
        self._begin = list(itertools.accumulate(counts, initial=0))
        rows = self._begin[-1]
        features = self._found(0)[0].features if rows else decode.dataset_info().features
        digest = dataset_digest(features, rows, self._stored)
        super().__init__([("", rows)], declared=False, digests=[digest])  # every host has all of it

    def __getstate__(self) -> dict[str, Any]:
        """Open files stay here."""
        return vars(self) | {"_readers": {}}

    def read(self, shard: int, row: int) -> Any:
        """See `Source.read`."""
        del shard
        dataset, at = self._found(row)
        return dataset[at]

    def _stored(self, row: int) -> Any:
        dataset, at = self._found(row)
        return dataset.with_format("arrow")[at]

    def _found(self, row: int) -> tuple[Any, int]:
        """Returns a dataset of the record batch that holds a row, and the row's number in it."""
        file = bisect_right(self._begin, row) - 1
        reader = self._readers.get(file)
        if reader is None:
            name = self._names[file]
            counted, columns = self._index.entries[name].counted, self._index.columns(name)
            reader = self._readers[file] = self._format.open(self._folder / name, counted, columns)
        found: tuple[Any, int] = reader.row(row - self._begin[file])
        return found


class _DatasetRows:
    """Rows of one record batch: a dataset of this batch, and the number."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def row(self, number: int) -> tuple[Any, int]:
        return self._dataset, number


class _Decode:
    """Makes a dataset of every record batch; see `ArrowFormat`."""

    def __init__(self, state: _State, info: dict[str, Any]) -> None:
        self.state, self._info = state, info

    def dataset_info(self) -> Any:
        """Returns the library's own object of what the dataset is."""
        return require_datasets().DatasetInfo.from_dict(self._info)

    def __call__(self, stream: bytes, where: str) -> tuple[Rows, int]:
        del where
        datasets, state = require_datasets(), self.state
        dataset = datasets.Dataset(
            datasets.table.InMemoryTable.from_buffer(require_pyarrow().py_buffer(stream)),
            info=self.dataset_info(),
            split=datasets.Split(state.split) if state.split is not None else None,
            fingerprint=state.fingerprint,
        )
        dataset = dataset.with_format(
            state.format_type, state.format_columns, state.output_all_columns, **state.format_kwargs
        )
        return _DatasetRows(dataset), dataset.data.nbytes


def _described(folder: ObjectFolder) -> _Decode:
    """Returns what the library wrote beside the data. Raises ShardError."""
    if _STATE not in folder.objects and _SPLITS in folder.objects:
        names = _decode_splits(_content(folder, _SPLITS)).splits
        raise ShardError(
            f"{folder} holds a dict of the splits {', '.join(names)}", f"pass one: {str(folder) + names[0]!r}"
        )
    for name in (_STATE, _INFO):
        if name not in folder.objects:
            raise ShardError(
                f"{folder} holds no dataset of save_to_disk: there is no {name}",
                hint="write one with dataset.save_to_disk(uri), or use feed.parquet or feed.arrow",
            )
    try:
        return _Decode(_decode_state(_content(folder, _STATE)), _decode_info(_content(folder, _INFO)))
    except msgspec.DecodeError as error:
        raise ShardError(f"{folder} holds no dataset of save_to_disk: {error}", "save the dataset again") from error


def _content(folder: ObjectFolder, name: str) -> bytes:
    path = folder / name
    return path.read(0, path.size)
