"""Whole runs on a real Slurm cluster: what completes, is stopped or fails, and that nothing is left on the nodes."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from slurm_cluster import HEAD, NODES, SlurmCluster
from stage import text, until

from headrace.engines.slurm.ticket import read_ticket
from headrace.job import load_job
from headrace.runs import CauseKind, Run, RunPaths, Status
from headrace.runs.events import AttemptStarted, JobStarted, SecondaryStatus

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=slurm_cluster.why_not() or "there is Slurm"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = {"name": "data_group", "type": "ml.c5.xlarge", "count": 1}
DNN = {"name": "dnn_group", "type": "ml.g5.xlarge", "count": 1}
PARTITIONS = {"data_group": {"partition": "data"}, "dnn_group": {"partition": "dnn", "gres": "gpu:1"}}
LIMIT = "the time limit of Slurm job {} is near"
RANKS = "torch_distributed.processes_per_host"
MARKED = """
import os, pathlib, signal, sys, time
mark = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints" / "mark"
def save(*_):
    print("saving", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
if mark.exists():
    sys.exit(0)
mark.touch()
print("marked", flush=True)
time.sleep(600)
"""
"""Says what it has done in its first attempt, and completes in its second one."""
WAIT = """
import os, pathlib, signal, sys, time
def save(*_):
    print("saving", flush=True)
    pathlib.Path(os.environ["SM_MODEL_DIR"], "saved").write_text("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("running", flush=True)
time.sleep(600)
"""


class Submitted:
    """A run that was submitted on the login node; its record is read here, from the shared file system."""

    def __init__(self, cluster: SlurmCluster, run_id: str) -> None:
        self.cluster = cluster
        self.id = run_id
        self.run = Run(RunPaths(cluster.folder / "headrace" / "runs" / run_id), alive=lambda _: True)

    @property
    def job_id(self) -> int:
        return read_ticket(self.run.paths).job_id

    def started(self) -> None:
        until(lambda: any(isinstance(event, JobStarted) for event in self.run.events()), 60, f"{self.id} starts")

    def said(self, words: str, seconds: float = 60) -> None:
        until(lambda: words in text(self) or self.run.finished, seconds, f"{self.id} says {words}")
        assert words in text(self), f"{self.run.cause}: {self._logs()}"

    def ended(self, seconds: float = 90) -> Status:
        until(lambda: self.run.finished, seconds, f"{self.id} ends: {self._logs()}")
        return self.run.status

    def completed(self) -> None:
        assert self.ended() is Status.COMPLETED, f"{self.run.cause}\n{text(self)}\n{self._logs()}"

    def nodes(self) -> list[str]:
        """Names of the nodes that it has, in the order of the components."""
        words = ["squeue", "-h", "--states=all", "-j", str(self.job_id), "-o", "%i %N"]
        return [line.split()[1] for line in sorted(self.cluster.on(HEAD, *words).stdout.splitlines())]

    def restarts(self) -> list[str]:
        """Why another attempt had to wait for nodes; {} in place of the job's id."""
        parts = self.run.state().transitions
        found = [part.message for part in parts if part.status is SecondaryStatus.RESTARTING]
        return [message.replace(f"job {self.job_id}", "job {}") for message in found]

    def headrace(self, command: str, *options: str, check: bool = True) -> str:
        return headrace(self.cluster, command, self.id, *options, check=check)

    def is_in(self, *states: str) -> None:
        """Waits until Slurm says this of the components of the job."""
        words = ["squeue", "-h", "--states=all", "-j", str(self.job_id), "-o", "%T"]
        until(lambda: self.cluster.on(HEAD, *words).stdout.split() == list(states), 20, f"{self.id} is {states}")

    def _logs(self) -> str:
        logs = sorted(self.run.paths.engine.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs if log.stat().st_size)


def headrace(cluster: SlurmCluster, *command: str, check: bool = True) -> str:
    return cluster.on(HEAD, sys.executable, "-m", "headrace.cli.main", *command, check=check).stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    folder = Path(tempfile.mkdtemp(prefix="hs-"))
    try:
        with slurm_cluster.slurm_cluster(folder / "shared") as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_job_is_left(cluster: SlurmCluster) -> Iterator[None]:
    """A test that fails does not leave its nodes to a job that the next one would wait for."""
    yield
    jobs = [line.split() for line in cluster.on(HEAD, "squeue", "-h", "-o", "%A %j").stdout.splitlines()]
    left = [job_id for job_id, name in jobs if name != "limit"]
    if left:
        cluster.on(HEAD, "scancel", *left, check=False)


@pytest.fixture(scope="module")
def limited(cluster: SlurmCluster) -> Submitted:
    """A run that Slurm's time limit stops, which takes a minute: beside the other tests, on a node of its own."""
    slurm = {"stop_grace": 1, "options": ["--time=2"], "partition": "data"}
    return start(cluster, "limit", WAIT, instance_groups=[DATA], engines={"slurm": slurm})


def job_file(cluster: SlurmCluster, name: str, script: str = "", **fields: object) -> str:
    """Writes a job on the shared file system."""
    code = cluster.folder / name
    code.mkdir()
    (code / "train.py").write_text(script)
    given: dict[str, Any] = {
        "job_name": name,
        "source_dir": str(code),
        "entry_point": "train.py",
        "instance_groups": [DATA, DNN],
        **fields,
    }
    nodes = {group["name"]: PARTITIONS[group["name"]] for group in given["instance_groups"]}
    given.setdefault("engines", {"slurm": {"stop_grace": 5, "groups": nodes}})
    file = cluster.folder / f"{name}.yaml"
    file.write_text(json.dumps(given))
    return str(file)


def submit(cluster: SlurmCluster, file: str, *options: str) -> Submitted:
    return Submitted(cluster, headrace(cluster, "run", "--engine", "slurm", "--detach", file, *options).strip())


def start(cluster: SlurmCluster, name: str, script: str, **fields: object) -> Submitted:
    return submit(cluster, job_file(cluster, name, script, **fields))


def example(cluster: SlurmCluster, file: str, *options: str) -> Submitted:
    """Submits an example, with its options of the Slurm engine."""
    job = load_job(str(EXAMPLES / file), list(options))
    groups = {name: {"partition": "dnn" if "data" not in name else "data"} for name in job.hosts}
    given = json.loads(job.to_json())
    given["source_dir"] = str(job.base_path / given["source_dir"])
    for channel in given.get("inputs", {}).values():
        channel["s3_data"] = str((job.base_path / channel["s3_data"]).resolve())
    given["engines"] = {"slurm": {"groups": groups, "stop_grace": 5}}
    given["environment"] = {**given.get("environment", {}), "OMP_NUM_THREADS": "1"}
    written = cluster.folder / f"{job.job_name}.yaml"
    written.write_text(json.dumps(given))
    return submit(cluster, str(written))


def result_of(run: Run, host: str) -> dict[str, object]:
    return json.loads((run.paths.host(host) / "output" / "data" / "result.json").read_text())


@pytest.fixture(scope="module")
def digits() -> Path:
    spec = importlib.util.spec_from_file_location("digits_prepare", EXAMPLES / "digits" / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    prepare.main(EXAMPLES / "digits" / "data")
    return EXAMPLES / "digits" / "data"


@pytest.mark.usefixtures("limited")
def test_two_groups_say_hello_from_their_nodes_and_leave_nothing(cluster: SlurmCluster) -> None:
    script = "import os, socket, headrace\nenv = headrace.Environment()\n"
    script += "print(env.current_host, env.current_instance_group, socket.gethostname(), env.network_interface_name)\n"
    script += "print(os.environ['SLURM_PROCID'], os.environ['TMPDIR'], os.environ.get('CUDA_VISIBLE_DEVICES'))\n"
    file = job_file(cluster, "hello", script)
    done = cluster.on(HEAD, sys.executable, "-m", "headrace.cli.main", "run", "--engine", "slurm", file)
    assert re.search(r"data_group/algo-1\[0\] algo-1 data_group data[12] eth0", done.stdout)
    assert "dnn_group/algo-2[0] algo-2 dnn_group dnn1 eth0" in done.stdout
    (folder,) = (cluster.folder / "headrace" / "runs").glob("hello-*")
    run = Submitted(cluster, folder.name)
    run.completed()
    run.is_in("COMPLETED", "COMPLETED")
    words = {str(line.stream): line.text.split() for line in run.run.logs() if line.text[0].isdigit()}
    assert [words[f"{group}[0]"][0] for group in ("data_group/algo-1", "dnn_group/algo-2")] == ["0", "0"]
    assert words["dnn_group/algo-2[0]"][2] == "0"
    nodes = NODES.keys() & set(done.stdout.split())
    assert len(nodes) == 2
    for node in nodes:
        assert cluster.processes(node) == []
        assert not cluster.on(node, "sh", "-c", "ls -d /tmp/headrace-*", check=False).stdout
    secret = folder / "hosts" / "algo-1" / "input" / "data" / "headrace" / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.read_text() not in (folder / "engine" / "job.sbatch").read_text()
    assert (folder / "engine" / "environment.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.torch
def test_the_digits_are_learnt_with_the_same_losses_as_on_one_machine(
    cluster: SlurmCluster, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = example(cluster, "digits/heterogeneous.yaml", "hyperparameters.epochs=1")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    options = ["hyperparameters.epochs=1", "engines.local.isolation=none", "environment.OMP_NUM_THREADS=1"]
    local = load_job(str(EXAMPLES / "digits" / "homogeneous.yaml"), options).fit(logs=False)
    remote.completed()
    alone, nodes = result_of(Run.open(local.id), "algo-1"), result_of(remote.run, "algo-2")
    assert len(alone["losses"]) == 23
    assert nodes["losses"] == alone["losses"]
    assert nodes["accuracy"] == alone["accuracy"]
    assert {each.stream.host for each in remote.run.programs if each.stream.name == "feed"} == {"algo-1", "algo-2"}
    assert not remote.run.degraded
    plan = json.loads(remote.run.paths.plan.read_bytes())
    executors = {group["name"]: group["feed_executors"] for group in plan["groups"]}
    assert executors == {"data_group": 2, "dnn_group": 1}, "the CPUs of their nodes, without those of the ranks"


@pytest.mark.torch
def test_torchrun_trains_on_the_nodes_of_one_group_as_a_plain_job(cluster: SlurmCluster, digits: Path) -> None:
    run = example(cluster, "torchrun/torchrun.yaml", "hyperparameters.epochs=1", f"distribution.{RANKS}=1")
    run.completed()
    assert "hetjob" not in (run.run.paths.engine / "job.sbatch").read_text()
    run.is_in("COMPLETED")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed: no mpirun")
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
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


def test_a_failed_attempt_is_followed_by_another_one_on_the_same_nodes(cluster: SlurmCluster) -> None:
    script = (
        "import os, pathlib, sys\nmark = pathlib.Path(os.environ['SM_MODEL_DIR']).parent / 'checkpoints' / 'mark'\n"
    )
    script += "sys.exit(0) if mark.exists() else mark.touch()\nsys.exit(3)\n"
    run = start(cluster, "again", script, retry={"attempts": 1, "on": "any"}, instance_groups=[DNN])
    run.completed()
    assert any(isinstance(event, AttemptStarted) for event in run.run.events())


def test_the_time_limit_stops_the_run_in_order_before_slurm_does(limited: Submitted) -> None:
    limited.said("saving", 120)
    assert limited.ended() is Status.STOPPED
    cause = limited.run.cause
    assert cause is not None
    assert (cause.kind, str(cause)) == (CauseKind.MAX_RUN, f"MaxRuntimeExceeded: {LIMIT.format(limited.job_id)}")
    assert limited.run.state().secondary_status is SecondaryStatus.MAX_RUNTIME_EXCEEDED
    limited.is_in("FAILED")


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


def test_stop_now_does_not_wait_for_a_program_that_does_not_listen(cluster: SlurmCluster) -> None:
    deaf = WAIT.replace("signal.signal(signal.SIGTERM, save)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    slurm = {"stop_grace": 300, "partition": "dnn"}
    run = start(cluster, "deaf", deaf, instance_groups=[DNN], engines={"slurm": slurm})
    run.said("running")
    run.headrace("stop", "--now")
    assert run.ended(30) is Status.STOPPED
    assert run.run.state().exit_code == 130


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


LONG = """
import headrace, time
from headrace import feed
from data import squares
for step, batch in enumerate(feed.DataLoader(squares(), global_batch_size=4, shuffle=True, seed=3)):
    print("step", step, flush=True)
"""
SQUARES = """
import time
from headrace import feed
class Squares:
    def __len__(self): return 400
    def __getitem__(self, index):
        time.sleep(0.05)
        return index * index
@feed.pipeline
def squares(): return Squares()
"""


@pytest.mark.torch
def test_a_data_node_may_die_and_the_leaders_may_not_and_with_retry_slurm_finds_another_one(
    cluster: SlurmCluster,
) -> None:
    # two nodes: Slurm 22.05 ends the whole job with the last node of a component, whatever --no-kill says
    service = {"feed": {"enabled": True, "workers_per_host": 2}, "instance_groups": ["data_group"]}
    groups = [{**DATA, "count": 2}, DNN]
    tls = {"encrypt_inter_container_traffic": True}
    file = job_file(cluster, "survives", LONG, data_service=service, instance_groups=groups, **tls)
    (cluster.folder / "survives" / "data.py").write_text(SQUARES)
    dies = start(cluster, "dies", WAIT, instance_groups=[DATA])
    returns = start(cluster, "returns", MARKED, instance_groups=[DNN], retry={"attempts": 1})
    dies.said("running")
    returns.said("marked")
    (dead,), (lost,) = dies.nodes(), returns.nodes()
    lives = submit(cluster, file)
    lives.said("step 5")
    other = next(name for name in NODES if name.startswith("data") and name != dead)
    killed = (dead, lost, other)
    for node in killed:
        cluster.kill(node)
    lives.completed()
    assert lives.run.degraded
    assert text(lives).count("step") == 100
    dies.headrace("wait", check=False)
    assert dies.ended(1) is Status.FAILED
    cause = dies.run.cause
    assert cause is not None
    assert (cause.kind, cause.infrastructure) == (CauseKind.ENGINE_FAILED, True)
    assert dead in str(cause)
    returns.completed()
    assert {lost, *returns.nodes()} == {"dnn1", "dnn2"}
    assert returns.restarts() == [f"Attempt 2 of 2, after: dnn_group/algo-1: Slurm job {{}} lost a node: {lost}"]
    for node in killed:
        cluster.revive(node)
    cluster.await_nodes()


def test_a_preempted_run_saves_and_goes_on_when_it_has_nodes_again_and_without_retry_the_cause_is_told(
    cluster: SlurmCluster,
) -> None:
    cancelled = {"slurm": {"stop_grace": 5, "partition": "cancelled"}}  # Slurm does not queue its jobs again
    retry = {"attempts": 1}
    first = start(cluster, "again-1", MARKED, instance_groups=[DATA, DNN], retry=retry)
    first.said("marked")
    second = start(cluster, "again-2", MARKED, instance_groups=[DATA], retry=retry, engines=cancelled)
    fails = start(cluster, "again-0", WAIT, instance_groups=[DATA], engines=cancelled)
    second.said("marked")
    fails.said("running")
    urgent = ["sbatch", "--parsable", "-p", "urgent", "--exclusive", "-N5", "--wrap", "sleep 600"]
    job_id = cluster.on(HEAD, *urgent, "--output=/dev/null").stdout.strip()
    assert fails.ended(30) is Status.FAILED
    cause = fails.run.cause
    assert cause is not None
    assert (cause.kind, cause.infrastructure) == (CauseKind.PREEMPTED, True)
    for run in (first, second):
        until(run.restarts, 30, "the run waits for another attempt")
    listed = json.loads(headrace(cluster, "ps", "--output", "json"))
    waiting = {line["run_id"] for line in listed if line["secondary_status"] == "Pending"}
    assert waiting == {first.id, second.id}
    cluster.on(HEAD, "scancel", job_id)
    for run in (first, second):
        run.completed()
        assert "saving" in text(run)
    assert first.restarts() == ["Attempt 2 of 2, after: Slurm job {} was ended and queued again (preemption)"]
    assert second.restarts() == ["Attempt 2 of 2, after: Slurm job {} was preempted"]
