"""How often an operation may be called: a bucket of tokens each, and the service's own refusal when it is empty."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from headrace.endpoint.protocols import ServiceError
from headrace.errors import UsageError

BURST_SECONDS = 5.0
RATES: Mapping[str, float] = {
    "CreateTrainingJob": 10.0,
    "DescribeTrainingJob": 50.0,
    "ListTrainingJobs": 5.0,
    "StopTrainingJob": 10.0,
}
"""Calls a second. The service's own figures are not published; these stop a loop that has run wild, and nobody else."""


class Throttle:
    """The rates of an endpoint.

    Args:
        rates: calls a second by operation; 0 means no limit. Five seconds' worth may come at once.
        now: the clock, seconds.
    """

    def __init__(self, rates: Mapping[str, float], now: Callable[[], float] = time.monotonic) -> None:
        self._rates = rates
        self._now = now
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[float, float]] = {}

    def take(self, operation: str) -> None:
        """Counts a call. Raises ServiceError (ThrottlingException) when there were too many."""
        rate = self._rates.get(operation, 0.0)
        if not rate:
            return
        with self._lock:
            now = self._now()
            most = max(1.0, rate * BURST_SECONDS)
            tokens, at = self._tokens.get(operation, (most, now))
            tokens = min(most, tokens + (now - at) * rate)
            self._tokens[operation] = (tokens - 1 if tokens >= 1 else tokens), now
        if tokens < 1:
            raise ServiceError("ThrottlingException", "Rate exceeded")


def read_rates(texts: Iterable[str]) -> dict[str, float]:
    """Returns the rates, with those that ``OPERATION=PER_SECOND`` texts change. Raises UsageError."""
    found = dict(RATES)
    for text in texts:
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = -1.0
        if not name or not 0 <= found[name] < 1e6:
            raise UsageError(
                f"--rate {text!r}: must be OPERATION=CALLS_A_SECOND", "e.g. CreateTrainingJob=1; 0: no limit"
            )
    return found


def check_rates(rates: Mapping[str, float], operations: Collection[str]) -> None:
    """Checks that every rate is that of an operation there is.

    Raises:
        UsageError: one is not.
    """
    for name in rates:
        if name not in operations:
            raise UsageError(f"--rate {name}: no operation is called that", f"there is: {', '.join(operations)}")
