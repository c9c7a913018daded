"""Options of the local engine: how one machine plays all hosts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headrace.job.model import field_types
from headrace.job.model.frozen_model import Part


class LocalPorts(Part):
    """TCP ports of the local engine, the same on every host. Those that are not given are free ones.

    Attributes:
        control: the coordinator's.
        feed: the feed servers'.
        tf_data: of tf.data.service's dispatcher; its workers take the ports after it.
        master: torch.distributed's.
    """

    control: field_types.Port | None = None
    feed: field_types.Port | None = None
    tf_data: field_types.Port | None = None
    master: field_types.Port | None = None


class LocalNetwork(Part):
    """The network of a group's hosts, with isolation ``namespace`` only.

    Attributes:
        bandwidth: of each host, each way, e.g. ``200mbit``.
    """

    bandwidth: field_types.Bandwidth


class LocalOptions(Part):
    """How this machine plays all hosts.

    Attributes:
        cpu_sets: CPU ids of a group, e.g. ``0-3,5``.
        cpu_shares: weight of a group; the machine's CPUs are divided in proportion.
        stop_grace: seconds between SIGTERM and SIGKILL.
        start_timeout: seconds within which the agents of all hosts must have started; None: 60, or 2 a host.
        address_prefix: host algo-n has the address ``<address_prefix>.n``.
        ports: TCP ports.
        isolation: ``namespace``: every host has its own file system, processes and network; ``shared_network``: all
            hosts share the network of this machine; ``none``: they share all three; ``auto``: the best that works.
        network: of a group: the bandwidth of its hosts.
        limits: ``auto``: CPUs and memory in proportion to the instance types, where this machine can; ``none``.
        gpus: ids of the GPUs of a group, e.g. ``0,1``; divided evenly among its hosts.
        python: interpreter of the programs, where it is another one than that which runs headrace.
    """

    cpu_sets: Annotated[dict[str, field_types.CpuSet], field_types.AsMapping] = Field(default_factory=dict)
    cpu_shares: Annotated[dict[str, field_types.CpuShare], field_types.AsMapping] = Field(default_factory=dict)
    stop_grace: field_types.StopGrace = 30.0
    start_timeout: field_types.Seconds | None = None
    address_prefix: field_types.AddressPrefix = "127.0.1"
    ports: LocalPorts = LocalPorts()
    isolation: field_types.Isolation = "auto"
    network: Annotated[dict[str, LocalNetwork], field_types.AsMapping] = Field(default_factory=dict)
    limits: field_types.Limits = "auto"
    gpus: Annotated[dict[str, field_types.GpuSet], field_types.AsMapping] = Field(default_factory=dict)
    python: field_types.Interpreter | None = None
