"""The noise of the steps: how far a figure may be from its true mean, and whether two figures differ beyond it. Pure.

The values of neighbouring seconds resemble each other (caches, other programs on the machine, long and short batches),
so `n` of them hold less than `n` independent values, and a test that ignores this calls chance a difference. The
method, of which nothing is random:

    1  a figure is a ratio of sums, R = sum(over) / sum(under); its deviation in second i is d_i = over_i - R * under_i
    2  more than MOST_VALUES seconds are averaged to MOST_VALUES blocks of neighbours, so a slow drift counts as noise
    3  r = (n * r1 + 1) / (n - 3), the lag-1 autocorrelation r1 of d with its small-sample bias (Kendall 1954) taken
       off, cut to 0 .. 0.95
    4  n_eff = n * (1 - r) / (1 + r) independent values, those of a first-order autoregressive series
    5  error = sqrt(sum(d^2) / (n - n / n_eff) / n_eff) / mean(under), with n_eff - 1 degrees of freedom
    6  there is no range with fewer than LEAST_FREEDOM degrees of freedom: such an error is a guess from one difference
    7  range = R -+ t95(n_eff - 1) * error, never below 0 where no value is
    8  two figures differ if |a - b| > t95(v) * sqrt(error_a^2 + error_b^2), with Welch's degrees of freedom v; figures
       a second are compared by their reciprocals, so samples/s, step time and the costs that follow agree

It knows the noise inside a run. How much two runs of the same job differ as a whole (another machine, other neighbours,
a cold cache) only repeats can tell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from headrace.insight.figures.figure import Confidence

LEAST_VALUES = 8
"""Seconds below which there is no range: the autocorrelation of fewer values is unknown."""

LEAST_FREEDOM = 2.0
"""Degrees of freedom below which there is no range: with one it is 12.7 errors wide, and the error is unknown."""

MOST_VALUES = 40
"""Blocks to which longer series are averaged."""

_SAME = 1e-9
"""Relative difference that sums of floating-point numbers show by themselves."""

_MOST_CORRELATED = 0.95

# Student's t, 97.5th percentile, for 1 to 30 degrees of freedom: Abramowitz and Stegun, table 26.10.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.960


def t95(freedom: float) -> float:
    """Returns how many standard errors hold 95 %, two-sided; between the table's rows linear in 1 / freedom.

    >>> t95(10), round(t95(1e9), 3)
    (2.228, 1.96)
    """
    last = len(_T95)
    if freedom <= 1:
        return _T95[0]
    if freedom >= last:
        return _NORMAL + (_T95[-1] - _NORMAL) * last / freedom
    below = int(freedom)
    part = (1 / below - 1 / freedom) / (1 / below - 1 / (below + 1))
    return _T95[below - 1] + (_T95[below] - _T95[below - 1]) * part


def confidence_of_ratio(over: Sequence[float], under: Sequence[float], *, scale: float = 1.0) -> Confidence | None:
    """Returns the confidence range of scale * sum(over) / sum(under).

    Args:
        over, under: per-second values in the order of time, e.g. seconds waited and seconds of steps.
        scale: e.g. 100 for %.

    Returns:
        The range; None with fewer than LEAST_VALUES seconds, with fewer than LEAST_FREEDOM degrees of freedom, or when
        `under` sums to nothing.
    """
    count, total = len(over), sum(under)
    if count < LEAST_VALUES or total <= 0:
        return None
    value = sum(over) / total
    found = _blocks([a - value * b for a, b in zip(over, under, strict=True)])
    # What only the rounding of floating-point numbers makes has no autocorrelation that means anything.
    rounding = max(map(abs, found)) <= _SAME * abs(total * value) / count
    independent = float(len(found)) if rounding else _independent(found)
    if independent - 1 < LEAST_FREEDOM:
        return None
    squares = math.fsum(d * d for d in found)
    error = math.sqrt(squares / (len(found) - len(found) / independent) / independent) / (total / count)
    reach = t95(independent - 1) * error
    low = max(0.0, value - reach) if min(over) >= 0 else value - reach
    return Confidence(scale * low, scale * (value + reach), scale * error, independent - 1)


def added(series: Iterable[Sequence[float]]) -> list[float]:
    """Returns the sums of the n-th values of several series, up to the end of the longest.

    Ranks that wait for each other have their n-th seconds together. Of those that do not, one ends later, and its last
    seconds belong to every sum over all ranks as much as the first.

    >>> added([[1.0, 2.0], [10.0, 20.0, 30.0]])
    [11.0, 22.0, 30.0]
    """
    return [math.fsum(row) for row in itertools.zip_longest(*series, fillvalue=0.0)]


def share_range(part: Iterable[Sequence[float]], whole: Iterable[Sequence[float]], share: float) -> Confidence | None:
    """Returns the confidence range of 100 * sum(part) / sum(whole) over several series, in %.

    Args:
        part, whole: per-second values of each series.
        share: that figure, as it was computed: in another order, so that it may differ by rounding; the range holds it.
    """
    known = confidence_of_ratio(added(part), added(whole), scale=100)
    return (
        None if known is None else Confidence(min(known.low, share), max(known.high, share), known.error, known.freedom)
    )


def _blocks(values: list[float]) -> list[float]:
    """Averages neighbours to at most MOST_VALUES values."""
    count = len(values)
    if count <= MOST_VALUES:
        return values
    edges = [count * index // MOST_VALUES for index in range(MOST_VALUES + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def _independent(deviations: list[float]) -> float:
    """Returns how many independent values these are worth."""
    count = len(deviations)
    squares = math.fsum(d * d for d in deviations)
    found = math.fsum(a * b for a, b in itertools.pairwise(deviations)) / squares
    correlated = min(max((count * found + 1) / (count - 3), 0.0), _MOST_CORRELATED)
    return count * (1 - correlated) / (1 + correlated)


def as_noisy(value: float, source: float, known: Confidence | None) -> Confidence | None:
    """Returns the confidence range of a figure that is a constant times another one, or a constant divided by it.

    Args:
        value: the figure.
        source: the figure that it follows from, e.g. the step time of a step's cost.
        known: the range of `source`.

    Returns:
        The range, which has the relative error of `source` and does not cross 0.
    """
    if known is None or source == 0:
        return None
    error = abs(value / source) * known.error
    reach = t95(known.freedom) * error
    low, high = value - reach, value + reach
    return Confidence(
        max(0.0, low) if value >= 0 else low, high if value >= 0 else min(0.0, high), error, known.freedom
    )


def differ(a: float, known_a: Confidence, b: float, known_b: Confidence) -> bool:
    """Returns whether two independent figures differ beyond their noise, with 95 % confidence."""
    first, second = known_a.error**2, known_b.error**2
    both = first + second
    if abs(a - b) <= _SAME * max(abs(a), abs(b)):
        return False
    if both == 0:
        return True
    freedom = both**2 / (first**2 / known_a.freedom + second**2 / known_b.freedom)
    return abs(a - b) > t95(freedom) * math.sqrt(both)
