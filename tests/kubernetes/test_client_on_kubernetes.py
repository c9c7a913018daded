"""The client of a cluster speaks to a real API server and real kubelets, with the rights of `ROLE` and no others."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import Cluster as Nodes
from team import FOLDER, USER_CONF, kubectl, listed
from traces import IMAGE, MOUNTED

from headrace.engines.kubernetes.cluster import (
    ROLE,
    Cluster,
    ClusterRefused,
    ExecFailed,
    KubernetesUnreachable,
    Rule,
)
from headrace.engines.kubernetes.objects import with_owner
from headrace.engines.kubernetes.pod_states import PodPhase, pod_states
from patience import until

WAITS = "trap 'exit 7' TERM; echo works; while :; do sleep 0.1; done"


@pytest.fixture
def client(team: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("KUBECONFIG", USER_CONF)
    made = Cluster()
    yield made
    made.close()
    for kind in ("jobs", "configmaps"):
        kubectl("delete", kind, "-l", "headrace/run", "--wait=false")
    kubectl("delete", "pods", "-l", "headrace/run", "--grace-period=0", "--force")


def owned(name: str, owner: dict[str, Any] | None = None) -> dict[str, Any]:
    """A ConfigMap, and whose it is."""
    labels = {"headrace/run": name}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {}}
    return made if owner is None else with_owner(made, owner, owner["metadata"]["uid"])


def job(client: Cluster, name: str, script: str, ttl: int | None = None, **spec: object) -> dict[str, Any]:
    """Makes a Job."""
    labels = {"headrace/run": name, "headrace/host": "algo-1"}
    container = {
        "name": "host",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["bash", "-c", script],
        "volumeMounts": [{"name": path[1:], "mountPath": path} for path in MOUNTED],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": path[1:], "hostPath": {"path": path}} for path in MOUNTED],
        "terminationGracePeriodSeconds": 5,
        **spec,
    }
    given = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{name}-algo-1", "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "ttlSecondsAfterFinished": ttl,
        },
    }
    return client.create(given)


def pod_of(client: Cluster, name: str, phase: PodPhase) -> str:
    """Waits until the newest pod of a run is in a phase. Returns its name."""

    def look() -> str:
        states = pod_states(client.objects("Pod", {"headrace/run": name}), {"algo-1": "all"}, time.time())["algo-1"]
        return states[-1].pod if states[-1].phase is phase else ""

    return str(until(look, 60, phase.value))


def test_the_role_is_enough_and_is_asked_for(client: Cluster) -> None:
    assert all(client.may(verb, rule) for rule in ROLE for verb in rule.verbs)
    assert not client.may("delete", Rule("", "secrets", ("delete",)))
    assert client.version() == "v1.20.2"
    assert client.create(owned("checked"), dry_run=True)
    assert client.get("ConfigMap", "checked") is None
    with pytest.raises(ClusterRefused, match="forbidden"):
        client.delete("ConfigMap", "any")
    other = Cluster(namespace="default")
    with pytest.raises(ClusterRefused, match="forbidden"):
        other.objects("Pod", {"headrace/run": "a"})
    other.close()


def test_commands_run_in_a_pod_and_bring_what_they_write_whole(client: Cluster) -> None:
    job(client, "run-exec", WAITS)
    pod = pod_of(client, "run-exec", PodPhase.RUNNING)
    out = io.BytesIO()
    end = client.execute(pod, ["bash", "-c", "head -c 30000000 /dev/zero; echo no >&2; exit 3"], out, 60)
    assert (end.exit_code, end.stderr, len(out.getvalue())) == (3, "no\n", 30_000_000)
    assert until(lambda: client.log(pod, 5), 60, "a log") == "works\n"
    with pytest.raises(KubernetesUnreachable, match="in time"):
        client.execute(pod, ["sleep", "60"], io.BytesIO(), 2)
    with pytest.raises(ExecFailed):
        client.execute("nobody", ["true"], io.BytesIO(), 10)


def test_no_command_runs_in_a_pod_that_waits_or_has_ended(client: Cluster) -> None:
    job(client, "run-waits", "true", nodeSelector={"no": "such-node"})
    waits = pod_of(client, "run-waits", PodPhase.WAITING)
    with pytest.raises(ExecFailed):
        client.execute(waits, ["true"], io.BytesIO(), 10)
    assert client.log(waits, 5) == ""
    job(client, "run-ended", "echo bye; exit 3")
    ended = pod_of(client, "run-ended", PodPhase.ENDED)
    with pytest.raises(ExecFailed):
        client.execute(ended, ["true"], io.BytesIO(), 10)
    assert client.log(ended, 5) == "bye\n"


def test_events_say_why_there_is_no_pod(client: Cluster) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    kubectl("apply", "-f", "-", given=quota)
    try:
        until(lambda: "hard" in kubectl("get", "quota", "none", "-o", "jsonpath={.status}"), 60, "the quota")
        made = job(client, "run-quota", "true")
        events = until(lambda: client.events(made["metadata"]["uid"]), 60, "an event")
        assert isinstance(events, list)
        assert "exceeded quota" in events[-1]["message"]
    finally:
        kubectl("delete", "quota", "none")


@pytest.mark.parametrize("how", ["deleted", "ended"])
def test_all_that_a_job_owns_goes_with_it_when_it_is_deleted_and_some_time_after_its_end(
    client: Cluster, how: str
) -> None:
    name = f"run-{how}"
    made = job(client, name, WAITS if how == "deleted" else "true", ttl=3 if how == "ended" else None)
    client.create(owned(name, made))
    if how == "deleted":
        pod_of(client, name, PodPhase.RUNNING)
        assert client.delete("Job", made["metadata"]["name"])
        assert not client.delete("Job", "nobody")
    left = ("pods,jobs,configmaps", "-l", f"headrace/run={name}")
    until(lambda: not listed(*left), 90, "all is gone")


def test_a_cut_node_is_seen_and_a_command_there_does_not_hang(client: Cluster) -> None:
    nodes = Nodes(FOLDER)
    job(client, "run-cut", WAITS, nodeSelector={"kubernetes.io/hostname": "node2"})
    pod = pod_of(client, "run-cut", PodPhase.RUNNING)
    nodes.cut(2)
    try:
        began = time.monotonic()
        with pytest.raises((KubernetesUnreachable, ExecFailed)):
            client.execute(pod, ["true"], io.BytesIO(), 10)
        assert time.monotonic() - began < 45

        def keyword() -> str:
            pods = client.objects("Pod", {"headrace/run": "run-cut"})
            return pod_states(pods, {"algo-1": "all"}, time.time())["algo-1"][0].keyword

        until(lambda: keyword() == "NodeNotReady", 60, "the node is not ready")
    finally:
        nodes.heal(2)
    until(lambda: nodes.ready_nodes() == 4, 60, "all nodes are ready")
