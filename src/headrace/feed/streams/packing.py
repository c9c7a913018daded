"""Packing for language models: the documents of a lane are put together into sequences of one length.

Two methods. `best_fit` takes closed blocks: so many documents of a lane are put into bins of `length` tokens, and
nothing is carried over to the next block. `concat` joins the documents of a lane and cuts the result at `length`.

A lane can be opened again at any sequence: `restart` says where its documents are opened, at the beginning of a block,
or at the document that is cut, with the offset of the cut. Before every document the generators are set from its number
in the lane, so what it holds does not depend on where the lane was opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import PipelineError
from headrace.feed.batch.plain_values import digest_of
from headrace.feed.identifiers import one_of, positive
from headrace.feed.streams.steps import BEGINNING, Lane, LeftOut, Opener, Restart, Stepped, Steps, StepsLane

Tokens = NDArray[Any]
Method = Literal["best_fit", "concat"]
Longer = Literal["split", "error"]

DTYPES = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")


def token_dtype(dtype: DTypeLike) -> str:
    """Returns the name of a dtype of tokens. Raises ValueError if it is none, or not one of whole numbers."""
    try:
        name = str(np.dtype(dtype).name) if dtype is not None else ""
    except (TypeError, ValueError):
        name = ""
    if name not in DTYPES:
        raise ValueError(f"dtype of tokens must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return name


@dataclass(frozen=True)
class Packing:
    """How documents are packed; see `packing.pack` for the arguments."""

    length: int
    method: Method = "best_fit"
    block: int = 1024
    separator: int | None = None
    padding: int = 0
    longer: Longer = "split"
    field: str | None = None
    dtype: str = "int64"

    def __post_init__(self) -> None:
        one_of("method", self.method, ("best_fit", "concat"))
        one_of("longer", self.longer, ("split", "error"))
        if self.field is not None and not isinstance(self.field, str):
            raise TypeError(f"field must be a name, got {self.field!r}")
        checked: dict[str, object] = {name: positive(name, getattr(self, name)) for name in ("length", "block")}
        checked["dtype"] = dtype = token_dtype(self.dtype)
        limits = np.iinfo(dtype)
        for name, token in (("padding", self.padding), ("separator", self.separator)):
            number = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
            if number and token is not None and limits.min <= token <= limits.max:
                checked[name] = int(token)
            elif token is not None or name == "padding":
                raise ValueError(f"{name} must be a token, a whole number that fits into {dtype}, got {token!r}")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def tokens(self, document: Any, number: int) -> Tokens:
        """Returns the tokens of a document, with the separator.

        Args:
            document: an array or list of whole numbers, or with `field` a dict that holds one.
            number: of the document in its lane, for messages.

        Raises:
            PipelineError: it is something else, or too long.
        """
        if self.field is not None:
            if not isinstance(document, Mapping) or self.field not in document:
                fields = ", ".join(map(str, document)) if isinstance(document, Mapping) else ""
                seen = f"has {fields}" if fields else f"is of type {type(document).__name__}"
                raise PipelineError(
                    f"document {number} of the lane has no field {self.field!r}: it {seen}",
                    hint="name the field that holds the tokens: .pack(length, field=...)",
                )
            document = document[self.field]
        tokens = np.asarray(document)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise PipelineError(
                f"a document is a list or an array of whole numbers, and document {number} of the lane is "
                f"{type(document).__name__} {str(document)[:60]!r}",
                hint="tokenise in .map() before .pack(), or name the field with the tokens: .pack(length, field=...)",
            )
        if tokens.size and not np.can_cast(tokens.dtype, self.dtype):
            limits, least, most = np.iinfo(self.dtype), tokens.min(), tokens.max()
            if least < limits.min or most > limits.max:
                wrong = most if most > limits.max else least
                raise PipelineError(
                    f"document {number} of the lane has the token {wrong}, which does not fit {self.dtype}",
                    hint="take a larger dtype: .pack(length, dtype=...)",
                )
        if self.separator is not None:
            tokens = np.append(tokens.astype(self.dtype), self.separator)
        if self.longer == "error" and tokens.size > self.length:
            raise PipelineError(
                f"document {number} of the lane has {tokens.size} tokens, and a sequence has {self.length}",
                hint='cut it in .map() before, or take longer="split"',
            )
        return tokens

    def sequence(self, pieces: list[Tokens]) -> dict[str, Tokens]:
        """Returns a sequence of pieces of documents: `tokens`, `segments` (0 for padding) and `positions`."""
        tokens = np.full(self.length, self.padding, self.dtype)
        segments = np.zeros(self.length, np.int32)
        positions = np.zeros(self.length, np.int32)
        at = 0
        for segment, piece in enumerate(pieces, 1):
            end = at + piece.size
            tokens[at:end], segments[at:end] = piece, segment
            positions[at:end] = np.arange(piece.size, dtype=np.int32)
            at = end
        return {"tokens": tokens, "segments": segments, "positions": positions}


Seed = Callable[[bytes, int], None]
DOCUMENT = b"lane document"
_END = object()


class _Place(NamedTuple):
    """Where a lane of documents was opened, so that document `number` could come next, and an offset in it."""

    place: Any
    made: int
    number: int
    offset: int = 0


class _Documents:
    """The documents of a lane as arrays of tokens.

    Attributes:
        number: of the document that comes next.
    """

    def __init__(self, packing: Packing, opened: Opener, place: _Place, seed: Seed) -> None:
        self._packing, self._seed = packing, seed
        self._lane = opened(Restart(place.place, place.made))
        self.number = place.made
        while self.number < place.number and self._pull() is not _END:
            pass  # it was consumed before

    def mark(self) -> _Place:
        """Returns where they can be opened again, so that the next one comes next."""
        return _Place(*self._lane.restart, self.number)

    def _pull(self) -> Any:
        self._seed(DOCUMENT, self.number)
        document = next(self._lane, _END)
        self.number += document is not _END
        return document

    def next(self) -> Tokens | None:
        """Returns the next document; None behind the last one."""
        document = self._pull()
        return None if document is _END else self._packing.tokens(document, self.number - 1)


class PackedLane(Lane, ABC):
    """A lane of packed documents that is open.

    Args:
        packing: how documents are packed.
        opened: opens the lane of the documents at a place.
        start: a `restart` of this lane.
        seed: sets the generators, for the document of a number.

    Attributes:
        length: positions of a sequence.
    """

    def __init__(self, packing: Packing, opened: Opener, start: Restart, seed: Seed) -> None:
        place = _Place(None, 0, 0) if start.place is None else _Place(*start.place)
        self.restart = start
        self._packing = packing
        self._documents = _Documents(packing, opened, place, seed)
        self._made, self.length = start.made, packing.length
        self._begin(place)

    @abstractmethod
    def _begin(self, place: _Place) -> None: ...

    @abstractmethod
    def _pieces(self) -> list[Tokens]:
        """Returns the pieces of the next sequence, none behind the last one."""

    def __next__(self) -> Any:
        pieces = self._pieces()
        if not pieces:
            raise StopIteration
        self.tokens = sum(piece.size for piece in pieces)
        self.padding = self.length - self.tokens
        sequence = self._packing.sequence(pieces)
        self._made += 1
        self._stood()
        return sequence

    @abstractmethod
    def _stood(self) -> None:
        """Sets `restart`: a sequence was made."""


class BlocksLane(PackedLane):
    """Documents in closed blocks: a block is opened again at its beginning."""

    def _begin(self, place: _Place) -> None:
        del place
        self._bins: deque[list[Tokens]] = deque()

    def _pieces(self) -> list[Tokens]:
        while not self._bins:
            self.restart = Restart(tuple(self._documents.mark()), self._made)
            block = self._block()
            if not block:
                return []
            pieces = [
                document[at : at + self.length] for document in block for at in range(0, document.size, self.length)
            ]
            for things in best_fit([piece.size for piece in pieces], self.length):
                self._bins.append([pieces[thing] for thing in things])
        return self._bins.popleft()

    def _block(self) -> list[Tokens]:
        block: list[Tokens] = []
        while len(block) < self._packing.block:
            document = self._documents.next()
            if document is None:
                break
            block.append(document)
        return block

    def _stood(self) -> None:
        if not self._bins:  # the block is used up
            self.restart = Restart(tuple(self._documents.mark()), self._made)


class CutLane(PackedLane):
    """Documents that are joined and cut: it is opened again at the document that is cut, or that comes next.

    The documents' lane can tell at every sequence where it can be opened. Such places are kept as long as the document
    that comes next lies behind them and before the following one.
    """

    def _begin(self, place: _Place) -> None:
        self._marks = deque([place._replace(offset=0)])  # where the documents can be opened, by number of document
        self._rest, self._offset = np.empty(0, self._packing.dtype), 0
        if place.offset:
            cut = self._documents.next()
            if cut is not None:
                self._rest, self._offset = cut, place.offset

    def _pieces(self) -> list[Tokens]:
        if self._documents.number > self._marks[-1].number:
            self._marks.append(self._documents.mark())
        pieces: list[Tokens] = []
        room = self.length
        while room:
            if self._offset >= self._rest.size:  # beyond it if the document is another one than before
                document = self._documents.next()
                if document is None:
                    break
                self._rest, self._offset = document, 0
            piece = self._rest[self._offset : self._offset + room]
            self._offset += piece.size
            room -= piece.size
            if piece.size:
                pieces.append(piece)
        return pieces

    def _stood(self) -> None:
        number, offset = self._documents.number, 0
        if self._offset < self._rest.size:
            number, offset = number - 1, self._offset
        while len(self._marks) > 1 and self._marks[1].number <= number:
            self._marks.popleft()
        self.restart = Restart(tuple(self._marks[0]._replace(number=number, offset=offset)), self._made)


def best_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Puts things into bins, the longest first, each into the bin in which it leaves the least room.

    It needs at most 11/9 of the fewest bins possible.

    Args:
        sizes: of the things, each at least 1 and at most `room`.
        room: of a bin.

    Returns:
        Bins of numbers of things. Things in a bin are in order; the bins come in the order of their largest things, so
        that they are as well mixed as those were.
    """
    bins: list[list[int]] = []
    open_bins: list[tuple[int, int]] = []  # room that is left, and number of the bin; sorted
    for thing in sorted(range(len(sizes)), key=lambda thing: -sizes[thing]):
        at = bisect_left(open_bins, (sizes[thing], -1))
        if at == len(open_bins):
            left, number = room, len(bins)
            bins.append([])
        else:
            left, number = open_bins.pop(at)
        bins[number].append(thing)
        left -= sizes[thing]
        if left:
            open_bins.insert(bisect_left(open_bins, (left, number)), (left, number))
    bins.sort(key=lambda things: things[0])
    return [sorted(things) for things in bins]


SEQUENCE = b"lane sequence"


class Packed(Stepped):
    """Sequences of packed documents. It has no count: it is read in lanes.

    Args:
        documents: a stream over shards, or another dataset without a count.
        packing: how.
        steps: what is done with each sequence, in order.
    """

    def __init__(self, documents: Any, packing: Packing, steps: Steps = ()) -> None:
        self.documents, self.packing, self.steps = documents, packing, steps

    @property
    def __shards__(self) -> Callable[[], list[tuple[str, int]]]:
        """Those of the documents, if they are of shards that hosts may hold different ones of."""
        if not isinstance(self.documents, Packable):
            raise AttributeError("__shards__")
        shards: Callable[[], list[tuple[str, int]]] = self.documents.__shards__  # type: ignore[attr-defined]
        return shards

    @property
    def shard_digests(self) -> list[str]:
        """Digest of the documents' shards, if they have one, and of how they are packed."""
        return [digest_of([list(getattr(self.documents, "shard_digests", ())), self.packing], b"packing")]

    def _only(self, keys: Collection[str]) -> Packed:
        return self.over(self.documents._only(keys))

    def over(self, documents: Any) -> Packed:
        """Returns the same over other documents, a copy of them say."""
        return Packed(documents, self.packing, self.steps)

    def __iter__(self) -> Iterator[Any]:
        documents = self.documents if hasattr(self.documents, "__iter__") else self.documents()
        return self.lane(lambda _: _Unplaced(iter(documents)), BEGINNING, lambda *_: None)

    def lane(self, opened: Opener, start: Restart, seed: Seed, skipped: LeftOut | None = None) -> Lane:
        """Opens a lane.

        Args:
            opened: opens the lane of the documents at a place.
            start: a `restart` of this lane.
            seed: sets the generators, for the document or sequence of a number.
            skipped: takes numbers of sequences that the steps raise over, and why, which are left out then.
        """

        def sequences(start: Restart) -> PackedLane:
            kind = BlocksLane if self.packing.method == "best_fit" else CutLane
            return kind(self.packing, opened, start, seed)

        if not self.steps:
            return sequences(start)
        return StepsLane(self.steps, sequences, start, lambda number: seed(SEQUENCE, number), skipped)


class _Unplaced(Lane):
    """Documents that are opened at their beginning only."""

    def __init__(self, documents: Iterator[Any]) -> None:
        self._documents, self.restart = documents, BEGINNING

    def __next__(self) -> Any:
        return next(self._documents)


class Packable(ABC):
    """What has documents that can be packed."""

    @abstractmethod
    def _documents(self) -> Any:
        """Returns them as a dataset without a count."""

    def pack(
        self,
        length: int,
        *,
        method: Method = "best_fit",
        block: int = 1024,
        separator: int | None = None,
        padding: int = 0,
        longer: Longer = "split",
        field: str | None = None,
        dtype: str = "int64",
    ) -> Packed:
        """Returns sequences of `length` tokens that the documents are packed into. They have no count: see `feed.pack`.

        Raises:
            ValueError: an argument out of range.
        """
        packing = Packing(length, method, block, separator, padding, longer, field, dtype)
        return Packed(self._documents(), packing)


def pack(
    documents: Any,
    length: int,
    *,
    method: Method = "best_fit",
    block: int = 1024,
    separator: int | None = None,
    padding: int = 0,
    longer: Longer = "split",
    field: str | None = None,
    dtype: str = "int64",
) -> Packed:
    """Packs tokenised documents into sequences of one length, for language models.

    A sequence is a dict of arrays of `length` elements: ``tokens``; ``segments``, which number the documents of a
    sequence from 1 and are 0 where there is padding; and ``positions``, which count from 0 in every segment.

    Args:
        documents: a source, a stream, or another dataset without a count: lists or arrays of tokens.
        length: tokens of a sequence.
        method: ``"best_fit"`` packs blocks of documents by best-fit-decreasing, and cuts no document that fits into a
            sequence. ``"concat"`` joins the documents of a lane and cuts the result, so only a lane's last sequence is
            padded.
        block: documents of a block.
        separator: a token that is put behind every document; None for none.
        padding: the token where there is none.
        longer: whether a document of more than `length` tokens is split, or is an error.
        field: name of the tokens where documents are dicts.
        dtype: of the tokens: ``"int64"``, ``"uint16"`` or another of whole numbers. The other arrays are int32.

    Raises:
        ValueError: an argument out of range.
    """
    packing = Packing(length, method, block, separator, padding, longer, field, dtype)
    return Packed(documents._documents() if isinstance(documents, Packable) else documents, packing)
