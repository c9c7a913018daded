"""The supervisor's side: starts the agents of a run, in namespaces or as plain processes.

    starter = open_starter(paths)                 # the job's network is there, if the run has one
    start = starter.prepare("algo-1", argv)       # what to start in place of argv
    process = spawn(start.argv, ..., env={**env, **start.variables}, pass_fds=[*start.pass_fds])
    ...                                           # the others, so that all make their namespaces side by side
    agent = starter.agent(start, process)         # the agent itself
    ...
    starter.close()

An agent in namespaces is a child of this process too, so this process must be a child subreaper.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from headrace.engines.local.isolation.network_layout import FILE, HOSTS_SECONDS, LINKS, Layout
from headrace.engines.local.isolation.uplink_watch import WayOut
from headrace.errors import HeadraceError
from headrace.exit_status import exit_text, split_status
from headrace.hosting.supervision.agent_starter import AgentStarter, Start, Started
from headrace.instance.lifeline import SCRATCH
from headrace.processes.child_report import ChildReport, read_report
from headrace.processes.spawn import spawn
from headrace.runs import RunPaths

ENTER = "headrace.engines.local.isolation.enter_namespaces"
NETWORK = "headrace.engines.local.isolation.network"
NETWORK_SECONDS = 30.0
END_SECONDS = 1.0  # between the last message of a process and its end
LOG = "network.log"


class Starter(AgentStarter):
    """Starts agents as plain processes.

    Attributes:
        broken: why what belongs to it is of no use any more, in words; empty while it is.
    """

    broken = ""

    def own(self) -> list[int]:
        """Returns the processes that belong to the starter, which end when it is closed."""
        return []

    def ended(self, pid: int, status: int) -> str:
        """Takes the wait status of any process that has ended. Returns what that breaks, in words; empty if nothing."""
        return ""

    def look_after(self) -> None:
        """Ends processes of the starter that have been stopped (SIGSTOP) for too long."""

    def close(self) -> None:
        """Ends what belongs to the starter."""


class NamespaceStarter(Starter):
    """Starts agents in namespaces, on the machine's network.

    Args:
        paths: the run.
        layout: its isolation.
    """

    def __init__(self, paths: RunPaths, layout: Layout) -> None:
        self._layout = layout
        self._file = paths.engine / FILE
        self._net = self._user = self._bridge = -1
        self._writing: dict[str, int] = {}  # ends of the reports, until their writers have been started

    def prepare(self, host: str, argv: Sequence[str]) -> Start:
        """See `AgentStarter.prepare`."""
        reading, writing = os.pipe()
        self._writing[host] = writing
        user = self._user if self._layout.user_namespace else -1
        numbers = [str(number) for number in (writing, self._net, user, self._bridge)]
        words = (sys.executable, "-S", "-m", ENTER, str(self._file), host, *numbers, "--", *argv)
        passed = tuple(number for number in (writing, self._net, user) if number >= 0)
        return Start(host, words, {SCRATCH: "/tmp"}, passed, reading)

    def agent(self, start: Start, process: subprocess.Popen[bytes]) -> Started:
        """See `AgentStarter.agent`."""
        os.close(self._writing.pop(start.host))
        deadline = time.monotonic() + HOSTS_SECONDS
        try:
            report = read_report(_read(start.report, deadline)) or ChildReport()
        finally:
            os.close(start.report)
        if not report.ready:
            silent = f"its first process did not report within {HOSTS_SECONDS:g} s"
            if time.monotonic() < deadline:
                silent = f"its first process {_how_it_ended(process)}"
            why = report.error or silent
            process.kill()
            process.wait()
            raise HeadraceError(f"{start.host} could not be isolated: {why}", hint="see engines.local.isolation")
        process.wait(HOSTS_SECONDS)
        return Started(report.pid)


class NetworkStarter(NamespaceStarter):
    """Starts agents in namespaces, on a network of the job's own.

    Args:
        paths: the run.
        layout: its isolation.

    Raises:
        HeadraceError: the network could not be made.
    """

    def __init__(self, paths: RunPaths, layout: Layout) -> None:
        super().__init__(paths, layout)
        self._caller, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._keeper = -1
        try:
            with end, (paths.engine / LOG).open("ab") as log:
                self._process = spawn(
                    [sys.executable, "-S", "-m", NETWORK, str(self._file)],
                    env=os.environ, cwd=paths.root, tied=False, stdin=end.fileno(), stderr=log,
                )  # fmt: skip
            self._keeper = int(str(self._answer()["keeper"]))
            self._process.wait(NETWORK_SECONDS)
            self._bridge = int(str(self._answer()["bridge"]))
            self._way = WayOut(self._keeper, self._caller) if layout.outward else None
            places = {"supervisor": os.getpid(), "net": self._net, "user": self._user}
            (paths.engine / LINKS).write_text(json.dumps(places))
        except BaseException:
            self.close()
            raise

    def _answer(self) -> dict[str, object]:
        """Returns the next message of the process that makes the network, and keeps what came with it."""
        self._caller.settimeout(NETWORK_SECONDS)
        try:
            data, descriptors, _, _ = socket.recv_fds(self._caller, 1 << 16, 2)
        except TimeoutError:
            raise HeadraceError(f"the job's network was not there within {NETWORK_SECONDS:g} s") from None
        answer: dict[str, object] = json.loads(data or b'{"error": "it ended without a message"}')
        if "error" in answer:
            raise HeadraceError(f"the job's network could not be made: {answer['error']}")
        if descriptors:
            self._net, self._user = descriptors
        return answer

    def own(self) -> list[int]:
        """See `Starter.own`."""
        return [self._keeper] if self._keeper >= 0 else []

    def ended(self, pid: int, status: int) -> str:
        """See `Starter.ended`."""
        if pid != self._keeper:
            return ""
        self._keeper = -1
        self.broken = self._way.ended(status) if self._way is not None else ""
        return self.broken

    def look_after(self) -> None:
        """See `Starter.look_after`."""
        if self._way is not None:
            self._way.look_after()

    def close(self) -> None:
        """See `Starter.close`."""
        self._caller.close()
        for descriptor in (self._net, self._user):
            if descriptor >= 0:
                os.close(descriptor)
        self._net = self._user = -1


def _read(descriptor: int, deadline: float) -> str:
    """Returns all that comes through a pipe, as far as it comes in time."""
    told = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            data = os.read(descriptor, 4096)
            if not data:
                break
            told += data
    return told.decode(errors="replace")


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """Returns how a process ended that has closed its report, in words."""
    try:
        code = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return "ended"
    how = exit_text(*split_status(code))
    return f"was {how}" if code < 0 else how


def open_starter(paths: RunPaths) -> Starter:
    """Returns what starts the agents of a run, as the run says.

    Raises:
        HeadraceError: its network could not be made.
        OSError, ValueError: the run cannot be read.
    """
    path = paths.engine / FILE
    if not path.exists():
        return Starter()
    layout = Layout.read(path)
    return NetworkStarter(paths, layout) if layout.own_network else NamespaceStarter(paths, layout)
