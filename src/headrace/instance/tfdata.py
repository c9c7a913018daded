"""tf.data.service: which of its servers run on which host, and on which ports.

One dispatcher, on the first host of the first group that the plan names, and workers on every host of all its groups.
The dispatcher has `Ports.tf_data`, the workers of a host the ports after it. TensorFlow's servers take their port on
all addresses of a machine, so the workers of hosts that share one machine (loopback addresses) are numbered through.
Ports of headrace's own are passed over.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.instance.isolation_level import is_loopback
from headrace.instance.launch_plan import LaunchPlan

DISPATCHER = "tf-dispatcher"
WORKER = "tf-worker-"
PROTOCOL = "grpc"


@dataclass(frozen=True)
class TfDataServer:
    """One server of tf.data.service.

    Attributes:
        host: where it runs.
        stream: its name on that host: ``tf-dispatcher``, ``tf-worker-0``, ``tf-worker-1`` ...
        address: ``address:port``, at which the others reach it.
        port: the TCP port.
    """

    host: str
    stream: str
    address: str
    port: int

    @property
    def is_dispatcher(self) -> bool:
        """Whether it is the dispatcher."""
        return self.stream == DISPATCHER


def tf_data_servers(plan: LaunchPlan, host: str | None = None) -> tuple[TfDataServer, ...]:
    """Returns the servers of a host, or of all hosts; the dispatcher first.

    Args:
        plan: the launch plan.
        host: the host; None for all.
    """
    return tuple(server for server in _servers(plan) if host in (None, server.host))


def service_address(plan: LaunchPlan) -> str:
    """Returns the address of the dispatcher, as ``grpc://address:port``; empty without a tf.data.service."""
    dispatcher = next(_servers(plan), None)
    return f"{PROTOCOL}://{dispatcher.address}" if dispatcher else ""


def is_tf_data(stream: str) -> bool:
    """Tells whether a program is a server of tf.data.service."""
    return stream == DISPATCHER or stream.startswith(WORKER)


def _servers(plan: LaunchPlan) -> Iterator[TfDataServer]:
    if plan.tf_data is None:
        return
    hosts = [plan.host(name) for group in plan.tf_data.groups for name in plan.group(group).hosts]
    own = plan.ports.tf_data
    yield TfDataServer(hosts[0].name, DISPATCHER, f"{hosts[0].address}:{own}", own)
    shared = own
    for host in hosts:
        port = shared if is_loopback(host.address) else own
        for number in range(plan.tf_data.workers_per_host):
            port = _next(plan, port)
            yield TfDataServer(host.name, f"{WORKER}{number}", f"{host.address}:{port}", port)
        shared = port


def _next(plan: LaunchPlan, port: int) -> int:
    taken = {plan.ports.control, plan.ports.feed, *map(plan.master_port_of, plan.distributions)}
    port += 1
    while port in taken:
        port += 1
    return port
