"""What the engine asks of a Kubernetes cluster, with lightkube, and what can go wrong.

Objects stay plain dicts, as in their manifests: what a newer or older server has that lightkube's models do not know is
neither dropped nor refused here. Every request has a time limit, and some tries.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast

import msgspec

from headrace.engines.kubernetes.kube_login import kubeconfig_files, login
from headrace.errors import EngineRefused, EngineUnreachable

if TYPE_CHECKING:
    import httpx2
    from lightkube import Client

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


REVIEW = "SelfSubjectAccessReview"
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
    REVIEW: Kind("authorization.k8s.io", "v1", "selfsubjectaccessreviews", everywhere=True),
    "Service": Kind("", "v1", "services"),
    "ServiceAccount": Kind("", "v1", "serviceaccounts"),
}

R = TypeVar("R")

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 20.0
TRIES = 3
PAUSE_SECONDS = 0.5  # before the second try; twice as long before the third
CONTAINER = "host"
REFUSED_HINT = (
    "a field of the object, or a rule of the cluster (an admission webhook): `headrace plan JOB --engine kubernetes "
    "--render DIR` writes the objects"
)
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')  # in a header Warning (RFC 7234), which may hold several
_UNKNOWN = re.compile(r'unknown field "([^"]*)"')
TRY_AGAIN = frozenset({408, 409, 410, 429, 500, 502, 503, 504})


class Cluster:
    """A namespace of a cluster. Any thread may use it. Every call ends within a bounded time.

    Every method raises KubernetesUnreachable when the server does not answer, and ClusterRefused when it says no.

    Args:
        context: name in the kubeconfig; the current one if empty.
        namespace: the namespace; that of the context if empty.

    Attributes:
        server: address of the API server.
        context: name of the context in the kubeconfig.
        namespace: the namespace.

    Raises:
        EngineRefused: lightkube is missing, or the kubeconfig cannot be used.
    """

    def __init__(self, context: str = "", namespace: str = "") -> None:
        config = login(context)
        import httpx2
        from lightkube import Client

        timeout = httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        try:
            self._client: Client = Client(config, namespace=namespace or None, timeout=timeout)
        except OSError as error:  # a certificate that is not there, or is none
            what = f"the certificates of the context {config.context_name} cannot be used: {error}"
            raise ClusterRefused(what, "`kubectl config view --raw` names their files") from error
        http = self._http()
        self._heard = threading.local()  # the texts of `warnings`
        http.event_hooks = {"response": [_read_refusal, self._read_warnings]}
        self.server = config.cluster.server
        self.context = config.context_name
        self.namespace = cast(str, self._client.namespace)

    @property
    def warnings(self) -> Sequence[str]:
        """What the server warned of in its last answer to this thread, such as what a policy of pods would refuse.
        Fields that it does not know are not among them: older servers do without some of ours."""
        return [text for text in getattr(self._heard, "texts", ()) if not _UNKNOWN.search(text)]

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()

    def create(self, manifest: Manifest, dry_run: bool = False) -> dict[str, Any]:
        """Creates an object and returns it as it is then. Raises ObjectExists.

        Args:
            manifest: the object.
            dry_run: the server only checks that it could.
        """
        kind = manifest["kind"]
        made = resource(kind)(manifest)
        what = f"create the {kind} {manifest['metadata']['name']}"
        found = dict(self._asked(what, lambda client: client.create(made, namespace=self.namespace, dry_run=dry_run)))
        unknown = [field for text in self._heard.texts for field in _UNKNOWN.findall(text)]
        dropped = [field for field in unknown if "template.spec." in field]
        if dry_run and dropped:
            named = ", ".join(dropped)
            raise ClusterRefused(
                f"cannot {what}: this cluster knows no field {named}, and would leave it out", fields=dropped
            )
        return found

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Returns an object; None when there is none of that name."""
        with contextlib.suppress(_Missing):
            place = {} if KINDS[kind].everywhere else {"namespace": self.namespace}
            return dict(self._asked(f"get the {kind} {name}", lambda client: client.get(resource(kind), name, **place)))
        return None

    def objects(self, kind: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the objects of a kind that have these labels."""
        return self._list(kind, labels=dict(labels))

    def events(self, uid: str) -> list[dict[str, Any]]:
        """Returns the events about the object with this uid, oldest first."""
        found = self._list("Event", fields={"involvedObject.uid": uid})
        return sorted(found, key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "")

    def _list(self, kind: str, **selector: dict[str, str]) -> list[dict[str, Any]]:
        def ask(client: Client) -> list[dict[str, Any]]:
            given: dict[str, Any] = selector
            return [dict(each) for each in client.list(resource(kind), namespace=self.namespace, **given)]

        return self._asked(f"list objects of kind {kind}", ask)

    def delete(self, kind: str, name: str) -> bool:
        """Deletes an object, and in the background what it owns. Returns whether it was there."""
        from lightkube.types import CascadeType

        def ask(client: Client) -> None:
            client.delete(resource(kind), name, namespace=self.namespace, cascade=CascadeType.BACKGROUND)

        with contextlib.suppress(_Missing):
            self._asked(f"delete the {kind} {name}", ask)
            return True
        return False

    def log(self, pod: str, lines: int) -> str:
        """Returns the last lines of a pod's container, as far as its node has kept them; empty before it has begun."""

        def ask(client: Client) -> str:
            return "".join(client.log(pod, namespace=self.namespace, container=CONTAINER, tail_lines=lines))

        with contextlib.suppress(_Missing):
            try:
                return self._asked(f"read the log of the pod {pod}", ask)
            except _BadRequest:  # its container has not begun
                return ""
        return ""

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
        out = _Counted(stdout)

        def ask(client: Client) -> ExecEnd:
            done = client.exec(
                pod, namespace=self.namespace, container=CONTAINER, command=command, stdout=cast(BinaryIO, out),
                stderr=True, decode=None, timeout=seconds,
            )  # fmt: skip
            return ExecEnd(done.exit_code, cast(bytes, done.stderr).decode(errors="replace"))

        def again(error: Exception) -> bool:
            from httpx2 import TimeoutException, TransportError

            # a connection that was kept for reuse may be closed by now
            return out.bytes == 0 and isinstance(error, TransportError) and not isinstance(error, TimeoutException)

        try:
            return self._asked(f"run a command in the pod {pod}", ask, again)
        except (_Missing, _BadRequest) as error:
            raise ExecFailed(error.message, error.hint) from error

    def may(self, verb: str, rule: Rule) -> bool:
        """Returns whether this user may do something in the namespace, as the server says."""
        name, _, subresource = rule.resource.partition("/")
        wanted = {"namespace": self.namespace, "verb": verb, "group": rule.group, "resource": name}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": REVIEW,
            "metadata": {},
            "spec": {"resourceAttributes": {**wanted, "subresource": subresource}},
        }
        asked = resource(REVIEW)(review)
        answer = self._asked("ask what this user may do", lambda client: client.create(asked))
        return bool(answer["status"]["allowed"])

    def version(self) -> str:
        """Returns the version of the server, e.g. ``v1.31.2``."""

        def ask(_: Client) -> str:
            answer = self._http().get("version")
            answer.raise_for_status()
            return str(json.loads(answer.content)["gitVersion"])

        return self._asked("ask for the version of the server", ask)

    def _http(self) -> httpx2.Client:
        """Returns the client below lightkube's, for what that has no call for."""
        return self._client._client._client

    def _read_warnings(self, response: httpx2.Response) -> None:
        told = _WARNING.findall(", ".join(response.headers.get_list("warning")))
        self._heard.texts = [re.sub(r"\\(.)", r"\1", text) for text in told]

    # --- one request -----------------------------------------------------------------------------------------------

    def _asked(self, what: str, ask: Callable[[Client], R], again: Callable[[Exception], bool] = bool) -> R:
        """Asks the server, again when it has no time or does not answer.

        Args:
            what: what is asked for, for messages.
            ask: asks once.
            again: says after an error of that kind whether it may be asked again.

        Raises:
            KubernetesUnreachable, ClusterRefused, ExecFailed: as `Cluster` says.
            _Missing, _BadRequest: the object is not there, or not ready for this.
        """
        for number in range(1, TRIES + 1):
            try:
                return ask(self._client)
            except Exception as error:
                failure = self._failure(what, error)
                if failure is None:
                    raise
                if number == TRIES or not isinstance(failure, KubernetesUnreachable) or not again(error):
                    raise failure from error
            time.sleep(PAUSE_SECONDS * number)
        raise AssertionError("unreachable")

    def _failure(self, what: str, error: Exception) -> ClusterRefused | ExecFailed | KubernetesUnreachable | None:
        """Returns what an error means; None for one that is a mistake of this program."""
        import httpx2
        from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError
        from lightkube.core.exceptions import ApiError, ConfigError

        where = f"the cluster of the context {self.context} ({self.server})"
        if isinstance(error, WebSocketUpgradeError):  # the answer to an exec that was not begun
            code, words = error.response.status_code, _status(error.response)
            # the server's own troubles have other numbers: this is the node's kubelet, or nobody there
            if code == 500:
                return ExecFailed(f"cannot {what} in the namespace {self.namespace}: {words}", "it is looked at again")
            return self._refusal(what, code, words)
        if isinstance(error, ApiError):
            code = error.response.status_code if error.response is not None else error.status.code or 500
            keyword, details = error.status.reason, error.status.details
            fields = [cause.field for cause in (details and details.causes) or () if cause.field]
            return self._refusal(what, code, str(error.status.message or ""), keyword == "AlreadyExists", fields)
        if isinstance(error, httpx2.HTTPStatusError):  # not of the API server: a proxy, a load balancer
            return self._refusal(what, error.response.status_code, error.response.text[:200])
        if isinstance(error, ConfigError):
            return ClusterRefused(f"the login of the context {self.context} failed: {error}", "log in again")
        if isinstance(error, httpx2.ConnectError) and _is_untrusted(error):
            hint = "is its address right, and the certificate-authority of the kubeconfig the cluster's?"
            return KubernetesUnreachable(f"{where} shows a certificate that is not trusted: {error}", hint)
        if isinstance(error, httpx2.TimeoutException | TimeoutError):
            return KubernetesUnreachable(f"{where} did not answer in time (to {what})", "it is asked again later")
        if isinstance(error, httpx2.HTTPError | HTTPXWSException):
            hint = "is its address right, and the network to it there?"
            return KubernetesUnreachable(f"{where} cannot be reached: {error or type(error).__name__}", hint)
        if isinstance(error, msgspec.DecodeError | json.JSONDecodeError | KeyError):
            hint = "is something between here and the cluster that answers in its place?"
            return KubernetesUnreachable(f"{where} answered with something else (to {what})", hint)
        return None

    def _refusal(
        self, what: str, code: int, words: str, exists: bool = False, fields: Sequence[str] = ()
    ) -> ClusterRefused | KubernetesUnreachable:
        """Returns the error for an answer with an HTTP status of 4xx or 5xx."""
        told = f"cannot {what} in the namespace {self.namespace}: {words or f'HTTP status {code}'}"
        if code == 401:
            hint = f"log in again; `kubectl --context {self.context} get pods` says the same"
            return ClusterRefused(f"the cluster does not know the user of the context {self.context}", hint)
        if code == 403:
            return ClusterRefused(told, f"a missing permission ({ROLE_HINT}), a quota, or a rule of the cluster")
        if code == 404:
            return _Missing(told, f"is there a namespace {self.namespace}? (engines.kubernetes.namespace)")
        if code == 409 and exists:
            return ObjectExists(told)
        if code in TRY_AGAIN:
            return KubernetesUnreachable(told, "it is asked again later")
        return _BadRequest(told, REFUSED_HINT, fields)


class _Counted:
    """A binary file that counts what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)


class _Missing(ClusterRefused):
    """HTTP status 404."""


class _BadRequest(ClusterRefused):
    """Another HTTP status of 4xx: not valid, too large, not ready for this."""


def _is_untrusted(error: BaseException | None) -> bool:
    """Tells whether an error comes of a certificate that could not be verified."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _read_refusal(response: httpx2.Response) -> None:
    """Reads what a server says with its no: of a WebSocket that it refuses, nobody else does."""
    if response.status_code >= 400:
        response.read()


def _status(response: httpx2.Response) -> str:
    """Returns the message of a Status object, or what else a server answered."""
    try:
        return str(json.loads(response.content)["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]


@functools.cache
def resource(kind: str) -> Any:
    """Returns lightkube's type for objects of a kind that stay plain dicts."""
    from lightkube.generic_resource import GenericGlobalResource, GenericNamespacedResource, create_api_info

    found = KINDS[kind]
    info = create_api_info(found.group, found.version, kind, found.plural)
    base = GenericGlobalResource if found.everywhere else GenericNamespacedResource
    return type(kind, (base,), {"_api_info": info})


_clusters: dict[tuple[object, ...], Cluster] = {}
_lock = threading.Lock()


def connect(context: str = "", namespace: str = "") -> Cluster:
    """Returns a cluster's namespace; the same object as long as the kubeconfig is the same.

    Args:
        context, namespace: see `Cluster`.
    """
    files = tuple((str(file), file.stat().st_mtime_ns) for file in kubeconfig_files())
    key = (context, namespace, files)
    with _lock:
        if key not in _clusters:
            made = Cluster(context, namespace)
            same = _clusters.setdefault((made.context, made.namespace, files), made)
            if same is not made:
                made.close()
            _clusters[key] = same
        return _clusters[key]


def disconnect() -> None:
    """Closes the connections of all clusters that `connect` has returned; none of these is used any more."""
    with _lock:
        while _clusters:
            _clusters.popitem()[1].close()
