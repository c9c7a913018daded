"""The objects of a run, in the order in which they are made. Pure: plain mappings, as the cluster's API takes them.

    Job NAME-algo-N           the leader's, which owns all others: when it is deleted, by whomever, nothing is left
    Service NAME              gives pods their names in DNS, algo-N
    ServiceAccount, Role, RoleBinding NAME, Secret NAME-token
                              where data hosts come and go: the leader's pod may change the Jobs of these hosts
    ConfigMap NAME-headrace   headrace's package
    Secret NAME               job, plan, code
    Secret NAME-algo-N        what is one host's alone, the leader's first
    Job NAME-algo-N           the pod of another host, and the next one when that is lost
    ConfigMap NAME            says that all others are made

The cluster deletes the first `ttl` seconds after its end. With `queue` or `gang` that is one JobSet, with one Job a
group, and there are no other Jobs and no Service. Its pods are made at once and wait for what they mount.

The pod of a host has one container, whose main process becomes the host's supervisor:

    RUN              an emptyDir, at the path that the run's directory has where the job was submitted
    /opt/ml          the host's tree, a folder of the same emptyDir
    /headrace        headrace's package, and what pip brings; /headrace/in: what travels (`pack_run`)
    /dev/shm         memory
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from headrace import install_hint
from headrace.engines.documents import Document
from headrace.engines.host_start import PACKAGE, RUN_FILES
from headrace.engines.kubernetes.cluster import KINDS
from headrace.engines.kubernetes.kubernetes_job import KubernetesJob, jobs_that_come_and_go, part_of_set
from headrace.engines.kubernetes.pack_run import Payload
from headrace.engines.kubernetes.pod import AUTHORITY, NAMESPACE, TOKEN
from headrace.engines.remote_job import plan_document
from headrace.hosting.supervision.host_duties import LAST_SYNC_SECONDS
from headrace.hosting.supervision.supervisor import COLLECT_SECONDS, RECORD_SECONDS
from headrace.instance.launch_plan import GroupPlan
from headrace.instance.paths import DEFAULT_BASE
from headrace.instance.storage import is_s3
from headrace.job.model.field_types import text_of
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
    own = tuple(install_hint.LIBRARIES.values())
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
        {"secret": {"name": planned.name, "items": _items([RUN_FILES])}},
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


RUN, HOST, GROUP, FIRST = "headrace/run", "headrace/host", "headrace/group", "headrace/first"  # labels
RUN_ID, JOB_NAME, DATA = "headrace/run-id", "headrace/job-name", "headrace/data"  # annotations
QUEUE = "kueue.x-k8s.io/queue-name"
INDEX = "batch.kubernetes.io/job-completion-index"
FAILED = 1  # exit code of a pod that could say how its host ended: another one would not do better
OFTEN = {"backoffLimit": 1_000_000, "podReplacementPolicy": "Failed"}
"""Of the Job of a data host that comes and goes: the leader's pod says when it has a pod."""
LEFT_OUT = "left out here: it holds a secret, or is made when the job is submitted"
MANIFESTS = "objects.yaml"
NONE: Mapping[str, str] = {}


def objects(planned: KubernetesJob, payload: Payload | None = None) -> tuple[Object, ...]:
    """Returns the objects of a run, in the order of the module. All but the first lack `with_owner`.

    Args:
        planned: the job, in its run.
        payload: what travels to the pods; None leaves it out.
    """
    mounted = tuple(_mounted(planned, payload))
    if planned.options.is_jobset:
        return (_job_set(planned), *mounted, _complete(planned))
    hosts = [(group, host) for group in planned.plan.groups for host in group.hosts]
    hosts.sort(key=lambda each: each[1] != planned.plan.leader)
    owner, *jobs = (_job(planned, group, host) for group, host in hosts)
    names = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {RUN: planned.name}}
    service = _object(planned, "Service", planned.name, spec=names)
    return (owner, service, *_rights(planned), *mounted, *jobs, _complete(planned))


def pods_of(planned: KubernetesJob) -> tuple[Object, ...]:
    """Returns a pod of each group as its Job makes it, to ask the cluster what it thinks of it."""
    made = []
    for group in planned.plan.groups:
        template = _template(planned, group, {}, "" if planned.options.is_jobset else group.hosts[0])
        meta = {**template["metadata"], "name": f"{planned.name}-{group.hosts[0]}"}
        made.append({**_object(planned, "Pod", ""), "metadata": meta, "spec": template["spec"]})
    return tuple(made)


def with_owner(made: Mapping[str, Any], owner: Mapping[str, Any], uid: str) -> Object:
    """Returns an object of a run as owned by another one.

    Args:
        made: the object.
        owner: the first of `objects`.
        uid: of that, as the cluster has made it.
    """
    of_owner = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [{**of_owner, "uid": uid}]}}


def rendered(planned: KubernetesJob) -> tuple[Document, ...]:
    """Returns all objects as one YAML document each, without secrets, and the launch plan."""
    head = (
        f"# What a run of this job submits. Its name is the run's, not {planned.name}.\n"
        "# All objects but the first have it as their owner: its uid is known when it is made.\n"
    )
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump_all(objects(planned), Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    return (Document(MANIFESTS, head + text), plan_document(planned))


def host_of_pod(pod: Mapping[str, Any]) -> str:
    """Returns the host of a pod of a run; empty when its labels do not say it."""
    meta = pod.get("metadata", {})
    labels = meta.get("labels") or {}
    if HOST in labels:
        return text_of(labels[HOST])
    index = labels.get(INDEX, (meta.get("annotations") or {}).get(INDEX))
    return f"algo-{int(labels[FIRST]) + int(index)}" if FIRST in labels and index is not None else ""


def hosts_of_job(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the hosts whose pods a Job of a run makes: one, or all of a group in a JobSet."""
    labels = job.get("metadata", {}).get("labels") or {}
    if HOST in labels:
        return (text_of(labels[HOST]),)
    count = job.get("spec", {}).get("completions", 0)
    return tuple(f"algo-{int(labels[FIRST]) + index}" for index in range(count)) if FIRST in labels else ()


def group_label(group: str) -> str:
    """Returns a group's name as the value of a label, which takes fewer characters."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in group)
    return kept[:63].strip("-_.")


def _object(
    planned: KubernetesJob,
    kind: str,
    name: str,
    labels: Mapping[str, str] = NONE,
    annotations: Mapping[str, str] = NONE,
    **fields: object,
) -> Object:
    """Returns an object of the run, with the user's labels and annotations, and the run's."""
    place, options = KINDS[kind], planned.options
    about = {RUN_ID: planned.plan.run_id, JOB_NAME: planned.plan.job_name}
    meta = {
        "name": name,
        "namespace": options.namespace,
        "labels": {**options.labels, RUN: planned.name, **labels},
        "annotations": {**options.annotations, **about, **annotations},
    }
    version = f"{place.group}/{place.version}" if place.group else place.version
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def _complete(planned: KubernetesJob) -> Object:
    data = {"run": planned.plan.run_id, "leader": planned.plan.leader, "directory": planned.root}
    return _object(planned, "ConfigMap", planned.name, data=data)


def _mounted(planned: KubernetesJob, payload: Payload | None) -> Iterator[Object]:
    """Yields what pods mount: headrace's package, what all hosts share, what is one host's alone."""
    package, shared, own = (payload.package, payload.shared, payload.hosts) if payload else (None, None, {})
    yield _filled(planned, "ConfigMap", package_name(planned), {PACKAGE: package}, NONE)
    yield _filled(planned, "Secret", planned.name, {RUN_FILES: shared}, NONE)
    for group in sorted(planned.plan.groups, key=lambda each: planned.plan.leader not in each.hosts):
        for hosts in [group.hosts] if planned.options.is_jobset else [(host,) for host in group.hosts]:
            host = "" if planned.options.is_jobset else hosts[0]
            labels = {GROUP: group_label(group.name), **({HOST: host} if host else {})}
            data = {f"{name}.tar.gz": own.get(name) for name in hosts}
            yield _filled(planned, "Secret", secret_name(planned, group, host), data, labels)


def _filled(
    planned: KubernetesJob, kind: str, name: str, data: Mapping[str, bytes | None], labels: Mapping[str, str]
) -> Object:
    """Returns a Secret or ConfigMap with its data, or with an annotation that says why it has none."""
    fields: Object = {"type": "Opaque"} if kind == "Secret" else {}
    encoded = {file: base64.b64encode(content).decode() for file, content in data.items() if content is not None}
    if not encoded:
        return _object(planned, kind, name, labels, {DATA: LEFT_OUT}, **fields)
    fields["data" if kind == "Secret" else "binaryData"] = encoded
    return _object(planned, kind, name, labels, **fields)


def _rights(planned: KubernetesJob) -> Iterator[Object]:
    """Yields what lets the leader's pod have data hosts come and go, and do nothing else."""
    jobs = jobs_that_come_and_go(planned)
    if not jobs:
        return
    name, account = planned.name, "kubernetes.io/service-account"
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": [*jobs.values()], "verbs": ["patch"]}]
    role = {"apiGroup": KINDS["Role"].group, "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": planned.options.namespace}
    yield _object(planned, "ServiceAccount", name, automountServiceAccountToken=False)
    yield _object(planned, "Role", name, rules=rules)
    yield _object(planned, "RoleBinding", name, roleRef=role, subjects=[subject])
    token = {f"{account}.name": name}
    yield _object(planned, "Secret", token_name(planned), NONE, token, type=f"{account}-token")


def _job(planned: KubernetesJob, group: GroupPlan, host: str) -> Object:
    labels = {GROUP: group_label(group.name), HOST: host}
    limit = planned.plan.retry.attempts
    if host == planned.plan.leader and planned.job.record is None:
        limit = 0  # its record is gone with it
    comes = planned.plan.comes_and_goes(host)
    spec: Object = {
        "completions": 1,
        "parallelism": 0 if planned.plan.comes_later(host) else 1,
        **(OFTEN if comes else _replaced(limit)),
        **({"ttlSecondsAfterFinished": planned.options.ttl} if host == planned.plan.leader else {}),
        "template": _template(planned, group, labels, host),
    }
    return _object(planned, "Job", f"{planned.name}-{host}", labels, spec=spec)


def _replaced(limit: int) -> Object:
    """How often a lost pod is replaced: never while it may still run, and not after it has said how its host ended."""
    said = {"containerName": CONTAINER, "operator": "In", "values": [FAILED]}
    policy = {"rules": [{"action": "FailJob", "onExitCodes": said}]}
    return {"backoffLimit": limit, "podReplacementPolicy": "Failed", **({"podFailurePolicy": policy} if limit else {})}


def _template(planned: KubernetesJob, group: GroupPlan, labels: Mapping[str, str], host: str = "") -> Object:
    meta = _object(planned, "Pod", "", labels)["metadata"]
    meta = {"labels": meta["labels"], "annotations": {**STAYING, **meta["annotations"]}}
    return {"metadata": meta, "spec": pod_spec(planned, group, host)}


def _job_set(planned: KubernetesJob) -> Object:
    """One Job a group, whose completion indexes are its hosts. A pod that is lost is replaced, and asks the leader."""
    options, plan = planned.options, planned.plan
    parts = []
    for group in plan.groups:
        count = len(group.hosts)
        is_alone = plan.leader in group.hosts and planned.job.record is None  # its record would be gone with it
        labels = {GROUP: group_label(group.name), FIRST: str(planned.first_of(group.name))}
        spec = {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            **_replaced(0 if is_alone else count * (plan.retry.attempts + 1)),
            "template": _template(planned, group, labels),
        }
        meta = {"labels": {RUN: planned.name, **labels}}
        template = {"metadata": meta, "spec": spec}
        parts.append({"name": part_of_set(plan, group.name), "replicas": 1, "template": template})
    leaders = part_of_set(plan, plan.host(plan.leader).group)
    index = plan.group(plan.host(plan.leader).group).hosts.index(plan.leader)
    queue = {} if options.queue is None else {QUEUE: options.queue}
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": planned.name, "publishNotReadyAddresses": True},
        "coordinator": {"replicatedJob": leaders, "jobIndex": 0, "podIndex": index},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [leaders]},
        "failurePolicy": {"maxRestarts": 0},
        "ttlSecondsAfterFinished": options.ttl,
        "replicatedJobs": parts,
    }
    return _object(planned, "JobSet", planned.name, queue, spec=spec)
