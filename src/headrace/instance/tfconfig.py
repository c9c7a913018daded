"""TF_CONFIG: what TensorFlow's MultiWorkerMirroredStrategy tells each worker.

One worker a host, in the order of `LaunchPlan.hosts_of`; the workers are the hosts of the distribution, not those of
the whole job. Every worker listens on port 8890, as in SageMaker's containers. TensorFlow's server takes its port on
all addresses of a machine, so hosts that share one machine (loopback addresses) have ports of their own, from that of
the plan on.

Pure.
"""

from __future__ import annotations

import json

from headrace.instance.isolation_level import is_loopback
from headrace.instance.launch_plan import MULTI_WORKER_MIRRORED, DistributionPlan, LaunchPlan


def worker_ports(plan: LaunchPlan) -> dict[str, int]:
    """Returns the port of every host that is a worker of some MultiWorkerMirroredStrategy."""
    hosts = [
        host for world in plan.distributions if world.kind == MULTI_WORKER_MIRRORED for host in plan.hosts_of(world)
    ]
    ports: dict[str, int] = {}
    shared = plan.ports.tf_config
    for host in hosts:
        if is_loopback(plan.host(host).address):
            ports[host] = shared
            shared += 1
        else:
            ports[host] = plan.ports.tf_config
    return ports


def tf_config(plan: LaunchPlan, current_host: str) -> str:
    """Returns the content of TF_CONFIG for a host. Workers are named as on SageMaker where these names are known.

    Raises:
        ValueError: the host is no worker.
    """
    world = _world(plan, current_host)
    hosts, ports = plan.hosts_of(world), worker_ports(plan)
    config = {
        "cluster": {"worker": [f"{_name(plan, host)}:{ports[host]}" for host in hosts]},
        "environment": "cloud",
        "task": {"index": hosts.index(current_host), "type": "worker"},
    }
    return json.dumps(config)


def _world(plan: LaunchPlan, host: str) -> DistributionPlan:
    world = plan.distribution_of(plan.host(host).group)
    if world is None or world.kind != MULTI_WORKER_MIRRORED:
        raise ValueError(f"{host} is no worker of {MULTI_WORKER_MIRRORED}")
    return world


def _name(plan: LaunchPlan, host: str) -> str:
    return host if plan.isolation.own_files else plan.host(host).address
