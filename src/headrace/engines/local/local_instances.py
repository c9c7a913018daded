"""The instances of the local engine: this machine plays all hosts, each with an agent of its own.

The supervisor calls it, see `Instances` and `Provider` in `hosting.supervision.instances`. Behind it are the control
groups, the agents of an attempt, and the starter, which starts these as plain processes or in namespaces, on the
machine's network or one of the job's own:

    starter = open_starter(paths)                 # the job's network is there, if the run has one
    start = starter.prepare("algo-1", argv)       # what to start in place of argv
    process = spawn(start.argv, ..., env={**env, **start.variables}, pass_fds=[*start.pass_fds])
    ...                                           # the others, so that all make their namespaces side by side
    agent = starter.agent(start, process)         # the agent itself
    ...
    starter.close()

An agent in namespaces is a child of this process too, so this process must be a child subreaper. What this module
imports, the supervisor imports: nothing of the submitting side.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import time
from collections.abc import Collection, Mapping

from headrace.child_python import module_command
from headrace.engines.local.cgroups import RECORD, REMOVE_SECONDS, RunGroups, find_places, sweep
from headrace.exit_status import exit_text
from headrace.hosting.isolation.namespace_starter import NamespaceStarter, not_isolated
from headrace.hosting.isolation.network_layout import CLOSED, FILE, LINKS, Layout
from headrace.hosting.supervision.cleanup import is_of_run
from headrace.hosting.supervision.host_agents import HostAgents
from headrace.hosting.supervision.instances import AgentStarter
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import MACHINE_PYTHON
from headrace.processes.process_table import describe_exit, is_running, look, send
from headrace.processes.spawn import spawn
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths
from headrace.runs.events import HostStarted

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


_log = logging.getLogger(__name__)

AGENTS_SECONDS = 15.0  # for the agents to end, when the supervisor was killed


class LocalInstances(HostAgents):
    """See the module.

    Args:
        plan: the launch plan.
        paths: the run's directory.
        events: the engine's event file.
    """

    _starter: Starter
    _groups: RunGroups

    def __init__(self, plan: LaunchPlan, paths: RunPaths, events: EventWriter) -> None:
        super().__init__(plan, paths, events, plan.hosts)
        self._starter = Starter()
        self._groups = RunGroups(plan.run_id, find_places(), paths.root / RECORD)
        self._prepared = False

    @property
    def others(self) -> Collection[int]:
        """See `Instances.others`."""
        return self._starter.own()

    def prepare(self) -> None:
        """See `Instances.prepare`."""
        if self._prepared and not self._starter.broken:
            return
        self._starter.close()
        self._starter = open_starter(self._paths)
        self._prepared = True

    def start(self, used: Mapping[str, str]) -> None:
        """See `Instances.start`."""
        self._end.begin(used, self._starter.listener(), apart=True)
        self._start_agents({**used, MACHINE_PYTHON: "1"})

    def ended(self, pid: int, status: int) -> Cause | None:
        """See `Instances.ended`."""
        if pid in self.pids:
            return super().ended(pid, status)
        broken = self._starter.ended(pid, status)
        return Cause(CauseKind.NETWORK_LOST, broken, infrastructure=True) if broken else None

    def close(self) -> None:
        """See `Instances.close`."""
        super().close()
        self._starter.close()

    def remove(self) -> None:
        """See `Instances.remove`."""
        for group in self._groups.remove():
            _log.warning("the control group %s could not be removed", group)


def open_instances(plan: LaunchPlan, paths: RunPaths, events: EventWriter) -> LocalInstances:
    """See `Provider.open_instances`."""
    return LocalInstances(plan, paths, events)


def clean_up(run: Run) -> None:
    """See `Provider.clean_up`. Agents that have lost their supervisor end their hosts themselves, in their time."""
    _end_agents(run, AGENTS_SECONDS)
    sweep(find_places(), [run.paths.root / RECORD], REMOVE_SECONDS)


def _end_agents(run: Run, seconds: float) -> None:
    """Waits for the agents of a run, and kills those that do not end."""
    pids = [event.pid for event in run.events() if isinstance(event, HostStarted)]
    # An agent is told from a later process of its pid by the mark of its run.
    agents = [agent for pid in pids if (agent := look(pid)) is not None and is_of_run(pid, run.id)]
    deadline = time.monotonic() + seconds
    while any(is_running(agent.pid, agent.start) for agent in agents):
        if time.monotonic() > deadline:
            for agent in agents:
                send(agent, signal.SIGKILL)
        time.sleep(0.02)
