"""The TCP ports of a job whose hosts share this machine's network: free ones, which stay the job's own.

A port that the job file names is taken as it is, and refused when it is in use. The others begin at their defaults
(7071, 7070, ...), and go on together in steps until all are free. So that two jobs that start at once do not choose the
same, a port is held by the name of an abstract Unix socket, from the choice until the run's supervisor has ended: the
caller makes the sockets and the supervisor (of a detached run: its keeper) inherits them. The kernel frees them with
the last process that has them, whatever killed it, and each network namespace has names of its own, as it has ports.

Hosts with a network of their own have all ports for themselves; there only the job's ports among each other count.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from headrace.errors import EngineRefused
from headrace.instance.launch_plan import TORCH_DISTRIBUTED, LaunchPlan, Ports
from headrace.instance.tfconfig import worker_ports
from headrace.instance.tfdata import tf_data_servers

ANY = "0.0.0.0"
EVERYWHERE, CHOSEN = "everywhere", "chosen"  # in place of the prefix of addresses in the name of a mark
STEP = 10
TRIES = 500


@dataclass(frozen=True)
class NeededPort:
    """A port that the job will listen on.

    Attributes:
        field: of `Ports`, from which it follows.
        name: what listens there, for people.
        address, number: where.
        everywhere: it is taken on all addresses of the machine.
    """

    field: str
    name: str
    address: str
    number: int
    everywhere: bool = False

    def marks(self, *, named: bool) -> tuple[str, ...]:
        """Returns names of the abstract sockets that hold it. Hosts of one job have addresses with one prefix.

        Args:
            named: the job file names it. The number of another one is no other job's choice, on whatever address.
        """
        place = EVERYWHERE if self.everywhere else self.address.rpartition(".")[0]
        return tuple(_mark(where, self.number) for where in ((place,) if named else (place, CHOSEN)))


def needed_ports(plan: LaunchPlan) -> Iterator[NeededPort]:
    """Yields what the job will listen on."""
    yield NeededPort("control", "control", plan.host(plan.leader).address, plan.ports.control)
    for host in plan.hosts:
        if plan.group(host.group).feed_executors:
            yield NeededPort("feed", "feed", host.address, plan.ports.feed)
    for world in plan.distributions:
        if world.kind == TORCH_DISTRIBUTED:
            address = plan.host(plan.hosts_of(world)[0]).address
            yield NeededPort("master", "master", address, plan.master_port_of(world), everywhere=True)
    for server in tf_data_servers(plan):
        # TensorFlow takes it on all addresses, whatever host it plays.
        name = f"tf.data.service ({server.stream} of {server.host})"
        yield NeededPort("tf_data", name, ANY, server.port, everywhere=True)
    for name, port in worker_ports(plan).items():
        yield NeededPort("tf_config", "TensorFlow worker", plan.host(name).address, port, everywhere=True)


class ChosenPorts:
    """A launch plan with its ports, which are held as long as this is open, or a process that inherited `descriptors`.

    Args:
        plan: the plan.

    Attributes:
        plan: the plan.
        refused: ports that the job file names and that are in use, each with the reason.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        self.refused: list[tuple[NeededPort, str]] = []
        self._held: dict[str, socket.socket] = {}

    def __enter__(self) -> ChosenPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a process must inherit to hold the ports."""
        return tuple(held.fileno() for held in self._held.values())

    def hold(self, port: NeededPort, *, named: bool) -> str:
        """Holds a port, unless it is held here already. Returns why it cannot be; empty if it is held.

        Args:
            port: the port.
            named: the job file names it.
        """
        try:
            for mark in port.marks(named=named):
                if mark not in self._held:
                    self._held[mark] = _bound(mark)
            everywhere = _mark(EVERYWHERE, port.number)
            if everywhere not in self._held:
                _bound(everywhere).close()
        except OSError as error:
            return "another job has it" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
        return ""

    def close(self) -> None:
        """Lets go of the ports."""
        for held in self._held.values():
            held.close()
        self._held.clear()

    def check(self) -> None:
        """Checks that the ports that the job file names are free.

        Raises:
            EngineRefused: with every port that is not.
        """
        if not self.refused:
            return
        words = "; ".join(f"{port.name} port {port.address}:{port.number}: {why}" for port, why in self.refused)
        fields = dict.fromkeys(f"engines.local.ports.{port.field}" for port, _ in self.refused)
        hint = f"another job on this machine? end it, or leave out {' and '.join(fields)}: then free ports are taken"
        raise EngineRefused(words, hint=hint)


def choose_ports(plan: LaunchPlan, given: frozenset[str]) -> ChosenPorts:
    """Chooses the ports of a job and holds them.

    Args:
        plan: the launch plan, with the ports that the job file names, and defaults for the others.
        given: names of the former.

    Raises:
        EngineRefused: there are not enough free ports.
    """
    for step in range(TRIES):
        chosen = ChosenPorts(msgspec.structs.replace(plan, ports=_moved(plan.ports, given, step * STEP)))
        if _take(chosen, given):
            return chosen
        chosen.close()
    raise EngineRefused("no free ports were found for the job", hint="name some: engines.local.ports")


def _moved(ports: Ports, given: frozenset[str], by: int) -> Ports:
    every = msgspec.structs.asdict(ports)
    stay = given | {"supervisor"}  # one supervisor has all hosts of this machine: nobody listens there
    return Ports(**{name: port if name in stay else port + by for name, port in every.items()})


def _take(chosen: ChosenPorts, given: frozenset[str]) -> bool:
    """Holds the ports of a plan. Returns whether the plan can be used: all that the job file does not name are free."""
    needed = list(needed_ports(chosen.plan))
    users: dict[int, set[str]] = {}
    for port in needed:
        users.setdefault(port.number, set()).add(port.field)
    if any(len(fields) > 1 and not fields <= given for fields in users.values()):
        return False
    if chosen.plan.isolation.own_network:
        return True
    for port in needed:
        why = chosen.hold(port, named=port.field in given) or _in_use(port.address, port.number)
        if why and port.field not in given:
            return False
        if why:
            chosen.refused.append((port, why))
    return True


def _mark(where: str, number: int) -> str:
    return f"\0headrace/port/{where}:{number}"


def _bound(mark: str) -> socket.socket:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(mark)
    except BaseException:
        held.close()
        raise
    return held


def _in_use(address: str, port: int) -> str:
    """Returns why the port cannot be listened on; empty if it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: a connection of a former job that still lingers does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return "in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
    return ""
