"""Data hosts that join and leave while the job runs, as its ranks need them.

`least` of them serve from the start. The ranks tell what they need; more join when the rule says so for a moment, and
one that was lost is replaced. When fewer would have done for `idle_after` seconds, the last one leaves: clients are
told to ask it for nothing more, and a moment later its feed server is stopped. What it still owed then, they ask of
others. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.agent.coordinator.budget_limits import BudgetLimits
from headrace.agent.coordinator.data_services import DataServices
from headrace.agent.coordinator.host_state import LEAVING, LOST, STARTING, Effects, HostState
from headrace.feed.tuning.executor_rule import desired_hosts
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs.events import HostJoined, HostReleased

GROW_SECONDS = 2.0  # for which more must be desired
LEAVE_SECONDS = 3.0  # for clients to see that a host leaves, and to take what they had asked it for


class DataHosts:
    """See the module.

    Args:
        plan: the launch plan.
        hosts: all hosts by name.
        services: the data service.
        limits: of the job's cost.
    """

    def __init__(
        self, plan: LaunchPlan, hosts: Mapping[str, HostState], services: DataServices, limits: BudgetLimits
    ) -> None:
        self._range = plan.feed_range
        self._every = list(hosts.values())
        self._hosts = [hosts[name] for name in plan.feed_range.hosts] if plan.feed_range is not None else []
        self._services, self._limits = services, limits
        self._more_since = self._fewer_since = 0.0
        self._told = False
        for host in self._hosts[plan.feed_range.least :] if plan.feed_range is not None else ():
            host.standby = True
            services.feed_changed(host, "")

    def turn(self, effects: Effects, now: float) -> None:
        """Decides who joins and who leaves now."""
        if self._range is None:
            return
        if not self._told:
            self._told = True
            for host in self._hosts:
                if host.standby:
                    self._stand_by(host, effects, now)
        for host in self._hosts:
            if host.leaving and not host.standby and now - host.leaving >= LEAVE_SECONDS:
                host.standby = True
                effects.wake.add(host.name)
        serving = [host for host in self._hosts if not (host.standby or host.leaving or host.feed == LOST)]
        free = [host for host in self._hosts if host.standby and not host.feed and not host.lost]
        desired = self._desired(serving)
        wanted = max(self._range.least, min(desired, self._range.most))
        self._more_since = (self._more_since or now) if wanted > len(serving) else 0.0
        self._fewer_since = (self._fewer_since or now) if wanted < len(serving) else 0.0
        if self._more_since and (len(serving) < self._range.least or now - self._more_since >= GROW_SECONDS):
            for host in free[: wanted - len(serving)]:
                self._join(host, desired, effects, now)
            self._more_since = 0.0
        elif self._fewer_since and now - self._fewer_since >= self._range.idle_after:
            self._leave(serving[-1], now)
            self._fewer_since = now

    def stopped(self, host: HostState, effects: Effects, now: float) -> None:
        """A feed server has ended as it was told to."""
        host.leaving = 0.0
        self._services.feed_changed(host, "")
        self._stand_by(host, effects, now)

    def _desired(self, serving: list[HostState]) -> int:
        demands = [demand for host in self._every for demand in host.demands]
        if not demands or not serving:
            return len(serving)
        executors = sum(host.executors for host in serving) / len(serving)
        stall = sum(demand.stall for demand in demands) / len(demands)
        link = sum(demand.link for demand in demands) / len(demands)
        return desired_hosts(sum(demand.needed for demand in demands), executors, len(serving), stall, link)

    def _join(self, host: HostState, desired: int, effects: Effects, now: float) -> None:
        host.standby = False
        self._services.feed_changed(host, STARTING)
        self._limits.joined(host.name, now)
        effects.records.append(HostJoined(t=now, group=host.group, host=host.name, desired=desired))
        effects.wake.add(host.name)

    def _leave(self, host: HostState, now: float) -> None:
        host.leaving = now
        self._services.feed_changed(host, LEAVING)

    def _stand_by(self, host: HostState, effects: Effects, now: float) -> None:
        self._limits.released(host.name, now)
        effects.records.append(HostReleased(t=now, group=host.group, host=host.name))
