"""Figures that the job's metric definitions find in the lines of its programs, summed up per second and program.

A regular expression of the user must not hold up the agent, whatever it does on whatever line:

* Of a line the first `LINE_CHARACTERS` are searched.
* A search that takes `SEARCH_SECONDS` of CPU time is broken off: a timer's signal interrupts it, because Python's re
  looks for signals while it searches. A definition that this happens to `STRIKES` times is switched off.
* In a second all searches together get `SECOND_SECONDS`; the lines that come after that are not searched.

What was left out is recorded as an event, and logged, when it first happens and with its count at the end.
"""

from __future__ import annotations

import logging
import math
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from headrace.instance.launch_plan import MetricDefinition
from headrace.runs import EventWriter, MetricWriter, ValueNotFinite, ValueSecond
from headrace.runs.event_text import sentence
from headrace.runs.events import LeftOut, MetricsLeftOut

_log = logging.getLogger(__name__)

LINE_CHARACTERS = 4096
SEARCH_SECONDS = 0.05
SECOND_SECONDS = 0.2
STRIKES = 3
_SHOWN = 40


class _Interrupted(Exception):
    """A search took too long."""


@dataclass
class _Rule:
    name: str
    regex: re.Pattern[str]
    strikes: int = 0


@dataclass
class _Sum:
    count: int
    last: float
    low: float
    high: float
    total: float


class LogValues:
    """Searches lines and writes what it found. In the main thread only, because of the signal (SIGVTALRM).

    Args:
        definitions: the job's metric definitions; their regular expressions are valid.
        writer: where the values go.
        events: where it is recorded what was left out.
        group, host: the host.
        clock: seconds since the epoch.
        spent: seconds of any clock that measures the work of this process.
    """

    def __init__(
        self,
        definitions: Sequence[MetricDefinition],
        writer: MetricWriter,
        events: EventWriter,
        group: str,
        host: str,
        clock: Callable[[], float] = time.time,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._rules = [_Rule(definition.name, re.compile(definition.regex)) for definition in definitions]
        self._writer = writer
        self._events = events
        self._where = {"group": group, "host": host}
        self._clock = clock
        self._spent = spent
        self._sums: dict[tuple[str, str], _Sum] = {}
        self._left = SECOND_SECONDS
        self._left_out: Counter[tuple[LeftOut, str, float]] = Counter()
        self._not_finite: dict[
            tuple[str, str], tuple[int, str]
        ] = {}  # count and last text, while no finite one follows
        self._searching = False
        signal.signal(signal.SIGVTALRM, self._alarm)

    def take(self, stream: str, lines: Sequence[bytes]) -> None:
        """Searches lines that a program wrote.

        Args:
            stream: the program.
            lines: without their newlines.
        """
        for number, line in enumerate(lines):
            if self._left <= 0:
                self._leave_out(LeftOut.LINES, SECOND_SECONDS, count=len(lines) - number)
                return
            began = self._spent()
            self._search(stream, self._text(line))
            self._left -= self._spent() - began

    def flush(self) -> None:
        """Writes what was found since the last flush; called once a second."""
        now = self._clock()
        for (name, stream), summed in self._sums.items():
            self._writer.write(ValueSecond(t=now, name=name, stream=stream, **vars(summed)))
        for (name, stream), (count, text) in self._not_finite.items():
            self._writer.write(ValueNotFinite(t=now, name=name, stream=stream, count=count, last=text))
        self._sums.clear()
        self._not_finite.clear()
        self._left = SECOND_SECONDS

    def close(self) -> None:
        """Writes what is left, and logs what was left out."""
        self.flush()
        for (what, name, limit), count in self._left_out.items():
            self._record(what, limit, name, count)
        signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
        self._writer.close()

    def _text(self, line: bytes) -> str:
        # A character has 4 bytes at most, so no more than these need to be decoded.
        text = line[: 4 * LINE_CHARACTERS].decode(errors="replace")
        if len(text) > LINE_CHARACTERS or len(line) > 4 * LINE_CHARACTERS:
            self._leave_out(LeftOut.LINE_ENDS, LINE_CHARACTERS)
        return text[:LINE_CHARACTERS]

    def _search(self, stream: str, text: str) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_SECONDS, SEARCH_SECONDS)
        try:
            for rule in list(self._rules):
                try:
                    self._searching = True
                    match = rule.regex.search(text)
                    self._searching = False
                except _Interrupted:
                    self._strike(rule)
                    continue
                if match is not None and match[1] is not None:
                    self._add(rule.name, stream, match[1])
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _alarm(self, _number: int, _frame: FrameType | None) -> None:
        if self._searching:
            self._searching = False
            raise _Interrupted

    def _strike(self, rule: _Rule) -> None:
        rule.strikes += 1
        self._leave_out(LeftOut.SEARCHES, SEARCH_SECONDS, rule.name)
        if rule.strikes == STRIKES:
            self._rules.remove(rule)
            self._record(LeftOut.DEFINITION, SEARCH_SECONDS, rule.name, STRIKES, rule.regex.pattern)

    def _add(self, name: str, stream: str, text: str) -> None:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self._leave_out(LeftOut.VALUES, 0.0, name, example=text)
            count, _ = self._not_finite.get((name, stream), (0, ""))
            self._not_finite[name, stream] = count + 1, text[:_SHOWN]
            return
        self._not_finite.pop((name, stream), None)
        summed = self._sums.get((name, stream))
        if summed is None:
            self._sums[name, stream] = _Sum(1, value, value, value, value)
            return
        summed.count += 1
        summed.last = value
        summed.low = min(summed.low, value)
        summed.high = max(summed.high, value)
        summed.total += value

    def _leave_out(self, what: LeftOut, limit: float, name: str = "", count: int = 1, example: str = "") -> None:
        if (what, name, limit) not in self._left_out:
            self._record(what, limit, name, 0, example[:_SHOWN])
        self._left_out[what, name, limit] += count

    def _record(self, what: LeftOut, limit: float, name: str, count: int, example: str = "") -> None:
        event = MetricsLeftOut(
            t=self._clock(), **self._where, what=what, limit=limit, definition=name, count=count, example=example
        )  # fmt: skip
        self._events.write(event)
        _log.warning("%s%s", sentence(event), "" if count else " (told once, counted at the end)")
