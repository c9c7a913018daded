"""The TCP ports at which hosts of a job meet, where each has an address of its own: what a firewall must let through.

They follow from `headrace.instance.launch_plan.Ports`. Ports that programs choose themselves (NCCL, Gloo, Open MPI)
are none of them: these take any free port of the kernel's range, `EPHEMERAL`.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.instance.launch_plan import Ports

MOST_TF_WORKERS = 64
"""Of tf.data.service on a host, as the job file allows."""
MOST_WORLDS = 5
"""Distributions of a job: each has an instance group, of which there are five."""
LAST_PORT = 65535


@dataclass(frozen=True)
class PortRange:
    """TCP ports from `first` to `last`.

    Attributes:
        name: letters and digits; different for each range of a firewall.
        first, last: the ports, both included.
        purpose: who listens there, for people.
    """

    name: str
    first: int
    last: int
    purpose: str

    def is_within(self, other: PortRange) -> bool:
        """Tells whether another range has all ports of this one."""
        return other.first <= self.first and self.last <= other.last


EPHEMERAL = PortRange("Collectives", 32768, 60999, "NCCL, Gloo, MPI: ports that Linux chooses")
"""What `net.ipv4.ip_local_port_range` is unless somebody has changed it."""


def host_ports(ports: Ports = Ports()) -> tuple[PortRange, ...]:  # noqa: B008 (it is frozen)
    """Returns all ports on which some host of a job listens for the others.

    Args:
        ports: those of a launch plan.
    """
    return (
        PortRange("Supervisor", ports.supervisor, ports.supervisor, "supervisor of the leader"),
        PortRange("Control", ports.control, ports.control, "coordinator"),
        PortRange("Feed", ports.feed, ports.feed, "feed servers"),
        PortRange("TfData", ports.tf_data, ports.tf_data + MOST_TF_WORKERS, "tf.data.service"),
        PortRange("Master", ports.master, ports.master + MOST_WORLDS - 1, "torch.distributed"),
        PortRange("TfConfig", ports.tf_config, ports.tf_config, "MultiWorkerMirroredStrategy"),
    )


def own_ports(given: tuple[str, ...]) -> tuple[PortRange, ...]:
    """Returns ports of the user's own programs.

    Args:
        given: each a port, or a range: ``6000`` or ``6000-6010``.

    Raises:
        UsageError: one of them is neither.

    >>> own_ports(("6000-6010",))[0].last
    6010
    """
    found = []
    for port in dict.fromkeys(given):
        begin, dash, end = port.partition("-")
        numbers = [int(part) if part.isascii() and part.isdigit() else 0 for part in (begin, end if dash else begin)]
        if not 1 <= numbers[0] <= numbers[1] <= LAST_PORT:
            raise UsageError(f"--port {port}: not a port, nor a range of ports", hint="e.g. --port 6000-6010")
        name = f"Port{numbers[0]}To{numbers[1]}"
        found.append(PortRange(name, numbers[0], numbers[1], "the job's own programs"))
    return tuple(found)
