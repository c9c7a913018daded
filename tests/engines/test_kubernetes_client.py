"""The client of a cluster speaks to a real server: what it asks for, and what it makes of every failure."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kube_server import Exec, Fault, KubeServer

from headrace.engines.kubernetes.cluster import (
    ROLE,
    Cluster,
    ClusterRefused,
    ExecFailed,
    KubernetesUnreachable,
    ObjectExists,
    connect,
    disconnect,
)
from headrace.errors import EngineRefused

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "labels": {"headrace/run": "a"}}}
MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "one", "labels": {"headrace/run": "a"}},
    "data": {},
}


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    with KubeServer(tmp_path_factory.mktemp("kube")) as server:
        yield server


@pytest.fixture
def server(module_server: KubeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeServer]:
    monkeypatch.setenv("KUBECONFIG", str(module_server.kubeconfig()))
    monkeypatch.setattr("headrace.engines.kubernetes.cluster.PAUSE_SECONDS", 0.01)
    for each in (module_server.objects, module_server.denied, module_server.faults, module_server.logs):
        each.clear()
    module_server.quota = ""
    yield module_server
    disconnect()


@pytest.fixture
def cluster(server: KubeServer) -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


def test_objects_are_made_found_and_deleted_with_what_they_own(server: KubeServer, cluster: Cluster) -> None:
    assert cluster.create(MAP, dry_run=True)["metadata"]["name"] == "one"
    assert cluster.get("ConfigMap", "one") is None, "nothing was made"
    newer = {**MAP, "aFieldOfTheFuture": {"kept": True}}
    made = cluster.create(newer)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "one", "uid": made["metadata"]["uid"]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**MAP["metadata"], "ownerReferences": [owner]}}
    cluster.create(job)
    assert cluster.get("ConfigMap", "one")["aFieldOfTheFuture"] == {"kept": True}
    assert [each["metadata"]["name"] for each in cluster.objects("Job", {"headrace/run": "a"})] == ["one"]
    assert cluster.objects("Job", {"headrace/run": "b"}) == []
    with pytest.raises(ObjectExists, match="already exists"):
        cluster.create(MAP)
    assert cluster.delete("ConfigMap", "one")
    assert not cluster.delete("ConfigMap", "one")
    assert server.objects == {}
    assert cluster.version() == "v1.20.2"


def test_what_a_user_may_do_is_asked_of_the_server(server: KubeServer, cluster: Cluster) -> None:
    exec_rule = next(rule for rule in ROLE if rule.resource == "pods/exec")
    assert cluster.may("create", exec_rule)
    server.denied.add(("create", "pods/exec"))
    assert not cluster.may("create", exec_rule)
    assert cluster.may("get", exec_rule)


def test_events_and_logs_are_what_the_platform_has_of_an_object(server: KubeServer, cluster: Cluster) -> None:
    server.put("pods", {**POD, "status": {}})
    for number, uid in enumerate(["u1", "u2", "u1"]):
        server.put("events", {"metadata": {"name": f"e{number}"}, "involvedObject": {"uid": uid},
                              "message": str(number), "lastTimestamp": f"2026-11-22T10:00:0{9 - number}Z"})  # fmt: skip
    assert [each["message"] for each in cluster.events("u1")] == ["2", "0"], "the oldest first"
    assert cluster.log("one", 10) == "", "its container has not begun"
    assert cluster.log("two", 10) == "", "there is no such pod"
    server.logs["one"] = "".join(f"line {number}\n" for number in range(20))
    assert cluster.log("one", 2) == "line 18\nline 19\n"


async def answer(given: Exec) -> int:
    data = bytes(range(256)) * 1000
    await given.send(2, b"some \xff words\n")
    await given.send(1, data)
    return int(given.command[-1])


@pytest.mark.parametrize("code", [0, 7])
def test_exec_brings_bytes_words_and_the_exit_code(server: KubeServer, cluster: Cluster, code: int) -> None:
    server.run = answer
    server.put("pods", {**POD, "status": {"phase": "Running"}})
    out = io.BytesIO()
    end = cluster.execute("one", ["sh", "-c", "a b; c", str(code)], out, 10)
    assert (end.exit_code, end.stderr) == (code, "some \ufffd words\n")
    assert out.getvalue() == bytes(range(256)) * 1000


def test_exec_that_breaks_off_or_takes_too_long_says_so_and_keeps_what_came(
    server: KubeServer, cluster: Cluster
) -> None:
    server.run = answer
    server.put("pods", {**POD, "status": {"phase": "Running"}})
    for fault, seconds in (("half", 10.0), ("slow", 0.3), (503, 10.0)):
        server.faults.append(Fault(fault, resource="pods/exec"))
        out = io.BytesIO()
        with pytest.raises(KubernetesUnreachable):
            cluster.execute("one", ["0"], out, seconds)
        assert len(out.getvalue()) < 256_000
    server.change("pods", "one", status={"phase": "Succeeded"})
    with pytest.raises(ExecFailed, match="container not found"):
        cluster.execute("one", ["0"], io.BytesIO(), 10)
    with pytest.raises(ExecFailed, match="not found"):
        cluster.execute("two", ["0"], io.BytesIO(), 10)
    server.denied.add(("get", "pods/exec"))
    with pytest.raises(ClusterRefused, match="pods/exec is forbidden"):
        cluster.execute("one", ["0"], io.BytesIO(), 10)


@pytest.mark.parametrize("how", [429, 500, 502, 503, 410, "half", "html", "hang up"])
def test_what_passes_is_asked_again_and_what_stays_is_told(
    server: KubeServer, cluster: Cluster, how: int | str
) -> None:
    server.faults.append(Fault(how, times=2))
    assert cluster.objects("Pod", {}) == []
    assert server.faults == []
    server.faults.append(Fault(how, times=3))
    with pytest.raises(KubernetesUnreachable) as caught:
        cluster.objects("Pod", {})
    assert caught.value.hint
    assert server.faults == []


def test_a_server_that_does_not_answer_in_time_or_is_not_there_is_told(
    server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engines.kubernetes.cluster.ANSWER_SECONDS", 0.2)
    server.faults.append(Fault("slow", times=3))
    slow = Cluster()
    with pytest.raises(KubernetesUnreachable, match="did not answer in time"):
        slow.get("Pod", "one")
    slow.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{taken.getsockname()[1]}"
        Path(os.environ["KUBECONFIG"]).write_text(yaml.safe_dump(config))
        gone = Cluster()
        with pytest.raises(KubernetesUnreachable, match="cannot be reached"):
            gone.get("Pod", "one")
        gone.close()


def test_a_refusal_says_what_is_missing(server: KubeServer, cluster: Cluster) -> None:
    server.denied.add(("create", "configmaps"))
    with pytest.raises(ClusterRefused, match='cannot create resource "configmaps"') as caught:
        cluster.create(MAP)
    assert "the page kubernetes of the docs" in caught.value.hint
    server.denied.clear()
    server.quota = "configmaps"
    with pytest.raises(ClusterRefused, match="exceeded quota") as caught:
        cluster.create(MAP)
    assert "a quota" in caught.value.hint
    other = Cluster(namespace="nowhere")
    with pytest.raises(ClusterRefused, match='namespaces "nowhere" not found') as caught:
        other.create(MAP)
    other.close()
    assert "engines.kubernetes.namespace" in caught.value.hint
    server.faults.append(Fault(422))
    with pytest.raises(ClusterRefused):
        cluster.create(MAP)
    server.kubeconfig(token="of somebody else")
    stranger = Cluster()
    with pytest.raises(ClusterRefused, match="does not know the user"):
        stranger.objects("Pod", {})
    stranger.close()


# --- the login ------------------------------------------------------------------------------------------------------


def test_a_login_is_that_of_the_context_and_the_same_client_is_used_until_the_kubeconfig_changes(
    server: KubeServer,
) -> None:
    first = connect()
    assert (first.context, first.namespace, first.server) == ("tests", "train", server.url)
    assert connect() is first
    assert connect(namespace="default").namespace == "default"
    os.utime(server.kubeconfig(namespace="default"), ns=(1, 1))
    assert connect() is not first


def test_of_several_kubeconfigs_the_first_that_has_the_context_is_taken(
    server: KubeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text(yaml.safe_dump({
        "current-context": "far", "clusters": [{"name": "own", "cluster": {"server": "http://far"}}],
        "contexts": [{"name": "far", "context": {"cluster": "own"}}], "users": [],
    }))  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{other}:{server.kubeconfig()}")
    assert connect().server == "http://far"
    assert connect("tests").server == server.url
    with pytest.raises(EngineRefused, match="no context 'near'") as caught:
        connect("near")
    assert "far, tests" in caught.value.hint


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sign-in"}}, "is a plugin"),
        ({"auth-provider": {"name": "gcp"}}, "is an auth-provider"),
        (
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "false"}},
            "the login of the context",
        ),
    ],
)
def test_a_login_that_cannot_be_done_is_refused_with_what_to_do(
    server: KubeServer, user: dict[str, object], words: str
) -> None:
    server.kubeconfig(**user)
    with pytest.raises(EngineRefused, match=words) as caught:
        connect().objects("Pod", {})
    assert caught.value.hint


def test_a_plugin_that_prints_a_token_is_a_login(server: KubeServer, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text('#!/bin/sh\necho \'{"status": {"token": "tests-own"}}\'\n')
    plugin.chmod(0o755)
    server.kubeconfig(exec={"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(plugin)})
    assert connect().objects("Pod", {}) == []


def test_no_kubeconfig_or_one_that_is_none_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(EngineRefused, match="there is no kubeconfig"):
        connect()
    (tmp_path / "none").write_text("clusters: 7")
    with pytest.raises(EngineRefused, match="is no kubeconfig"):
        connect()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Config\nclusters: [\ncontexts: }\n", "config, line 3, is no kubeconfig: it is not YAML: "),
        ("kind: Config\n\tclusters: []\n", "config, line 2, is no kubeconfig: it is not YAML: found character"),
        ("kind: Config\n", "config is no kubeconfig: the key 'clusters' is missing"),
        ("clusters: []\n", "config is no kubeconfig: the key 'contexts' is missing"),
        ("clusters: [{name: a}]\ncontexts: []\n", "the key 'cluster' is missing"),
        ("clusters: [{name: a, cluster: {server: 7}}]\ncontexts: []\n", "Expected `str`"),
        ("", "it must be a mapping with clusters"),
        ("\0", "it is not text in YAML"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_told_with_file_and_line(
    text: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(EngineRefused) as caught:
        connect()
    assert words in caught.value.message
    assert "Error(" not in caught.value.message
