"""The file that a process of a job writes its figures to: one JSON object a line, about one a second.

Inside a job HEADRACE_METRICS names it; the records are those of `headrace.feed_metrics`. Elsewhere there is no file,
and nothing is written.

A logger of the user's own (`headrace.track`) takes the records as well, in a job or without one.

A program must not end because its figures cannot be written. The error goes to standard error, once until a line has
been written again or the reason is another one; the lines that could not be written are lost.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import msgspec

from headrace.feed_metrics import ValueNotFinite, ValueSecond

METRICS_VARIABLE = "HEADRACE_METRICS"


class MetricFile:
    """Appends lines; does nothing in a forked child, whose figures are its parent's.

    Args:
        path: the file; None for what HEADRACE_METRICS says; empty for none.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = os.environ.get(METRICS_VARIABLE, "") if path is None else path
        self._owner = os.getpid()
        self.logger: Callable[[msgspec.Struct], None] | None = None  # takes the records too, in a job or without one
        self._torn = False  # the last line has no end
        self._error: int | None = None  # errno of the last line

    def __bool__(self) -> bool:
        return bool(self.path) or self.logger is not None

    def write(self, record: msgspec.Struct) -> None:
        """Appends a line, and gives the record to the logger."""
        if os.getpid() != self._owner:
            return
        if self.logger is not None:
            self._log(self.logger, record)
        if not self.path:
            return
        try:
            self._append((b"\n" if self._torn else b"") + msgspec.json.encode(record) + b"\n")
        except OSError as error:
            if error.errno != self._error:
                with contextlib.suppress(OSError, ValueError):  # standard error may be closed
                    print(f"headrace: cannot write {self.path}: {error.strerror}", file=sys.stderr, flush=True)
            self._error = error.errno
        else:
            self._error = None

    def _log(self, logger: Callable[[msgspec.Struct], None], record: msgspec.Struct) -> None:
        try:
            logger(record)
        except Exception as error:  # noqa: BLE001  (the boundary to anybody's logger: the training goes on without it)
            self.logger = None
            with contextlib.suppress(OSError, ValueError):
                what = f"{type(error).__name__}: {error}"
                print(f"headrace: nothing more is logged, the logger raised {what}", file=sys.stderr, flush=True)

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o644)  # once a second: cheaper than to keep one that may leak
        try:
            while data:  # a short write means a full disk; the next one says so
                written = os.write(descriptor, data)
                self._torn = data[written - 1 : written] != b"\n"
                data = data[written:]
        finally:
            os.close(descriptor)


_SECOND = 1.0


class _ValueLog:
    """Sums values up and writes them. Threads may share it."""

    def __init__(self) -> None:
        self._file = MetricFile()
        self._stream = Path(self._file.path).name.partition(".")[0]
        self._lock = threading.Lock()
        self._sums: dict[str, ValueSecond] = {}
        self._not_finite: dict[str, ValueNotFinite] = {}
        self._written: dict[str, float] = {}
        self._warned: set[str] = set()
        if self._file:
            atexit.register(self._flush)

    def take(self, name: str, value: float, step: int | None) -> None:
        """Takes a value in."""
        if not self._file:
            return
        with self._lock:
            now, known, broken = time.time(), self._sums.get(name), self._not_finite.pop(name, None)
            if math.isfinite(value):
                self._sums[name] = ValueSecond(
                    t=now,
                    name=name,
                    stream=self._stream,
                    count=1 + (known.count if known else 0),
                    last=value,
                    low=min(value, known.low) if known else value,
                    high=max(value, known.high) if known else value,
                    total=value + (known.total if known else 0.0),
                    step=step,
                )
            else:
                if name not in self._warned:
                    self._warned.add(name)
                    at = "" if step is None else f" at step {step}"
                    print(f"headrace.log: {name} is {value}{at}; charts leave such values out", file=sys.stderr)
                count = 1 + (broken.count if broken else 0)
                self._not_finite[name] = ValueNotFinite(
                    t=now, name=name, stream=self._stream, count=count, last=str(value), step=step
                )
            if abs(now - self._written.get(name, 0.0)) >= _SECOND:
                self._write(name)

    def _write(self, name: str) -> None:
        for pending in (self._sums, self._not_finite):
            if (record := pending.pop(name, None)) is not None:
                self._written[name] = record.t
                self._file.write(record)

    def _flush(self) -> None:
        with self._lock:
            for name in [*self._sums, *self._not_finite]:
                self._write(name)


_log: _ValueLog | None = None


def log(values: Mapping[str, SupportsFloat], step: int | None = None) -> None:
    """Records figures of a training: `headrace.log({"loss": loss, "accuracy": 0.9}, step=i)`.

    They stand in the run's report, charts, grids and final metrics, as those of metric definitions do. Outside a job it
    only checks its arguments.

    Args:
        values: by the name of the metric; tensors of one element are numbers, too.
        step: of the training.

    Raises:
        TypeError: a name that is no text, a value that is no number, or a step that is no whole number.
    """
    global _log  # noqa: PLW0603 - the file is looked for when the first value comes, in this process
    if _log is None:
        _log = _ValueLog()
    if not isinstance(values, Mapping):
        raise TypeError(f"headrace.log: takes a dict of numbers by name, not {values!r}")
    whole = None if step is None else _whole(step)
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"headrace.log: the name of a metric must be a text that is not empty, not {name!r}")
        try:
            number = float(value.detach() if hasattr(value, "detach") else value)  # torch warns of a loss with a graph
        except (TypeError, ValueError) as error:
            raise TypeError(f"headrace.log: {name!r} must be a number, not {value!r}") from error
        except OverflowError as error:
            raise TypeError(f"headrace.log: {name!r} is beyond what a double holds") from error
        _log.take(name, number, whole)


def _whole(step: Any) -> int:
    """Returns a step as an int: of NumPy's, of a tensor of one element, of a float without a fraction."""
    try:
        number = int(step)
        if number == step and not isinstance(step, (bool, str, bytes)) and -(2**63) <= number < 2**63:
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise TypeError(f"headrace.log: step must be a whole number, not {step!r}")
