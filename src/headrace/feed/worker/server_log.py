"""A feed server's log: a line for what happened. Logging never stops the server, and never fills the disk.

Invariants:
* a log that cannot be written (a full disk, a closed pipe) ends nothing: the line is lost, the server goes on;
* strangers cannot fill the disk: what connections did is logged once each, up to `BURST` lines and `RATE` a second
  after that; what is left out is counted, and logged in one line;
* a peer's words cannot begin a line of their own, nor make one longer than `LONGEST`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

BURST = 300
RATE = 1.0  # lines a second: some 10 MB a day under a flood that never ends
LONGEST = 500


class ServerLog:
    """See the module.

    Args:
        host: name of this host.
        descriptor: where lines go; stderr by default.
        clock: monotonic seconds.
    """

    def __init__(self, host: str, descriptor: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._descriptor = descriptor
        self._clock = clock
        self._allowed = float(BURST)
        self._seen = clock()
        self._left_out = 0

    def tell(self, text: str) -> None:
        """Writes a line."""
        clean = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:LONGEST])
        line = f"feed server {self._host}: {clean}{'...' if len(text) > LONGEST else ''}\n"
        try:
            os.write(self._descriptor, line.encode(errors="backslashreplace"))
        except OSError:
            return  # there is no other place to report it, and serving is more important

    def tell_of_connection(self, text: str) -> None:
        """Writes a line that a peer has caused, or counts it when there are too many."""
        self.catch_up()
        if self._allowed >= 1:
            self._allowed -= 1
            self.tell(text)
        else:
            self._left_out += 1

    def catch_up(self) -> None:
        """Logs how many lines were left out, when there is room for that again. Call it now and then."""
        now = self._clock()
        self._allowed = min(float(BURST), self._allowed + RATE * (now - self._seen))
        self._seen = now
        if self._left_out and self._allowed >= 1:
            self._allowed -= 1
            self.tell(f"{self._left_out} more lines about connections were left out")
            self._left_out = 0
