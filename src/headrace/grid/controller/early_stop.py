"""What metrics of a run say of its line of a grid while it runs. Pure functions of metrics.

`ReachedRungs` and `judged` tell which lines are stopped early: asynchronous successive halving (ASHA).

A line is judged at rungs, steps of its training that grow by a factor: there it is compared with the lines that reached
the rung before it, and is stopped unless it is among the best `1 / factor`. The first `factor - 1` at a rung go on, so
the best line so far is never stopped. No line waits for another one, and each reaches a rung once, also when it is
tried again. What was judged is written down before anything follows from it: nobody judges twice. A value that is no
finite number (the run diverged) is worse than any other, and than those of its kind that came before.

`MissingMetric` tells of an objective's metric that runs do not log; threads may share it.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from headrace.grid.grid_file import EarlyStop, nearly_named
from headrace.grid.grid_record import Rung
from headrace.job.problems.finding import suggestion
from headrace.runs import Stream, Value, ValueSecond


def rungs_of(rule: EarlyStop) -> Iterator[int]:
    """Yields the steps at which lines are judged, the first one first; without `up_to` there is no last one.

    >>> list(rungs_of(EarlyStop(after=100, factor=3, up_to=1000)))
    [100, 300, 900]
    """
    step = rule.after
    while rule.up_to is None or step <= rule.up_to:
        yield step
        step *= rule.factor


def judged(
    step: int, value: float, before: Sequence[float], goal: Literal["min", "max"], factor: int, may_stop: bool
) -> Rung:
    """Returns how a line stands at a rung.

    Args:
        step: the rung.
        value: the line's metric there; NaN or an infinity when it was no finite number.
        before: that of every line that reached it before.
        goal: whether the least or the greatest is the best; equal ones have the same rank.
        factor: one of so many goes on.
        may_stop: the line's run goes on; one that is over is only counted.
    """
    worst = math.inf if goal == "min" else -math.inf
    if not math.isfinite(value):
        value, rank = worst, 1 + len(before)
    else:
        rank = 1 + sum(other < value if goal == "min" else other > value for other in before)
    of = len(before) + 1
    return Rung(step, value, rank, of, may_stop and of >= factor and rank > of // factor)


def is_past_last(rule: EarlyStop, reached: Iterable[Rung]) -> bool:
    """Returns whether a line that has reached these rungs is judged no more."""
    return rule.up_to is not None and set(rungs_of(rule)) <= {rung.step for rung in reached}


class ReachedRungs:
    """The rungs that one run reaches, from its values as they come.

    A program's step is that which it gave to `headrace.log`, else the number of its values so far. The value at a rung
    is the first one, of any program, that was recorded at that step or after it.

    Args:
        rule: of the grid.
        metric: name of the objective's metric.
    """

    def __init__(self, rule: EarlyStop, metric: str) -> None:
        self._metric = metric
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._rungs = rungs_of(rule)
        self._next = next(self._rungs, None)

    def take(self, records: Iterable[tuple[Stream, Value]]) -> list[tuple[int, float]]:
        """Takes new values in. Returns each rung that the run has reached by them, and its value there."""
        reached = []
        for stream, second in sorted(records, key=lambda pair: (pair[1].t, pair[0])):
            if second.name != self._metric:
                continue
            program = (stream.group, stream.host, second.stream)
            self._counts[program] += second.count
            step = self._counts[program] if second.step is None else second.step
            value = second.last if isinstance(second, ValueSecond) else _number(second.last)
            while self._next is not None and value is not None and step >= self._next:
                reached.append((self._next, value))
                self._next = next(self._rungs, None)
        return reached


NEAR_SECONDS = 30.0
OTHER_SECONDS = 600.0


class MissingMetric:
    """Whether runs log the objective's metric at all: a name that is misspelt is told while the first ones run.

    A run that has logged other metrics for `NEAR_SECONDS`, one of them with nearly the same name, is told of. Without
    such a one it is `OTHER_SECONDS`: the metric may be logged once, at the end of an epoch.

    Args:
        metric: name of the objective's metric.

    Attributes:
        settled: one has logged it, or it was told: nothing more is to be read for this.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._first: dict[str, float] = {}
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self.settled = False

    def take(self, run: str, values: Sequence[tuple[Stream, Value]]) -> str:
        """Takes new values of a run in. Returns what people must know, once; empty while there is nothing."""
        with self._lock:
            if self.settled or not values:
                return ""
            times = [value.t for _, value in values]
            logged = max(times) - self._first.setdefault(run, min(times))
            self._names.update(value.name for _, value in values)
            near = nearly_named(self._metric, self._names)
            here = self._metric in self._names
            self.settled = here or logged >= (NEAR_SECONDS if near else OTHER_SECONDS)
            if here or not self.settled:
                return ""
            return (
                f"its run has logged metrics for {logged:.0f} s, and not the objective's, {self._metric!r}: unless "
                f"that comes later no line can be ranked; {suggestion(self._metric, sorted(self._names))}"
            )


def _number(text: str) -> float | None:
    """Returns NaN or an infinity; None for what a metric definition found that is no number, such as ``1,5``."""
    try:
        return float(text)
    except ValueError:
        return None
