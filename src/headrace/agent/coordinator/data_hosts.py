"""Data hosts that come and go while the job runs, as its ranks need them.

`least` of them are there from the start. The ranks tell what they need; more are asked for when the rule says so for a
moment. When fewer would have done for `idle_after` seconds, the last one leaves: clients are told to ask it for nothing
more, and a moment later it is released. What it still owed then, they ask of others.

One that is lost is replaced by one that is not there, or is asked for again after a pause that doubles. So is one that
was asked for and does not come. What the engine makes of a host that is asked for is its own: see `HostState.absent`.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.agent.control.control_messages import StopOrder
from headrace.agent.coordinator.budget_limits import BudgetLimits
from headrace.agent.coordinator.data_services import DataServices
from headrace.agent.coordinator.host_state import LEAVING, LOST, STARTING, Effects, HostState
from headrace.feed.tuning.executor_rule import desired_hosts
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs.events import HostJoined, HostReleased

GROW_SECONDS = 2.0  # for which more must be desired
LEAVE_SECONDS = 3.0  # for clients to see that a host leaves, and to take what they had asked it for
AGAIN_SECONDS = 10.0  # the pause after a loss; each one after it in a row is twice as long
AGAIN_LATER = 600.0  # the longest pause
FORGIVEN_AFTER = 600.0  # after which a loss counts as the first


class DataHosts:
    """See the module.

    Args:
        plan: the launch plan.
        hosts: all hosts by name.
        services: the data service.
        limits: of the job's cost.
        now: when the coordinator begins.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        hosts: Mapping[str, HostState],
        services: DataServices,
        limits: BudgetLimits,
        now: float,
    ) -> None:
        self._plan, self._range = plan, plan.feed_range
        self._every = list(hosts.values())
        self._hosts = [] if plan.feed_range is None else [hosts[name] for name in plan.feed_range.hosts]
        self._services, self._limits = services, limits
        self._more_since = self._fewer_since = 0.0
        self._told = False
        self._desired_last = len(self._hosts)
        for host in self._hosts:
            host.comes_and_goes = True
            if plan.comes_later(host.name):
                host.absent = True
                services.feed_changed(host, "")
                limits.released(host.name, now)

    def begin(self, effects: Effects, now: float) -> None:
        """Records which hosts are not there in the beginning, once: an attempt before may have had them."""
        if not self._told:
            self._told = True
            effects.records += [HostReleased(host.group, host.name, t=now) for host in self._hosts if host.absent]

    def turn(self, effects: Effects, now: float) -> None:
        """Decides who is asked for and who leaves now."""
        if self._range is None:
            return
        for host in self._hosts:
            if (host.leaving and now - host.leaving >= LEAVE_SECONDS) or (host.feed == LOST and not host.lost):
                self._release(host, effects, now)
        serving = [host for host in self._hosts if not (host.absent or host.leaving or host.release)]
        free = sorted(
            (host for host in self._hosts if host.may_be_asked and now >= host.away_until), key=lambda host: host.losses
        )
        desired = self._desired(serving)
        wanted = max(self._range.least, min(desired, self._range.most))
        self._more_since = (self._more_since or now) if wanted > len(serving) else 0.0
        self._fewer_since = (self._fewer_since or now) if wanted < len(serving) else 0.0
        if self._more_since and (len(serving) < self._range.least or now - self._more_since >= GROW_SECONDS):
            for host in free[: wanted - len(serving)]:
                host.come(now)
                self._services.feed_changed(host, STARTING)
                effects.renewed.add(host.name)
            self._desired_last = desired
            self._more_since = 0.0
        elif self._fewer_since and now - self._fewer_since >= self._range.idle_after:
            last = next((host for host in serving if not host.registered), serving[-1])
            last.leaving = now
            self._services.feed_changed(last, LEAVING)
            self._fewer_since = now

    def late(self, now: float) -> list[HostState]:
        """Returns those that were asked for and have not come in time."""
        limit = self._plan.start_timeout
        return [host for host in self._hosts if host.asked and not host.registered and now - host.asked > limit]

    def came(self, host: HostState, effects: Effects, now: float) -> None:
        """A host has registered."""
        if host.asked:
            self._limits.joined(host.name, now)
            effects.records.append(HostJoined(host.group, host.name, self._desired_last, t=now))

    def left(self, host: HostState, effects: Effects, now: float) -> None:
        """A host has ended as it was told to, or is lost: it costs no more, and its instance can go."""
        if host.registered or not host.asked:
            effects.records.append(HostReleased(host.group, host.name, t=now))
            self._limits.released(host.name, now)
        if host.comes_and_goes:
            if host.lost:
                served = host.registered and now - (host.asked or host.started or now) > FORGIVEN_AFTER
                host.losses = 1 if served else host.losses + 1
                host.away_until = now + min(AGAIN_SECONDS * 2 ** (host.losses - 1), AGAIN_LATER)
            elif host.feed != LOST:
                self._services.feed_changed(host, "")
            host.absent, host.asked, host.leaving = True, 0.0, 0.0

    def _desired(self, serving: list[HostState]) -> int:
        demands = [demand for host in self._every for demand in host.demands]
        if not demands or not serving:
            return len(serving)
        executors = sum(host.executors for host in serving) / len(serving)
        stall = sum(demand.stall for demand in demands) / len(demands)
        link = sum(demand.link for demand in demands) / len(demands)
        return desired_hosts(sum(demand.needed for demand in demands), executors, len(serving), stall, link)

    def _release(self, host: HostState, effects: Effects, now: float) -> None:
        if host.release is None and not host.absent:
            host.release = StopOrder("it is not needed", self._plan.stop_grace, feed=True, leave=True)
            effects.wake.add(host.name)
            if not host.registered:
                self.left(host, effects, now)
