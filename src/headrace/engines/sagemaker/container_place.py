"""Who this host is, and the launch plan with the hosts as SageMaker has assigned them. Pure.

A plan is made before there are instances. Which host is in which group only the service says, in resourceconfig.json:
its hosts are in no order there, and algo-1 may be in any group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from headrace.errors import UsageError
from headrace.instance.launch_plan import HostPlan, LaunchPlan, Ports

_NUMBER = re.compile(r"[0-9]+")
_STEP, _MOVES = 100, 5000
CODE = "code.tar.gz"
"""Name in headrace's own channel of the archive of the code."""
INTERRUPTIONS = 1000
"""How often a job on spot instances goes on in other containers: more often than the service starts them."""


def assigned_hosts(plan: LaunchPlan, config: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Returns the hosts of every group of the plan, in the order of their numbers.

    Args:
        plan: as the job was submitted.
        config: resourceconfig.json.

    Raises:
        UsageError: the service has assigned other groups, or another number of hosts.
    """
    groups = config.get("instance_groups")
    if isinstance(groups, list) and groups:
        found = {str(each["instance_group_name"]): _sorted(each["hosts"]) for each in groups}
    else:  # a service that knows no groups
        found = {plan.groups[0].name: _sorted(config.get("hosts", ()))}
    if len(plan.groups) == len(found) == 1:  # a job without groups: the service has its own name for the one
        found = {plan.groups[0].name: next(iter(found.values()))}
    wanted = {group.name: len(group.hosts) for group in plan.groups}
    there = {name: len(hosts) for name, hosts in found.items()}
    if wanted != there:
        raise UsageError(f"resourceconfig.json has other groups than the job: {there}, not {wanted}")
    return found


def _sorted(hosts: object) -> tuple[str, ...]:
    names = [str(host) for host in hosts] if isinstance(hosts, (list, tuple)) else []
    return tuple(sorted(names, key=_order))


def _order(host: str) -> tuple[int, str]:
    numbers = _NUMBER.findall(host)
    return (int(numbers[-1]) if numbers else 0, host)


def placed_plan(
    plan: LaunchPlan,
    config: Mapping[str, object],
    base: str,
    record: str,
    variables: Mapping[str, str],
    outer: Ports | None,
) -> LaunchPlan:
    """Returns the plan as the hosts of the job have it: all of them make the same one, but for `base` and `record`.

    Args:
        plan: as the job was submitted.
        config: resourceconfig.json.
        base: this host's tree.
        record: its run directory.
        variables: of the container; they hold the job's name and ARN.
        outer: ports that another headrace has on these hosts, which play instances; None when there is none.

    Raises:
        UsageError: as `assigned_hosts`.
    """
    assigned = assigned_hosts(plan, config)
    group_of = {host: name for name, hosts in assigned.items() for host in hosts}
    hosts = tuple(
        HostPlan(name=host, group=group_of[host], address=host, base_dir=base, record_dir=record)
        for host in sorted(group_of, key=_order)
    )
    groups = tuple(msgspec.structs.replace(group, hosts=assigned[group.name]) for group in plan.groups)
    return msgspec.structs.replace(
        plan,
        hosts=hosts,
        groups=groups,
        leader=assigned[plan.completion_groups[0]][0],
        max_run=0.0,  # the service ends a job that runs for too long
        job_name=variables.get("TRAINING_JOB_NAME") or plan.job_name,
        job_arn=variables.get("TRAINING_JOB_ARN") or plan.job_arn,
        ports=plan.ports if outer is None else _beside(plan.ports, outer),
    )


def after_attempts(plan: LaunchPlan, count: int) -> LaunchPlan:
    """Returns the plan of a job before which the run had so many attempts: the job's own retries come on top."""
    retry = plan.retry
    if not retry.attempts:
        return plan
    return msgspec.structs.replace(plan, retry=msgspec.structs.replace(retry, attempts=retry.attempts + count))


def _beside(ports: Ports, taken: Ports) -> Ports:
    """Returns ports that are not taken: all of them some way behind their own, where one would be.

    Another job beside this one may have the same address. The ports that play its instances were moved out of the way
    of this one's, and so its own are.
    """
    names = Ports.__struct_fields__
    used = {getattr(taken, name) for name in names}
    moved = (taken.control - Ports().control) % _MOVES
    step = _STEP + moved if used & {getattr(ports, name) for name in names} else 0
    return Ports(**{name: getattr(ports, name) + step for name in names})
