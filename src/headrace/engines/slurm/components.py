"""Which component of the heterogeneous job is which group, and which of its tasks is which host. Pure."""

from __future__ import annotations

import msgspec

from headrace.instance.launch_plan import GroupPlan, HostPlan, LaunchPlan


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
