"""What a process tells the one that started it, through a pipe: that it is ready, or why it failed.

A report is one JSON object a line; other lines of the same pipe are no reports. Standard library only: some of these
processes run where no library can be found.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple


class ChildReport(NamedTuple):
    """One report.

    Attributes:
        ready: it does its work from here on.
        pid: process that it started in its place; 0 for none.
        error: why it failed, in one line; empty if it did not.
        of_service: `error` is worded as SageMaker words the reason of such a failure, and stands alone.
    """

    ready: bool = False
    pid: int = 0
    error: str = ""
    of_service: bool = False

    def line(self) -> str:
        """Returns the report as it is written, without the newline. What UTF-8 cannot hold is escaped."""
        error = self.error.encode(errors="backslashreplace").decode()
        return json.dumps({"child_report": self._replace(error=error)._asdict()})

    def send(self, descriptor: int = 1) -> None:
        """Writes the report to a descriptor, at once: reports of several threads do not mix."""
        os.write(descriptor, f"{self.line()}\n".encode())


def read_report(line: bytes | str) -> ChildReport | None:
    """Returns the report that a line holds; None when it holds none."""
    try:
        return ChildReport(**json.loads(line)["child_report"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
