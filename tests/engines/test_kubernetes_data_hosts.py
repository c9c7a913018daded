"""Data hosts of a run in pods that come and go: the leader's pod asks the cluster for them and gives them back."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_jobs import DATA as DATA_GROUP
from kube_jobs import DNN, FEED, planned
from kube_pods import Kubelet, played_cluster
from test_local_data_hosts import DATA, TRAIN

from headrace import engines
from headrace.engines.kubernetes.cluster import ROLE, ROLE_OF_RANGE
from headrace.engines.kubernetes.objects import objects
from headrace.engines.kubernetes.pod import HOST, PORT, keep_pod
from headrace.job import Job
from headrace.runs import Run, Status
from headrace.runs.events import DataWorkerLost, FeedReady, HostJoined, HostReleased
from patience import until

RANGE = {"min": 1, "max": 2, "idle_after": 1.0}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubelet]:
    with played_cluster(tmp_path, monkeypatch) as kubelet, kubelet.serve_api():
        yield kubelet


def ranged(**options: object) -> object:
    feed = {**FEED, "feed": {"enabled": True, "workers": RANGE}}
    return planned(options, DNN, DATA_GROUP, data_service=feed)


def test_one_that_comes_later_has_a_job_without_a_pod_and_the_leader_may_change_these_jobs_alone() -> None:
    made = objects(ranged())
    jobs = {each["metadata"]["labels"]["headrace/host"]: each["spec"] for each in made if each["kind"] == "Job"}
    assert [jobs[f"algo-{number}"]["parallelism"] for number in (1, 2, 3)] == [1, 1, 0]
    assert [jobs[f"algo-{number}"]["backoffLimit"] for number in (1, 2, 3)] == [0, 1_000_000, 1_000_000]
    (role,) = [each for each in made if each["kind"] == "Role"]
    name = made[0]["metadata"]["labels"]["headrace/run"]
    names = [f"{name}-algo-2", f"{name}-algo-3"]
    assert role["rules"] == [
        {"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": names, "verbs": ["patch"]}
    ]
    mounted = {
        host: [source["secret"]["name"] for volume in spec["template"]["spec"]["volumes"]
               for source in volume.get("projected", {}).get("sources", ()) if "secret" in source]
        for host, spec in jobs.items()
    }  # fmt: skip
    assert {host for host, secrets in mounted.items() if f"{name}-token" in secrets} == {"algo-1"}


def test_without_a_range_and_in_a_set_nobody_gets_a_role() -> None:
    for each in (planned({}, DNN, DATA_GROUP, data_service=FEED), ranged(gang=True)):
        assert not {made["kind"] for made in objects(each)} & {"Role", "RoleBinding", "ServiceAccount"}
    assert [unused.field for unused in ranged(gang=True).without_effect] == ["data_service.feed.workers"]
    assert not ranged().without_effect


@pytest.mark.namespaces
@pytest.mark.timeout(200)
@pytest.mark.promise("job-file", "data hosts come and go with the need, and one that is lost is replaced")
def test_pods_of_data_hosts_come_and_go_and_one_that_is_lost_is_replaced_with_each_batch_once(
    cluster: Kubelet, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    flags = tmp_path / "flags"
    flags.mkdir()
    (code / "data.py").write_text(textwrap.dedent(DATA))
    script = TRAIN.replace('"slow"', repr(str(flags / "slow"))).replace('"enough"', repr(str(flags / "enough")))
    (code / "train.py").write_text(textwrap.dedent(script))
    job = Job(
        "digits",
        source_dir=str(code),
        entry_point="train.py",
        instance_groups=[{**DNN, "name": "dnn_group", "type": "ml.c5.xlarge"}, DATA_GROUP],
        data_service={**FEED, "feed": {"enabled": True, "workers_per_host": 1, "workers": RANGE}},
        engines={
            "kubernetes": {
                "namespace": "train", "image": "local/host:1", "python": sys.executable, "stop_grace": 5, "linger": 30
            }
        },
    )  # fmt: skip
    handle = engines.start(job, "kubernetes")
    run = Run(handle.paths)

    def hosts_of(kind: type) -> list[str]:
        assert handle.status is not Status.FAILED, handle.cause  # that brings the record, too
        return [event.host for event in run.events() if isinstance(event, kind)]

    def pods() -> list[str]:
        return sorted(pod.made["metadata"]["labels"]["headrace/host"] for pod in cluster.pods.values()
                      if pod.process.poll() is None)  # fmt: skip

    until(lambda: hosts_of(FeedReady) == ["algo-2"], 90, "the first data host")
    until(lambda: hosts_of(HostJoined) == ["algo-3"], 60, "another one")
    until(lambda: hosts_of(FeedReady) == ["algo-2", "algo-3"], 60)
    assert pods() == ["algo-1", "algo-2", "algo-3"]
    cluster.of("algo-2").kill()  # its node goes
    until(lambda: hosts_of(HostJoined) == ["algo-3", "algo-2"], 90, "one in its place")
    until(lambda: hosts_of(FeedReady) == ["algo-2", "algo-3", "algo-2"], 60)
    (flags / "slow").touch()
    until(lambda: hosts_of(HostReleased) == ["algo-3", "algo-2", "algo-3"], 60, "one leaves")
    until(lambda: pods() == ["algo-1", "algo-2"], 30, "its pod is gone")
    (flags / "enough").touch()
    assert handle.wait(90) is Status.COMPLETED, (handle.cause, [pod.log.read_text() for pod in cluster.pods.values()])
    [line] = [line.text for line in run.logs() if line.text.startswith("steps")]
    assert "same True" in line
    assert hosts_of(DataWorkerLost) == ["algo-2"]
    assert cluster.server.objects == {}, "nothing is left on the cluster"
    granted = {(verb, rule.resource) for rule in (*ROLE, *ROLE_OF_RANGE) for verb in rule.verbs}
    assert set(cluster.server.asked) <= granted
    cluster.wait_all_ended()


def test_what_the_cluster_refuses_is_an_error_with_its_words(cluster: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run's Job cannot be changed: the server says so, and the leader's supervisor asks again later."""
    monkeypatch.setenv(HOST, "localhost")
    monkeypatch.setenv(PORT, "1")
    folder = cluster.folder
    for name in ("token", "namespace"):
        (folder / name).write_text("train")
    (folder / "ca.crt").write_bytes(cluster.server.authority)
    with pytest.raises(OSError, match="refused"):
        keep_pod({"algo-2": "other-algo-2"}, folder, "algo-2", True)
