"""Jobs for a Kubernetes cluster that tests plan, render and pack."""

from __future__ import annotations

from pathlib import Path

from headrace.engines.kubernetes.kubernetes_job import KubernetesJob, plan_kubernetes_job
from headrace.job import Job
from headrace.runs import RunPaths

RUN = Path("/shared/runs/digits-20261122-130000-00ff")
DATA = {"name": "data_group", "type": "ml.c5.xlarge", "count": 2}
DNN = {"name": "dnn_group", "type": "ml.g5.xlarge", "count": 1}
FEED = {"feed": {"enabled": True}, "instance_groups": ["data_group"]}
IMAGE = {"image": "registry.example.com/torch:2.5"}


def kube_job(kubernetes: dict[str, object], *groups: dict[str, object], **fields: object) -> Job:
    """A job with these options of the engine, and an image."""
    given: dict[str, object] = {"source_dir": "code", "entry_point": "train.py", "instance_groups": list(groups)}
    options = {**IMAGE, **kubernetes}
    return Job("digits", engines={"kubernetes": options}, **{**given, **fields})  # type: ignore[arg-type]


def planned(kubernetes: dict[str, object], *groups: dict[str, object], **fields: object) -> KubernetesJob:
    """The same, planned for a run."""
    return plan_kubernetes_job(kube_job(kubernetes, *groups, **fields), RunPaths(RUN))


CASES: dict[str, KubernetesJob] = {
    "one_group": planned({}, DNN, stopping_condition={"max_run": 3600}),
    "two_groups": planned(
        {
            "namespace": "training",
            "service_account": "trainer",
            "image_pull_policy": "IfNotPresent",
            "image_pull_secrets": ["registry"],
            "environment_secrets": ["s3-credentials"],
            "volumes": {
                "data": {"mount_path": "/data", "claim": "training-data", "read_only": True},
                "out": {"mount_path": "/out", "nfs": {"server": "files", "path": "/exports/out"}, "sub_path": "digits"},
                "scratch": {"mount_path": "/scratch", "host_path": "/mnt/disk"},
            },
            "pip": True,
            "shm": "8Gi",
            "stop_grace": 120,
            "labels": {"team": "vision"},
            "annotations": {"example.com/ticket": "42: a training"},
            "groups": {
                "data_group": {
                    "image": "registry.example.com/data:1",
                    "node_selector": {"node.kubernetes.io/instance-type": "c5.xlarge"},
                    "resources": {"requests": {"cpu": "3500m"}, "limits": {"cpu": 4, "memory": "6Gi"}},
                    "user": 1000,
                    "pod": {"securityContext": {"fsGroup": 1000}, "volumes": [{"name": "own", "emptyDir": {}}]},
                    "container": {"volumeMounts": [{"name": "own", "mountPath": "/own"}]},
                },
                "dnn_group": {
                    "tolerations": [
                        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                        {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoExecute", "seconds": 60},
                    ],
                    "size_of_instance": True,
                    "priority_class": "high",
                    "runtime_class": "nvidia",
                },
            },
        },
        DATA,
        DNN,
        inputs={"training": "/data/digits", "eval": "s3://bucket/eval"},
        output_path="/out/models",
        data_service=FEED,
        retry={"attempts": 2},
        environment={"PIP_INDEX_URL": "https://pypi.example.com/simple"},
    ),
    "jobset": planned(
        {"queue": "gpus", "privileged": True, "groups": {"dnn_group": {"gpus": 2}}},
        DATA,
        {**DNN, "count": 2},
        data_service=FEED,
        retry={"attempts": 1},
        record={"uri": "s3://bucket/records"},
    ),
    "data_hosts_come_and_go": planned(
        {},
        DATA,
        DNN,
        data_service={**FEED, "feed": {"enabled": True, "workers": {"min": 1, "max": 2}}},
    ),
}
