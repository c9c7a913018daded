"""The file that a process of a job writes its figures to: one JSON object a line, about one a second.

Inside a job HEADRACE_METRICS names it; what is written has the fields of `headrace.runs.metrics`. Elsewhere there is
none, and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

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

    def __bool__(self) -> bool:
        return bool(self.path)

    def write(self, line: Mapping[str, object]) -> None:
        """Appends a line. Raises OSError."""
        if not self.path or os.getpid() != self._owner:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o644)  # once a second: cheaper than to keep one that may leak
        try:
            os.write(descriptor, msgspec.json.encode(line) + b"\n")
        finally:
            os.close(descriptor)
