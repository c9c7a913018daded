"""What the engine asks of a Kubernetes cluster, and what can go wrong. Objects are plain dicts, as in their manifests.

Nothing here needs a library; `lightkube_cluster` speaks to a real API server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

from headrace.errors import EngineRefused, EngineUnreachable

Manifest = Mapping[str, Any]
ROLE_HINT = "the page kubernetes of the docs has the role that headrace needs"


class KubernetesUnreachable(EngineUnreachable):
    """The API server does not answer, or not with what was asked for. That says nothing about a run."""


class ClusterRefused(EngineRefused):
    """The API server has refused a request: no permission, a quota, an object that is not valid.

    Args:
        message, hint: see `headrace.errors.HeadraceError`.
        fields: of the object that it names, e.g. ``spec.template.spec.tolerations[0].effect``.
    """

    def __init__(self, message: str, hint: str = "", fields: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.fields = tuple(fields)


class ObjectExists(ClusterRefused):
    """There is an object of that kind and name already."""


class ExecFailed(EngineRefused):
    """No command can be run in a pod: it is not there, has not begun or has ended, or its node does not answer."""


class ExecEnd(NamedTuple):
    """How a command in a pod ended.

    Attributes:
        exit_code: its exit code.
        stderr: what it wrote to standard error.
    """

    exit_code: int
    stderr: str


class Rule(NamedTuple):
    """One rule of a role.

    Attributes:
        group: API group; empty for the core.
        resource: e.g. ``pods/exec``.
        verbs: what is done with it.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]

    @property
    def told(self) -> str:
        """The rule in words, e.g. ``create, list jobs.batch``."""
        return f"{', '.join(self.verbs)} {self.resource}{'.' if self.group else ''}{self.group}"


ROLE: tuple[Rule, ...] = (
    Rule("", "configmaps", ("create", "get")),
    Rule("", "events", ("list",)),
    Rule("", "persistentvolumeclaims", ("get",)),
    Rule("", "pods", ("list",)),
    Rule("", "pods/exec", ("create", "get")),
    Rule("", "pods/log", ("get",)),
    Rule("", "secrets", ("create",)),
    Rule("", "services", ("create",)),
    Rule("batch", "jobs", ("create", "delete", "list")),
)
"""All that the engine does in a namespace. `exec` is a ``get`` before Kubernetes 1.35, then a ``create``."""

ROLE_OF_SET: tuple[Rule, ...] = (Rule("jobset.x-k8s.io", "jobsets", ("create", "delete", "list")),)
"""What it does besides for a job with `queue` or `gang`."""


ROLE_OF_RANGE: tuple[Rule, ...] = (
    Rule("", "serviceaccounts", ("create",)),
    Rule("batch", "jobs", ("patch",)),
    Rule("rbac.authorization.k8s.io", "rolebindings", ("create",)),
    Rule("rbac.authorization.k8s.io", "roles", ("create",)),
)
"""What it does besides where data hosts come and go. Who makes a role must have the rights that are in it."""


class Kind(NamedTuple):
    """Where objects of a kind are in the API.

    Attributes:
        group: API group; empty for the core.
        version: its version.
        plural: name in the address.
        everywhere: they are in no namespace.
    """

    group: str
    version: str
    plural: str
    everywhere: bool = False


KINDS: dict[str, Kind] = {
    "ConfigMap": Kind("", "v1", "configmaps"),
    "Event": Kind("", "v1", "events"),
    "Job": Kind("batch", "v1", "jobs"),
    "JobSet": Kind("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "PersistentVolumeClaim": Kind("", "v1", "persistentvolumeclaims"),
    "Pod": Kind("", "v1", "pods"),
    "PriorityClass": Kind("scheduling.k8s.io", "v1", "priorityclasses", everywhere=True),
    "Role": Kind("rbac.authorization.k8s.io", "v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io", "v1", "rolebindings"),
    "RuntimeClass": Kind("node.k8s.io", "v1", "runtimeclasses", everywhere=True),
    "Secret": Kind("", "v1", "secrets"),
    "Service": Kind("", "v1", "services"),
    "ServiceAccount": Kind("", "v1", "serviceaccounts"),
}


class Cluster(Protocol):
    """A namespace of a cluster. Every call ends within a bounded time.

    Every method raises KubernetesUnreachable when the server does not answer, and ClusterRefused when it says no.
    """

    @property
    def server(self) -> str:
        """Address of the API server."""

    @property
    def context(self) -> str:
        """Name of the context in the kubeconfig."""

    @property
    def namespace(self) -> str:
        """The namespace."""

    @property
    def warnings(self) -> Sequence[str]:
        """What the server warned of in its last answer to this thread, such as what a policy of pods would refuse."""

    def create(self, manifest: Manifest, dry_run: bool = False) -> dict[str, Any]:
        """Creates an object and returns it as it is then. Raises ObjectExists.

        Args:
            manifest: the object.
            dry_run: the server only checks that it could.
        """

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Returns an object; None when there is none of that name."""

    def objects(self, kind: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the objects of a kind that have these labels."""

    def delete(self, kind: str, name: str) -> bool:
        """Deletes an object, and in the background what it owns. Returns whether it was there."""

    def events(self, uid: str) -> list[dict[str, Any]]:
        """Returns the events about the object with this uid, oldest first."""

    def log(self, pod: str, lines: int) -> str:
        """Returns the last lines of a pod's container, as far as its node has kept them; empty before it has begun."""

    def execute(self, pod: str, command: Sequence[str], stdout: BinaryIO, seconds: float) -> ExecEnd:
        """Runs a command in the container of a pod.

        Args:
            pod: its name.
            command: the command line; standard input is empty.
            stdout: gets what it writes to standard output, as it comes, also when it breaks off.
            seconds: at most so long.

        Raises:
            ExecFailed: it cannot be run there.
            KubernetesUnreachable: it broke off, or took too long.
        """

    def may(self, verb: str, rule: Rule) -> bool:
        """Returns whether this user may do something in the namespace, as the server says."""

    def version(self) -> str:
        """Returns the version of the server, e.g. ``v1.31.2``."""
