"""What the lead makes of an allocation and of signals, without a cluster."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

from headrace.cli.views.plan_document import work
from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.allocation import PORT_SETS, Allocation, placed, ports_of, smallest
from headrace.engines.slurm.handover import (
    Placement,
    StopRequest,
    forget_variables,
    read_variables,
    write_placement,
    write_stop_request,
    write_variables,
)
from headrace.engines.slurm.lead import LeadSignals, begin_next_attempt
from headrace.engines.slurm.slurm_job import plan_slurm_job
from headrace.errors import EngineRefused
from headrace.instance.launch_plan import LaunchPlan, Retry
from headrace.job import Job
from headrace.runs import Cause, CauseKind, Event, EventWriter, Run, RunPaths
from headrace.runs.events import AttemptStarted, HostRegistered, SecondaryStatus, StatusChanged

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
    assert [group.feed_fills for group in plan().groups] == [True, False]  # until the CPUs are known
    assert [group.feed_fills for group in found.groups] == [False, False]
    assert work(plan().group("data_group")) == "a data worker for each CPU"
    assert work(found.group("data_group")) == "16 data workers"


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


@pytest.mark.promise("slurm-reference", "Slurm: the variables of the submitting shell do not stay in the run's folder")
def test_variables_of_the_submitting_machine_stay_there_and_the_file_is_the_users_alone(paths: RunPaths) -> None:
    given = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "SLURM_JOB_ID": "3", "DISPLAY": ":0", "TMPDIR": "/tmp/me"}
    write_variables(paths, given)
    assert read_variables(paths) == {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x"}
    assert (paths.engine / "environment.json").stat().st_mode & 0o777 == 0o600
    forget_variables(paths)
    assert read_variables(paths) == {}


def test_jobs_that_may_share_nodes_have_ports_of_their_own() -> None:
    taken = [set(msgspec.structs.asdict(ports_of(job_id)).values()) for job_id in range(1000, 1000 + PORT_SETS)]
    assert len(set().union(*taken)) == 5 * PORT_SETS
    assert (min(map(min, taken)), max(map(max, taken))) == (10000, 31997)


BEGUN = (
    StatusChanged(t=1, status=SecondaryStatus.STARTING),
    StatusChanged(t=2, status=SecondaryStatus.TRAINING),
    HostRegistered(t=3, group="dnn_group", host="algo-3"),
)
WAITS = StatusChanged(t=50, status=SecondaryStatus.PENDING, message="Slurm job 4 waits: BeginTime")


def began(paths: RunPaths, *earlier: Event, attempts: int = 1, log: str = "") -> tuple[Cause | None, list[str]]:
    """Begins a lead after these events of the run. Returns why it must end, and the parts that it has recorded."""
    retry = msgspec.structs.replace(plan(), retry=Retry(attempts))
    for host in retry.hosts:
        (paths.host(host.name) / "input").mkdir(parents=True)
    paths.code.mkdir(parents=True)
    write_placement(paths, Placement(4, ("gpu7", "cpu1", "cpu2")))
    with EventWriter(paths.events("engine")) as events:
        for event in earlier:
            events.write(event)
        cause = begin_next_attempt(paths, retry, log, events)
    found = [event for event in Run(paths).events() if event not in earlier]
    words = [
        f"{event.t:g} {event.status.value}: {event.message}" for event in found if isinstance(event, StatusChanged)
    ]
    return cause, [*words, *(f"attempt {event.number}" for event in found if isinstance(event, AttemptStarted))]


def test_the_first_lead_of_a_run_begins_no_other_attempt(paths: RunPaths) -> None:
    assert began(paths, WAITS) == (None, [])


def test_a_lead_after_one_that_died_with_its_node_says_which_and_when(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_commands, "nodes_down", lambda nodes: ("cpu1",))
    after = "Attempt 2 of 2, after: data_group/algo-1: Slurm job 4 lost a node: cpu1"
    assert began(paths, *BEGUN, WAITS) == (None, [f"3 Restarting: {after}", f"3 Pending: {after}", "attempt 2"])


def test_a_lead_after_one_that_said_why_it_ended_says_no_more(paths: RunPaths) -> None:
    told = [StatusChanged(t=9, status=SecondaryStatus(name)) for name in ("Restarting", "Pending")]
    assert began(paths, *BEGUN, *told, WAITS) == (None, ["attempt 2"])


def test_a_lead_without_an_attempt_left_ends_the_run_with_the_cause(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_commands, "nodes_down", lambda nodes: ())
    said = "slurmstepd-gpu7: error: *** JOB 4 ON gpu7 CANCELLED AT 2026-11-22T18:09:19 DUE TO PREEMPTION ***"
    cause, written = began(paths, *BEGUN, attempts=0, log=said)
    assert cause is not None
    assert (cause.kind, cause.infrastructure, written) == (CauseKind.PREEMPTED, True, [])
