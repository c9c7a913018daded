"""A job may cost so much and no more: what the engine counts before the programs, and real jobs that are stopped."""

from __future__ import annotations

import re
import time

import pytest
from play_helpers import play

from headrace.engines.local.host_limits import Machine
from headrace.engines.local.plan_hosts import make_plan
from headrace.hosting.supervision.supervisor import Spent
from headrace.insight import cost_report
from headrace.instance.launch_plan import Budget, GroupPlan, LaunchPlan
from headrace.job import Job
from headrace.runs import EventWriter, RunPaths, Status, create_run
from headrace.runs.events import AttemptStarted, HostReleased, InstancesStarted, SecondaryStatus

PER_HOUR = 37.688 + 2 * 3.672
TRAIN = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]).write_text("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("running", flush=True)
time.sleep(600)
"""
TWO_KINDS = [
    {"name": "data", "type": "ml.c5.18xlarge", "count": 2},
    {"name": "dnn", "type": "ml.p4d.24xlarge", "count": 1},
]
ENDLESS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
while True:
    signal.pause()
"""


def launch(tmp_path, **fields) -> tuple[LaunchPlan, RunPaths]:
    groups = (GroupPlan("dnn", "ml.p4d.24xlarge", ("algo-1",)), GroupPlan("data", "ml.c5.18xlarge", ("algo-2",)))
    budget = Budget(10.0, {"dnn": 1.0, "data": 0.25}, "us-east-1", "list prices of a test")
    plan = LaunchPlan("j", "j-1", "t.py", groups, (), "algo-1", **{"budget": budget, "max_run": 0.0, **fields})
    return plan, create_run("j", "local", runs=tmp_path)


def write(paths, *events):
    with EventWriter(paths.events("engine")) as out:
        for event in events:
            out.write(event)


HOSTS = {"dnn": ("algo-1",), "data": ("algo-2",)}


def test_before_the_instances_start_no_money_is_spent_and_only_max_run_ends_the_work(tmp_path):
    plan, paths = launch(tmp_path)
    assert Spent(plan, paths).deadline() == float("inf")
    assert Spent(plan, paths).cause("installing") is None
    limited, _ = launch(tmp_path / "b", max_run=5.0)
    assert Spent(limited, paths).deadline() == pytest.approx(time.monotonic() + 5, abs=1)
    _, at = Spent(plan, paths).variables()["HEADRACE_COST"].split()
    assert float(at) == pytest.approx(time.time(), abs=5)


def test_the_moment_at_which_the_budget_is_used_up_follows_from_the_hosts_that_run(tmp_path):
    plan, paths = launch(tmp_path)
    now = time.time()
    write(paths, InstancesStarted(t=now - 4, hosts=HOSTS), HostReleased(t=now - 2, group="data", host="algo-2"))
    spent = Spent(plan, paths)  # 4 and 0.5 are spent, 1 a second goes on
    assert spent.deadline() - time.monotonic() == pytest.approx(5.5, abs=1)
    assert float(spent.variables()["HEADRACE_COST"].split()[0]) == pytest.approx(4.5, abs=1)
    assert spent.cause("filling the channels") is None


def test_another_attempt_goes_on_from_what_was_spent_with_all_hosts(tmp_path):
    plan, paths = launch(tmp_path)
    now = time.time()
    write(
        paths,
        InstancesStarted(t=now - 20, hosts={"data": ("algo-2",)}),
        HostReleased(t=now - 12, group="data", host="algo-2"),
        AttemptStarted(t=now - 8, number=2),
    )
    spent = Spent(plan, paths)  # 2 in the first attempt, 2 in this one, 0.25 a second
    assert float(spent.variables()["HEADRACE_COST"].split()[0]) == pytest.approx(4, abs=0.3)
    assert spent.deadline() - time.monotonic() == pytest.approx(24, abs=2)


def test_work_that_has_used_up_the_budget_is_a_cause_with_price_and_figure(tmp_path):
    plan, paths = launch(tmp_path)
    write(paths, InstancesStarted(t=time.time() - 60, hosts=HOSTS))
    cause = Spent(plan, paths).cause("filling the channels")
    assert cause.reason.startswith("BudgetExceeded: filling the channels: the job has cost 75.")
    assert "more than max_cost, 10 USD (list prices of a test)" in cause.reason


def test_the_plan_of_a_job_has_prices_a_second_and_says_where_they_are_from(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    job = Job(
        "j",
        source_dir=tmp_path,
        entry_point="train.py",
        instance_groups=TWO_KINDS,
        budget={"max_cost": "25 USD"},
    )
    budget = make_plan(job, RunPaths(tmp_path / "j"), Machine((0, 1)), "python").budget
    assert budget.max_cost == 25.0
    assert budget.per_second == {"data": 3.672 / 3600, "dnn": 37.688 / 3600}
    assert budget.basis == (
        "list prices of us-east-1: ml.c5.18xlarge 3.672 USD/hour, as of 2026-01-19; "
        "ml.p4d.24xlarge 37.688 USD/hour, as of 2024"
    )


@pytest.mark.promise("cost", "exit code 4: stopped by its `budget`")
def test_a_job_is_stopped_when_it_has_cost_its_budget_with_time_to_save_and_exit_code_4(stage):
    seconds = 6.0  # that the budget lasts; a busy machine needs some for the programs to take signals
    handle = stage.start(TRAIN, instance_groups=TWO_KINDS, budget={"max_cost": PER_HOUR * seconds / 3600})
    assert handle.wait(40) is Status.STOPPED
    state = handle.run.state()
    assert (state.exit_code, state.secondary_status, state.finished) == (4, SecondaryStatus.STOPPED, True)
    told = re.match(r"BudgetExceeded: the job has cost (0\.\d{6}) USD, more than max_cost", state.cause.reason)
    assert "ml.p4d.24xlarge 37.688 USD/hour, as of 2024" in state.cause.reason
    stopping = next(each for each in state.transitions if each.status is SecondaryStatus.STOPPING)
    ran = stopping.start - state.instances_started
    assert float(told[1]) == pytest.approx(PER_HOUR * ran / 3600, abs=PER_HOUR * 0.1 / 3600)
    due = max(seconds, state.started - state.instances_started)  # a busy machine may take longer to start the programs
    assert due <= ran < due + 2.0, "the coordinator looks ten times a second"
    assert [stored.files for stored in state.artefacts if stored.name == "model"] == [3]
    report = cost_report(handle.run)
    assert report.max_cost == pytest.approx(PER_HOUR * seconds / 3600)
    assert float(told[1]) < report.total.value < float(told[1]) + PER_HOUR * 20 / 3600
    stage.assert_nothing_left(handle)


def test_a_download_that_uses_up_the_budget_is_ended(stage, tmp_path, monkeypatch):
    play(tmp_path, monkeypatch, {"stage": ENDLESS})
    handle = stage.start(TRAIN, instance_groups=TWO_KINDS, budget={"max_cost": PER_HOUR / 3600})
    assert handle.wait(20) is Status.STOPPED
    assert handle.cause.reason.startswith("BudgetExceeded: filling the channels: the job has cost 0.01")
    assert handle.exit_code == 4
    stage.assert_nothing_left(handle)
