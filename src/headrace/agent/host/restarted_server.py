"""A server that the agent keeps running: starts it, reads its status lines, starts it again when it dies, in a budget.

A server that dies is started again `RESTARTS` times, after a short pause that grows. One that was ready for
`FORGIVEN_AFTER` seconds has its budget back. When the budget is used up the server is gone for good. A server that
does nothing before it is ready is killed, and so is one that reports every second and has fallen silent: both count as
a death. A start that goes on is waited for, however little of a busy machine it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable

from headrace.agent.host.process import Running
from headrace.processes.process_table import Idling, RunningClock
from headrace.runs.cause import Cause, CauseKind

_log = logging.getLogger(__name__)

PAUSES = (0.1, 0.5, 1.0)  # seconds before the first, second and third new start
RESTARTS = len(PAUSES)
FORGIVEN_AFTER = 60.0
LOOK_SECONDS = 1.0  # between two looks at one that starts
COUNTED = 2.0  # a longer time between two looks is a pause of this process, which is nobody's silence
_LINE_LIMIT = 1 << 16


class RestartedServer:
    """One server of a host, which is started again when it dies.

    Args:
        name: what it is called in messages.
        start: starts it; gets the descriptor for its status lines and a function to call when it has ended.
        take: takes a status line of the server; raises ValueError for one that it does not understand.
        down: called when the server ended unasked, with the reason and whether it is gone for good.
        ready_within: seconds without CPU time, or of CPU time, after which a server that is not ready is killed.
        silent_after: seconds without a status line after which a server that was ready is killed; 0 means never.

    Attributes:
        running: its process; None when none could be started.
        starts: how often it was started.
        refused: the server reported that it cannot run here.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[int, Callable[[], None]], Running],
        take: Callable[[bytes], None],
        down: Callable[[Cause, bool], None],
        ready_within: float,
        silent_after: float = 0.0,
    ) -> None:
        self.running: Running | None = None
        self.starts = 0
        self._name = name
        self._start = start
        self._take = take
        self._down = down
        self._ready_within = ready_within
        self._silent_after = silent_after
        self._loop = asyncio.get_running_loop()
        self._restarts = 0
        self._ready_since: float | None = None
        self._clock = RunningClock(COUNTED)
        self._heard = 0.0
        self.refused = False
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._status = -1
        self._rest = b""
        self._why: Cause | None = None  # it was killed, or says itself that it cannot run

    def start(self) -> None:
        """Starts the server."""
        self.starts += 1
        self._ready_since = None
        self._rest = b""
        self._why = None
        end = -1
        try:
            self._status, end = os.pipe()
            os.set_blocking(self._status, False)
            self.running = self._start(end, self._ended)
        except OSError as error:
            self.running = None
            self._died(Cause(CauseKind.SERVER_FAILED, f"could not be started: {error.strerror or error}"))
            return
        finally:
            if end >= 0:
                os.close(end)
        self._loop.add_reader(self._status, self._read)
        self._await_ready(Idling(self.running.pid), time.monotonic())

    def _await_ready(self, idling: Idling, begun: float, told: bool = False) -> None:
        late = idling.overdue(self._ready_within)
        if late:
            self._kill(late)
            return
        waited = time.monotonic() - begun
        if waited > self._ready_within and not told:
            told = True
            text = (
                "%s has been starting for %.0f s, and has got %.1f s of CPU time: the machine is busy; it is waited for"
            )
            _log.warning(text, self._name, waited, idling.used)
        pause = min(LOOK_SECONDS, self._ready_within / 4)
        self._timer = self._loop.call_later(pause, self._await_ready, idling, begun, told)

    def ready(self) -> None:
        """Takes in that the server serves."""
        self._cancel_timer()
        self._ready_since = time.monotonic()
        if self._silent_after:
            self._listen(0)

    def refuse(self, reason: str) -> None:
        """Takes in that the server cannot run here, and why: it is not started again."""
        self.refused = True
        self._why = Cause(CauseKind.DATA_SERVICE_REFUSED, reason)

    def stop(self) -> None:
        """Marks it as stopping: its end is expected, and it is not started again."""
        self._stopping = True
        self._cancel_timer()

    def _read(self) -> None:
        self._heard = self._clock()
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._status, _LINE_LIMIT)
            if not data:
                self._close_status()
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_LINE_LIMIT:]
        for line in lines:
            try:
                self._take(line)
            except ValueError as error:
                _log.warning("%s: status line %r: %s", self._name, line[:200], error)

    def _listen(self, missed: int) -> None:
        """Kills a silent server. It takes two looks, because a late one may be this process's own fault."""
        missed = missed + 1 if self._clock() - self._heard > self._silent_after else 0
        if missed > 1:
            self._kill(f"was silent for {self._silent_after:g} s")
        else:
            self._timer = self._loop.call_later(1.0, self._listen, missed)

    def _kill(self, reason: str) -> None:
        self._timer = None
        if self.running is not None:
            self._why = Cause(CauseKind.SERVER_FAILED, reason)
            self.running.kill()

    def _ended(self) -> None:
        if self._status >= 0:
            self._read()
        assert self.running is not None
        self._died(self._why or self.running.cause)

    def _died(self, cause: Cause) -> None:
        self._cancel_timer()
        self._close_status()
        if self._stopping:
            return
        if self._ready_since is not None and time.monotonic() - self._ready_since > FORGIVEN_AFTER:
            self._restarts = 0
        gone = self.refused or self._restarts >= RESTARTS
        self._down(cause, gone)
        if self.refused:
            _log.warning("%s %s; it is given up", self._name, cause)
        elif gone:
            _log.warning("%s %s; it was started %d times and is given up", self._name, cause, RESTARTS + 1)
        else:
            _log.warning("%s %s; starting it again in %g s", self._name, cause, PAUSES[self._restarts])
            self._timer = self._loop.call_later(PAUSES[self._restarts], self._again)
            self._restarts += 1

    def _again(self) -> None:
        if not self._stopping:
            self.start()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_status(self) -> None:
        if self._status >= 0:
            self._loop.remove_reader(self._status)
            os.close(self._status)
            self._status = -1
