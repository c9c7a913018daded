"""The file that a process of a job writes its figures to: one JSON object a line, about one a second.

Inside a job HEADRACE_METRICS names it; the records are those of `headrace.feed_metrics`. Elsewhere there is no file,
and nothing is written.

A logger of the user's own (`headrace.track`) takes the records as well, in a job or without one.

A program must not end because its figures cannot be written. The error goes to standard error, once until a line has
been written again or the reason is another one; the lines that could not be written are lost.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

import msgspec

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
