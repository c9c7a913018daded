"""Options of the Kubernetes engine: what the pods of each group are, and how the run lives on the cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema

from headrace.job.model import field_types
from headrace.job.model.field_types import AsList, AsMapping, matching, one_line, one_of, sized, trimmed, whole
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import broken, show

OWN_PREFIX = "headrace/"
"""What the keys of headrace's own labels begin with."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_ENDS = "and begin and end with a letter or digit"
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_SCALES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0} | {
    letter + ending: base**power
    for power, letter in enumerate("KMGTPE", start=1)
    for ending, base in (("i", 1024.0), ("", 1000.0))
} | {"k": 1000.0}  # fmt: skip


def _label_key(value: object) -> str:
    text = one_line(value, 1, 317)
    prefix, slash, name = text.rpartition("/")
    if (slash and (not _DNS_NAME.fullmatch(prefix) or len(prefix) > 253)) or not _NAME.fullmatch(name):
        raise broken("must be a key such as 'team' or 'example.com/team'", seen=show(text))
    if len(name) > 63:
        raise broken("must have at most 63 characters after the '/'", seen=f"{len(name)} characters")
    return text


def _own_key(value: object) -> str:
    text = _label_key(value)
    if text.startswith(OWN_PREFIX):
        raise broken(f"keys that begin with {OWN_PREFIX!r} are headrace's own", seen=show(text))
    return text


def _quantity(value: object) -> str:
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _QUANTITY.fullmatch(text):
        raise broken("must be a quantity such as 2, '500m' or '16Gi'")
    return text


def amount_of(quantity: str) -> float:
    """Returns what a quantity stands for.

    >>> amount_of("500m"), amount_of("2Ki"), amount_of("1e3")
    (0.5, 2048.0, 1000.0)
    """
    match = _QUANTITY.fullmatch(quantity)
    assert match is not None  # it was checked
    number, scale = match[1], match[2] or ""
    return float(number + scale) if scale[:1] in ("e", "E") and scale[1:] else float(number) * _SCALES[scale]


def absolute_folder(value: object) -> str:
    """Returns an absolute path in its shortest form. It must not be the root."""
    text = one_line(value, 1, 1024)
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or ":" in text or len(path.parts) < 2:
        raise broken("must be an absolute path, without '..' and ':'", seen=show(text))
    return str(path)


def _inside(value: object) -> str:
    text = one_line(value, 1, 1024)
    if text.startswith("/") or ".." in PurePosixPath(text).parts:
        raise broken("must be a path inside the volume, without '..'", seen=show(text))
    return text


DnsLabel = Annotated[str, matching(f"must be small letters, digits and hyphens, {_ENDS}", _LABEL, (1, 63))]
_DNS_RULE = f"must be small letters, digits, hyphens and dots, {_ENDS}"
_OBJECT = "it is the name of an object of the cluster"
DnsName = Annotated[str, matching(_DNS_RULE, _DNS_NAME.pattern, (1, 253), _OBJECT)]
DnsNames = Annotated[tuple[DnsName, ...], AsList]
LabelKey = Annotated[str, BeforeValidator(_label_key)]
OwnKey = Annotated[str, BeforeValidator(_own_key)]
_LABEL_RULE = f"must be letters, digits, '-', '_' and '.', {_ENDS}"
LabelValue = Annotated[str, matching(_LABEL_RULE, f"({_NAME.pattern})?", (0, 63))]
Annotations = Annotated[dict[OwnKey, Annotated[str, BeforeValidator(lambda value: sized(value, 0, 65536))]], AsMapping]
Quantity = Annotated[str, BeforeValidator(_quantity), WithJsonSchema({"type": ["string", "number"]})]
Quantities = Annotated[dict[LabelKey, Quantity], AsMapping]
Folder = Annotated[str, BeforeValidator(absolute_folder)]
Text = Annotated[str, trimmed(1, 1024)]
User = Annotated[int, whole(1, 2**31 - 1)]
Gpus = Annotated[int, whole(0, 1024)]
Lifetime = Annotated[int, whole(0, 366 * 24 * 3600, " seconds")]
Patch = Annotated[dict[str, JsonValue], AsMapping]


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


class Toleration(Part):
    """A taint of nodes that pods tolerate.

    Attributes:
        key: of the taint; without it all.
        operator: ``Exists`` or ``Equal``.
        value: of the taint, with ``Equal``.
        effect: ``NoSchedule``, ``PreferNoSchedule`` or ``NoExecute``; without it all.
        seconds: how long a pod stays that a ``NoExecute`` taint drives out.
    """

    key: LabelKey | None = None
    operator: Annotated[Literal["Exists", "Equal"], one_of] | None = None
    value: LabelValue | None = None
    effect: Annotated[Literal["NoSchedule", "PreferNoSchedule", "NoExecute"], one_of] | None = None
    seconds: Lifetime | None = None


class Resources(Part):
    """What a pod asks of its node, in Kubernetes' words: ``cpu``, ``memory``, ``ephemeral-storage`` ...

    Attributes:
        requests: what the node must have free.
        limits: what the pod may use.
    """

    requests: Quantities = Field(default_factory=dict)
    limits: Quantities = Field(default_factory=dict)


class NfsPlace(Part):
    """A folder of an NFS server.

    Attributes:
        server: its name or address.
        path: the folder there.
    """

    server: Text
    path: Folder


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

    mount_path: Folder
    claim: DnsName | None = None
    host_path: Folder | None = None
    nfs: NfsPlace | None = None
    sub_path: Annotated[str, BeforeValidator(_inside)] | None = None
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

    image: Annotated[str, matching("must be the name of an image, without blanks", r"\S+", (1, 1024))] | None = None
    node_selector: Annotated[dict[LabelKey, LabelValue], AsMapping] = Field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], AsList] = ()
    resources: Resources | None = None
    gpus: Gpus | None = None
    size_of_instance: field_types.Flag | None = None
    shm: Quantity | None = None
    service_account: DnsName | None = None
    priority_class: DnsName | None = None
    runtime_class: DnsName | None = None
    privileged: field_types.Flag | None = None
    user: User | None = None
    pod: Annotated[dict[str, JsonValue], AsMapping, _patch(_POD)] = Field(default_factory=dict)
    container: Annotated[dict[str, JsonValue], AsMapping, _patch(_CONTAINER)] = Field(default_factory=dict)


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
    namespace: DnsLabel = "default"
    context: Text | None = None
    cluster_domain: DnsName = "cluster.local"
    image_pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"], one_of] | None = None
    image_pull_secrets: DnsNames = ()
    environment_secrets: DnsNames = ()
    volumes: Annotated[dict[DnsLabel, Volume], AsMapping] = Field(default_factory=dict)
    queue: DnsName | None = None
    gang: field_types.Flag = False
    python: Text = "python3"
    pip: field_types.Flag = False
    check_storage: field_types.Flag = True
    start_timeout: field_types.Seconds = 600.0
    max_pending: field_types.Seconds | None = None
    stop_grace: field_types.StopGrace = 30.0
    linger: field_types.StopGrace = 300.0
    ttl: Lifetime = 7 * 86400
    labels: Annotated[dict[OwnKey, LabelValue], AsMapping] = Field(default_factory=dict)
    annotations: Annotations = Field(default_factory=dict)

    def pods_of(self, group_name: str) -> KubernetesPods:
        """Returns what the pods of a group are: its own options, and those of all groups where it has none."""
        own = self.groups.get(group_name, KubernetesPods())
        values: dict[str, object] = {}
        for name in KubernetesPods.model_fields:
            mine = getattr(own, name)
            values[name] = getattr(self, name) if mine is None or mine in ((), {}) else mine
        return KubernetesPods.model_validate(values)

    @property
    def is_jobset(self) -> bool:
        """Whether the run is a JobSet, and not a Job for each host."""
        return self.gang or self.queue is not None
