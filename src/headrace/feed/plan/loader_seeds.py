"""The seeds of a loader: the user's, or drawn from torch just when its DataLoader would draw them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class LoaderSeeds:
    """The seeds of a loader: given, or drawn from torch when its DataLoader would draw them.

    Args:
        given: the user's; None to draw.
        generator: torch generator to draw from; None for the default one.
        once: whether the seed of torch's order is drawn once, not for every epoch (persistent workers).

    Attributes:
        own: seed of headrace's own order; None until it is drawn.
        drawn: seed that was drawn last for torch's order.
        ahead: seed of the next epoch, if a state that was told holds it already.
        order_ahead: likewise the seed of a RandomSampler's next order.
    """

    def __init__(self, given: int | None, generator: torch.Generator | None, *, once: bool) -> None:
        self.given = self.own = given
        self.drawn: int | None = None
        self.ahead: int | None = None
        self.order_ahead: int | None = None
        self._generator = generator
        self._once = once

    def of_order(self, *, sharded: bool) -> int:
        """Returns the seed of the own order: 0 for a shard without one, as all ranks must have the same."""
        if self.own is None:
            self.own = 0 if sharded else self._draw()
        return self.own

    def of_epoch(self) -> int:
        """Returns the seed of an epoch's random numbers with torch's order."""
        if self.given is not None:
            return self.given
        if self.drawn is None or not self._once:
            self.drawn, ahead = self._draw(), self.ahead
            if ahead is not None:
                self.drawn, self.ahead = ahead, None
        return self.drawn

    def of_next_epoch(self) -> int:
        """Returns what `of_epoch` will return for the next epoch. It may be drawn here: see `unmoved`."""
        if self.given is not None:
            return self.given
        if self.drawn is not None and self._once:
            return self.drawn
        drawn = self._draw()
        self.ahead = drawn if self.ahead is None else self.ahead
        return self.ahead

    @contextmanager
    def unmoved(self) -> Iterator[None]:
        """Sets the generators that torch draws seeds from back on exit, so that a state can be told at any time."""
        import torch

        generators = [torch.default_generator, *([self._generator] if self._generator is not None else [])]
        states = [generator.get_state() for generator in generators]
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)

    def _draw(self) -> int:
        try:
            import torch
        except ModuleNotFoundError:  # arrays need none; then Python's generator is the one that the user may seed
            return random.getrandbits(63)
        return int(torch.empty((), dtype=torch.int64).random_(generator=self._generator).item())
