"""What becomes of a run on Slurm whose nodes are lost or taken, on the installed Slurm and on 24.11."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from effort import SOAK
from run_places import WITHOUT_TORCH
from slurm_cluster import HEAD, NODES, SlurmCluster
from slurm_stage import (
    DATA,
    DNN,
    MARKED,
    S3_USER,
    WAIT,
    Submitted,
    end_jobs,
    headrace,
    job_file,
    needs_slurm,
    on,
    s3_server,
    start,
    started_cluster,
    submit,
)
from stage import text

from headrace.runs import CauseKind, Run, RunPaths, Status
from headrace.runs.events import AttemptStarted, SecondaryStatus
from held_install import hold_install
from patience import until

pytestmark = [pytest.mark.timeout(600), needs_slurm]
LONG = """
import headrace, time
from headrace import feed
from data import squares, together
loader = feed.DataLoader(squares(), global_batch_size=4, shuffle=True, seed=3, collate_fn=together)
for step, batch in enumerate(loader):
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
def together(samples): return list(samples)
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    with started_cluster(request.param) as started:
        yield started


@pytest.fixture(autouse=True)
def no_job_is_left(cluster: SlurmCluster) -> Iterator[None]:
    yield
    end_jobs(cluster)


@pytest.mark.promise("engines", "another attempt, on slurm")
@on("")
def test_a_failed_attempt_is_followed_by_another_one_on_the_same_nodes(cluster: SlurmCluster) -> None:
    script = (
        "import os, pathlib, sys\nmark = pathlib.Path(os.environ['SM_MODEL_DIR']).parent / 'checkpoints' / 'mark'\n"
    )
    script += "sys.exit(0) if mark.exists() else mark.touch()\nsys.exit(3)\n"
    run = start(cluster, "again", script, retry={"attempts": 1, "on": "any"}, instance_groups=[DNN])
    run.completed()
    assert any(isinstance(event, AttemptStarted) for event in run.run.events())


@pytest.mark.promise(
    "slurm-reference", "on Slurm only a person's stop is Stopped; lost and preempted nodes are tried again"
)
@on("")
def test_a_data_node_may_die_and_the_leaders_may_not_and_with_retry_slurm_finds_another_one(
    cluster: SlurmCluster,
) -> None:
    # two nodes: Slurm 22.05 ends the whole job with the last node of a component, whatever --no-kill says
    service = {"feed": {"enabled": True, "workers_per_host": 2}, "instance_groups": ["data_group"]}
    groups = [{**DATA, "count": 2}, DNN]
    tls = {"encrypt_inter_container_traffic": True}
    file = job_file(
        cluster, "survives", LONG, data_service=service, instance_groups=groups, environment=WITHOUT_TORCH, **tls
    )
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
    assert dies.ended() is Status.FAILED
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


@pytest.fixture
def bucket(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A place below which the cluster's user may store records."""
    monkeypatch.setattr(cluster, "variables", S3_USER)
    with s3_server(cluster):
        yield "s3://bucket/runs"


def stored(run: Submitted, place: str) -> tuple[Run, str]:
    """Returns the record as it is stored, and what `headrace fetch` says of it."""
    folder = run.cluster.folder / "copies"
    said = headrace(run.cluster, "fetch", f"{place}/{run.id}", "--into", str(folder))
    return Run(RunPaths(folder / run.id), alive=lambda _: True), said


if SOAK:  # in every run: the record in its bucket in test_engine_table.py, and over attempts in test_one_host.py

    @pytest.mark.promise("engines", "the record in a bucket, on slurm")
    @pytest.mark.s3
    @on("")
    def test_the_stored_record_of_a_run_that_is_queued_again_says_so_and_goes_on(
        cluster: SlurmCluster, bucket: str
    ) -> None:
        record = {"uri": bucket, "interval": 1}
        run = start(cluster, "kept", MARKED, instance_groups=[DATA], retry={"attempts": 1}, record=record)
        run.said("marked")
        urgent = ["sbatch", "--parsable", "-p", "urgent", "--exclusive", "-N5", "--wrap", "sleep 600"]
        job_id = cluster.on(HEAD, *urgent, "--output=/dev/null").stdout.strip()
        until(run.restarts, 120, "the run waits for another attempt")
        run.is_in("PENDING")
        waiting, _ = stored(run, bucket)
        assert waiting.state().secondary_status is SecondaryStatus.PENDING
        cluster.on(HEAD, "scancel", job_id)
        run.completed()
        run.headrace("wait")
        ended, said = stored(run, bucket)
        assert "complete" in said
        assert ended.status is Status.COMPLETED
        assert ended.events() == run.run.events()
        assert [event.number for event in ended.events() if isinstance(event, AttemptStarted)] == [2]
        assert {"marked", "saving"} <= {line.text for line in ended.logs()}


@pytest.mark.promise(
    "slurm-reference", "on Slurm only a person's stop is Stopped; lost and preempted nodes are tried again"
)
@on("", *(["24.11"] if SOAK else []))
def test_a_preempted_run_saves_and_goes_on_when_it_has_nodes_again_and_without_retry_the_cause_is_told(
    cluster: SlurmCluster,
) -> None:
    cancelled = {"slurm": {"stop_grace": 5, "partition": "cancelled"}}  # Slurm does not queue its jobs again
    retry = {"attempts": 1}
    file = job_file(cluster, "again-3", "import held", instance_groups=[DNN], retry=retry)
    held = cluster.folder / "again-3"
    hold_install(held, held)
    prepares = submit(cluster, file)  # requirements are being installed when its node is taken
    until((held / "begun").exists, 60, "pip")
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
    for run in (first, second, prepares):
        until(run.restarts, 120, "the run waits for another attempt")
    listed = json.loads(headrace(cluster, "ps", "--output", "json"))
    waiting = {line["run_id"] for line in listed if line["secondary_status"] == "Pending"}
    assert waiting == {first.id, second.id, prepares.id}
    (held / "hold").unlink()
    cluster.on(HEAD, "scancel", job_id)
    for run in (first, second):
        run.completed()
        assert "saving" in text(run)
    assert first.restarts() == ["Attempt 2 of 2, after: Slurm job {} was ended and queued again (preemption)"]
    prepares.completed()
    assert prepares.restarts() == first.restarts()
    assert second.restarts() == ["Attempt 2 of 2, after: Slurm job {} was preempted"]
