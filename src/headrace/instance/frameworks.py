"""What frameworks are started with: torch.distributed, torchrun, MultiWorkerMirroredStrategy, tf.data.service. Pure.

The ranks of a torch.distributed world, and what torchrun would tell each of them.

Ranks are numbered host by host in the order of `LaunchPlan.hosts_of`, on a host by local rank; groups may
have different numbers of processes. The agents start the ranks themselves, so there is no torchrun and no store of
its own: rank 0 hosts the store at MASTER_ADDR:MASTER_PORT, which torch does when TORCHELASTIC_USE_AGENT_STORE is not
set. All other variables are those of torch/distributed/elastic/agent/server/local_elastic_agent.py.

Pure: plan in, variables out.

The command line of torchrun, for worlds of ranks that may shrink and be started again.

A fixed world needs no torchrun: the agents start its ranks with torchrun's variables (see `ranks`). An elastic one is
torchrun's own: one `torch.distributed.run` on every host of the world, which meet in a c10d rendezvous. Its store is a
part of the torchrun on the world's first host, at the world's master port; when that host is lost, so is the world.

* Which host has the store is given (`is_host`), because torchrun takes every loopback address for its own.
* `TORCH_DISABLE_SHARE_RDZV_TCP_STORE`: every generation of ranks meets in a store of its own, hosted by its rank 0.
  In the shared one (torch 2.13) ranks of two agents look under different names as soon as one agent was restarted by
  a failed rank and the other by the change of members, and read addresses of ranks that are gone.
* A world with fewer than all hosts begins `LAST_CALL` seconds after the last one came.

TF_CONFIG: what TensorFlow's MultiWorkerMirroredStrategy tells each worker.

One worker a host, in the order of `LaunchPlan.hosts_of`; the workers are the hosts of the distribution, not those of
the whole job. Every worker listens on port 8890, as in SageMaker's containers. TensorFlow's server takes its port on
all addresses of a machine, so hosts that share one machine (loopback addresses) have ports of their own, from that of
the plan on.

tf.data.service: which of its servers run on which host, and on which ports.

One dispatcher, on the first host of the first group that the plan names, and workers on every host of all its groups.
The dispatcher has `Ports.tf_data`, the workers of a host the ports after it. TensorFlow's servers take their port on
all addresses of a machine, so the workers of hosts that share one machine (loopback addresses) are numbered through.
Ports of headrace's own are passed over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.instance.launch_plan import MULTI_WORKER_MIRRORED, GroupPlan, LaunchPlan, is_loopback

_ROLE = "default"  # torchrun's --role; all ranks have one role, so role ranks are global ranks


def global_ranks(plan: LaunchPlan, host: str) -> range:
    """Returns the global ranks that run on a host: empty if it belongs to no distribution."""
    own = plan.group(plan.host(host).group)
    first = 0
    for group in _groups(plan, own.name):
        if group.name == own.name:
            first += group.hosts.index(host) * group.processes_per_host
            return range(first, first + group.processes_per_host)
        first += len(group.hosts) * group.processes_per_host
    return range(0)


def world_size(plan: LaunchPlan, host: str) -> int:
    """Returns the number of ranks of the world to which a host belongs; 0 if it belongs to none."""
    return sum(len(group.hosts) * group.processes_per_host for group in _groups(plan, plan.host(host).group))


def torch_distributed_variables(
    plan: LaunchPlan, host: str, local_rank: int, *, cores: int, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the variables of one rank, as torchrun sets them.

    Args:
        plan: the launch plan.
        host: name of the rank's host.
        local_rank: the rank's place on its host, from 0.
        cores: CPUs that the ranks of this host share. Each gets ``cores // ranks`` OpenMP threads, at least one.
            (torchrun gives each one thread as soon as there are two ranks, and leaves one rank alone.)
        environment: variables that the rank has otherwise; OMP_NUM_THREADS and TORCH_NCCL_ASYNC_ERROR_HANDLING of
            these are kept. By default the user's variables in the plan.

    Raises:
        ValueError: there is no such rank.
    """
    ranks = global_ranks(plan, host)
    if not 0 <= local_rank < len(ranks):
        raise ValueError(f"no rank {local_rank} on {host}: it has {len(ranks)} ranks")
    group = plan.host(host).group
    world_plan = plan.distribution_of(group)
    assert world_plan is not None  # it has ranks
    own = plan.environment_of(group) if environment is None else environment
    hosts = plan.hosts_of(world_plan)
    rank, world = str(ranks[local_rank]), str(world_size(plan, host))
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(len(ranks)),
        "GROUP_RANK": str(hosts.index(host)),
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": _ROLE,
        "MASTER_ADDR": plan.host(hosts[0]).address,
        "MASTER_PORT": str(plan.master_port_of(world_plan)),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": own.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "OMP_NUM_THREADS": own.get("OMP_NUM_THREADS") or str(max(1, cores // len(ranks))),
    }


def _groups(plan: LaunchPlan, group: str) -> list[GroupPlan]:
    """Groups of the world of a group, in rank order."""
    world = plan.distribution_of(group)
    return [plan.group(name) for name in world.groups] if world else []


LAST_CALL = 5  # seconds to wait for more hosts when there are enough
KEEP_ALIVE = 1  # seconds between signs of life in the rendezvous, of which three may be missed


def torchrun_command(plan: LaunchPlan, host: str, program: Sequence[str], python: str) -> list[str]:
    """Returns the command line of a host's torchrun.

    Args:
        plan: the launch plan.
        host: name of a host of an elastic world.
        program: command line of one rank.
        python: the interpreter.

    Raises:
        ValueError: the host is in no elastic world.
    """
    world = plan.distribution_of(plan.host(host).group)
    if world is None or world.elastic is None:
        raise ValueError(f"{host} is in no elastic world")
    hosts = plan.hosts_of(world)
    seconds = math.ceil(plan.start_timeout)
    settings = {
        "is_host": int(host == hosts[0]),
        "join_timeout": seconds,
        "read_timeout": seconds,
        "last_call_timeout": LAST_CALL,
        "keep_alive_interval": KEEP_ALIVE,
    }
    return [
        *(python, "-m", "torch.distributed.run"),
        f"--nnodes={world.elastic.min_hosts}:{len(hosts)}",
        f"--nproc-per-node={plan.group(plan.host(host).group).processes_per_host}",
        f"--max-restarts={world.elastic.max_restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={plan.host(hosts[0]).address}:{plan.master_port_of(world)}",
        f"--rdzv-id={plan.run_id}",
        f"--rdzv-conf={','.join(f'{name}={value}' for name, value in settings.items())}",
        f"--local-addr={plan.host(host).address}",
        "--no-python",
        *program,
    ]


def torchrun_variables(plan: LaunchPlan, host: str, *, cores: int) -> dict[str, str]:
    """Returns the variables of a host's torchrun, which its ranks inherit.

    Args:
        plan: the launch plan.
        host: name of a host of an elastic world.
        cores: CPUs that the ranks of this host share.
    """
    group = plan.host(host).group
    threads = max(1, cores // plan.group(group).processes_per_host)
    own = plan.environment_of(group)
    return {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": own.get("OMP_NUM_THREADS") or str(threads),
    }


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
    world = plan.distribution_of(plan.host(current_host).group)
    if world is None or world.kind != MULTI_WORKER_MIRRORED:
        raise ValueError(f"{current_host} is no worker of {MULTI_WORKER_MIRRORED}")
    hosts, ports = plan.hosts_of(world), worker_ports(plan)
    names = {host: host if plan.isolation.own_files else plan.host(host).address for host in hosts}
    config = {
        "cluster": {"worker": [f"{name}:{ports[host]}" for host, name in names.items()]},
        "environment": "cloud",
        "task": {"index": hosts.index(current_host), "type": "worker"},
    }
    return json.dumps(config)


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
    reserved = {plan.ports.control, plan.ports.feed, *map(plan.master_port_of, plan.distributions)}
    port += 1
    while port in reserved:
        port += 1
    return port
