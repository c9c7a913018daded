"""The limits of a job in time and money, and when they are exceeded. Pure: the time is given.

Time is counted from the start of the programs, money from the start of the instances; both are counted over all
attempts. A host that was released costs no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import COST, SPENT
from headrace.runs.cause import Cause, CauseKind


@dataclass(frozen=True)
class Used:
    """What was used up before the coordinator began: by earlier attempts, by what came before the programs.

    Attributes:
        seconds: of max_run.
        cost: of the budget, in its currency.
        at: until when `cost` counts, seconds since the epoch; None for the coordinator's beginning.
    """

    seconds: float = 0.0
    cost: float = 0.0
    at: float | None = None


NOTHING = Used()


def used_before(variables: Mapping[str, str]) -> Used:
    """Returns what the engine passes to its agents in their environment; without such variables nothing was used."""
    seconds = float(variables.get(SPENT) or 0.0)
    cost, _, at = (variables.get(COST) or "").partition(" ")
    return Used(seconds, float(cost), float(at)) if at else Used(seconds)


class BudgetLimits:
    """See the module.

    Args:
        plan: the launch plan.
        used: what was used up before.
        now: when the coordinator begins.
    """

    def __init__(self, plan: LaunchPlan, used: Used, now: float) -> None:
        self._plan = plan
        self._used = used
        self._since = now if used.at is None else used.at
        self._released: dict[str, float] = {}
        self._away: dict[str, float] = {}  # seconds for which hosts were released in between

    def released(self, host: str, now: float) -> None:
        """A host was released: it costs no more."""
        self._released.setdefault(host, now)

    def joined(self, host: str, now: float) -> None:
        """A host that was released is there again."""
        self._away[host] = self._away.get(host, 0.0) + now - self._released.pop(host, now)

    def cost(self, now: float) -> float:
        """Returns what the job has cost, in the budget's currency; 0 without a budget."""
        budget = self._plan.budget
        if budget is None:
            return 0.0
        running = (
            budget.per_second[host.group]
            * max(0.0, self._released.get(host.name, now) - self._since - self._away.get(host.name, 0.0))
            for host in self._plan.hosts
        )
        return self._used.cost + math.fsum(running)

    def exceeded(self, started: float, now: float) -> Cause | None:
        """Returns why the job must stop, None while it may go on.

        Args:
            started: when its programs were started in this attempt.
            now: the time.
        """
        plan = self._plan
        if plan.max_run and now - started + self._used.seconds > plan.max_run:
            return Cause(CauseKind.MAX_RUN, f"the job ran longer than max_run, {plan.max_run:g} s")
        if plan.budget is not None and (spent := self.cost(now)) > plan.budget.max_cost:
            return Cause(CauseKind.BUDGET, plan.budget.words(spent))
        return None
