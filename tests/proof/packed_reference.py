"""Packing, written again from its description, one token at a time and without headrace or NumPy's help."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


def sequences(
    documents: Iterable[Any],
    length: int = 32,
    method: str = "best_fit",
    block: int = 16,
    separator: int | None = 3,
    padding: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yields what the documents of a lane are packed into."""
    ended = ([*document, *([] if separator is None else [separator])] for document in documents)
    if method == "concat":
        tokens = ((number, token) for number, document in enumerate(ended) for token in document)
        while cut := list(itertools.islice(tokens, length)):
            parts = itertools.groupby(cut, key=lambda pair: pair[0])
            yield sequence([[token for _, token in part] for _, part in parts], length, padding)
        return
    while taken := list(itertools.islice(ended, block)):
        pieces = [document[at : at + length] for document in taken for at in range(0, len(document), length)]
        bins: list[list[int]] = []
        for piece in sorted(range(len(pieces)), key=lambda piece: (-len(pieces[piece]), piece)):
            room = {
                number: length - sum(len(pieces[held]) for held in held_ones) for number, held_ones in enumerate(bins)
            }
            fitting = [(left, number) for number, left in room.items() if left >= len(pieces[piece])]
            if fitting:
                bins[min(fitting)[1]].append(piece)
            else:
                bins.append([piece])
        for held_ones in sorted(bins):  # by the one that began the bin
            yield sequence([pieces[held] for held in sorted(held_ones)], length, padding)


def sequence(pieces: list[list[int]], length: int, padding: int) -> dict[str, Any]:
    """Returns the arrays of one sequence."""
    rows = [(token, number, at) for number, piece in enumerate(pieces, 1) for at, token in enumerate(piece)]
    assert len(rows) <= length
    columns = list(zip(*rows, *[(padding, 0, 0)] * (length - len(rows)), strict=True))
    return {
        "tokens": np.array(columns[0], np.int64),
        "segments": np.array(columns[1], np.int32),
        "positions": np.array(columns[2], np.int32),
    }
