"""Which daemon mpirun wanted on which host, and how it ended: the coordinator's part. Pure.

A request is identified by the host that asks and the number that this host gave it, so a repeated report changes
nothing. Only the first host of an MPI world may ask, only for hosts of that world, and only for a daemon of Open MPI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from headrace.agent.control.control_messages import DaemonEnded, DaemonOrder, DaemonWanted, Exited
from headrace.agent.coordinator.first_cause import Suspect, SuspectKind
from headrace.agent.coordinator.host_state import HostState
from headrace.agent.launchers.mpi_command import check_daemon
from headrace.agent.program_specs import MPIRUN
from headrace.instance.frameworks import world_size
from headrace.instance.launch_plan import MPI, LaunchPlan
from headrace.runs.cause import Cause, CauseKind

LIMIT = 1000  # requests of one host; mpirun asks once for each of its hosts


@dataclass(frozen=True)
class _Daemon:
    host: str
    order: DaemonOrder
    end: DaemonEnded | None = None


class Daemons:
    """All daemons of the job.

    Args:
        plan: the launch plan.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._daemons: dict[tuple[str, int], _Daemon] = {}
        self._orders: dict[str, tuple[DaemonOrder, ...]] = {}  # of each host
        self._askers: set[str] = set()
        self._lost: dict[str, str] = {}

    def orders_of(self, host: str) -> tuple[DaemonOrder, ...]:
        """Daemons that a host is to start."""
        return self._orders.get(host, ())

    def ends_of(self, asker: str) -> tuple[DaemonEnded, ...]:
        """Ends of the daemons that a host had asked for."""
        if asker not in self._askers:
            return ()
        return tuple(
            daemon.end for (who, _), daemon in self._daemons.items() if who == asker and daemon.end is not None
        )

    def wanted(self, asker: str, message: DaemonWanted) -> str:
        """A host asks for a daemon. Returns the host whose orders have changed."""
        key = (asker, message.number)
        if key in self._daemons or len(self._daemons) >= LIMIT:
            return asker
        self._askers.add(asker)
        refusal = self._refusal(asker, message) or self._lost.get(message.host, "")
        order = DaemonOrder(asker, message.number, message.argv, message.variables)
        if refusal:
            end = DaemonEnded(asker, message.number, exit_code=255, reason=refusal)
            self._daemons[key] = _Daemon("", order, end)
            return asker
        self._daemons[key] = _Daemon(message.host, order)
        self._orders[message.host] = (*self.orders_of(message.host), order)
        return message.host

    def ended(self, host: str, message: DaemonEnded) -> str:
        """A daemon of a host ended. Returns the host whose orders have changed."""
        daemon = self._daemons.get((message.asker, message.number))
        if daemon is not None and daemon.host == host and daemon.end is None:
            self._daemons[message.asker, message.number] = replace(daemon, end=message)
        return message.asker

    def lost(self, host: str, reason: str) -> set[str]:
        """A host is lost, and its daemons with it. Returns the hosts whose orders have changed."""
        self._lost[host] = f"{host} is lost: {reason}"
        changed = set()
        for (asker, number), daemon in self._daemons.items():
            if daemon.host == host and daemon.end is None:
                end = DaemonEnded(asker, number, exit_code=255, reason=self._lost[host])
                self._daemons[asker, number] = replace(daemon, end=end)
                changed.add(asker)
        return changed

    def _refusal(self, asker: str, message: DaemonWanted) -> str:
        world = self._plan.distribution_of(self._plan.host(asker).group)
        if world is None or world.kind != MPI or self._plan.hosts_of(world)[0] != asker:
            return f"{asker} runs no mpirun"
        if message.host not in self._plan.hosts_of(world):
            return f"{message.host!r} is no host of this MPI world"
        try:
            check_daemon(message.argv)
        except ValueError as error:
            return str(error)
        return ""


AFTER = 3.0  # seconds after mpirun's end within which the last ranks must have been reported


def missing_ranks(plan: LaunchPlan, first: str, exits: Mapping[str, Mapping[str, Exited]]) -> list[int]:
    """Returns the ranks of a world that did not end with 0.

    Args:
        plan: the launch plan.
        first: its first host.
        exits: what ended on each host, by stream. mpirun decides on which host a rank runs.
    """
    world = plan.distribution_of(plan.host(first).group)
    hosts = plan.hosts_of(world) if world else ()
    well = {stream for host in hosts for stream, end in exits.get(host, {}).items() if end.exit_code == 0}
    return [rank for rank in range(world_size(plan, first)) if str(rank) not in well]


def unfinished_worlds(plan: LaunchPlan, hosts: Mapping[str, HostState], now: float) -> Iterator[Suspect]:
    """Yields a suspect for each world whose mpirun ended some time ago while ranks are missing."""
    for host in hosts.values():
        if host.mpirun_ended and now > host.mpirun_ended + AFTER:
            missing = missing_ranks(plan, host.name, {other.name: other.exits for other in hosts.values()})
            if missing:
                cause = Cause(CauseKind.RANKS_MISSING, incomplete(missing), host.group, host.name, MPIRUN)
                yield Suspect(SuspectKind.LAUNCHER, now, cause)


def incomplete(ranks: list[int]) -> str:
    """Returns, in words, which ranks are missing after mpirun ended."""
    named = ", ".join(map(str, ranks[:10])) + (", ..." if len(ranks) > 10 else "")
    return f"mpirun ended, and of its ranks these did not run to a good end: {named}"
