"""The command line of torchrun, for worlds of ranks that may shrink and be started again.

A fixed world needs no torchrun: the agents start its ranks with torchrun's variables (see `ranks`). An elastic one is
torchrun's own: one `torch.distributed.run` on every host of the world, which meet in a c10d rendezvous. Its store is a
part of the torchrun on the world's first host, at the world's master port; when that host is lost, so is the world.

* Which host has the store is given (`is_host`), because torchrun takes every loopback address for its own.
* `TORCH_DISABLE_SHARE_RDZV_TCP_STORE`: every generation of ranks meets in a store of its own, hosted by its rank 0.
  In the shared one (torch 2.13) ranks of two agents look under different names as soon as one agent was restarted by
  a failed rank and the other by the change of members, and read addresses of ranks that are gone.
* A world with fewer than all hosts begins `LAST_CALL` seconds after the last one came.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.instance.launch_plan import DistributionPlan, LaunchPlan

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
    world, min_hosts, max_restarts = _elastic_world(plan, host)
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
        f"--nnodes={min_hosts}:{len(hosts)}",
        f"--nproc-per-node={plan.group(plan.host(host).group).processes_per_host}",
        f"--max-restarts={max_restarts}",
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


def _elastic_world(plan: LaunchPlan, host: str) -> tuple[DistributionPlan, int, int]:
    world = plan.distribution_of(plan.host(host).group)
    if world is None or world.elastic is None:
        raise ValueError(f"{host} is in no elastic world")
    return world, world.elastic.min_hosts, world.elastic.max_restarts
