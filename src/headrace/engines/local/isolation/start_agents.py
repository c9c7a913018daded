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
import socket

from headrace.child_python import module_command
from headrace.exit_status import exit_text
from headrace.hosting.isolation.namespace_starter import NamespaceStarter, not_isolated
from headrace.hosting.isolation.network_layout import CLOSED, FILE, LINKS, Layout
from headrace.hosting.supervision.agent_starter import AgentStarter
from headrace.processes.process_table import describe_exit
from headrace.processes.spawn import spawn
from headrace.runs import RunPaths

NETWORK = "headrace.hosting.isolation.network"
NETWORK_SECONDS = 30.0
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

    def listener(self) -> socket.socket | None:
        """Returns a socket that listens for agents; None where the coordinator can open one itself."""
        return None

    def close(self) -> None:
        """Ends what belongs to the starter."""


class SharedNetworkStarter(NamespaceStarter, Starter):
    """Starts agents in namespaces, on the machine's network."""


class NetworkStarter(NamespaceStarter, Starter):
    """Starts agents in namespaces, on a network of the job's own.

    Two processes keep its way out open: pasta, and the keeper of the network. The hosts would notice the end of neither
    before a program tries to reach another machine, so it is noticed here. When pasta ends, the keeper sends how and
    ends too.

    Args:
        paths: the run.
        layout: its isolation.

    Raises:
        HeadraceError: the network could not be made.
    """

    def __init__(self, paths: RunPaths, layout: Layout) -> None:
        super().__init__(paths.engine / FILE, layout, paths.id)
        self._caller, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._keeper = -1
        self._listener: socket.socket | None = None
        try:
            with end, (paths.engine / LOG).open("ab") as log:
                self._process = spawn(
                    module_command(NETWORK, str(self._file), options=["-S"]),
                    env=os.environ, cwd=paths.root, tied=False, stdin=end.fileno(), stderr=log,
                )  # fmt: skip
            self._keeper = int(str(self._answer()["keeper"]))
            self._process.wait(NETWORK_SECONDS)
            self._bridge = int(str(self._answer()["bridge"]))
            self._outward = layout.outward
            places = {"supervisor": os.getpid(), "net": self._net, "user": self._user}
            (paths.engine / LINKS).write_text(json.dumps(places))
        except BaseException:
            self.close()
            raise

    def _answer(self) -> dict[str, object]:
        """Returns the next message of the process that makes the network, and keeps what came with it."""
        self._caller.settimeout(NETWORK_SECONDS)
        try:
            data, descriptors, _, _ = socket.recv_fds(self._caller, 1 << 16, 3)
        except TimeoutError:
            raise not_isolated(f"the job's network was not there within {NETWORK_SECONDS:g} s") from None
        answer: dict[str, object] = json.loads(data or b'{"error": "it ended without a message"}')
        if "error" in answer:
            raise not_isolated(f"the job's network could not be made: {answer['error']}")
        if descriptors:
            self._net, self._user, listening = descriptors
            self._listener = socket.socket(fileno=listening)
        return answer

    def listener(self) -> socket.socket | None:
        """See `Starter.listener`: that of the bridge, which hosts reach by their cables."""
        return None if self._listener is None else self._listener.dup()

    def own(self) -> list[int]:
        """See `Starter.own`."""
        return [self._keeper] if self._keeper >= 0 else []

    def ended(self, pid: int, status: int) -> str:
        """See `Starter.ended`."""
        if pid != self._keeper:
            return ""
        self._keeper = -1
        self.broken = self._why_closed(status) if self._outward else ""
        return self.broken

    def _why_closed(self, status: int) -> str:
        self._caller.setblocking(False)
        try:
            closed = json.loads(self._caller.recv(1 << 16) or b"{}").get(CLOSED)
        except BlockingIOError:
            closed = None
        who, status = ("its keeper", status) if closed is None else ("pasta", int(closed))
        return f"the way out of the job's network failed: {who} {exit_text(*describe_exit(status))}"

    def close(self) -> None:
        """See `Starter.close`."""
        self._caller.close()
        if self._listener is not None:
            self._listener.close()
        for descriptor in (self._net, self._user):
            if descriptor >= 0:
                os.close(descriptor)
        self._net = self._user = -1


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
    return NetworkStarter(paths, layout) if layout.own_network else SharedNetworkStarter(path, layout, paths.id)
