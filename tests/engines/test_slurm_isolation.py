"""Hosts on Slurm nodes are machines of their own where the nodes allow it, and the record says where not, and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_cluster import NODES, SlurmCluster
from slurm_stage import (
    PARTITIONS,
    Submitted,
    end_jobs,
    needs_slurm,
    start,
    started_cluster,
)
from stage import text

from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import CauseKind, Status, read_plan
from headrace.runs.event_text import told
from headrace.runs.events import HostIsolated
from patience import until

pytestmark = [pytest.mark.timeout(300), needs_slurm]
USER = 1234
REFUSE = "echo 0 > /proc/sys/user/max_mnt_namespaces"
LAUNCHER = f"""
case $SLURMD_NODENAME in
dnn*) exec unshare --user --map-current-user sh -c '{REFUSE}; exec "$@"' sh "$@";;
*) exec unshare --user --map-user={USER} --map-group={USER} "$@";;
esac
"""
"""Stands for a container without root, which allows no namespaces on some nodes."""
LOOK = """
import os, pathlib, socket, time
from headrace import Environment
try:
    print("name", socket.gethostname(), socket.gethostbyname("algo-2"))
except OSError as error:
    print("name", socket.gethostname(), "not found")
print("tree", os.environ["SM_MODEL_DIR"], pathlib.Path("/opt/ml/input").is_dir(), os.getuid())
mine = pathlib.Path("/tmp/mine")
print("tmp", mine.exists(), pathlib.Path(os.environ["TMPDIR"]).is_dir())
mine.touch()
print("processes", len([each for each in os.listdir("/proc") if each.isdigit()]) < 12, os.listdir("/dev/shm"))
print("running", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with started_cluster() as started:
        yield started


@pytest.fixture(autouse=True)
def no_job_is_left(cluster: SlurmCluster) -> Iterator[None]:
    yield
    end_jobs(cluster)


def words_of(run: Submitted, host: str) -> list[str]:
    return [line.text for line in run.run.logs() if (line.stream.host, line.stream.name) == (host, "0")]


def levels_of(run: Submitted) -> dict[str, tuple[str, str]]:
    return {each.host: (each.level, each.why) for each in run.run.events() if isinstance(each, HostIsolated)}


def launched(cluster: SlurmCluster, *groups: str) -> dict[str, object]:
    (cluster.folder / "launch").write_text(LAUNCHER)
    return {
        "stop_grace": 5,
        "groups": {name: PARTITIONS[name] for name in groups},
        "launcher": ["sh", str(cluster.folder / "launch")],
    }


def namespaces(cluster: SlurmCluster, node: str) -> set[str]:
    return set(cluster.on(node, "sh", "-c", "readlink /proc/[0-9]*/ns/mnt", check=False).stdout.split())


@pytest.mark.promise("engines", "instances, on slurm")
@pytest.mark.promise(
    "slurm-reference", "on Slurm a host has its own /opt/ml, /tmp, name and processes; no node keeps anything"
)
def test_a_host_is_a_machine_of_its_own_also_without_root_and_a_node_that_refuses_says_so(
    cluster: SlurmCluster,
) -> None:
    for node in NODES:
        cluster.on(node, "touch", "/tmp/mine")
    run = start(cluster, "apart", LOOK, engines={"slurm": launched(cluster, *PARTITIONS)})
    run.said("running")
    until(lambda: text(run).count("running") == 2 or run.run.finished, 30, f"both programs run: {text(run)}")
    addresses = {host.name: host.address for host in read_plan(run.run.paths, LaunchPlan).hosts}
    assert words_of(run, "algo-1")[:4] == [
        f"name algo-1 {addresses['algo-2']}",
        f"tree /opt/ml/model True {USER}",
        "tmp False True",
        "processes True []",
    ], text(run)
    assert words_of(run, "algo-2")[0].endswith("dnn1 not found")
    data, dnn = levels_of(run)["algo-1"], levels_of(run)["algo-2"]
    assert data == ("shared_network", "namespaces work on this node")
    assert dnn[0] == "none"
    assert dnn[1].startswith("namespaces do not work on this node: algo-2 could not be isolated: [Errno 28] unshare: ")
    assert [line for event in run.run.events() if (line := told(event)) and "isolation" in line] == [
        f"dnn_group/algo-2: isolation: none ({dnn[1]})"
    ]
    node = run.nodes()[0]
    before = namespaces(cluster, node)
    assert len(before) == 2, "the node's own, and those of the host"
    cluster.on(node, "pkill", "-KILL", "-f", "headrace")
    until(lambda: namespaces(cluster, node) < before, 20, "the host's namespaces are gone with its processes")
    assert "/opt/ml" not in cluster.on(node, "cat", "/proc/1/mountinfo").stdout
    run.headrace("wait", check=False)
    assert run.ended(1) is Status.FAILED


@pytest.mark.promise(
    "slurm-reference", "on Slurm a host has its own /opt/ml, /tmp, name and processes; no node keeps anything"
)
def test_a_level_that_a_node_does_not_have_is_refused_with_the_reason(cluster: SlurmCluster) -> None:
    slurm = {**launched(cluster, *PARTITIONS), "isolation": "shared_network"}
    run = start(cluster, "refused", "print('never')", engines={"slurm": slurm})
    assert run.ended() is Status.FAILED
    cause = run.run.cause
    assert cause is not None
    assert cause.kind is CauseKind.INSTANCE_NOT_STARTED
    assert "namespaces do not work on this node" in str(cause)
    assert "set engines.slurm.isolation to none or auto" in str(cause)
    assert list(levels_of(run)) == ["algo-1"]
