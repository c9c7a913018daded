"""What `plan` and `check` of the Kubernetes engine return: a job, its launch plan and its channels.

The plan is complete before anything is submitted: a host's address is a name that the cluster's DNS resolves, its tree
is /opt/ml, and all pods have the run's directory at the path that it has here. Only how many data workers fill a host's
CPUs is found out there (see `pod`), where the job says ``auto`` and the pods have no limit of CPUs.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from headrace.catalog import instance_types
from headrace.engines.local.plan_hosts import number_of
from headrace.engines.planning.engine_job import EngineJob, range_sentences
from headrace.engines.planning.plan_artefacts import check_checkpoint_folder
from headrace.engines.planning.plan_channels import orders_of
from headrace.engines.remote_job import check_remote_job, ranks_beside_workers, remote_plan
from headrace.errors import EngineRefused
from headrace.hosting.inputs.host_facts import with_data_workers
from headrace.instance.launch_plan import LaunchPlan
from headrace.job import Job
from headrace.job.model.kubernetes_options import KubernetesOptions, KubernetesPods, amount_of
from headrace.job.problems.finding import Path
from headrace.job.rules.kubernetes_rules import in_volumes, is_in_volume
from headrace.runs import RunPaths

GPU = "nvidia.com/gpu"
LONGEST_NAME = 48
"""Of a run's objects: with the host's number, or with what JobSet adds, a name has at most 63 characters."""
LEAST = {"cpu": "500m", "memory": "512Mi"}
"""Requested where a job says nothing of it: a pod without requests is evicted first, and a quota refuses it."""
_OTHER = re.compile(r"[^a-z0-9]+")
_DIGEST = 8


@dataclass(frozen=True)
class KubernetesJob(EngineJob):
    """A job for a Kubernetes cluster."""

    ENGINE = "kubernetes"

    @property
    def options(self) -> KubernetesOptions:
        """What the job says of the cluster."""
        return self.job.kubernetes

    @property
    def name(self) -> str:
        """What the run's objects are called."""
        return name_of(self.plan.run_id)

    @property
    def root(self) -> str:
        """The run's directory, here and in every pod."""
        return self.plan.hosts[0].record_dir

    @property
    def limits(self) -> tuple[str, ...]:
        """Where the pods are made, and what they ask for, in sentences."""
        context = self.options.context or "the current one of the kubeconfig"
        found = [f"namespace: {self.options.namespace}; context: {context}"]
        for group in self.plan.groups:
            pods, count = self.options.pods_of(group.name), len(group.hosts)
            text = f"{group.name}: {count} pod{'' if count == 1 else 's'}, image {self.image_of(group.name)}"
            nodes = [f"on nodes with {key}={value}" for key, value in pods.node_selector.items()]
            found.append(", ".join([text, *self._asked(group.name), *nodes]))
        return (*found, *range_sentences(self.plan))

    @property
    def python(self) -> str:
        """The interpreter in the images."""
        return self.options.python

    def pod_of(self, group: str) -> str:
        """Returns what a pod of a group asks of its node."""
        return f"pod: {', '.join(self._asked(group))}"

    def _asked(self, group: str) -> Iterator[str]:
        resources = self.resources_of(group)
        limits = resources.get("limits", {})
        yield from (f"{name} {value}" for name, value in resources.get("requests", {}).items() if name not in limits)
        yield from (f"{name} {value} at most" for name, value in limits.items() if name != GPU)
        if GPU in limits:
            yield f"{limits[GPU]} GPU{'' if limits[GPU] == '1' else 's'}"

    def image_of(self, group: str) -> str:
        """Returns the image of a group's pods."""
        return self.options.pods_of(group).image or self.job.image_uri or ""

    def resources_of(self, group: str) -> dict[str, dict[str, str]]:
        """Returns what the pods of a group ask of their nodes: ``requests`` and ``limits``, as Kubernetes has them."""
        pods = self.options.pods_of(group)
        shape = instance_types.shape(self.job.group(group).instance_type)
        requests: dict[str, str] = {}
        if pods.size_of_instance and shape is not None:
            requests = {"cpu": str(shape.vcpus), "memory": f"{math.floor(shape.memory_gib * 1024)}Mi"}
        limits = dict(pods.resources.limits) if pods.resources else {}
        requests |= pods.resources.requests if pods.resources else {}
        most = {name: amount_of(value) for name, value in limits.items()}
        requests = {name: value for name, value in requests.items() if amount_of(value) <= most.get(name, math.inf)}
        requests |= {name: value for name, value in LEAST.items() if name not in requests and name not in limits}
        gpus = pods.gpus if pods.gpus is not None else shape.gpus if shape is not None else 0
        if gpus:
            limits[GPU] = str(gpus)
        return {kind: each for kind, each in (("requests", requests), ("limits", limits)) if each}

    def in_run(self, paths: RunPaths) -> KubernetesJob:
        """Returns the same for a run that exists now. Its directory must be named without symlinks."""
        placed = super().in_run(paths)
        return replace(placed, plan=_with_addresses(placed.plan, self.options))

    def first_of(self, group: str) -> int:
        """Returns the number of a group's first host."""
        return number_of(self.plan.group(group).hosts[0])


def name_of(run_id: str) -> str:
    """Returns what the objects of a run are called: a DNS label that begins with a letter, for no other run.

    >>> name_of("digits-20261122-130000-00ff")
    'digits-20261122-130000-00ff'
    """
    text = _OTHER.sub("-", run_id.lower()).strip("-")
    if text == run_id and len(text) <= LONGEST_NAME and text[0].isalpha():
        return text
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:_DIGEST]
    return f"r-{text[: LONGEST_NAME - _DIGEST - 3].strip('-')}-{digest}"


def jobs_that_come_and_go(planned: KubernetesJob) -> dict[str, str]:
    """Returns the Jobs of data hosts that come and go, by host."""
    return {
        host.name: f"{planned.name}-{host.name}"
        for host in planned.plan.hosts
        if planned.plan.comes_and_goes(host.name)
    }


def part_of_set(plan: LaunchPlan, group: str) -> str:
    """Returns what a JobSet calls the Job of a group: g1, g2 ... in the job's order."""
    return f"g{[each.name for each in plan.groups].index(group) + 1}"


def plan_kubernetes_job(job: Job, paths: RunPaths) -> KubernetesJob:
    """Returns the job with its launch plan. Pure.

    Args:
        job: the job.
        paths: the run's directory; it need not exist.

    Raises:
        JobInvalid: what this engine does not have.
        EngineRefused: a folder for checkpoints that hosts cannot have.
    """
    job.check_engine("kubernetes")
    check_checkpoint_folder(job, False)
    options = job.kubernetes
    plan = remote_plan(job, paths, "", own_trees=True, with_range=not options.is_jobset, options=options)
    limits = {group.name: _cpu_limit(options.pods_of(group.name)) for group in plan.groups}
    known = {name: cpus for name, cpus in limits.items() if cpus}
    ranks = {name: each for name, each in ranks_beside_workers(job).items() if name in known}
    plan = with_data_workers(_with_addresses(plan, options), known, ranks)
    return KubernetesJob(job, plan, orders_of(job))


def check_kubernetes_job(planned: KubernetesJob) -> None:
    """Checks what can be known before the job is submitted.

    Raises:
        JobInvalid, EngineRefused: it could not run.
    """
    if ":" in planned.root or "," in planned.root:
        raise EngineRefused(
            f"the run's directory has a name that no pod can have: {planned.root}",
            hint="set HEADRACE_HOME to a folder without ':' and ','",
        )
    elsewhere: list[Path] = list(in_volumes(planned.job))
    for key in ("output_path", "checkpoint_s3_uri"):
        if is_in_volume(planned.options, getattr(planned.job, key)):
            elsewhere.append((key,))
    check_remote_job(planned, elsewhere, storage=planned.options.check_storage, programs=False)


def _with_addresses(plan: LaunchPlan, options: KubernetesOptions) -> LaunchPlan:
    """Returns the plan with the names that pods have in the cluster's DNS."""
    if not options.is_jobset:
        return plan
    name = name_of(plan.run_id)
    moved = [
        msgspec.structs.replace(host, address=f"{name}-{part_of_set(plan, host.group)}-0-{index}")
        for group in plan.groups
        for index, host in enumerate(map(plan.host, group.hosts))
    ]
    return msgspec.structs.replace(plan, hosts=tuple(sorted(moved, key=lambda host: number_of(host.name))))


def _cpu_limit(pods: KubernetesPods) -> int:
    """Returns how many whole CPUs a pod may use at most; 0 without a limit."""
    limit = pods.resources.limits.get("cpu") if pods.resources else None
    return 0 if limit is None else max(1, math.floor(amount_of(limit)))
