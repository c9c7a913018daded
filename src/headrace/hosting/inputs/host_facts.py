"""What only a host knows, or the platform that gave it, put into what it reads: network interface, CPUs, memory."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping

import msgspec
import psutil

from headrace.errors import UsageError
from headrace.instance.launch_plan import HostPlan, LaunchPlan
from headrace.instance.paths import TreePaths
from headrace.private_folders import write_atomically


def interface_of(address: str) -> str:
    """Returns the network interface of this machine that has an address; empty when none has it."""
    every = psutil.net_if_addrs().items()
    return next((name for name, found in every if any(each.address == address for each in found)), "")


def name_own_interface(base: str | os.PathLike[str], host: HostPlan) -> None:
    """Writes which interface of this machine has a host's address into the host's tree.

    Raises:
        UsageError: none has it.
        OSError, ValueError: the address is not known, the tree cannot be read or written.
    """
    address = socket.gethostbyname(host.address)
    interface = interface_of(address)
    if not interface:
        raise UsageError(f"this machine has no interface with the address of {host.name}, {address}")
    name_interface(base, interface)


def name_interface(base: str | os.PathLike[str], interface: str) -> None:
    """Writes a host's network interface into the resourceconfig.json of its tree. Raises OSError, ValueError."""
    file = TreePaths(base).resource_config
    config = json.loads(file.read_bytes())
    write_atomically(file, json.dumps(config | {"network_interface_name": interface}).encode())


def with_data_workers(plan: LaunchPlan, cpus: Mapping[str, int], ranks: Mapping[str, int]) -> LaunchPlan:
    """Returns the plan with as many data workers as the ranks of a host leave CPUs. Pure.

    Args:
        plan: the launch plan.
        cpus: of a host of each group.
        ranks: groups whose number of data workers follows from the CPUs, with the ranks of a host.
    """
    groups = tuple(
        msgspec.structs.replace(group, feed_executors=max(1, cpus[group.name] - ranks[group.name]), feed_fills=False)
        if group.name in ranks
        else group
        for group in plan.groups
    )
    return msgspec.structs.replace(plan, groups=groups)


def with_pythons(plan: LaunchPlan, pythons: Mapping[str, str]) -> LaunchPlan:
    """Returns the plan with interpreters of their own for the programs of some groups. Pure."""
    groups = tuple(
        msgspec.structs.replace(group, python=pythons[group.name]) if group.name in pythons else group
        for group in plan.groups
    )
    return msgspec.structs.replace(plan, groups=groups)


def with_memory(plan: LaunchPlan, host: str, memory: int) -> LaunchPlan:
    """Returns the plan with the bytes that a host may use; 0 means no limit. Pure."""
    hosts = tuple(msgspec.structs.replace(each, memory=memory) if each.name == host else each for each in plan.hosts)
    return msgspec.structs.replace(plan, hosts=hosts)
