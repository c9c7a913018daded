"""How far a pass over a loader is, also when batches leave it out of their order (``in_order=False``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headrace.feed.plan.epoch import BatchPlan

MAX_WINDOW = 256  # batches, of which the first that is there is taken; which of them were taken must fit into a state


class Place(NamedTuple):
    """How far a pass is.

    Attributes:
        step: number of the first batch that is still to come.
        ahead: numbers of those behind it that have left the loader already.
    """

    step: int
    ahead: frozenset[int] = frozenset()


@dataclass
class Progress:
    """How far a pass is.

    Attributes:
        epoch: number of the epoch.
        step: number of the next batch; those before it have left the loader, or ended in an error of the dataset.
        ended: whether the pass came to the epoch's end.
        ahead: numbers of batches after `step` that have left the loader already.
        strayed: whether a batch left the loader before its turn.
        begun: whether a batch was asked for.
        broken_off: whether nobody can ask for more.
        stepped_back: whether it was planned, and must be planned again before its first batch.
    """

    epoch: int
    step: int = 0
    ended: bool = False
    ahead: frozenset[int] = frozenset()
    strayed: bool = False
    begun: bool = False
    broken_off: bool = False
    stepped_back: bool = False

    @property
    def over(self) -> bool:
        """Whether no batch of it can come any more."""
        return self.ended or self.broken_off

    @property
    def place(self) -> Place:
        """Where the pass is."""
        return Place(self.step, self.ahead)

    def took(self, step: int) -> None:
        """Notes that a batch has left the loader."""
        ahead = self.ahead | {step}
        self.strayed |= step != self.step
        while self.step in ahead:
            ahead -= {self.step}
            self.step += 1
        self.ahead = ahead

    def move(self, place: Place) -> None:
        """Goes to where another progress of the same pass was."""
        self.strayed |= bool(place.ahead)
        self.step, self.ahead = place


def without(plans: Iterator[BatchPlan], epoch: int, taken: frozenset[int]) -> Iterator[BatchPlan]:
    """Leaves batches of an epoch out that have left the loader. The one that follows is always looked up already."""
    held: BatchPlan | None = None
    for plan in plans:
        if plan.epoch == epoch and plan.step in taken:
            continue
        if held is not None:
            yield held
        held = plan
    if held is not None:
        yield held


def packed_steps(step: int, ahead: Iterable[int]) -> str:
    """Returns the batches behind a step as a hexadecimal number: bit i stands for batch step + 1 + i."""
    return format(sum(1 << (number - step - 1) for number in ahead), "x")


def unpacked_steps(step: int, packed: str) -> frozenset[int]:
    """Returns the batches of `packed_steps`. Raises ValueError if it is none."""
    bits = int(packed, 16)
    if not 0 < bits < 1 << MAX_WINDOW:
        raise ValueError(f"batches that were taken before their turn must be a number of at most {MAX_WINDOW} bits")
    return frozenset(step + 1 + i for i in range(bits.bit_length()) if bits >> i & 1)
