"""The pod of a host: one container, whose main process becomes the host's supervisor. Pure.

RUN              an emptyDir, at the path that the run's directory has where the job was submitted
/opt/ml          the host's tree, a folder of the same emptyDir
/headrace        headrace's package, and what pip brings; /headrace/in: what travels (`pack_run`)
/dev/shm         memory
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace import host_libraries
from headrace.engines.kubernetes.data_pods import AUTHORITY, NAMESPACE, TOKEN
from headrace.engines.kubernetes.kubernetes_job import KubernetesJob
from headrace.engines.kubernetes.pack_run import PACKAGE, SHARED
from headrace.hosting.supervision.host_duties import LAST_SYNC_SECONDS
from headrace.hosting.supervision.supervisor import COLLECT_SECONDS, RECORD_SECONDS
from headrace.instance.launch_plan import GroupPlan
from headrace.instance.paths import DEFAULT_BASE
from headrace.instance.storage import is_s3
from headrace.job.model.kubernetes_options import KubernetesOptions, KubernetesPods, Volume

CONTAINER = "host"
FOLDER = "/headrace"
INPUT = f"{FOLDER}/in"
WORD = "/dev/termination-log"
LIBRARIES = f"{FOLDER}/libraries"
SEARCH_PATH = f"{FOLDER}/package:{LIBRARIES}"
OF_S3 = "botocore>=1.35"
"""What hosts need with S3, beside headrace's own libraries."""
STAYING = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations with which the usual autoscalers let a pod end its work."""
RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
AFTER_GRACE = 30
"""Seconds between the programs' SIGKILL and the pod's: checkpoints and the record are brought to safety."""

Object = dict[str, Any]


def pod_spec(planned: KubernetesJob, group: GroupPlan, host: str = "") -> Object:
    """Returns the spec of a pod.

    Args:
        planned: the job.
        group: the pod's group.
        host: its host; empty where one template stands for all hosts of the group, which have a completion index.
    """
    options, pods = planned.options, planned.options.pods_of(group.name)
    spec: Object = {
        "restartPolicy": "Never",
        **({"hostname": host, "subdomain": planned.name} if host else {}),
        "dnsConfig": {"searches": [f"{planned.name}.{options.namespace}.svc.{options.cluster_domain}"]},
        "terminationGracePeriodSeconds": grace_of(planned),
        "activeDeadlineSeconds": deadline_of(planned),
        "enableServiceLinks": False,
        "automountServiceAccountToken": pods.service_account is not None,
        **_given(
            securityContext=None if pods.user is None else {"runAsUser": pods.user, **RESTRICTED},
            serviceAccountName=pods.service_account,
            nodeSelector=dict(pods.node_selector),
            tolerations=[_toleration(each.model_dump(exclude_none=True)) for each in pods.tolerations],
            priorityClassName=pods.priority_class,
            runtimeClassName=pods.runtime_class,
            imagePullSecrets=[{"name": name} for name in options.image_pull_secrets],
        ),
        "volumes": [*_own_volumes(planned, group, host, pods), *_volumes(options)],
        **({"initContainers": [_pip(planned, group)]} if options.pip else {}),
        "containers": [merged(_container(planned, group, host, pods), pods.container)],
    }
    return merged(spec, pods.pod)


def grace_of(planned: KubernetesJob) -> int:
    """Returns the seconds that a pod has between SIGTERM and SIGKILL."""
    return math.ceil(planned.plan.stop_grace) + AFTER_GRACE


def deadline_of(planned: KubernetesJob) -> int:
    """Returns the seconds after which the cluster ends a pod that runs: later than any run that goes well."""
    plan = planned.plan
    ends = plan.max_run + plan.start_timeout + plan.stop_grace + planned.options.linger + AFTER_GRACE
    return math.ceil(ends + LAST_SYNC_SECONDS + COLLECT_SECONDS + RECORD_SECONDS)


def _container(planned: KubernetesJob, group: GroupPlan, host: str, pods: KubernetesPods) -> Object:
    options, root = planned.options, planned.root
    named = host or f"{planned.first_of(group.name)}+"
    return {
        **_image(planned, group),
        "name": CONTAINER,
        "command": [options.python, "-X", "utf8", f"{INPUT}/{PACKAGE}", "run", FOLDER, root, named, WORD],
        "env": [
            {"name": "HEADRACE_PYTHON", "value": options.python},
            {"name": "HEADRACE_HOME", "value": f"{FOLDER}/home"},
            {"name": "PYTHONPATH", "value": SEARCH_PATH},
        ],
        **_given(
            envFrom=[{"secretRef": {"name": name}} for name in options.environment_secrets],
            resources=planned.resources_of(group.name),
            securityContext={"privileged": True} if pods.privileged else _few_rights(pods),
        ),
        "volumeMounts": [
            {"name": "run", "mountPath": root},
            {"name": "run", "mountPath": DEFAULT_BASE, "subPath": f"hosts/{host}" if host else "ml"},
            *_inputs(),
            {"name": "shm", "mountPath": "/dev/shm"},
            *(_mount(_numbered(options, name), volume) for name, volume in options.volumes.items()),
        ],
    }


def _pip(planned: KubernetesJob, group: GroupPlan) -> Object:
    """The container that brings what the image lacks. Variables of pip are those of the group's programs."""
    settings = planned.plan.environment_of(group.name)
    variables = [{"name": name, "value": value} for name, value in settings.items() if name.startswith("PIP_")]
    resources = {kind: {name: value for name, value in each.items() if "/" not in name}
                 for kind, each in planned.resources_of(group.name).items()}  # fmt: skip
    command = [planned.options.python, "-X", "utf8", f"{INPUT}/{PACKAGE}", "install", LIBRARIES, *needed(planned)]
    return {
        **_image(planned, group),
        "name": "pip",
        "command": command,
        **_given(
            env=variables,
            resources={kind: each for kind, each in resources.items() if each},
            securityContext=_few_rights(planned.options.pods_of(group.name)),
        ),
        "volumeMounts": _inputs(),
    }


def needed(planned: KubernetesJob) -> tuple[str, ...]:
    """Returns the libraries that headrace needs in the image, with their least versions."""
    job = planned.job
    places = [job.output_path, job.checkpoint_s3_uri, job.source_dir, *(order.uri for order in planned.orders)]
    with_s3 = job.record is not None or any(place and is_s3(place) for place in places)
    own = tuple(host_libraries.LIBRARIES.values())
    return (*own, OF_S3) if with_s3 else own


def _image(planned: KubernetesJob, group: GroupPlan) -> Object:
    return {"image": planned.image_of(group.name), **_given(imagePullPolicy=planned.options.image_pull_policy)}


def _few_rights(pods: KubernetesPods) -> Object:
    """What each container of a pod with a user of its own must say for the Pod Security level *restricted*."""
    return {} if pods.user is None else {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _inputs() -> list[Object]:
    return [{"name": "headrace", "mountPath": FOLDER}, {"name": "in", "mountPath": INPUT, "readOnly": True}]


def _own_volumes(planned: KubernetesJob, group: GroupPlan, host: str, pods: KubernetesPods) -> list[Object]:
    keys = [f"{name}.tar.gz" for name in ([host] if host else group.hosts)]
    sources = [
        {"configMap": {"name": package_name(planned), "items": _items([PACKAGE])}},
        {"secret": {"name": planned.name, "items": _items([SHARED])}},
        {"secret": {"name": secret_name(planned, group, host), "items": _items(keys)}},
    ]
    if host == planned.plan.leader and planned.plan.feed_range is not None:
        sources.append({"secret": {"name": token_name(planned), "items": _items([TOKEN, AUTHORITY, NAMESPACE])}})
    return [
        {"name": "run", "emptyDir": {}},
        {"name": "headrace", "emptyDir": {}},
        # Whatever user the image runs as must read it. Nobody else is in the pod; copies of secrets have mode 0600.
        {"name": "in", "projected": {"defaultMode": 0o444, "sources": sources}},
        {"name": "shm", "emptyDir": {"medium": "Memory", **_given(sizeLimit=pods.shm)}},
    ]


def package_name(planned: KubernetesJob) -> str:
    """Returns the name of the ConfigMap with headrace's package."""
    return f"{planned.name}-headrace"


def token_name(planned: KubernetesJob) -> str:
    """Returns the name of the Secret with which the leader's pod speaks to the cluster."""
    return f"{planned.name}-token"


def secret_name(planned: KubernetesJob, group: GroupPlan, host: str) -> str:
    """Returns the name of the Secret with what is one host's alone; in a JobSet with that of a group's hosts."""
    return f"{planned.name}-{host}" if host else f"{planned.name}-hosts-{planned.first_of(group.name)}"


def _items(keys: list[str]) -> list[Object]:
    return [{"key": key, "path": key} for key in keys]


def _volumes(options: KubernetesOptions) -> list[Object]:
    return [{"name": _numbered(options, name), **_source(volume)} for name, volume in options.volumes.items()]


def _numbered(options: KubernetesOptions, name: str) -> str:
    return f"volume-{list(options.volumes).index(name) + 1}"


def _source(volume: Volume) -> Object:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim, **_given(readOnly=volume.read_only)}}
    if volume.nfs is not None:
        return {"nfs": {"server": volume.nfs.server, "path": volume.nfs.path, **_given(readOnly=volume.read_only)}}
    return {"hostPath": {"path": volume.host_path}}


def _mount(name: str, volume: Volume) -> Object:
    more = _given(subPath=volume.sub_path, readOnly=volume.read_only)
    return {"name": name, "mountPath": volume.mount_path, **more}


def _toleration(given: Mapping[str, Any]) -> Object:
    return {"tolerationSeconds" if key == "seconds" else key: value for key, value in given.items()}


def _given(**values: Any) -> Object:
    """Returns what is neither None nor empty nor False."""
    return {name: value for name, value in values.items() if value not in (None, False, {}, [], "")}


def merged(ours: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """Returns a part of an object with a patch in it: mappings are merged, lists added, all else replaced.

    >>> merged({"a": {"b": 1}, "c": [1]}, {"a": {"d": 2}, "c": [2]})
    {'a': {'b': 1, 'd': 2}, 'c': [1, 2]}
    """
    result = dict(ours)
    for key, value in patch.items():
        there = result.get(key)
        if isinstance(there, Mapping) and isinstance(value, Mapping):
            result[key] = merged(there, value)
        elif isinstance(there, list) and isinstance(value, list):
            result[key] = [*there, *value]
        else:
            result[key] = value
    return result
