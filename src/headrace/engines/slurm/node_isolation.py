"""Isolation of a host on its node: `shared_network` where that works, the level of the local engine.

The host gets its own /opt/ml (its tree), /tmp, /dev/shm, name, processes, and an /etc/hosts with the addresses of all
hosts. It keeps the node's network: the feed, MPI and torchrun need the real one. What works is found out on each node
by doing it. Nothing of it has a name in the file system, so nothing is left on a node, whatever is killed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headrace.hosting.isolation import syscalls
from headrace.hosting.isolation.namespace_starter import NamespaceStarter
from headrace.hosting.isolation.needed_paths import needed_paths
from headrace.hosting.isolation.network_layout import (
    FILE,
    HOSTS,
    Instance,
    Layout,
    shared_hosts_text,
    shown_below_tmp,
)
from headrace.hosting.supervision.scratch_dir import scratch_dir
from headrace.instance.launch_plan import BY_NODE, NO_ISOLATION, SHARED_NETWORK, Isolation, LaunchPlan
from headrace.private_folders import open_private
from headrace.runs import RunPaths

SAYS_SO = "engines.slurm.isolation says so"
_WHY = {
    BY_NODE: "on each node the best that works there",
    SHARED_NETWORK: SAYS_SO,
    NO_ISOLATION: SAYS_SO,
}


def isolation_of_nodes(wanted: str) -> Isolation:
    """Returns the isolation that a plan tells before the nodes are known. Pure.

    Args:
        wanted: what the job says.
    """
    return Isolation(wanted, _WHY[wanted])


def starter_on_node(plan: LaunchPlan, paths: RunPaths, host: str, named: Sequence[str]) -> NamespaceStarter:
    """Returns what starts the agent of a host in namespaces on this node. Writes into its temporary files.

    Args:
        plan: the launch plan, with the nodes' addresses.
        paths: the run's directory.
        host: name of the host.
        named: paths that the job names.

    Raises:
        OSError: they cannot be written.
    """
    key = scratch_key(plan, host)
    held = open_private(scratch_dir(key))
    instances = tuple(Instance(each.name, each.address, str(paths.host(each.name))) for each in plan.hosts)
    layout = Layout(
        user_namespace=not syscalls.may_separate(),
        outward=False,
        own_resolver=False,
        gateway="",
        visible=shown_below_tmp([*needed_paths(plan, paths.root), *named]),
        files=".",
        instances=instances,
        own_network=False,
        keep_ids=True,
    )
    machine = Path(HOSTS)
    known = machine.read_text(encoding="utf-8", errors="replace") if machine.exists() else ""
    folder = Path(f"/proc/self/fd/{held}")
    (folder / "hosts").write_text(shared_hosts_text(instances, known), encoding="utf-8")
    layout.write(folder / FILE)
    os.close(held)
    return NamespaceStarter(Path(FILE), layout, key)


def scratch_key(plan: LaunchPlan, host: str) -> str:
    """Returns by what the folder of a host's temporary files is known: several nodes may be one machine."""
    return f"{plan.run_id}/{host}"
