"""The nodes that Slurm has given to a job, put into its launch plan: which task of which component is which host,
addresses, and data workers that fill the CPUs.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.handover import Placement
from headrace.engines.slurm.partition_rules import is_loopback
from headrace.errors import EngineRefused
from headrace.hosting.inputs.host_facts import with_data_workers
from headrace.instance.launch_plan import GroupPlan, HostPlan, LaunchPlan, Ports
from headrace.runs import Cause, CauseKind


def components(plan: LaunchPlan) -> tuple[GroupPlan, ...]:
    """Returns the groups in the order of the components: the leader's first, else as in the job. Without hosts that
    come later, which get jobs of their own, and without groups of such hosts alone."""
    groups = (
        msgspec.structs.replace(group, hosts=tuple(host for host in group.hosts if not plan.comes_later(host)))
        for group in plan.groups
    )
    return tuple(sorted((group for group in groups if group.hosts), key=lambda group: plan.leader not in group.hosts))


def hosts_by_task(plan: LaunchPlan) -> tuple[HostPlan, ...]:
    """Returns the hosts in the order of SLURM_PROCID, which counts through all components."""
    return tuple(plan.host(name) for group in components(plan) for name in group.hosts)


_CPUS = re.compile(r"(\d+)(?:\(x\d+\))?")
DEFAULT_PORTS = Ports()
FIRST_PORT, PORT_SETS = 10000, 2200  # all are below 32768: from there the kernel takes ports for connections
_ANY_PORT = 9  # nothing is sent there


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job.

    Attributes:
        nodes: their names, in the order of SLURM_PROCID.
        cpus: of the smallest node of each component.
    """

    nodes: tuple[str, ...]
    cpus: tuple[int, ...]


def allocation_of(variables: Mapping[str, str]) -> Allocation:
    """Reads the allocation from the variables of its batch script; a plain job has one component.

    Raises:
        SlurmUnreachable: scontrol failed.
        KeyError: no batch script has these variables.
    """
    size = int(variables.get("SLURM_HET_SIZE", "0"))
    suffixes = [f"_HET_GROUP_{number}" for number in range(size)] or [""]
    lists = [variables[f"SLURM_JOB_NODELIST{suffix}"] for suffix in suffixes]
    cpus = [variables[f"SLURM_JOB_CPUS_PER_NODE{suffix}"] for suffix in suffixes]
    nodes = tuple(name for text in lists for name in slurm_commands.host_names(text))
    return Allocation(nodes, tuple(smallest(text) for text in cpus))


def smallest(cpus_per_node: str) -> int:
    """Returns the least number of CPUs in a list of Slurm.

    >>> smallest("16(x2),4")
    4
    """
    return min(int(match[1]) for match in _CPUS.finditer(cpus_per_node))


def placed(
    plan: LaunchPlan,
    allocation: Allocation,
    addresses: Mapping[str, str],
    executors_left: Mapping[str, int],
    ports: Ports = DEFAULT_PORTS,
) -> LaunchPlan:
    """Returns the plan on the nodes of an allocation. Pure.

    Args:
        plan: as it was submitted.
        allocation: the nodes.
        addresses: of the nodes, by name.
        executors_left: groups whose data workers are as many as their ranks leave CPUs, with the ranks of a host.
        ports: of the job.

    Raises:
        EngineRefused: there are not as many nodes as hosts, or one node twice.
    """
    hosts = hosts_by_task(plan)
    if len(set(allocation.nodes)) != len(hosts):
        nodes = ", ".join(allocation.nodes)
        hint = "write engines: {slurm: {exclusive: true}}, so that every host has a node of its own"
        raise EngineRefused(f"the job has {len(hosts)} hosts and got the nodes {nodes}", hint)
    node_of = dict(zip((host.name for host in hosts), allocation.nodes, strict=True))
    cpus = dict(zip((group.name for group in components(plan)), allocation.cpus, strict=True))
    moved = tuple(
        msgspec.structs.replace(host, address=addresses[node_of[host.name]]) if host.name in node_of else host
        for host in plan.hosts
    )
    ranks = {name: count for name, count in executors_left.items() if name in cpus}
    return msgspec.structs.replace(with_data_workers(plan, cpus, ranks), hosts=moved, ports=ports)


def on_own_node(plan: LaunchPlan, name: str, cpus: int, executors_left: Mapping[str, int]) -> LaunchPlan:
    """Returns the plan for a host whose node is not part of the allocation, and which runs this.

    Args:
        plan: as the lead has placed it.
        name: of the host.
        cpus: of the node.
        executors_left: see `placed`.
    """
    address = _source_address(plan.coordinator_address)
    hosts = tuple(msgspec.structs.replace(host, address=address) if host.name == name else host for host in plan.hosts)
    group = plan.host(name).group
    ranks = {key: count for key, count in executors_left.items() if key == group}
    return msgspec.structs.replace(with_data_workers(plan, {group: cpus}, ranks), hosts=hosts)


def ports_of(job_id: int) -> Ports:
    """Returns the ports of a job that shares its nodes with others: ten in a row, which follow from its id. Two jobs
    clash only if their ids differ by a multiple of `PORT_SETS`."""
    first = FIRST_PORT + 10 * (job_id % PORT_SETS)
    offsets = {"feed": 0, "control": 1, "tf_data": 2, "tf_config": 6, "master": 7}
    return Ports(**{name: first + offset for name, offset in offsets.items()})


def addresses_of(nodes: Sequence[str]) -> dict[str, str]:
    """Returns the addresses at which the nodes of a job reach each other.

    Raises:
        EngineRefused: a node has no address, or one that only itself can reach.
    """
    named = slurm_commands.node_addresses(nodes)
    found = {node: _resolve(node, named.get(node, node)) for node in nodes}
    others = [address for address in found.values() if not is_loopback(address)]
    for node, address in found.items():
        # Many machines call themselves 127.0.1.1. Others reach this one at the address with which it reaches them.
        this_machine = node.partition(".")[0] == socket.gethostname().partition(".")[0]
        if is_loopback(address) and others and this_machine:
            found[node] = _source_address(others[0])
        elif is_loopback(address) and len(nodes) > 1:
            named_here = named.get(node, node)
            hint = (
                f"slurm.conf has NodeAddr={named_here} for it: give it an address that the other nodes reach"
                if is_loopback(named_here)
                else f"the name {named_here} leads to {address} here: correct /etc/hosts, or NodeAddr in slurm.conf"
            )
            what = f"the node {node} has the address {address} here, at which no other node reaches it"
            raise EngineRefused(what, hint)
    return found


def _resolve(node: str, name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise EngineRefused(f"the node {node} has no address: {name}: {error.strerror or error}") from error


def _source_address(other: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, _ANY_PORT))
        return str(probe.getsockname()[0])


def node_lost(plan: LaunchPlan, placed: Placement, node: str) -> Cause:
    """Returns the cause of an attempt's end: one of its nodes is lost."""
    host = dict(zip(placed.nodes, hosts_by_task(plan), strict=True))[node]
    words = f"Slurm job {placed.job_id} lost a node: {node}"
    return Cause(CauseKind.HOST_LOST, words, group=host.group, host=host.name, infrastructure=True)
