"""Which lines of a grid are stopped early: asynchronous successive halving (ASHA). Pure functions of metrics.

A line is judged at rungs, steps of its training that grow by a factor: there it is compared with the lines that reached
the rung before it, and is stopped unless it is among the best `1 / factor`. The first `factor - 1` at a rung go on, so
the best line so far is never stopped. No line waits for another one, and each reaches a rung once, also when it is
tried again. What was judged is written down before anything follows from it: nobody judges twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from headrace.grid.journal.grid_record import Rung
from headrace.grid.run_rules import EarlyStop
from headrace.runs import Metric, Stream, ValueSecond


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
        value: the line's metric there.
        before: that of every line that reached it before.
        goal: whether the least or the greatest is the best; equal ones have the same rank.
        factor: one of so many goes on.
        may_stop: the line's run goes on; one that is over is only counted.
    """
    rank = 1 + sum(other < value if goal == "min" else other > value for other in before)
    of = len(before) + 1
    return Rung(step, value, rank, of, may_stop and of >= factor and rank > of // factor)


class ReachedRungs:
    """The rungs that one run reaches, from its metrics as they come.

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

    def take(self, records: Iterable[tuple[Stream, Metric]]) -> list[tuple[int, float]]:
        """Takes new records in. Returns each rung that the run has reached by them, and its value there."""
        values = [(stream, each) for stream, each in records if isinstance(each, ValueSecond)]
        reached = []
        for stream, second in sorted(values, key=lambda pair: (pair[1].t, pair[0])):
            if second.name != self._metric:
                continue
            program = (stream.group, stream.host, second.stream)
            self._counts[program] += second.count
            step = self._counts[program] if second.step is None else second.step
            while self._next is not None and step >= self._next:
                reached.append((self._next, second.last))
                self._next = next(self._rungs, None)
        return reached
