"""Packing for language models: the documents of a lane are put together into sequences of one length.

Two methods. `best_fit` takes closed blocks: so many documents of a lane are put into bins of `length` tokens, and
nothing is carried over to the next block. `concat` joins the documents of a lane and cuts the result at `length`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from headrace.feed.streams.open_lane import BEGINNING, Lane, Opener, Restart
from headrace.feed.streams.packed_lane import BlocksLane, CutLane, PackedLane, Seed
from headrace.feed.streams.sequences import Longer, Method, Packing, token_dtype
from headrace.feed.streams.steps import LeftOut, Stepped, Steps, StepsLane

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
        found: Callable[[], list[tuple[str, int]]] = self.documents.__shards__  # type: ignore[attr-defined]
        return found

    @property
    def shard_digests(self) -> list[str]:
        """Digest of the documents' shards, if they have one, and of how they are packed."""
        told = msgspec.msgpack.encode(
            [list(getattr(self.documents, "shard_digests", ())), msgspec.to_builtins(self.packing)]
        )
        return [hashlib.blake2b(told, digest_size=8, person=b"packing").hexdigest()]

    def _only(self, keys: Collection[str]) -> Packed:
        return self.over(self.documents._only(keys))

    def over(self, documents: Any) -> Packed:
        """Returns the same over other documents, a copy of them say."""
        return Packed(documents, self.packing, self.steps)

    def __iter__(self) -> Iterator[Any]:
        made = self.documents if hasattr(self.documents, "__iter__") else self.documents()
        return self.lane(lambda _: _Unplaced(iter(made)), BEGINNING, lambda *_: None)

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
        return pack(
            self._documents(),
            length,
            method=method,
            block=block,
            separator=separator,
            padding=padding,
            longer=longer,
            field=field,
            dtype=dtype,
        )


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
    packing = Packing(length, method, block, separator, padding, longer, field, token_dtype(dtype))
    return Packed(documents._documents() if isinstance(documents, Packable) else documents, packing)
