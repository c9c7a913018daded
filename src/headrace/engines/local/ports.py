"""The TCP ports of a job whose hosts share this machine's network: free ones, which stay the job's own.

A port that the job file names is taken as it is, and refused when it is in use. The others begin at their defaults
(7071, 7070, ...), and go on together in steps until all are free. So that two jobs that start at once do not choose the
same, a port is held by the name of an abstract Unix socket, from the choice until the run's supervisor has ended: the
caller makes the sockets and the supervisor (of a detached run: its keeper) inherits them. The kernel frees them with
the last process that has them, whatever killed it, and each network namespace has names of its own, as it has ports.
Everybody may take such a name. So a mark of another user only leads to other ports: where the job file names the port,
or no others are left, `bind` is the judge, and between runs of this user a file in a folder of his own is the mark.

Hosts with a network of their own have all ports for themselves; there only the job's ports among each other count.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.errors import EngineRefused
from headrace.held_file import hold
from headrace.home import home_dir
from headrace.instance.frameworks import tf_data_servers, worker_ports
from headrace.instance.launch_plan import TORCH_DISTRIBUTED, LaunchPlan, Ports
from headrace.private_folders import make_folders

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
        self._held: dict[str, socket.socket | BinaryIO] = {}

    def __enter__(self) -> ChosenPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a process must inherit to hold the ports."""
        return tuple(held.fileno() for held in self._held.values())

    def hold(self, port: NeededPort, *, named: bool, everybody: bool = False) -> str:
        """Holds a port, unless it is held here already. Returns why it cannot be; empty if it is held.

        Args:
            port: the port.
            named: the job file names it.
            everybody: a mark of another user counts, too.
        """
        try:
            for mark in port.marks(named=named):
                if mark not in self._held:
                    self._held[mark] = _bound(mark, everybody)
            everywhere = _mark(EVERYWHERE, port.number)
            if everywhere not in self._held:
                _bound(everywhere, everybody).close()
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
    for everybody in (True, False):
        for step in range(TRIES):
            chosen = ChosenPorts(msgspec.structs.replace(plan, ports=_moved(plan.ports, given, step * STEP)))
            if _take(chosen, given, everybody):
                return chosen
            chosen.close()
    raise EngineRefused("no free ports were found for the job", hint="name some: engines.local.ports")


def _moved(ports: Ports, given: frozenset[str], by: int) -> Ports:
    every = msgspec.structs.asdict(ports)
    return Ports(**{name: port if name in given else port + by for name, port in every.items()})


def _take(chosen: ChosenPorts, given: frozenset[str], everybody: bool) -> bool:
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
        named = port.field in given
        why = chosen.hold(port, named=named, everybody=everybody and not named) or _in_use(port.address, port.number)
        if why and not named:
            return False
        if why:
            chosen.refused.append((port, why))
    return True


def _mark(where: str, number: int) -> str:
    return f"\0headrace/port/{where}:{number}"


def _bound(mark: str, everybody: bool) -> socket.socket | BinaryIO:
    """Returns a mark: a file, where another user has the name and only this user's count. Raises OSError: taken."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(mark)
        held.listen(socket.SOMAXCONN)  # which tells who looks whose it is; nobody is answered
    except OSError as error:
        held.close()
        if everybody or error.errno != errno.EADDRINUSE or _is_ours(mark):
            raise
        return _own_file(mark)
    return held


def _own_file(mark: str) -> BinaryIO:
    folder = home_dir() / "ports"
    make_folders(folder)
    network = Path("/proc/self/ns/net").stat().st_ino  # as names and ports, its files are a network namespace's
    descriptor = hold(folder / f"{network}-{mark.rpartition('/')[2]}")
    if descriptor is None:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    return os.fdopen(descriptor, "rb", buffering=0)


def _is_ours(mark: str) -> bool:
    """Tells whether this user holds a mark. One at which too many have looked does not tell."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as looker:
        looker.setblocking(False)
        try:
            looker.connect(mark)
            credentials = looker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return False
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())


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
