"""The objects that a job becomes, word for word, and that every server would take them: the files in
`kubernetes_objects` are what `headrace plan --render` writes."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kube_jobs import CASES, DATA, DNN, FEED, RUN, planned
from kubeflow_trainer_api import models

from headrace.engines.kubernetes.kubernetes_job import LONGEST_NAME, KubernetesJob, name_of
from headrace.engines.kubernetes.objects import deadline_of, host_of_pod, merged, objects, rendered, with_owner
from headrace.engines.kubernetes.pack_run import Payload
from headrace.runs import RunPaths

GOLDEN = Path(__file__).parent / "kubernetes_objects"
VERSIONS = ("1.25", "1.30", "1.34", "1.37")
LATER_THAN_1_25 = {"podReplacementPolicy", "podFailurePolicy"}  # servers that do not know them drop them
UID = "0b5f0b0e-3b1c-4c6e-9c3b-000000000001"
JOBSET = "JobSet"


def payload_of(case: KubernetesJob) -> Payload:
    return Payload(b"the package", b"the run", {host.name: f"of {host.name}".encode() for host in case.plan.hosts})


def submitted(case: KubernetesJob) -> list[dict]:
    first, *others = objects(case, payload_of(case))
    return [first, *(with_owner(made, first, UID) for made in others)]


@pytest.mark.parametrize("name", CASES)
def test_the_objects_are_word_for_word_what_they_were(name: str) -> None:
    manifests, plan = rendered(CASES[name])
    assert (manifests.name, plan.name) == ("objects.yaml", "plan.json")
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("HEADRACE_WRITE_GOLDEN"):
        file.write_text(manifests.text)
    assert manifests.text == file.read_text()


@pytest.mark.promise("kubernetes", "on Kubernetes the job file is plain objects, owned by the leader's Job")
@pytest.mark.parametrize("version", VERSIONS)
def test_servers_of_each_version_take_all_objects(version: str) -> None:
    kinds = set()
    for made in (made for case in CASES.values() for made in submitted(case) if made["kind"] != JOBSET):
        known = json.loads(json.dumps(made))
        if version == "1.25" and made["kind"] == "Job":
            assert "podReplacementPolicy" in known["spec"]
            for key in LATER_THAN_1_25 & known["spec"].keys():
                del known["spec"][key]
        kubernetes_validate.validate(known, version, strict=True)
        kinds.add(made["kind"])
    of_range = {"ServiceAccount", "Role", "RoleBinding"}
    assert kinds == {"ConfigMap", "Secret", "Service", "Job", *of_range}


def test_the_check_of_the_objects_sees_a_wrong_key_and_a_wrong_value() -> None:
    job = json.loads(json.dumps(submitted(CASES["one_group"])[0]))
    for change in ({"restartpolicy": "Never"}, {"activeDeadlineSeconds": "3600"}):
        wrong = json.loads(json.dumps(job))
        wrong["spec"]["template"]["spec"] |= change
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, "1.37", strict=True)


@pytest.mark.promise("kubernetes", "on Kubernetes the job file is plain objects, owned by the leader's Job")
def test_the_models_of_jobset_know_every_key_and_its_pods_are_pods() -> None:
    made = submitted(CASES["jobset"])[0]
    assert made["kind"] == JOBSET
    assert json.loads(models.JobsetV1alpha2JobSet.from_dict(made).to_json()) == made
    wrong = json.loads(json.dumps(made))
    wrong["spec"]["successPolicy"]["operatr"] = "All"
    assert json.loads(models.JobsetV1alpha2JobSet.from_dict(wrong).to_json()) != wrong
    for part in made["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": part["template"]["spec"]}
        kubernetes_validate.validate(job, "1.37", strict=True)


@pytest.mark.promise("kubernetes", "on Kubernetes the job file is plain objects, owned by the leader's Job")
@pytest.mark.parametrize("name", CASES)
def test_the_first_object_owns_all_others_and_all_are_in_one_namespace(name: str) -> None:
    first, *others = submitted(CASES[name])
    assert first["kind"] == (JOBSET if name == "jobset" else "Job")
    assert "ownerReferences" not in first["metadata"]
    owner = {**{key: first[key] for key in ("apiVersion", "kind")}, "name": first["metadata"]["name"], "uid": UID}
    assert all(made["metadata"]["ownerReferences"] == [owner] for made in others)
    # The cluster removes it, and with it all others; nothing else goes by itself, such as a Job in mid-run.
    ttl = "ttlSecondsAfterFinished"
    assert first["spec"][ttl] == 7 * 86400
    assert not any(ttl in made.get("spec", {}) for made in others)
    assert {made["metadata"]["namespace"] for made in (first, *others)} == {CASES[name].options.namespace}
    names = [(made["kind"], made["metadata"]["name"]) for made in (first, *others)]
    assert len(set(names)) == len(names)
    assert all(len(each) <= 63 and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", each) for _, each in names)


@pytest.mark.promise("engines", "what it submits, on kubernetes")
@pytest.mark.promise("kubernetes", "on Kubernetes the job file is plain objects, owned by the leader's Job")
def test_what_is_rendered_is_what_is_submitted_without_data() -> None:
    case = CASES["two_groups"]
    shown = list(yaml.safe_load_all(rendered(case)[0].text))
    for made, there in zip(shown, objects(case, payload_of(case)), strict=True):
        data = {key for key in ("data", "binaryData") if key in there} - {
            "data" if there["kind"] == "ConfigMap" else ""
        }
        assert not data & made.keys()
        assert ("headrace/data" in made["metadata"]["annotations"]) == bool(data)
        made["metadata"]["annotations"].pop("headrace/data", None)
        assert made == {key: value for key, value in there.items() if key not in data}


@pytest.mark.promise("engines", "instances, on kubernetes")
def test_every_host_has_a_job_of_one_pod_with_its_name() -> None:
    case = CASES["two_groups"]
    leader, *others = [made for made in objects(case) if made["kind"] == "Job"]
    jobs = [*others, leader]  # algo-3
    assert [job["metadata"]["name"] for job in jobs] == [f"{case.name}-algo-{n}" for n in (1, 2, 3)]
    for job, host in zip(jobs, case.plan.hosts, strict=True):
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        assert (spec["completions"], spec["parallelism"], spec["podReplacementPolicy"]) == (1, 1, "Failed")
        assert (pod["hostname"], pod["subdomain"]) == (host.name, case.name)
        assert pod["dnsConfig"]["searches"] == [f"{case.name}.training.svc.cluster.local"]
        assert host.address == host.name
        assert host_of_pod(job["spec"]["template"]) == host.name
        assert (host.base_dir, host.record_dir) == ("/opt/ml", str(RUN))
        mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts["/opt/ml"]["name"] == mounts[str(RUN)]["name"]
        assert mounts["/opt/ml"]["subPath"] == f"hosts/{host.name}"
    # A lost host is replaced for another attempt; not the leader, whose record is gone with it.
    assert case.plan.leader == "algo-3"
    assert [job["spec"]["backoffLimit"] for job in jobs] == [2, 2, 0]


def test_no_pod_outlives_its_run_and_none_is_ended_before_it() -> None:
    for case in CASES.values():
        for made in objects(case):
            if made["kind"] == "Job":
                pod = made["spec"]["template"]["spec"]
                assert pod["activeDeadlineSeconds"] == deadline_of(case) > case.plan.max_run + case.plan.start_timeout
                assert pod["terminationGracePeriodSeconds"] > case.plan.stop_grace
                assert pod["restartPolicy"] == "Never"


def test_the_hosts_of_a_jobset_are_known_by_its_pods_index() -> None:
    case = CASES["jobset"]
    job_set = objects(case)[0]
    parts = {part["name"]: part["template"]["spec"] for part in job_set["spec"]["replicatedJobs"]}
    found = {}
    for name, spec in parts.items():
        for index in range(spec["completions"]):
            labels = spec["template"]["metadata"]["labels"]
            annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
            host = host_of_pod({"metadata": {"labels": labels, "annotations": annotations}})
            found[host] = f"{job_set['metadata']['name']}-{name}-0-{index}"
    assert found == {host.name: host.address for host in case.plan.hosts}
    assert job_set["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert job_set["spec"]["coordinator"] == {"replicatedJob": "g2", "jobIndex": 0, "podIndex": 0}
    moved = case.in_run(RunPaths(RUN.with_name("x-1")))
    assert moved.plan.hosts[0].address == "x-1-g1-0-0"


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("digits-20261122-130000-00ff", "digits-20261122-130000-00ff"),
        ("Digits-20261122-130000-00ff", "r-digits-20261122-130000-00ff-"),
        ("9digits-20261122-130000-00ff", "r-9digits-20261122-130000-00ff-"),
        ("a" * 63 + "-20261122-130000-00ff", "r-" + "a" * 37 + "-"),
    ],
)
def test_a_run_has_a_name_that_every_object_may_have(run_id: str, name: str) -> None:
    made = name_of(run_id)
    assert made == name or made.removeprefix(name).isalnum()
    assert len(made) <= LONGEST_NAME
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made)
    assert name_of(run_id.swapcase()) != made or run_id == run_id.swapcase()


def test_200_instances_are_rendered_in_bounded_time() -> None:
    began = time.process_time()
    case = planned({}, {**DATA, "count": 184}, {**DNN, "count": 16}, data_service=FEED)
    text = rendered(case)[0].text
    seconds = time.process_time() - began
    assert text.count("kind: Job\n") == 200
    assert seconds < 20


def test_a_patch_is_merged_and_takes_nothing_away() -> None:
    job = [made for made in objects(CASES["two_groups"]) if made["kind"] == "Job"][1]
    pod = job["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsUser": 1000, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, "fsGroup": 1000
    }  # fmt: skip
    assert pod["volumes"][-1] == {"name": "own", "emptyDir": {}}
    assert {"run", "in", "shm"} <= {volume["name"] for volume in pod["volumes"]}
    assert pod["containers"][0]["volumeMounts"][-1] == {"name": "own", "mountPath": "/own"}
    assert merged({"a": [1], "b": {"c": 1}}, {"a": [2], "b": {"c": 2, "d": 3}}) == {"a": [1, 2], "b": {"c": 2, "d": 3}}
