"""Time and money that a job may use: when they are used up, across attempts, and what an early release saves."""

import pytest
from agent_plans import make_plan, scripts, workers
from test_agent_coordinator import Play

from headrace.agent.coordinator.budget_limits import NOTHING, BudgetLimits, Used, used_before
from headrace.agent.coordinator.state_machine import Coordinator, Phase
from headrace.instance.launch_plan import Budget
from headrace.runs.events import HostReleased, JobStopping, Status

# Together the three hosts cost 2 USD a second.
BUDGET = Budget(max_cost=20.0, per_second={"dnn": 1.0, "data": 0.5}, region="us-east-1", basis="list prices of a test")
GROUPS = (scripts("dnn", "algo-1"), workers("data", "algo-2", "algo-3"))


def plan(**fields):
    return make_plan(*GROUPS, **{"budget": BUDGET, **fields})


def test_the_budget_is_used_up_by_all_hosts_together():
    allowance = BudgetLimits(plan(), NOTHING, now=100.0)
    assert allowance.cost(104.0) == 8.0
    assert allowance.exceeded(100.0, 110.0) is None
    cause = allowance.exceeded(100.0, 110.1)
    assert str(cause) == (
        "BudgetExceeded: the job has cost 20.200000 USD, more than max_cost, 20 USD (list prices of a test)"
    )
    assert not cause.infrastructure


def test_a_released_host_costs_no_more():
    allowance = BudgetLimits(plan(), NOTHING, now=100.0)
    allowance.released("algo-3", 102.0)
    allowance.released("algo-3", 109.0)
    assert allowance.cost(110.0) == 10 + 5 + 1
    assert allowance.exceeded(100.0, 112.0) is None
    assert allowance.exceeded(100.0, 113.0) is not None


def test_what_was_used_before_counts_and_so_does_the_time_until_the_coordinator_began():
    allowance = BudgetLimits(plan(), Used(cost=5.0, at=98.0), now=100.0)
    assert allowance.cost(100.0) == 9.0
    assert BudgetLimits(plan(), Used(cost=5.0), now=100.0).cost(100.0) == 5.0


def test_without_a_budget_only_the_time_counts():
    allowance = BudgetLimits(plan(budget=None, max_run=10.0), Used(seconds=8.0, cost=99.0), now=100.0)
    assert allowance.cost(1e6) == 0.0
    assert allowance.exceeded(100.0, 102.0) is None
    assert str(allowance.exceeded(100.0, 102.1)) == "MaxRuntimeExceeded: the job ran longer than max_run, 10 s"
    assert BudgetLimits(plan(budget=None, max_run=0.0), NOTHING, now=100.0).exceeded(100.0, 1e9) is None


@pytest.mark.parametrize(
    ("variables", "used"),
    [
        ({}, Used()),
        ({"HEADRACE_SPENT": "8.500"}, Used(seconds=8.5)),
        ({"HEADRACE_SPENT": "8.500", "HEADRACE_COST": "1.5e-07 1763761234.5"}, Used(8.5, 1.5e-07, 1763761234.5)),
    ],
)
def test_an_engine_says_what_was_used_before(variables, used):
    assert used_before(variables) == used


def started(used=NOTHING):
    play = Play(plan())
    play.core = Coordinator(play.core._plan, play.now, used)
    play.come("algo-1", "algo-2", "algo-3")
    return play


def test_a_job_whose_budget_is_used_up_is_stopped_with_time_to_save():
    play = started(Used(cost=4.0))
    play.wait(8.0, alive=["algo-1", "algo-2", "algo-3"])
    assert play.core.phase is Phase.RUNNING
    play.wait(0.2, alive=["algo-1", "algo-2", "algo-3"])
    assert play.core.phase is Phase.STOPPING
    assert play.core.orders("algo-1").stop.grace == play.core._plan.stop_grace
    (stopping,) = play.of(JobStopping)
    assert stopping.status is Status.STOPPED
    play.end("algo-1", "algo-2", "algo-3")
    assert play.verdict.status is Status.STOPPED
    assert play.verdict.cause.reason.startswith("BudgetExceeded: the job has cost 20.")


def test_a_host_that_was_released_early_makes_the_budget_last_longer():
    groups = (scripts("dnn", "algo-1"), scripts("data", "algo-2", "algo-3"))
    play = Play(make_plan(*groups, budget=BUDGET, completion_groups=("dnn",)))
    play.come("algo-1", "algo-2", "algo-3")
    for host in ("algo-2", "algo-3"):
        play.exit(host, "0", 0)
    play.wait(0.1, alive=["algo-1"])
    play.end("algo-2", "algo-3")
    assert len(play.of(HostReleased)) == 2
    play.wait(15.0, alive=["algo-1"])
    assert play.core.phase is Phase.RUNNING, "all three would have used it up after 10 s"
    play.wait(6.0, alive=["algo-1"])
    assert play.core.phase is Phase.STOPPING
