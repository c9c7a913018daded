"""What a run has cost, as whoever looks at it can tell from the service's words: for a leader that does not. Pure.

The leader stops a job whose budget is used up, also when nobody looks at it. Whoever looks stops it some seconds later,
when the leader has not: it was killed, or hangs. The service bills all instances of a job from the start of its
training to its end.
"""

from __future__ import annotations

import math
from datetime import datetime

from headrace.engines.sagemaker.service_calls import Answer
from headrace.instance.launch_plan import Budget, LaunchPlan
from headrace.runs import Cause, CauseKind

LEADER_FIRST = 10.0
"""Seconds beyond the budget in which the leader stops the job."""


def cost_of(plan: LaunchPlan, answer: Answer) -> float:
    """Returns what a job that has ended has cost by the prices of its budget; 0 without one.

    Args:
        plan: its launch plan.
        answer: what the service says of it.
    """
    billed = answer.get("BillableTimeInSeconds")
    return _per_second(plan) * float(billed) if isinstance(billed, (int, float)) else 0.0


def over_budget(plan: LaunchPlan, answer: Answer, now: float) -> Cause | None:
    """Returns why a job that goes on is to be stopped: its budget is used up, and its leader had time to stop it.

    Args:
        plan: its launch plan, whose budget knows what earlier attempts have cost.
        answer: what the service says of it.
        now: seconds since the epoch.
    """
    started = answer.get("TrainingStartTime")
    if plan.budget is None or not isinstance(started, datetime):
        return None
    seconds, per_second = max(0.0, now - started.timestamp()), _per_second(plan)
    if plan.budget.before + per_second * (seconds - LEADER_FIRST) < plan.budget.max_cost:
        return None
    return used_up(plan.budget, plan.budget.before + per_second * seconds)


def used_up(budget: Budget, cost: float) -> Cause:
    """Returns the cause of a run that has cost as much as it may."""
    return Cause(CauseKind.BUDGET, budget.words(cost))


def _per_second(plan: LaunchPlan) -> float:
    """Returns what a second of all instances costs; 0 without a budget."""
    budget = plan.budget
    return (
        0.0 if budget is None else math.fsum(budget.per_second[group.name] * len(group.hosts) for group in plan.groups)
    )
