"""Global batches of lanes, written again from the documentation: sequentially, without ranks, workers and states."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

TURN = 8  # outputs that a lane gives at a turn, at least


def parts_of(lanes: Sequence[Sequence[Any]], part: int, drop_last: bool) -> Iterator[list[Any]]:
    """Yields what one slot gives to the batches: its lanes take turns until all have ended."""
    turn = part * math.ceil(TURN / part)
    waiting = deque(list(lane) for lane in lanes)
    while waiting:
        lane = waiting.popleft()
        given, rest = lane[:turn], lane[turn:]
        for first in range(0, len(given), part):
            found = given[first : first + part]
            if len(found) == part or not drop_last:
                yield found
        if rest:
            waiting.append(rest)


def global_batches(lanes: Sequence[Sequence[Any]], batch: int, *, drop_last: bool = False) -> list[list[list[Any]]]:
    """Returns the global batches, each as what it takes of every slot, in the order of the slots.

    A slot that has ended gives nothing more; with `drop_last` the epoch ends there.
    """
    slots = math.gcd(len(lanes), batch)
    given = [deque(parts_of(lanes[slot::slots], batch // slots, drop_last)) for slot in range(slots)]
    batches = []
    while any(given) and (all(given) or not drop_last):
        batches.append([slot.popleft() if slot else [] for slot in given])
    return batches


def of_rank(batches: list[list[list[Any]]], rank: int, world: int) -> list[list[Any]]:
    """Returns a rank's batches: what the slots r, r + W, ... give, one after the other, until these have ended."""
    own = [[output for part in slots[rank::world] for output in part] for slots in batches]
    while own and not own[-1]:
        own.pop()
    return own
