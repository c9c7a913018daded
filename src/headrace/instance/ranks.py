"""The ranks of a torch.distributed world, and what torchrun would tell each of them.

Ranks are numbered host by host in the order of `LaunchPlan.hosts_of`, on a host by local rank; groups may
have different numbers of processes. The agents start the ranks themselves, so there is no torchrun and no store of
its own: rank 0 hosts the store at MASTER_ADDR:MASTER_PORT, which torch does when TORCHELASTIC_USE_AGENT_STORE is not
set. All other variables are those of torch/distributed/elastic/agent/server/local_elastic_agent.py.

Pure: plan in, variables out.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.instance.launch_plan import GroupPlan, LaunchPlan

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
