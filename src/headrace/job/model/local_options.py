"""Options of the local engine: how one machine plays all hosts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headrace.job.model import field_types
from headrace.job.model.frozen_model import Part


class LocalPorts(Part):
    """TCP ports of the local engine, the same on every host. Those that are not given are free ones.

    Attributes:
        control: the coordinator's; by default 7071 if that is free.
        feed: the feed servers'; by default 7070 if that is free.
        tf_data: tf.data.service's dispatcher's, by default 7072 if that is free; its workers take the ports after it.
        master: torch.distributed's; by default 7777 if that is free.
    """

    control: field_types.Port | None = None
    feed: field_types.Port | None = None
    tf_data: field_types.Port | None = None
    master: field_types.Port | None = None


class LocalNetwork(Part):
    """The network of a group's hosts, with isolation ``namespace`` only.

    Attributes:
        bandwidth: of each host, each way: a number and ``kbit``, ``mbit`` or ``gbit``, e.g. ``200mbit``.
    """

    bandwidth: field_types.Bandwidth


class LocalOptions(Part):
    """How this machine plays all hosts.

    Attributes:
        cpu_sets: CPU ids of groups, e.g. ``0-3,5``; divided evenly among a group's hosts, or shared by them when there
            are fewer CPUs. By default all CPUs.
        cpu_shares: weights of all groups, above 0; the machine's CPUs are divided in proportion, or shared when there
            are fewer CPUs than groups. Not together with `cpu_sets`.
        stop_grace: seconds between SIGTERM and SIGKILL, 0 to 3,600.
        start_timeout: seconds within which the agents of all hosts must have started; by default 60, or 2 a host if
            that is more.
        address_prefix: first three octets of a loopback address; host ``algo-n`` has the address
            ``<address_prefix>.n``.
        ports: TCP ports, all different; by default free ones.
        isolation: ``namespace``: every host has its own file system, processes and network; ``shared_network``: all
            hosts share the network of this machine; ``none``: they share all three; ``auto``: the best that works.
        network: bandwidth of the hosts of groups; with isolation ``namespace`` only.
        limits: ``auto``: CPUs and memory of hosts in proportion to their instance types, where this machine can;
            ``none``.
        gpus: GPU ids and ranges of groups, e.g. ``0,1``; divided evenly among a group's hosts.
        python: interpreter of the programs, by default the one that runs headrace; install headrace in it to use its
            loader.
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
