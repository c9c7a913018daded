"""Gives a run to its cluster: asks first whether it would be taken, makes its objects, leaves none of a failed try."""

from __future__ import annotations

import contextlib
import logging
import re
from typing import Any

import msgspec

from headrace.engines.kubernetes.cluster import (
    ROLE,
    ROLE_HINT,
    ROLE_OF_RANGE,
    ROLE_OF_SET,
    Cluster,
    ClusterRefused,
    ObjectExists,
    Rule,
)
from headrace.engines.kubernetes.kubernetes_job import KubernetesJob
from headrace.engines.kubernetes.objects import RUN, objects, pods_of, with_owner
from headrace.engines.kubernetes.pack_run import prepare_kubernetes_run
from headrace.engines.kubernetes.pod_states import keys_of_policy, never_made
from headrace.engines.kubernetes.refresh_run import KubeTicket, delete_after_failure
from headrace.engines.ticket import by_this_process, write_ticket
from headrace.errors import EngineRefused
from headrace.runs import RunPaths, give_to_engine

_log = logging.getLogger(__name__)

MAKE_PODS = Rule("", "pods", ("create",))
"""Not in the role: who may do it anyway learns before a job is submitted what the cluster refuses of its pods."""


def check_cluster(planned: KubernetesJob, cluster: Cluster) -> None:
    """Checks what only the cluster knows: this user's permissions, the objects, volumes. Nothing is made. What the
    cluster warns of is logged, the same of several objects once.

    Raises:
        EngineRefused: the job could not be submitted.
    """
    wanted = [*ROLE, *(ROLE_OF_SET if planned.options.is_jobset else ())]
    wanted += ROLE_OF_RANGE if planned.plan.feed_range is not None else ()
    if missing := missing_rules(cluster, wanted):
        what = "; ".join(rule.told for rule in missing)
        raise EngineRefused(f"this user may not, in the namespace {cluster.namespace}: {what}", ROLE_HINT)
    warned: dict[str, str] = {}
    checked = [made for made in objects(planned) if made["kind"] != "RoleBinding"]  # its role is not there yet
    for made in (*checked, *(pods_of(planned) if cluster.may("create", MAKE_PODS) else ())):
        try:
            _create(cluster, made, dry_run=True)
            texts = cluster.warnings
        except ClusterRefused as error:
            if made["kind"] != "Pod" or never_made(error.message):
                raise
            texts = [error.message]  # it may pass, or hold for a pod without a Job only
        for text in texts:
            warned.setdefault(text, f"{made['kind']} {made['metadata']['name']}")
    for text, about in warned.items():
        _log.warning("the cluster warns of the %s: %s", about, "; ".join(filter(None, (text, keys_of_policy(text)))))
    for name, volume in planned.options.volumes.items():
        if volume.claim is not None and cluster.get("PersistentVolumeClaim", volume.claim) is None:
            what = f"the volume {name}: the namespace {cluster.namespace} has no PersistentVolumeClaim {volume.claim}"
            raise EngineRefused(what, f"kubectl -n {cluster.namespace} get pvc shows those that are there")
    _check_classes(planned, cluster)


def _check_classes(planned: KubernetesJob, cluster: Cluster) -> None:
    """Checks the classes of pods, if this user may see those: a role of a namespace does not say so. Else no pod of the
    run comes, and the cluster's words for that are in the run's status.
    """
    pods = [planned.options.pods_of(group.name) for group in planned.plan.groups]
    wanted = [("PriorityClass", each.priority_class) for each in pods]
    wanted += [("RuntimeClass", each.runtime_class) for each in pods]
    for kind, name in dict.fromkeys(wanted):
        if name is None:
            continue
        try:
            there = cluster.get(kind, name) is not None
        except ClusterRefused:
            continue
        if not there:
            raise EngineRefused(f"the cluster has no {kind} {name}", f"kubectl get {kind.lower()} shows those it has")


def missing_rules(cluster: Cluster, wanted: list[Rule]) -> list[Rule]:
    """Returns what of some rules this user may not do; one request a verb. Raises as `Cluster.may`."""
    found = []
    for rule in wanted:
        verbs = tuple(verb for verb in rule.verbs if not cluster.may(verb, rule))
        if verbs:
            found.append(rule._replace(verbs=verbs))
    return found


def submit_run(planned: KubernetesJob, paths: RunPaths, cluster: Cluster) -> None:
    """Makes the objects of a run. What fails is deleted again; what is killed is found again by its ticket.

    Args:
        planned: the job, in its run.
        paths: the run's directory.
        cluster: where to.

    Raises:
        UsageError, StorageError: the run cannot be prepared.
        EngineRefused: the cluster does not take it.
        OSError: the run's directory cannot be written.
    """
    options, job = planned.options, planned.job
    made = objects(planned, prepare_kubernetes_run(planned, paths))
    ticket = KubeTicket(
        server=cluster.server,
        context=cluster.context,
        namespace=cluster.namespace,
        name=planned.name,
        record=job.record.uri if job.record is not None else "",
        output_stored=job.output_path is not None,
        reads_store=options.check_storage,
        linger=options.linger,
        max_pending=options.max_pending,
        owner=(made[0]["kind"], made[0]["metadata"]["name"]),
    )
    ticket = by_this_process(ticket)
    write_ticket(paths, ticket)
    give_to_engine(paths)
    try:
        _make(cluster, made[0])
        uid = _uid_of(cluster, made[0])
        for each in made[1:]:
            _make(cluster, with_owner(each, made[0], uid))
        write_ticket(paths, msgspec.structs.replace(ticket, submitted=True))
    except BaseException:
        delete_after_failure(cluster, ticket)
        raise


def _make(cluster: Cluster, manifest: dict[str, Any]) -> None:
    """Makes an object. One that is there was made by a request whose answer was lost: names are the run's own."""
    with contextlib.suppress(ObjectExists):
        _create(cluster, manifest)


def _uid_of(cluster: Cluster, owner: dict[str, Any]) -> str:
    kind, name = owner["kind"], owner["metadata"]["name"]
    for each in cluster.objects(kind, {RUN: owner["metadata"]["labels"][RUN]}):
        if each["metadata"]["name"] == name:
            return str(each["metadata"]["uid"])
    raise EngineRefused(f"somebody has deleted the {kind} {name} while its run was submitted", "submit it again")


_IN_POD = re.compile(r"^spec\.(?:replicatedJobs\[\d+\]\.template\.spec\.)?template\.spec\.(.+)$")
_CONTAINER = re.compile(r"^(?:init)?[cC]ontainers\[\d+\]\.(.+)$")
_NAME = re.compile(r"^\w+")
_OF_POD = {
    "nodeSelector": "node_selector",
    "tolerations": "tolerations",
    "serviceAccountName": "service_account",
    "imagePullSecrets": "image_pull_secrets",
    "priorityClassName": "priority_class",
    "runtimeClassName": "runtime_class",
    "volumes": "volumes",
}
_OF_CONTAINER = {
    "image": "image",
    "imagePullPolicy": "image_pull_policy",
    "resources": "resources",
    "envFrom": "environment_secrets",
    "volumeMounts": "volumes",
}


def option_of(field: str) -> str:
    """Returns the key of a job file from which a field of an object comes; empty for one that headrace makes itself.

    >>> option_of("spec.template.spec.tolerations[0].effect"), option_of("spec.template.spec.containers[0].tty")
    ('engines.kubernetes.tolerations', 'engines.kubernetes.container.tty')
    """
    found = _IN_POD.match(field)
    if found is None:
        return ""
    container = _CONTAINER.match(found[1])
    name = _NAME.match(container[1] if container else found[1])
    if name is None:
        return ""
    known = (_OF_CONTAINER if container else _OF_POD).get(name[0])
    patch = "container" if container else "pod"
    return f"engines.kubernetes.{known or f'{patch}.{name[0]}'}"


def _create(cluster: Cluster, manifest: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
    """Makes an object. Of a field that the cluster refuses it is told which key of the job file it comes from."""
    try:
        return cluster.create(manifest, dry_run)
    except ClusterRefused as error:
        keys = dict.fromkeys(filter(None, map(option_of, error.fields)))
        if keys:
            error.hint = f"what it refuses comes from {', '.join(keys)} of the job (or the same of a group)"
        error.hint = keys_of_policy(error.message) or error.hint
        raise
