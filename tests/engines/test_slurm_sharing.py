"""Nodes that a run gives back or shares with another one, and a controller that dies while it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from effort import SOAK
from slurm_cluster import HEAD, SlurmCluster
from slurm_stage import DATA, DNN, WAIT, end_jobs, headrace, needs_slurm, on, start, started_cluster
from stage import text

from headrace.runs.events import HostReleased
from patience import until

pytestmark = [pytest.mark.timeout(600), needs_slurm]
UNTIL = """
import headrace, os, pathlib, sys, time
print("running", flush=True)
if headrace.Environment().current_instance_group == "dnn_group":
    end = pathlib.Path(os.environ["END"])
    while not end.exists():
        time.sleep(0.1)
"""
"""Hosts of dnn_group run until a file is there; others are done at once."""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    with started_cluster(request.param) as started:
        yield started


@pytest.fixture(autouse=True)
def no_job_is_left(cluster: SlurmCluster) -> Iterator[None]:
    yield
    end_jobs(cluster)


STRANGERS = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.mark.promise("slurm-reference", "on Slurm a group that is done gives its nodes back while the others go on")
@on("", *(["24.11"] if SOAK else []))
def test_a_group_that_is_done_gives_its_node_back_while_the_others_go_on(cluster: SlurmCluster) -> None:
    end = cluster.folder / "early.end"
    run = start(cluster, "early", UNTIL, instance_groups=[DNN, DATA], environment={"END": str(end)})
    run.is_in("RUNNING", "CANCELLED")
    assert [event.host for event in run.run.events() if isinstance(event, HostReleased)] == ["algo-2"]
    until(lambda: cluster.on(HEAD, "sinfo", "-h", "-p", "data", "-o", "%T").stdout.split() == ["idle"], 20, "all idle")
    assert not run.run.finished
    end.touch()
    run.completed()
    run.is_in("COMPLETED", "CANCELLED")


def since(cluster: SlurmCluster, node: str, *user: str) -> list[str]:
    """What came into the folders that all users of a node share, as far as a user may do anything with it."""
    places = ("/tmp", "/var/tmp", "/dev/shm", "/run")
    others = [word for path in (cluster.folder, "/run/slurmd") for word in ("!", "-path", f"{path}*")]
    words = ("-mindepth", "1", "-newer", "/tmp/before", *others)
    able = ("(", "-readable", "-o", "-writable", "-o", "-executable", ")")
    found = cluster.on(node, *user, "find", *places, *words, *able, check=False)
    return found.stdout.split("\n")[:-1]


@pytest.mark.promise("isolation", "what other users put into shared places is never taken for a run's own")
@on("")
@pytest.mark.promise("security", "another user of a shared Slurm node reaches no part of a job")
def test_two_runs_share_a_node_where_it_is_wished(cluster: SlurmCluster) -> None:
    asked = ["--mem=1000", "--cpus-per-task=1", "-w data1"]
    slurm = {"stop_grace": 5, "partition": "data", "exclusive": False, "options": asked}
    cluster.on("data1", "touch", "/tmp/before")
    runs = [start(cluster, name, WAIT, instance_groups=[DATA], engines={"slurm": slurm}) for name in ("one", "two")]
    for run in runs:
        run.said("running")
    cluster.on("data1", "touch", "/tmp/open")
    made, reached = since(cluster, "data1"), since(cluster, "data1", *STRANGERS)
    assert sum("headrace-" in path for path in made) > 2, "each run has temporary files on the node"
    assert reached == ["/tmp/open"], "another user of the node reads and writes none of it"
    assert [run.nodes() for run in runs] == [["data1"], ["data1"]]
    assert not any(run.run.finished for run in runs)
    for run in runs:
        run.headrace("stop")
        run.ended()
        assert "saving" in text(run)


@pytest.mark.promise("slurm-reference", "a run on Slurm goes on while Slurm's controller is dead")
@on("")
def test_a_run_goes_on_while_slurms_controller_is_dead_and_status_says_that_it_does_not_answer(
    cluster: SlurmCluster,
) -> None:
    end, saved = cluster.folder / "orphaned.end", cluster.folder / "state" / "job_state"
    run = start(cluster, "orphaned", UNTIL, environment={"END": str(end)})
    run.said("running")
    begun = time.time()
    cluster.on(HEAD, "scontrol", "update", f"JobId={run.job_id}", "TimeLimit=9-0")  # else all may be saved already
    until(lambda: saved.stat().st_mtime > begun, 60, "Slurm keeps what it knows of the job")
    cluster.on(HEAD, "pkill", "-KILL", "slurmctld")
    try:
        before = time.monotonic()
        words = ["env", "HEADRACE_LOG=warning", "python", "-m", "headrace.cli.main", "status", run.id]
        told = cluster.on(HEAD, *words, check=False)
        assert time.monotonic() - before < 60
        assert "Slurm does not answer" in told.stderr, told
        assert "InProgress" in told.stdout, told
        assert headrace(cluster, "logs", run.id).count("running") == 2
    finally:
        cluster.on(HEAD, "slurmctld")
    end.touch()
    run.completed()
    run.is_in("COMPLETED", "COMPLETED")
