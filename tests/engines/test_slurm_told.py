"""What a user is told when Slurm refuses, does not answer or starts no agent. Slurm's programs are scripts."""

from __future__ import annotations

import doctest
import os
import signal
import sys

import pytest
import test_slurm_asking
from test_slurm_asking import Stage

from headrace.engines.slurm import enter_host, slurm_commands, slurm_engine, slurm_state
from headrace.engines.slurm.allocation import addresses_of
from headrace.engines.slurm.lead import LeadSignals
from headrace.engines.slurm.slurm_commands import SlurmUnreachable
from headrace.engines.slurm.slurm_instances import SlurmInstances
from headrace.engines.slurm.slurm_job import plan_slurm_job
from headrace.engines.slurm.slurm_state import why_no_agents
from headrace.errors import EngineRefused
from headrace.hosting.supervision.instances import AgentStarter
from headrace.instance.lifeline import RUN_ID
from headrace.job import Job
from headrace.runs import CauseKind, Status
from headrace.runs.events import SecondaryStatus

stage, instances = test_slurm_asking.stage, test_slurm_asking.instances


def test_the_examples_in_the_docstrings_are_true() -> None:
    result = doctest.testmod(slurm_state)
    assert (result.attempted, result.failed) == (3, 0)


def test_a_job_that_sbatch_refuses_is_told_in_plain_words_with_where_to_change_it(stage: Stage) -> None:
    said = "sbatch: error: invalid partition specified: gpus\nsbatch: error: Batch job submission failed: Invalid name"
    (stage.folder / "sbatch.fails").write_text(said)
    with pytest.raises(EngineRefused) as caught:
        slurm_commands.submit(stage.folder / "job.sbatch")
    assert caught.value.message == "sbatch refused the job: invalid partition specified: gpus: Invalid name"
    assert "sinfo" in caught.value.hint


PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED \
State=UP TotalNodes=2
PartitionName=gpu AllowGroups=ALL AllowAccounts=physics,bio AllowQos=ALL Default=NO MaxNodes=1 MaxTime=02:00:00 \
State=UP TotalNodes=8
PartitionName=old AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO MaxNodes=UNLIMITED MaxTime=1-00:00:00 \
State=DOWN TotalNodes=8
"""
NODES = "NodeName=n1 NodeAddr=10.0.0.1 State=IDLE\nNodeName=n2 NodeAddr={} State=IDLE\n"


@pytest.mark.parametrize(
    ("count", "options", "words"),
    [
        (2, {}, []),
        (3, {}, ["the partition cpu has 2 nodes and 3 are asked for", "PartitionNodeLimit"]),
        (1, {"partition": "gpu"}, ["gpu allows a job 7200 s and max_run is 86400 s", "PartitionTimeLimit", "max_run"]),
        (2, {"partition": "gpu"}, ["allows a job 7200 s", "allows a job 1 nodes and 2 are asked for"]),
        (2, {"partition": "gpu", "qos": "long"}, []),
        (1, {"partition": "gpu", "qos": "long", "account": "art"}, ["'art' (AllowAccounts=physics,bio)", "Config"]),
        (1, {"partition": "old"}, ["the partition old is DOWN"]),
        (1, {"partition": "cpus"}, ["no partition 'cpus'; did you mean 'cpu'?"]),
        (1, {"partition": "xyz"}, ["no partition 'xyz'; there are cpu, gpu, old"]),
        (9, {"partition": "cpu,gpu"}, []),
        (9, {"options": ["--partitio=gpu"]}, []),
    ],
)
def test_what_a_partition_does_not_allow_is_said_when_a_job_is_planned(
    count: int, options: dict[str, object], words: list[str], stage: Stage
) -> None:
    (stage.folder / "partitions").write_text(PARTITIONS)
    (stage.folder / "nodes").write_text(NODES.format("10.0.0.2"))
    job = Job(
        "demo", entry_point="train.py", instance_count=count, instance_type="ml.c5.xlarge", engines={"slurm": options}
    )
    doubts = plan_slurm_job(job, (), stage.run.paths, "python").doubts()
    assert bool(doubts) == bool(words), doubts
    assert all(word in "\n".join(doubts) for word in words), doubts


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "localhost"])
def test_nodes_that_slurm_conf_gives_a_loopback_address_are_named_when_a_job_is_planned(
    address: str, stage: Stage
) -> None:
    (stage.folder / "nodes").write_text(NODES.format(address))
    for count, named in ((1, False), (2, True)):
        job = Job("demo", entry_point="train.py", instance_count=count, instance_type="ml.c5.xlarge")
        doubts = plan_slurm_job(job, (), stage.run.paths, "python").doubts()
        assert ["NodeAddr of n2 in slurm.conf is a loopback address" in each for each in doubts] == [True] * named
    with pytest.raises(EngineRefused) as caught:
        addresses_of(("n1", "n2"))
    assert f"slurm.conf has NodeAddr={address} for it" in caught.value.hint


def test_where_slurm_does_not_answer_a_plan_says_nothing_of_partitions(stage: Stage) -> None:
    stage.scontrol_fails(NO_ANSWER)
    job = Job("demo", entry_point="train.py", instance_count=1, instance_type="ml.c5.xlarge")
    assert plan_slurm_job(job, (), stage.run.paths, "python").doubts() == ()


NO_ANSWER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
NO_CONF = (
    "squeue: error: fetch_config: DNS SRV lookup failed\nsqueue: fatal: Could not establish a configuration source"
)


@pytest.mark.parametrize(
    ("printed", "message", "hint"),
    [
        (NO_ANSWER, "Slurm does not answer: Unable to contact slurm controller (connect failure)", "not stopped"),
        (NO_CONF, "this machine is not configured for Slurm (no slurm.conf, SLURM_CONF is not set)", "login node"),
    ],
)
def test_who_stops_a_run_while_slurm_does_not_answer_is_told_so_and_the_logs_are_shown(
    stage: Stage, printed: str, message: str, hint: str
) -> None:
    stage.ticket()
    (stage.folder / "squeue.fails").write_text(printed)
    (stage.run.paths.engine / "srun.log").write_text("srun: error: x\n")
    with pytest.raises(SlurmUnreachable) as caught:
        slurm_engine.ENGINE.stop(stage.run)
    assert caught.value.message == message
    assert hint in caught.value.hint
    shown = slurm_engine.ENGINE.logs(stage.run)
    assert [document.name for document in shown] == ["engine/srun.log", "scontrol-show-job.txt"]
    assert message in shown[-1].text
    (stage.folder / "sbatch.fails").write_text(printed)
    with pytest.raises(SlurmUnreachable, match=r"does not answer|not configured"):
        slurm_commands.submit(stage.folder / "job.sbatch")


EXECVE = "slurmstepd-data1: error: execve(): apptainer: No such file or directory\n"
EXITED = "srun: error: data1: task 0: Exited with exit code 2\n"


def test_why_no_agent_started_is_what_slurm_says_of_this_attempt(stage: Stage, instances: SlurmInstances) -> None:
    engine = stage.run.paths.engine
    (engine / "srun.log").write_text(EXITED)
    earlier = EXECVE.replace("apptainer", "earlier")
    (engine / "agent-data1.log").write_text(earlier + EXECVE)
    instances._printed_before = {"agent-data1.log": len(earlier)}
    status, cause = instances.verdict()
    assert (status, cause.kind if cause else None) == (Status.FAILED, CauseKind.INSTANCE_NOT_STARTED)
    assert str(cause).endswith("): data1: execve(): apptainer: No such file or directory")
    assert cause is not None
    assert cause.last_lines == (EXECVE.strip(), EXITED.strip())


def test_of_what_srun_prints_the_line_that_helps_is_quoted() -> None:
    wrong_option = ["srun: unrecognized option '--container-image=x'", 'Try "srun --help" for more information']
    assert why_no_agents({}, wrong_option) == "unrecognized option '--container-image=x'"
    assert why_no_agents({}, ['srun: error: "zz" is not a valid node count']) == '"zz" is not a valid node count'
    node = {"data1": ["FATAL: could not open image"]}
    assert why_no_agents(node, [EXITED.strip()]) == "data1: FATAL: could not open image"
    ended = [
        "No module named headrace",
        "slurmstepd-d1: error: *** STEP 4.0 ON d1 CANCELLED AT 2026-11-22T18:09:19 ***",
    ]
    assert why_no_agents({"d1": ended[:1]}, ["srun: got SIGCONT"]) == "d1: No module named headrace"
    assert why_no_agents({"d1": ended}, ["srun: error: Node failure on d1"]) == "Node failure on d1"
    assert why_no_agents({}, []) == "it said nothing"
    fatal = "Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding"
    python = [
        "Python path configuration:",
        "  PYTHONHOME = '/opt/other'",
        "  isolated = 0",
        fatal,
        "",
        "<no Python frame>",
    ]
    assert why_no_agents({"d1": python}, [EXITED.strip()]) == f"d1: {fatal} (PYTHONHOME = '/opt/other')"
    python[1] = "  PYTHONHOME = (not set)"
    assert why_no_agents({"d1": python}, []) == f"d1: {fatal}"


def test_a_host_starts_whatever_pythonpath_a_task_prolog_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/opt/site")
    modules = (
        "headrace.hosting.isolation.enter_namespaces"  # it is started with -S: nothing is found by being installed
    )
    code = f"import os, sys, {modules}; sys.exit(0 if '/opt/site' in os.environ['PYTHONPATH'] else 3)"
    started = enter_host._start(AgentStarter(), "algo-1", [sys.executable, "-S", "-c", code], {RUN_ID: "demo"})
    assert os.waitstatus_to_exitcode(os.waitpid(started, 0)[1]) == 0


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("PartitionConfig", "as it is: stop it, and change what it asks for"),
        ("PartitionTimeLimit", "as it is: its partition allows less time; stop it, and set stopping_condition.max_run"),
        ("QOSMaxWallDurationPerJobLimit", "as it is: stop it, and change what it asks for"),
        ("PartitionNodeLimit", "as it is, unless it only waits for nodes that are down"),
        ("QOSMaxJobsPerUserLimit", ""),
        ("Resources", ""),
    ],
)
def test_a_job_that_waiting_does_not_help_says_so_while_it_waits(stage: Stage, reason: str, told: str) -> None:
    stage.ticket()
    stage.queue("PENDING")
    queue = stage.folder / "queue"
    queue.write_text(queue.read_text().replace("|None|", f"|{reason}|"))
    slurm_engine.ENGINE.refresh(stage.run)
    last = stage.run.state().transitions[-1]
    words = f". Slurm will not start this job {told}" if told else ""
    assert (last.status, last.message) == (SecondaryStatus.PENDING, f"Slurm job 7 waits: {reason}{words}")


def test_slurm_is_asked_once_more_at_the_end_when_no_component_had_ended_before(
    stage: Stage, instances: SlurmInstances
) -> None:
    stage.shown("COMPLETING")
    instances.stop(LeadSignals(stage.run.paths, 7, 120.0).orders[signal.SIGTERM](False))
    stage.shown("CANCELLED")
    first = (stage.folder / "shown").read_text()
    (stage.folder / "shown").write_text(first + first.replace("JobId=7", "JobId=8 HetJobOffset=1"))
    status, cause = instances.verdict()
    assert (status, str(cause)) == (Status.FAILED, "Slurm job 7 was cancelled (scancel)")


@pytest.mark.parametrize(("state", "restarts", "returns"), [("CANCELLED", 0, False), ("PENDING", 1, True)])
def test_a_run_that_slurm_ends_while_it_is_prepared_returns_only_if_slurm_has_queued_its_job_again(
    stage: Stage, instances: SlurmInstances, state: str, restarts: int, returns: bool
) -> None:
    stage.shown(state, restarts=restarts)
    order = instances.explained(LeadSignals(stage.run.paths, 7, 120.0).orders[signal.SIGTERM](False))
    words = "was ended and queued again" if returns else "was cancelled (scancel)"
    assert (order.reason, order.failed, order.infrastructure) == (f"Slurm job 7 {words}", True, True)
    assert instances.needs_others() is returns
