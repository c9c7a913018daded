"""What the lead makes of an allocation and of signals, without a cluster."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.allocation import Allocation, placed, smallest
from headrace.engines.slurm.enter_host import agent_variables
from headrace.engines.slurm.lead import LeadSignals
from headrace.engines.slurm.slurm_job import plan_slurm_job
from headrace.engines.slurm.ticket import NodeStart, StopRequest, read_start, write_start, write_stop_request
from headrace.errors import EngineRefused
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import OF_PLATFORM
from headrace.job import Job
from headrace.runs import CauseKind, RunPaths

GROUPS = [
    {"name": "data_group", "type": "ml.c5.xlarge", "count": 2},
    {"name": "dnn_group", "type": "ml.g5.xlarge", "count": 1},
]
ADDRESSES = {"gpu7": "10.0.0.7", "cpu1": "10.0.0.1", "cpu2": "10.0.0.2"}


def plan() -> LaunchPlan:
    service = {"feed": {"enabled": True}, "instance_groups": ["data_group"]}
    job = Job(
        "demo", source_dir="code", entry_point="train.py", instance_groups=GROUPS, data_service=service, base_path="/"
    )
    return plan_slurm_job(job, (), RunPaths(Path("/shared/runs/demo")), "python").plan


def test_hosts_get_the_addresses_of_the_nodes_in_the_order_of_the_components() -> None:
    allocation = Allocation(("gpu7", "cpu1", "cpu2"), (48, 16))
    found = placed(plan(), allocation, ADDRESSES, {"data_group": 0})
    addresses = {host.name: host.address for host in found.hosts}
    assert addresses == {"algo-1": "10.0.0.1", "algo-2": "10.0.0.2", "algo-3": "10.0.0.7"}
    assert [group.feed_executors for group in found.groups] == [16, 0]


def test_data_workers_leave_the_ranks_their_cpus_and_are_one_at_least() -> None:
    for cpus, ranks, executors in ((16, 4, 12), (4, 8, 1)):
        allocation = Allocation(("gpu7", "cpu1", "cpu2"), (48, cpus))
        found = placed(plan(), allocation, ADDRESSES, {"data_group": ranks})
        assert found.group("data_group").feed_executors == executors


@pytest.mark.parametrize("nodes", [("gpu7", "cpu1"), ("gpu7", "cpu1", "cpu1")])
def test_two_hosts_on_one_node_are_refused(nodes: tuple[str, ...]) -> None:
    with pytest.raises(EngineRefused) as caught:
        placed(plan(), Allocation(nodes, (4, 4)), ADDRESSES, {})
    assert "cpu1" in caught.value.message
    assert "exclusive" in caught.value.hint


def test_the_leaders_agent_knows_that_signals_are_slurms_although_it_has_a_lifeline() -> None:
    found = plan()
    assert agent_variables(found, found.host(found.leader))[OF_PLATFORM]


def test_the_cpus_of_the_smallest_node_count() -> None:
    assert smallest("48") == 48
    assert smallest("16(x2),4,64(x12)") == 4


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setattr(slurm_commands, "show", lambda job_id: ())
    monkeypatch.setattr(slurm_commands, "setting", lambda name: "30 sec" if name == "KillWait" else "")
    found = RunPaths(tmp_path)
    found.engine.mkdir()
    return found


def test_each_signal_has_one_meaning(paths: RunPaths) -> None:
    orders = LeadSignals(paths, 4, 120.0).orders
    by_person, limit, by_slurm = (orders[number](False) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM))
    assert (by_person.kind, by_person.failed, by_person.grace) == (CauseKind.STOPPED.value, False, None)
    assert orders[signal.SIGUSR1](True).grace == 0, "the second wish"
    assert orders[signal.SIGINT](False).grace == 0
    assert (limit.kind, limit.failed, limit.grace) == (CauseKind.MAX_RUN.value, False, None)
    assert (by_slurm.kind, by_slurm.failed, by_slurm.infrastructure) == (CauseKind.ENGINE_FAILED.value, True, True)
    assert by_slurm.grace == 15, "Slurm kills after 30 s, whatever the job wants"


@pytest.mark.parametrize("now", [False, True])
def test_a_stop_that_came_before_the_lead_could_take_it_is_not_lost_and_counts_once(paths: RunPaths, now: bool) -> None:
    signals = LeadSignals(paths, 4, 30.0)
    assert signals.early() is None
    write_stop_request(paths, StopRequest(now))
    number = signals.early()
    assert number == (signal.SIGINT if now else signal.SIGUSR1)
    graces = [signals.orders[number](again).grace for again in (False, True, True)]
    assert graces == ([0, 0, 0] if now else [None, None, 0]), "its signal may come too; a later one is a second wish"


def test_variables_of_the_submitting_machine_stay_there_and_the_file_is_the_users_alone(paths: RunPaths) -> None:
    given = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "SLURM_JOB_ID": "3", "DISPLAY": ":0", "TMPDIR": "/tmp/me"}
    write_start(paths, NodeStart((), "python", {}), given)
    assert read_start(paths)[1] == {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x"}
    assert (paths.engine / "environment.json").stat().st_mode & 0o777 == 0o600
