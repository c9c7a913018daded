"""The feed server of a host: starts it, reads its status lines, starts it again when it dies, within a budget.

A server that dies is started again `RESTARTS` times, after a short pause that grows. One that was ready for
`FORGIVEN_AFTER` seconds has its budget back. When the budget is used up the host has no data workers any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

import msgspec

from headrace.agent.messages import ExecutorLost, FeedDown, FeedUp, Message
from headrace.agent.running import Running
from headrace.processes.table import name_of_exit

PAUSES = (0.1, 0.5, 1.0)  # seconds before the first, second and third new start
RESTARTS = len(PAUSES)
FORGIVEN_AFTER = 60.0
_LINE_LIMIT = 1 << 16


class _Status(msgspec.Struct):
    """A status line of the server, see headrace.feed.serve."""

    event: str
    executors: int = 0
    pid: int = 0
    reason: str = ""
    replaced: bool = False


_decoder = msgspec.json.Decoder(_Status)


class FeedServer:
    """Keeps the feed server of a host running.

    Args:
        start: starts it; gets the descriptor for its status lines and a function to call when it has ended.
        report: tells the coordinator.
        note: writes a line into the agent's log.
        ready_within: seconds after which a server that is not ready is killed.
    """

    def __init__(
        self,
        start: Callable[[int, Callable[[], None]], Running],
        report: Callable[[Message], None],
        note: Callable[[str], None],
        ready_within: float,
    ) -> None:
        self._start = start
        self._report = report
        self._note = note
        self._ready_within = ready_within
        self._loop = asyncio.get_running_loop()
        self._restarts = 0
        self._ready_since: float | None = None
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._status = -1
        self._rest = b""
        self._reason = ""
        self.running: Running | None = None

    def start(self) -> None:
        """Starts the server."""
        self._ready_since = None
        self._rest = b""
        self._reason = ""
        self._status, end = os.pipe()
        os.set_blocking(self._status, False)
        try:
            self.running = self._start(end, self._ended)
        except OSError as error:
            self.running = None
            self._died(f"could not be started: {error.strerror or error}")
            return
        finally:
            os.close(end)
        self._loop.add_reader(self._status, self._read)
        self._timer = self._loop.call_later(self._ready_within, self._too_slow)

    def stop(self) -> None:
        """From now on its end is wanted."""
        self._stopping = True
        self._cancel_timer()

    def _read(self) -> None:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._status, _LINE_LIMIT)
            if not data:
                self._close_status()
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_LINE_LIMIT:]
        for line in lines:
            try:
                self._take(_decoder.decode(line))
            except msgspec.DecodeError as error:
                self._note(f"feed server: status line {line[:200]!r}: {error}")

    def _take(self, status: _Status) -> None:
        if status.event == "ready":
            self._cancel_timer()
            self._ready_since = time.monotonic()
            self._report(FeedUp(status.executors))
        elif status.event == "executor_lost":
            self._report(ExecutorLost(f"{status.pid} {status.reason}", status.replaced))

    def _too_slow(self) -> None:
        if self.running is not None:
            self._reason = f"was not ready within {self._ready_within:g} s"
            self.running.kill()

    def _ended(self) -> None:
        if self._status >= 0:
            self._read()
        assert self.running is not None
        self._died(self._reason or name_of_exit(self.running.exit_code, self.running.signal))

    def _died(self, reason: str) -> None:
        self._cancel_timer()
        self._close_status()
        if self._stopping:
            return
        if self._ready_since is not None and time.monotonic() - self._ready_since > FORGIVEN_AFTER:
            self._restarts = 0
        gone = self._restarts >= RESTARTS
        self._report(FeedDown(reason, gone))
        if gone:
            self._note(f"feed server {reason}; it was started {RESTARTS + 1} times and is given up")
        else:
            self._note(f"feed server {reason}; starting it again in {PAUSES[self._restarts]:g} s")
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
