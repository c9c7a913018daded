"""A token bucket: so many starts a second on average, fewer for a while after a platform has asked for fewer."""

from __future__ import annotations

from dataclasses import dataclass

BURST_SECONDS = 2.0
"""What was not used is kept for so long."""
SLOWEST = 1 / 60
"""Starts a second, however often a platform asks for fewer."""


@dataclass
class RateLimit:
    """See the module.

    Args:
        rate: starts a second.
        now: seconds of a clock that only goes on.
    """

    rate: float
    now: float

    def __post_init__(self) -> None:
        self._full_rate = self.rate
        self._burst = max(1.0, self.rate * BURST_SECONDS)
        self._tokens = self._burst

    def take(self, now: float) -> bool:
        """Takes a token if there is one. Returns whether there was."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self.now) * self.rate)
        self.now = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def throttled(self) -> None:
        """The platform asked for fewer: half as many from now on, and none at once."""
        self.rate = max(SLOWEST, self.rate / 2)
        self._tokens = 0.0

    def went_well(self) -> None:
        """A start went well: a few more from now on, up to what was asked for."""
        self.rate = min(self._full_rate, self.rate * 1.1 + SLOWEST)
