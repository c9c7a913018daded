"""Lanes of packed documents.

A lane can be opened again at any sequence: `restart` says where its documents are opened, at the beginning of a block,
or at the document that is cut, with the offset of the cut. Before every document the generators are set from its number
in the lane, so what it holds does not depend on where the lane was opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.feed.streams.open_lane import Lane, Opener, Restart
from headrace.feed.streams.sequences import Packing, Tokens

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
        made = self._packing.sequence(pieces)
        self._made += 1
        self._stood()
        return made

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
