"""The one cost function. Plan, budget, report, page and advice all call it, so they cannot disagree."""

from __future__ import annotations

SECONDS_PER_HOUR = 3600


def cost(price_per_hour: float, seconds: float) -> float:
    """Returns what instances cost: ``price_per_hour * seconds / 3600``.

    Args:
        price_per_hour: of one instance, or of several that run for the same time, added up.
        seconds: how long it runs; of several instances with one price, their seconds added up.

    Returns:
        Money in the currency of the price.

    >>> cost(3.825, 1.19)  # a step of 1.19 s on one ml.p3.2xlarge: 0.126 cent
    0.001264375
    """
    return price_per_hour * seconds / SECONDS_PER_HOUR
