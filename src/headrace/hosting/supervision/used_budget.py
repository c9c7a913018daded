"""What a run has used of its time and its budget, as the engine sees it: over all attempts, and before the programs.

While the programs run, their coordinator watches both (see `headrace.agent.coordinator.budget_limits`); this
module tells it what was used before.
"""

from __future__ import annotations

import math
import time

from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import COST, SPENT
from headrace.runs import Cause, CauseKind, Run, RunPaths


class Spent:
    """See the module. Its clock starts with it.

    Args:
        plan: the launch plan.
        paths: the run's directory, whose events say when instances started and were released.
        before: seconds of max_run that were used up before.
    """

    def __init__(self, plan: LaunchPlan, paths: RunPaths, before: float = 0.0) -> None:
        self._plan = plan
        self._run = Run(paths)
        self._began = time.monotonic() - before

    @property
    def seconds(self) -> float:
        """Seconds of max_run."""
        return time.monotonic() - self._began

    def variables(self) -> dict[str, str]:
        """Returns the variables for the agents of an attempt."""
        now = time.time()
        return {SPENT: f"{self.seconds:.3f}", COST: f"{self._money(now)[0]!r} {now!r}"}

    def deadline(self) -> float:
        """Returns when time or budget is used up if all hosts go on that run now; on time.monotonic, maybe infinite."""
        plan = self._plan
        limit = self._began + plan.max_run if plan.max_run else math.inf
        cost, per_second = self._money(time.time())
        if plan.budget is None or not per_second:
            return limit
        return min(limit, time.monotonic() + (plan.budget.max_cost - cost) / per_second)

    def cause(self, work: str) -> Cause | None:
        """Returns why the run must end: time or budget is used up; None while some is left.

        Args:
            work: what took so long, in words.
        """
        plan = self._plan
        cost, _ = self._money(time.time())
        if plan.max_run and self.seconds >= plan.max_run:
            return Cause(CauseKind.MAX_RUN, f"{work} took longer than max_run, {plan.max_run:g} s")
        if plan.budget is not None and cost >= plan.budget.max_cost:
            return Cause(CauseKind.BUDGET, f"{work}: {plan.budget.words(cost)}")
        return None

    def _money(self, now: float) -> tuple[float, float]:
        """Returns what was spent, and what a second costs now."""
        budget = self._plan.budget
        if budget is None:
            return 0.0, 0.0
        hosts = self._run.state().hosts
        spent = budget.before + math.fsum(budget.per_second[host.group] * host.seconds(now) for host in hosts)
        return spent, math.fsum(budget.per_second[host.group] for host in hosts if host.ended is None)
