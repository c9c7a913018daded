"""Watches the way out of the job's network, which two processes keep open: pasta, and the keeper of the network.

The hosts would notice the end of neither before a program tries to reach another machine, so the supervisor watches
both. When pasta ends, the keeper sends how and ends too; one that is stopped (SIGSTOP) for some seconds is killed.
"""

from __future__ import annotations

import json
import signal
import socket

from headrace.exit_status import exit_text
from headrace.hosting.isolation.network_layout import CLOSED
from headrace.processes.process_table import Process, descendants, describe_exit, look, send
from headrace.processes.stopped_time import LIMIT, StoppedTime, describe_stopped


class WayOut:
    """See the module.

    Args:
        keeper: the keeper's process, a child of this one.
        messages: where its messages come from.
    """

    def __init__(self, keeper: int, messages: socket.socket) -> None:
        self._messages = messages
        own = look(keeper)
        watched = [*([own] if own is not None else []), *descendants(keeper)]
        self._watched: list[tuple[Process, StoppedTime]] = [(each, StoppedTime(each.pid)) for each in watched]
        self._keeper = keeper
        self._still: set[bool] = set()  # of what stood still: is it the keeper?

    def look_after(self) -> None:
        """Kills what has been stopped for too long."""
        for process, stopped_time in self._watched:
            if stopped_time.seconds() > LIMIT:
                self._still.add(process.pid == self._keeper)
                send(process, signal.SIGKILL)

    def ended(self, status: int) -> str:
        """Returns why the way out is closed, in words.

        Args:
            status: the keeper's wait status.
        """
        self._watched = []
        self._messages.setblocking(False)
        try:
            closed = json.loads(self._messages.recv(1 << 16) or b"{}").get(CLOSED)
        except BlockingIOError:
            closed = None
        who, status = ("its keeper", status) if closed is None else ("pasta", int(closed))
        how = describe_stopped() if (closed is None) in self._still else exit_text(*describe_exit(status))
        return f"the way out of the job's network failed: {who} {how}"
