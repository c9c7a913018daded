"""Options of the Kubernetes engine: what the pods of each group are, and how the run lives on the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from headrace.job.model import field_types, kubernetes_values
from headrace.job.model.field_types import AsList, AsMapping, one_of
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import broken

_POD: dict[str, str] = {
    "containers": "write what our container lacks into container; a second one would keep the pod from ending",
    "restartPolicy": "a pod ends with its host; retry starts the programs again",
    "hostname": "it is the host's name",
    "subdomain": "it is the run's Service",
    "setHostnameAsFQDN": "the host's name is algo-N",
    "activeDeadlineSeconds": "it follows from stopping_condition.max_run, start_timeout, stop_grace and linger",
    "terminationGracePeriodSeconds": "it follows from stop_grace",
    "nodeSelector": "write node_selector",
    "tolerations": "write tolerations",
    "serviceAccountName": "write service_account",
    "imagePullSecrets": "write image_pull_secrets",
    "priorityClassName": "write priority_class",
    "runtimeClassName": "write runtime_class",
    "enableServiceLinks": "variables of other Services are of no use",
}
_CONTAINER: dict[str, str] = {
    "name": "it is called host",
    "image": "write image",
    "imagePullPolicy": "write image_pull_policy",
    "command": "it runs headrace, which runs the job's programs",
    "args": "it runs headrace, which runs the job's programs",
    "resources": "write resources and gpus",
    "workingDir": "programs start in /opt/ml/code",
    "terminationMessagePath": "headrace's last word is there",
    "terminationMessagePolicy": "headrace's last word is there",
    "tty": "programs write into the run's record",
    "stdin": "programs write into the run's record",
}
"""What of a pod and of its container a job says in another way, with the way."""

OUR_VARIABLES = ("HEADRACE_", "PYTHONPATH", "SAGEMAKER_BASE_DIR", "JOB_COMPLETION_INDEX")
OUR_FOLDERS = ("/opt/ml", "/headrace", "/dev/shm")


def _patch(ours: Mapping[str, str]) -> BeforeValidator:
    def check(value: object) -> object:
        for key in value if isinstance(value, Mapping) else ():
            if key in ours:
                raise broken(f"{key} is not for a patch", seen="", hint=ours[key])
        return value

    return BeforeValidator(check)


PodPatch = Annotated[dict[str, JsonValue], AsMapping, _patch(_POD)]
ContainerPatch = Annotated[dict[str, JsonValue], AsMapping, _patch(_CONTAINER)]
PullPolicy = Annotated[Literal["Always", "IfNotPresent", "Never"], one_of]
Effect = Annotated[Literal["NoSchedule", "PreferNoSchedule", "NoExecute"], one_of]
Operator = Annotated[Literal["Exists", "Equal"], one_of]


class Toleration(Part):
    """A taint of nodes that pods tolerate.

    Attributes:
        key: of the taint; without it all.
        operator: ``Exists`` or ``Equal``.
        value: of the taint, with ``Equal``.
        effect: ``NoSchedule``, ``PreferNoSchedule`` or ``NoExecute``; without it all.
        seconds: how long a pod stays that a ``NoExecute`` taint drives out.
    """

    key: kubernetes_values.LabelKey | None = None
    operator: Operator | None = None
    value: kubernetes_values.LabelValue | None = None
    effect: Effect | None = None
    seconds: kubernetes_values.Lifetime | None = None


class Resources(Part):
    """What a pod asks of its node, in Kubernetes' words: ``cpu``, ``memory``, ``ephemeral-storage`` ...

    Attributes:
        requests: what the node must have free.
        limits: what the pod may use.
    """

    requests: kubernetes_values.Quantities = Field(default_factory=dict)
    limits: kubernetes_values.Quantities = Field(default_factory=dict)


class NfsPlace(Part):
    """A folder of an NFS server.

    Attributes:
        server: its name or address.
        path: the folder there.
    """

    server: kubernetes_values.Text
    path: kubernetes_values.Folder


class Volume(Part):
    """Storage that all pods see under one path. It has one of `claim`, `host_path` and `nfs`.

    Attributes:
        mount_path: where pods see it; channels and outputs below it are folders of the volume.
        claim: name of a PersistentVolumeClaim.
        host_path: folder of the nodes.
        nfs: folder of an NFS server.
        sub_path: the part of the volume that is shown.
        read_only: whether it cannot be written.
    """

    mount_path: kubernetes_values.Folder
    claim: kubernetes_values.DnsName | None = None
    host_path: kubernetes_values.Folder | None = None
    nfs: NfsPlace | None = None
    sub_path: kubernetes_values.InsideVolume | None = None
    read_only: field_types.Flag = False


class KubernetesPods(Part):
    """What the pods of a group are.

    Attributes:
        image: image with Python and the programs' libraries; by default `image_uri`. Required.
        node_selector: labels that their nodes have, e.g. ``{node.kubernetes.io/instance-type: g5.xlarge}``.
        tolerations: taints of nodes that they tolerate.
        resources: requests and limits, e.g. ``{requests: {cpu: 4, memory: 16Gi}}``; of CPUs and memory, what has
            neither is requested as ``500m`` and ``512Mi``.
        gpus: GPUs (``nvidia.com/gpu``) of a pod, 0 to 1,024; by default those of the group's instance type. 0 for none,
            or for a device named in the resources' limits.
        size_of_instance: whether CPUs and memory of the instance type are requested; a node of that type has less, its
            system takes some.
        shm: size of /dev/shm; by default only the pod's memory limits it.
        service_account: ServiceAccount, whose rights the programs have; without one they get no token.
        priority_class: name of a PriorityClass.
        runtime_class: name of a RuntimeClass.
        privileged: whether the container is privileged; FastFile channels need it.
        user: uid of all processes, which then pass the Pod Security level *restricted*; by default the image's user.
        pod: further fields of the pod's spec, in Kubernetes' form: mappings are merged, lists added. What has a key of
            its own here, or is headrace's, is refused.
        container: further fields of the container, likewise.
    """

    image: kubernetes_values.ImageName | None = None
    node_selector: kubernetes_values.NodeSelector = Field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], AsList] = ()
    resources: Resources | None = None
    gpus: kubernetes_values.Gpus | None = None
    size_of_instance: field_types.Flag | None = None
    shm: kubernetes_values.Quantity | None = None
    service_account: kubernetes_values.DnsName | None = None
    priority_class: kubernetes_values.DnsName | None = None
    runtime_class: kubernetes_values.DnsName | None = None
    privileged: field_types.Flag | None = None
    user: kubernetes_values.User | None = None
    pod: PodPatch = Field(default_factory=dict)
    container: ContainerPatch = Field(default_factory=dict)


class KubernetesOptions(KubernetesPods):
    """How a Kubernetes cluster plays the hosts; one pod is one host.

    What is given here for pods holds for all groups; what a group has of its own in `groups` stands in its place.

    Attributes:
        image: of all groups, as are the next thirteen; by default `image_uri`.
        node_selector: labels that nodes have.
        tolerations: taints of nodes that pods tolerate.
        resources: requests and limits.
        gpus: GPUs of a pod; by default those of the group's instance type.
        size_of_instance: whether CPUs and memory of the instance type are requested.
        shm: size of /dev/shm.
        service_account: whose rights the programs have.
        priority_class: PriorityClass.
        runtime_class: RuntimeClass.
        privileged: whether containers are privileged; FastFile channels need it.
        user: uid of all processes.
        pod: further fields of a pod's spec.
        container: further fields of its container.
        groups: the fourteen keys above for single groups, in place of what holds for all.
        namespace: namespace of all objects; that of the context is not used.
        context: context of the kubeconfig; by default the current one.
        cluster_domain: the domain of the cluster's DNS.
        image_pull_policy: ``Always``, ``IfNotPresent`` or ``Never``; by default the cluster's.
        image_pull_secrets: Secrets of the namespace with which images are pulled.
        environment_secrets: Secrets of the namespace whose keys become variables, such as credentials of S3.
        volumes: storage that all pods see, by name.
        queue: LocalQueue of Kueue; the run is then a JobSet.
        gang: whether the run is a JobSet, for a scheduler that starts all its pods or none.
        python: interpreter in the image.
        pip: whether pip brings what headrace needs and the image lacks.
        check_storage: whether buckets are looked at before the job is submitted; turn it off where only pods reach
            them.
        start_timeout: seconds within which all pods must have started once the first has.
        max_pending: seconds after which a run fails whose pods have not started; by default never.
        stop_grace: seconds between SIGTERM and SIGKILL, 0 to 3,600.
        linger: seconds for which the leader's pod waits at the end until its record is fetched, 0 to 3,600; they begin
            anew with every fetch.
        ttl: seconds after its end at which the cluster removes all objects of a run, if nobody has done it before; by
            default a week.
        labels: labels of all objects; keys that begin with ``headrace/`` are reserved.
        annotations: annotations of all objects; likewise.
    """

    groups: Annotated[dict[str, KubernetesPods], AsMapping] = Field(default_factory=dict)
    namespace: kubernetes_values.DnsLabel = "default"
    context: kubernetes_values.Text | None = None
    cluster_domain: kubernetes_values.DnsName = "cluster.local"
    image_pull_policy: PullPolicy | None = None
    image_pull_secrets: kubernetes_values.DnsNames = ()
    environment_secrets: kubernetes_values.DnsNames = ()
    volumes: Annotated[dict[kubernetes_values.DnsLabel, Volume], AsMapping] = Field(default_factory=dict)
    queue: kubernetes_values.DnsName | None = None
    gang: field_types.Flag = False
    python: kubernetes_values.Text = "python3"
    pip: field_types.Flag = False
    check_storage: field_types.Flag = True
    start_timeout: field_types.Seconds = 600.0
    max_pending: field_types.Seconds | None = None
    stop_grace: field_types.StopGrace = 30.0
    linger: field_types.StopGrace = 300.0
    ttl: kubernetes_values.Lifetime = 7 * 86400
    labels: kubernetes_values.Labels = Field(default_factory=dict)
    annotations: kubernetes_values.Annotations = Field(default_factory=dict)

    def pods_of(self, group_name: str) -> KubernetesPods:
        """Returns what the pods of a group are: its own options, and those of all groups where it has none."""
        own = self.groups.get(group_name, KubernetesPods())
        given: dict[str, object] = {}
        for name in KubernetesPods.model_fields:
            mine = getattr(own, name)
            given[name] = getattr(self, name) if mine is None or mine in ((), {}) else mine
        return KubernetesPods.model_validate(given)

    @property
    def is_jobset(self) -> bool:
        """Whether the run is a JobSet, and not a Job for each host."""
        return self.gang or self.queue is not None
