"""Whole runs on a real Slurm cluster: what completes, is stopped or fails, and that nothing is left on the nodes."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import SOAK
from slurm_cluster import HEAD, NODES, SlurmCluster
from slurm_stage import (
    DATA,
    DNN,
    EXAMPLES,
    PARTITIONS,
    WAIT,
    Submitted,
    end_jobs,
    example,
    headrace,
    job_file,
    needs_slurm,
    start,
    started_cluster,
)
from stage import text

from few_digits import write_few
from headrace.agent.control.control_messages import SILENCE_LIMIT
from headrace.instance.launch_plan import LaunchPlan
from headrace.job import load_job
from headrace.runs import CauseKind, Run, Status, read_plan
from headrace.runs.events import HostIsolated, SecondaryStatus
from patience import until

pytestmark = [pytest.mark.timeout(600), needs_slurm]
LIMIT = "the time limit of Slurm job {} is near"
RANKS = "torch_distributed.processes_per_host"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with started_cluster() as started:
        yield started


@pytest.fixture(autouse=True)
def no_job_is_left(cluster: SlurmCluster) -> Iterator[None]:
    yield
    end_jobs(cluster, without="limit")


@pytest.fixture(scope="module")
def limited(cluster: SlurmCluster) -> Submitted:
    """A run that Slurm's time limit stops, which takes a minute: beside the other tests, on a node of its own."""
    slurm = {"stop_grace": 1, "options": ["--time=2"], "partition": "data"}
    return start(cluster, "limit", WAIT, instance_groups=[DATA], engines={"slurm": slurm})


def result_of(run: Run, host: str) -> dict[str, object]:
    return json.loads((run.paths.host(host) / "output" / "data" / "result.json").read_text())


@pytest.fixture(scope="module")
def digits(cluster: SlurmCluster) -> str:
    """The override that names five batches of digits, where all nodes see them."""
    return f"inputs.training={write_few(cluster.folder / 'digits', 5 * 64)}"


@pytest.mark.promise("engines", "instances, on slurm")
@pytest.mark.promise("slurm", "the same job file runs on Slurm, one node a host, with the same losses bit by bit")
@pytest.mark.promise("slurm-reference", "Slurm: the variables of the submitting shell do not stay in the run's folder")
@pytest.mark.usefixtures("limited")
def test_two_groups_say_hello_from_their_nodes_and_leave_nothing(cluster: SlurmCluster) -> None:
    script = "import os, socket, headrace\nenv = headrace.Environment()\n"
    script += "print(env.current_host, env.current_instance_group, socket.gethostname(), env.network_interface_name)\n"
    script += "print(os.environ['SLURM_PROCID'], os.environ['TMPDIR'], os.environ.get('CUDA_VISIBLE_DEVICES'))\n"
    script += (
        "print('node', os.environ['SLURMD_NODENAME'], os.environ['SM_MODEL_DIR'], os.path.isdir('/opt/ml/code'))\n"
    )
    script += "print('found', *(socket.gethostbyname(name) for name in env.hosts))\n"
    file = job_file(cluster, "hello", script)
    done = cluster.on(HEAD, sys.executable, "-m", "headrace.cli.main", "run", "--engine", "slurm", file)
    assert re.search(r"data_group/algo-1\[0\] algo-1 data_group algo-1 eth0", done.stdout)
    assert "dnn_group/algo-2[0] algo-2 dnn_group algo-2 eth0" in done.stdout
    (folder,) = (cluster.folder / "headrace" / "runs").glob("hello-*")
    run = Submitted(cluster, folder.name)
    run.completed()
    run.is_in("COMPLETED", "COMPLETED")
    words = {str(line.stream): line.text.split() for line in run.run.logs() if line.text[0].isdigit()}
    assert [words[f"{group}[0]"][0] for group in ("data_group/algo-1", "dnn_group/algo-2")] == ["0", "0"]
    assert words["dnn_group/algo-2[0]"][2] == "0"
    nodes = NODES.keys() & set(done.stdout.split())
    assert len(nodes) == 2
    assert done.stdout.count("/opt/ml/model True") == 2
    addresses = [host.address for host in read_plan(run.run.paths, LaunchPlan).hosts]
    assert done.stdout.count(f"found {' '.join(addresses)}") == 2
    assert "isolation: auto (on each node the best that works there)" in done.stdout
    levels = [(each.host, each.level, each.why) for each in run.run.events() if isinstance(each, HostIsolated)]
    why = "namespaces work on this node"
    assert sorted(levels) == [(host, "shared_network", why) for host in ("algo-1", "algo-2")]
    for node in nodes:
        assert cluster.processes(node) == []
        assert not cluster.on(node, "sh", "-c", "ls -d /tmp/headrace-*", check=False).stdout
    secret = folder / "hosts" / "algo-1" / "input" / "data" / "headrace" / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.read_text() not in (folder / "engine" / "job.sbatch").read_text()
    assert not (folder / "engine" / "environment.json").exists(), "no secret of the user's shell stays"


@pytest.mark.promise("engines", "channels, on slurm")
@pytest.mark.promise("slurm", "the same job file runs on Slurm, one node a host, with the same losses bit by bit")
@pytest.mark.torch
def test_the_digits_are_learnt_with_the_same_losses_as_on_one_machine(
    cluster: SlurmCluster, digits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = example(cluster, "digits/heterogeneous.yaml", "hyperparameters.epochs=1", digits)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    options = [digits, "hyperparameters.epochs=1", "engines.local.isolation=none", "environment.OMP_NUM_THREADS=1"]
    local = load_job(str(EXAMPLES / "digits" / "homogeneous.yaml"), options).fit(logs=False)
    remote.completed()
    alone, nodes = result_of(Run.open(local.id), "algo-1"), result_of(remote.run, "algo-2")
    assert len(alone["losses"]) == 5
    assert nodes["losses"] == alone["losses"]
    assert nodes["accuracy"] == alone["accuracy"]
    assert {each.stream.host for each in remote.run.programs if each.stream.name == "feed"} == {"algo-1", "algo-2"}
    assert not remote.run.degraded
    plan = json.loads(remote.run.paths.plan.read_bytes())
    executors = {group["name"]: group["feed_executors"] for group in plan["groups"]}
    assert executors == {"data_group": 2, "dnn_group": 1}, "the CPUs of their nodes, without those of the ranks"


@pytest.mark.promise("slurm", "the same job file runs on Slurm, one node a host, with the same losses bit by bit")
@pytest.mark.needs("mpirun", "libmpi", "mpi4py")
def test_mpirun_starts_ranks_on_the_nodes_although_slurm_has_filled_them(cluster: SlurmCluster) -> None:
    run = example(cluster, "mpi-hello/mpi-hello.yaml")
    run.completed()
    ranks = {(each.stream.host, each.stream.name) for each in run.run.programs if each.stream.name.isdigit()}
    assert ranks == {("algo-1", "0"), ("algo-1", "1"), ("algo-2", "2"), ("algo-2", "3")}


def test_a_failed_program_is_the_cause_and_slurms_job_has_failed_too(cluster: SlurmCluster) -> None:
    script = "import headrace, sys, time\nprint('words', flush=True)\n"
    script += "sys.exit(7) if headrace.Environment().current_host == 'algo-2' else time.sleep(600)\n"
    run = start(cluster, "fails", script)
    assert run.ended() is Status.FAILED
    cause = run.run.cause
    assert cause is not None
    assert (cause.kind, cause.host, cause.exit_code) == (CauseKind.PROGRAM_EXITED, "algo-2", 7)
    run.is_in("FAILED", "FAILED")
    waited = cluster.on(HEAD, sys.executable, "-m", "headrace.cli.main", "wait", run.id, check=False)
    assert waited.returncode == 1


def test_an_option_that_srun_does_not_know_is_told_at_once_whatever_group_it_is_of(cluster: SlurmCluster) -> None:
    def wrong(name: str, group: str) -> Submitted:
        nodes = {**PARTITIONS, group: {**PARTITIONS[group], "step_options": ["--no-such-option"]}}
        return start(cluster, name, WAIT, engines={"slurm": {"stop_grace": 5, "groups": nodes}})

    wrong_runs = [(wrong("wrong-1", "data_group"), "")] if SOAK else []
    for run, which in [*wrong_runs, (wrong("wrong-2", "dnn_group"), "of dnn_group ")]:
        assert run.ended(60) is Status.FAILED  # the start timeout is 600 s
        cause = run.run.cause
        assert cause is not None
        assert cause.kind is CauseKind.INSTANCE_NOT_STARTED
        assert re.fullmatch(
            rf"Slurm did not start the agents {which}on the nodes \(\d+ s; srun exited with code \d+\): "
            "unrecognized option '--no-such-option'",
            cause.reason,
        ), cause.reason


def test_the_time_limit_stops_the_run_in_order_before_slurm_does(limited: Submitted) -> None:
    limited.said("saving", 120)
    assert limited.ended() is Status.STOPPED
    cause = limited.run.cause
    assert cause is not None
    assert (cause.kind, str(cause)) == (CauseKind.MAX_RUN, f"MaxRuntimeExceeded: {LIMIT.format(limited.job_id)}")
    assert limited.run.state().secondary_status is SecondaryStatus.MAX_RUNTIME_EXCEEDED
    limited.is_in("FAILED")


@pytest.mark.promise("engines", "queue, on slurm")
@pytest.mark.promise("engines", "the programs save on a stop, on slurm")
@pytest.mark.promise(
    "slurm-reference", "on Slurm only a person's stop is Stopped; lost and preempted nodes are tried again"
)
def test_stop_lets_programs_save_and_a_waiting_run_is_shown_as_waiting_and_stopped_too(cluster: SlurmCluster) -> None:
    both = [{**DATA, "count": 2}, {**DNN, "count": 2}]
    first = start(cluster, "first", WAIT, instance_groups=both)
    first.said("running")
    second = start(cluster, "second", WAIT)
    listed = {
        line["run_id"]: line["secondary_status"] for line in json.loads(headrace(cluster, "ps", "--output", "json"))
    }
    assert listed == {first.id: "Training", second.id: "Pending"}
    second.headrace("stop")
    assert second.ended(5) is Status.STOPPED
    second.is_in("CANCELLED", "CANCELLED")
    first.headrace("stop")
    assert first.ended() is Status.STOPPED
    cause = first.run.cause
    assert cause is not None
    assert (cause.kind, text(first).count("saving")) == (CauseKind.STOPPED, 4)
    assert first.run.state().exit_code == 130
    assert list((first.run.paths.root / "output").rglob("model.tar.gz")), "what was saved was collected"


@pytest.mark.promise("slurm-reference", "a run that is stopped or suspended as a whole goes on when it is continued")
def test_a_suspended_job_goes_on_when_it_is_resumed_and_can_be_stopped_while_it_is_not(cluster: SlurmCluster) -> None:
    run = start(cluster, "pause", WAIT, instance_groups=[DATA])
    run.said("running")
    cluster.on(HEAD, "scontrol", "suspend", str(run.job_id))
    run.is_in("SUSPENDED")
    assert f"Slurm job {run.job_id} is suspended" in run.headrace("status")
    time.sleep(SILENCE_LIMIT + 1)  # so long nobody hears anybody
    cluster.on(HEAD, "scontrol", "resume", str(run.job_id))
    run.is_in("RUNNING")
    time.sleep(2)
    assert not run.run.finished, run.run.cause
    cluster.on(HEAD, "scontrol", "suspend", str(run.job_id))
    run.is_in("SUSPENDED")
    run.headrace("stop")
    until(lambda: run.headrace("status", check=False) and run.run.finished, 60, "the run ends")
    assert (run.run.status, str(run.run.cause)) == (Status.STOPPED, "stopped by the user")


@pytest.mark.promise("engines", "who answers for a run, on slurm")
def test_when_the_lead_is_killed_the_run_has_failed_and_nothing_is_left_on_the_nodes(cluster: SlurmCluster) -> None:
    run = start(cluster, "headless", WAIT)
    run.said("running")
    nodes = sorted(cluster.on(HEAD, "squeue", "-h", "-j", str(run.job_id), "-o", "%N").stdout.split())
    cluster.on(nodes[0], "pkill", "-KILL", "-f", "headrace.engines.slurm.lead")  # of data_group, the leader's
    run.headrace("wait", check=False)
    assert run.ended(1) is Status.FAILED
    cause = run.run.cause
    assert cause is not None
    assert (cause.kind, cause.infrastructure) == (CauseKind.ENGINE_FAILED, True)
    for node in nodes:
        until(lambda node=node: cluster.processes(node) == [], 15, f"nothing runs on {node}")


@pytest.mark.promise("engines", "the programs save on a stop, on slurm")
@pytest.mark.promise(
    "slurm-reference", "on Slurm only a person's stop is Stopped; lost and preempted nodes are tried again"
)
def test_what_slurm_cancels_has_failed_and_was_not_stopped(cluster: SlurmCluster) -> None:
    run = start(cluster, "cancelled", WAIT)
    run.said("running")
    cluster.on(HEAD, "scancel", str(run.job_id))
    run.headrace("wait", check=False)  # it asks Slurm, if the lead could not say the last word
    assert run.ended(1) is Status.FAILED
    cause = run.run.cause
    assert cause is not None
    assert (cause.kind, cause.infrastructure) == (CauseKind.ENGINE_FAILED, True)
    assert "scancel" in str(cause)
    assert "saving" in text(run)


@pytest.mark.promise("engines", "the submitting process is killed, on slurm")
def test_the_submitting_command_may_be_killed(cluster: SlurmCluster) -> None:
    script = "import time\nprint('running', flush=True)\ntime.sleep(3)\n"
    file = job_file(cluster, "orphan", script, instance_groups=[DNN])
    command = cluster.start(HEAD, sys.executable, "-m", "headrace.cli.main", "run", "--engine", "slurm", file)
    (folder,) = until(lambda: list((cluster.folder / "headrace" / "runs").glob("orphan-*/engine/ticket.json")), 30)
    run = Submitted(cluster, folder.parents[1].name)
    run.said("running")
    cluster.on(HEAD, "pkill", "-KILL", "-f", "orphan.yaml", check=False)
    command.communicate()
    assert command.returncode == -signal.SIGKILL
    run.completed()


def test_a_folder_that_the_nodes_do_not_see_is_named(cluster: SlurmCluster) -> None:
    file = job_file(cluster, "unseen", "print('never')", instance_groups=[DNN])
    words = ["env", "HEADRACE_HOME=/tmp/own", sys.executable, "-m", "headrace.cli.main"]
    done = cluster.on(HEAD, *words, "run", "--engine", "slurm", "--quiet", "--output", "json", file, check=False)
    assert done.returncode == 1
    end = json.loads(done.stdout)
    assert "is not on a file system that the nodes share" in end["cause"]["reason"], end
