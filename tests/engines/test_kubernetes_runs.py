"""Whole runs through the engine and the tests' own API server: each pod is a real process in its own folders."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from effort import SOAK
from kube_pods import Kubelet, played_cluster

from headrace import engines
from headrace.engines.kubernetes.cluster import ROLE, ROLE_OF_RANGE, ROLE_OF_SET, Rule
from headrace.job import Job, load_job
from headrace.runs import Run, Status
from headrace.runs.events import HostRegistered

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "hello"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubelet]:
    with played_cluster(tmp_path, monkeypatch) as kubelet:
        yield kubelet


OPTIONS = {"namespace": "train", "image": "local/host:1", "python": sys.executable, "stop_grace": 5, "linger": 30}


def hello(folder: Path, **options: object) -> Job:
    data = {**yaml.safe_load((EXAMPLE / "hello.yaml").read_text()), "source_dir": str(EXAMPLE / "code")}
    data["engines"] = {"kubernetes": {**OPTIONS, **options}}
    if not SOAK:  # two hosts
        data["instance_groups"] = [{**group, "count": 1} for group in data["instance_groups"]]
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(data))
    return load_job(file)


def test_the_role_of_the_documentation_is_the_one_that_is_asked_for() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    role = yaml.safe_load(text[text.index("apiVersion: rbac") : text.index("```", text.index("apiVersion: rbac"))])
    written = {
        Rule(group, resource, tuple(sorted(rule["verbs"])))
        for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"]
    }  # fmt: skip
    assert written == {*ROLE, *ROLE_OF_SET}
    more = (ROOT / "docs" / "kubernetes-reference.md").read_text().partition("## Data hosts that come and go")[2]
    assert {f"`{rule.told}`" for rule in ROLE_OF_RANGE} == set(re.findall("`[a-z]+ [a-z0-9.]+`", more))


@pytest.mark.promise("engines", "instances, on kubernetes")
@pytest.mark.namespaces
def test_a_heterogeneous_job_runs_in_pods_and_its_record_and_output_come_home(cluster: Kubelet, tmp_path: Path) -> None:
    handle = engines.start(hello(tmp_path), "kubernetes")
    assert handle.wait(90) is Status.COMPLETED, (handle.cause, [pod.log.read_text() for pod in cluster.pods.values()])
    run = Run(handle.paths)
    greeted = {line.stream.host for line in run.logs() if "Hello, world" in line.text}
    assert greeted == {"algo-1", "algo-2", *(["algo-3"] if SOAK else [])}
    assert {event.host for event in run.events() if isinstance(event, HostRegistered)} == greeted
    assert cluster.server.objects == {}, "nothing is left on the cluster"
    granted = {(verb, rule.resource) for rule in ROLE for verb in rule.verbs}
    assert set(cluster.server.asked) <= granted
    cluster.wait_all_ended()
