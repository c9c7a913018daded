"""What an open lane of a dataset without a count is: an iterator that says where it can be opened again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Restart(NamedTuple):
    """Where a lane can be opened again.

    Attributes:
        place: plain data; None for the lane's beginning.
        made: outputs of the lane that lie before it.
    """

    place: Any
    made: int


class Lane(Iterator[Any]):
    """A lane that is open.

    Attributes:
        restart: where it can be opened again. It may lie some outputs before the next one: they are made again then.
        tokens, padding: of the packed sequence whose first output is the latest one; 0 where there is none.
        source: of a mixture of streams, that the latest output came of; empty where there is none.
        seeds_itself: whether it sets the generators before anything that it makes an output of.
    """

    restart: Restart
    seeds_itself = False
    source = ""
    tokens = 0
    padding = 0


Opener = Callable[[Restart], Lane]
BEGINNING = Restart(None, 0)
