"""Which groups may start, and which wait for a group that is never ready: pure functions of plan and hosts' states.

A group starts when every group that it depends on is ready. Without `depends_on` any start order is right, and all
groups start together. A group is ready when every host of it is: its programs were started, its servers of the data
service serve, and something listens on the port of `ready`, if that names one.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.agent.coordinator.host_state import READY, HostState
from headrace.instance.launch_plan import GroupPlan, LaunchPlan
from headrace.runs.cause import Cause, CauseKind


def startable(plan: LaunchPlan, hosts: Mapping[str, HostState]) -> list[GroupPlan]:
    """Returns the groups that have not started and may."""
    return [group for group in plan.groups if not _started(group, hosts) and not _waits_for(plan, group, hosts)]


def never_ready(plan: LaunchPlan, hosts: Mapping[str, HostState], now: float) -> Cause | None:
    """Returns why a group can never start, or has waited too long; None while it still may.

    Args:
        plan: the launch plan.
        hosts: the hosts by name.
        now: the time on the coordinator's clock.
    """
    for waiting in plan.groups:
        if _started(waiting, hosts):
            continue
        for group in _waits_for(plan, waiting, hosts):
            if not _started(group, hosts):
                continue  # it waits itself
            late = [host for host in _hosts_of(group, hosts) if not _ready(host)]
            gone = next((host for host in late if host.lost or _over(host)), None)
            if gone is not None:
                how = "was lost" if gone.lost else f"ended and {_lacks(gone, group)}"
                reason = f"{waiting.name} waits in vain for {group.name} to be ready: {gone.name} {how}"
                return Cause(CauseKind.GROUP_NOT_READY, reason, gone.group, gone.name, infrastructure=gone.lost)
            if now - late[0].started > group.ready.timeout:
                what = "; ".join(f"{host.name} {_lacks(host, group)}" for host in late[:4])
                reason = f"waited {group.ready.timeout:g} s for {group.name} to be ready: {what}"
                return Cause(CauseKind.GROUP_NOT_READY, reason, group.name, late[0].name)
    return None


def is_waited_for(plan: LaunchPlan, group: str) -> bool:
    """Tells whether another group starts only when this one is ready."""
    return any(group in other.depends_on for other in plan.groups)


def _hosts_of(group: GroupPlan, hosts: Mapping[str, HostState]) -> list[HostState]:
    return [hosts[name] for name in group.hosts if not hosts[name].absent]


def _started(group: GroupPlan, hosts: Mapping[str, HostState]) -> bool:
    return all(host.started for host in _hosts_of(group, hosts))


def _waits_for(plan: LaunchPlan, group: GroupPlan, hosts: Mapping[str, HostState]) -> list[GroupPlan]:
    needed = [plan.group(name) for name in group.depends_on]
    return [other for other in needed if not all(_ready(host) for host in _hosts_of(other, hosts))]


def _ready(host: HostState) -> bool:
    serves = host.feed in {"", READY} and all(server.state == READY for server in host.servers.values())
    return host.ready and serves


def _over(host: HostState) -> bool:
    ended = bool(host.streams) and all(name in host.exits for name in host.streams)
    return ended and not host.ready and not host.serves


def _lacks(host: HostState, group: GroupPlan) -> str:
    if host.feed and host.feed != READY:
        return f"has no feed server that serves ({host.feed_reason or 'it is starting'})"
    for name, server in host.servers.items():
        if server.state != READY:
            return f"has a {name} that does not serve ({server.cause or 'it is starting'})"
    if group.ready.port:
        return f"does not accept connections on port {group.ready.port}"
    return "has not started its programs"
