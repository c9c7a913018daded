"""An API server of the tests' own: real HTTP and WebSockets on loopback, as much of Kubernetes as the engine asks for.

It keeps objects, deletes with them what they own, checks a role, answers `exec` as the real one does
(v4.channel.k8s.io), and can fail in every way that a network or a server fails. It runs nothing by itself: a `Kubelet`
(kube_pods) or a test says what becomes of pods.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import socket
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from patience import until

Object = dict[str, Any]
TOKEN = "tests-own"
FAST = {"insecure-skip-tls-verify": True}  # no list of authorities is read for a server without TLS
KIND_OF = {
    "configmaps": "ConfigMap", "secrets": "Secret", "services": "Service", "jobs": "Job", "pods": "Pod",
    "events": "Event", "persistentvolumeclaims": "PersistentVolumeClaim", "serviceaccounts": "ServiceAccount",
    "roles": "Role", "rolebindings": "RoleBinding",
}  # fmt: skip
NOT_IN_ROLE = ("create", "pods")  # what the engine asks for, and does without
RULES = {  # of the level restricted, for what pods of runs are: what a container must say, or its pod for it
    "allowPrivilegeEscalation != false": ("allowPrivilegeEscalation",),
    "unrestricted capabilities": ("capabilities", "drop"),
    "runAsNonRoot != true": ("runAsNonRoot",), "seccompProfile": ("seccompProfile", "type"),
}  # fmt: skip
PASSES = (False, ["ALL"], True, "RuntimeDefault")
VERBS = {"GET": "get", "POST": "create", "DELETE": "delete", "PATCH": "patch"}
OF_ACCOUNT = "kubernetes.io/service-account.name"


@dataclass
class Fault:
    """What goes wrong with a request.

    Attributes:
        how: an HTTP status, a whole Status object, or ``half`` (an answer that breaks off), ``slow``, ``html`` (of
            another server), ``hang up``; ``after`` with a status: it is done, and the answer is lost.
        verb, resource: which requests; all if empty.
        times: how many of them.
    """

    how: int | str | Object
    verb: str = ""
    resource: str = ""
    times: int = 1


@dataclass
class Exec:
    """A command that is run in a pod, while it runs.

    Attributes:
        pod: the pod's object.
        command: the command line.
        send: sends bytes to a channel (1 standard output, 2 standard error).
    """

    pod: Object
    command: list[str]
    send: Callable[[int, bytes], Awaitable[None]]


@dataclass
class KubeServer:
    """The server. Use it in a `with` statement.

    Attributes:
        objects: (plural, namespace, name) to what is there.
        asked: (verb, resource), what was asked for and granted, and how often.
        denied: (verb, resource) that this user may not do.
        faults: what goes wrong next; each is used up.
        logs: pod to the text of its log.
        run: runs a command in a pod and returns its exit code.
        created, patched, deleted: called with each object, under the lock.
        authority: certificate of the authority of `serve_tls`, for the tokens of service accounts.
        drops: field that it does not know: it warns of each object that is created.
        security: ``warn`` or ``enforce``: what the namespace does by the Pod Security level *restricted*.
    """

    folder: Path
    namespaces: set[str] = field(default_factory=lambda: {"default", "train"})
    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    denied: set[tuple[str, str]] = field(default_factory=lambda: {NOT_IN_ROLE})
    faults: list[Fault] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    quota: str = ""
    run: Callable[[Exec], Awaitable[int]] | None = None
    created: list[Callable[[Object], None]] = field(default_factory=list)
    patched: list[Callable[[Object], None]] = field(default_factory=list)
    authority: bytes = b""
    drops: str = ""
    security: str = ""
    deleted: list[Callable[[Object], None]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _version: int = 0

    # --- its life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> KubeServer:
        app = Starlette(routes=[
            Route("/version", self._get_version),
            Route("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review, methods=["POST"]),
            WebSocketRoute("/api/v1/namespaces/{namespace}/pods/{name}/exec", self._exec),
            Route("/api/v1/namespaces/{namespace}/pods/{name}/log", self._log),
            Route("/api/v1/namespaces/{namespace}/{plural}", self._many, methods=["GET", "POST"]),
            Route("/api/v1/namespaces/{namespace}/{plural}/{name}", self._one, methods=["GET", "DELETE"]),
            Route("/apis/scheduling.k8s.io/v1/{plural}/{name}", self._one),
            Route("/apis/node.k8s.io/v1/{plural}/{name}", self._one),
            Route("/apis/batch/v1/namespaces/{namespace}/{plural}", self._many, methods=["GET", "POST"]),
            Route("/apis/batch/v1/namespaces/{namespace}/{plural}/{name}", self._one,
                  methods=["GET", "DELETE", "PATCH"]),
            Route("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{plural}", self._many,
                  methods=["GET", "POST"]),
        ])  # fmt: skip
        self._app = app
        config = uvicorn.Config(
            app, port=0, log_level="critical", ws="wsproto", lifespan="off", timeout_graceful_shutdown=1
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, name="kube-server")
        self._thread.start()
        until(lambda: self._uvicorn.started, what="the server starts")
        (listener,) = self._uvicorn.servers[0].sockets
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    @contextmanager
    def serve_tls(self, listener: socket.socket, certificate: Path, key: Path) -> Iterator[None]:
        """Serves the same over TLS, at a socket that listens."""
        config = uvicorn.Config(self._app, log_level="critical", lifespan="off", ssl_certfile=certificate,
                                ssl_keyfile=key, timeout_graceful_shutdown=1)  # fmt: skip
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="kube-server-tls")
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()

    def kubeconfig(self, name: str = "config", namespace: str = "train", **user: object) -> Path:
        """Writes a kubeconfig for this server and returns its file."""
        file = self.folder / name
        file.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "clusters": [{"name": "own", "cluster": {"server": self.url, **FAST}}],
            "users": [{"name": "me", "user": user or {"token": TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "own", "user": "me", "namespace": namespace}}],
        }))  # fmt: skip
        return file

    # --- for tests -------------------------------------------------------------------------------------------------

    def of(self, plural: str) -> list[Object]:
        """The objects of a kind, in the order in which they were made."""
        with self.lock:
            found = [copy.deepcopy(each) for (kind, _, _), each in self.objects.items() if kind == plural]
        return sorted(found, key=lambda each: int(each["metadata"]["resourceVersion"]))

    def put(self, plural: str, made: Object, namespace: str = "train") -> Object:
        """Adds an object, as a controller does."""
        with self.lock:
            made = copy.deepcopy(made)
            self._version += 1
            meta = made.setdefault("metadata", {})
            meta.setdefault("uid", str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            meta["namespace"], meta["resourceVersion"] = namespace, str(self._version)
            account = meta.get("annotations", {}).get(OF_ACCOUNT)
            if plural == "secrets" and account is not None:  # what the controller of tokens does
                data = {
                    "token": f"account {account}".encode(),
                    "ca.crt": self.authority,
                    "namespace": namespace.encode(),
                }
                made["data"] = {name: base64.b64encode(value).decode() for name, value in data.items()}
            self.objects[plural, namespace, meta["name"]] = made
            for told in self.created:
                told(made)
            return made

    def change(self, plural: str, name: str, namespace: str = "train", **parts: Any) -> None:
        """Replaces parts of an object, such as its status."""
        with self.lock:
            self.objects[plural, namespace, name].update(copy.deepcopy(parts))

    def remove(self, plural: str, name: str, namespace: str = "train") -> None:
        """Deletes an object, and at once what it owns."""
        with self.lock:
            gone = self.objects.pop((plural, namespace, name), None)
            if gone is None:
                return
            uid = gone["metadata"]["uid"]
            owned = [
                key for key, each in self.objects.items()
                if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", ()))
            ]  # fmt: skip
            for kind, where, each in owned:
                self.remove(kind, each, where)
            for told in self.deleted:
                told(gone)

    # --- requests --------------------------------------------------------------------------------------------------

    def _fault(self, verb: str, resource: str, dry: bool = False) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if dry and str(fault.how).startswith("after"):
                    continue  # nothing is done
                if fault.verb in ("", verb) and fault.resource in ("", resource):
                    fault.times -= 1
                    if not fault.times:
                        self.faults.remove(fault)
                    return fault
        return None

    async def _stopped(self, request: Request, verb: str, resource: str) -> Response | None:
        """Returns what is answered instead of doing what was asked for."""
        bearer = request.headers.get("authorization", "")
        if bearer.startswith("Bearer account "):
            name = request.path_params.get("name", "")
            if self._granted(bearer.removeprefix("Bearer account "), verb, resource, name):
                return None
            return failure(403, "Forbidden", f'{resource} "{name}" is forbidden')
        if bearer != f"Bearer {TOKEN}":
            return failure(401, "Unauthorized", "Unauthorized")
        fault = self._fault(verb, resource, "dryRun" in request.query_params)
        if fault is not None and not str(fault.how).startswith("after"):
            return await failed(fault.how)
        if (verb, resource) in self.denied:
            return failure(403, "Forbidden", f'{resource} is forbidden: User "me" cannot {verb} resource "{resource}"')
        with self.lock:
            self.asked[verb, resource] += 1
        request.state.after = fault
        return None

    def _granted(self, account: str, verb: str, resource: str, name: str) -> bool:
        """Whether a role that is bound to a service account names just this."""
        with self.lock:
            bound = [each["roleRef"]["name"] for each in self.of("rolebindings")
                     if any(subject["name"] == account for subject in each["subjects"])]  # fmt: skip
            rules = [rule for each in self.of("roles") if each["metadata"]["name"] in bound for rule in each["rules"]]
        return any(verb in rule["verbs"] and resource in rule["resources"] and name in rule["resourceNames"]
                   for rule in rules)  # fmt: skip

    async def _many(self, request: Request) -> Response:
        plural, namespace = request.path_params["plural"], request.path_params["namespace"]
        verb = "create" if request.method == "POST" else "list"
        if (stopped := await self._stopped(request, verb, plural)) is not None:
            return stopped
        if verb == "list":
            return JSONResponse(self._list(plural, namespace, request.query_params))
        made = await request.json()
        name, dry = made["metadata"]["name"], request.query_params.get("dryRun") == "All"
        with self.lock:
            if namespace not in self.namespaces:
                return failure(404, "NotFound", f'namespaces "{namespace}" not found')
            if self.quota == plural:
                return failure(403, "Forbidden", f'{plural} "{name}" is forbidden: exceeded quota: small')
            if (plural, namespace, name) in self.objects:
                return failure(409, "AlreadyExists", f'{plural} "{name}" already exists')
            policy = ""
            if self.security and plural in ("jobs", "pods"):
                policy = violations(made["spec"] if plural == "pods" else made["spec"]["template"]["spec"])
            refused = f'pods "{name}" is forbidden: violates {policy}'
            if policy and self.security == "enforce" and plural == "pods":
                return failure(403, "Forbidden", refused)
            answer = made if dry else self.put(plural, made, namespace)
            if policy and self.security == "enforce" and not dry:  # what the controller of Jobs is told
                about = {"uid": answer["metadata"]["uid"], "name": name}
                event = {"involvedObject": about, "type": "Warning", "reason": "FailedCreate"}
                self.put(
                    "events", {**event, "metadata": {"name": f"e-{name}"}, "message": f"Error creating: {refused}"}
                )
        if request.state.after is not None:
            return await failed(request.state.after.how[len("after ") :])
        told = [f'unknown field "{self.drops}"'] if self.drops else []
        told += [f"would violate {policy}"] if policy and self.security == "warn" else []
        answered = JSONResponse(answer, 201)
        for text in told:
            answered.headers.append("warning", "299 - " + json.dumps(text))
        return answered

    def _list(self, plural: str, namespace: str, query: Any) -> Object:
        labels = dict(pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair)
        fields = dict(pair.split("=", 1) for pair in query.get("fieldSelector", "").split(",") if pair)

        def wanted(each: Object) -> bool:
            mine = each["metadata"].get("labels", {})
            return all(mine.get(key) == value for key, value in labels.items()) and all(
                value_at(each, key.split(".")) == value for key, value in fields.items()
            )

        items = [each for each in self.of(plural) if each["metadata"]["namespace"] == namespace and wanted(each)]
        return {
            "kind": f"{KIND_OF[plural]}List",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "1"},
            "items": items,
        }

    async def _one(self, request: Request) -> Response:
        plural, namespace, name = (request.path_params.get(each, "") for each in ("plural", "namespace", "name"))
        verb = VERBS[request.method]
        if (stopped := await self._stopped(request, verb, plural)) is not None:
            return stopped
        changes = await request.json() if verb == "patch" else {}
        with self.lock:
            found = copy.deepcopy(self.objects.get((plural, namespace, name)))
            if found is None:
                return failure(404, "NotFound", f'{plural} "{name}" not found')
            if verb == "delete":
                assert request.query_params["propagationPolicy"] == "Background"
                self.remove(plural, name, namespace)
            if verb == "patch":
                assert request.headers["content-type"] == "application/merge-patch+json"
                found["spec"] |= changes["spec"]
                self.change(plural, name, namespace, spec=found["spec"])
                for told in self.patched:
                    told(found)
        return JSONResponse(found)

    async def _get_version(self, request: Request) -> Response:
        return await self._stopped(request, "get", "version") or JSONResponse({"gitVersion": "v1.20.2"})

    async def _review(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return failure(401, "Unauthorized", "Unauthorized")
        review = await request.json()
        wanted = review["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, [wanted["resource"], wanted.get("subresource", "")]))
        review["status"] = {"allowed": (wanted["verb"], resource) not in self.denied}
        return JSONResponse(review, 201)

    async def _log(self, request: Request) -> Response:
        if (stopped := await self._stopped(request, "get", "pods/log")) is not None:
            return stopped
        name = request.path_params["name"]
        if ("pods", request.path_params["namespace"], name) not in self.objects:
            return failure(404, "NotFound", f'pods "{name}" not found')
        if name not in self.logs:
            return failure(400, "BadRequest", f'container "host" in pod "{name}" is waiting to start')
        lines = self.logs[name].splitlines(keepends=True)
        return PlainTextResponse("".join(lines[-int(request.query_params["tailLines"]) :]))

    async def _exec(self, socket: WebSocket) -> None:
        namespace, name = socket.path_params["namespace"], socket.path_params["name"]
        fault = self._fault("get", "pods/exec")
        pod = self.objects.get(("pods", namespace, name))
        if socket.headers.get("authorization") != f"Bearer {TOKEN}":
            await socket.send_denial_response(failure(401, "Unauthorized", "Unauthorized"))
        elif ("get", "pods/exec") in self.denied:
            await socket.send_denial_response(failure(403, "Forbidden", "pods/exec is forbidden"))
        elif fault is not None and isinstance(fault.how, int):
            await socket.send_denial_response(
                failure(fault.how, "InternalError", "error dialing backend: no route to host")
            )
        elif pod is None:
            await socket.send_denial_response(failure(404, "NotFound", f'pods "{name}" not found'))
        elif pod["status"].get("phase") != "Running" or self.run is None:
            await socket.send_denial_response(failure(500, "InternalError", 'container not found ("host")'))
        else:
            with self.lock:
                self.asked["get", "pods/exec"] += 1
            await socket.accept(subprotocol="v4.channel.k8s.io")
            with suppress(WebSocketDisconnect, RuntimeError):
                await self._serve(socket, pod, fault)

    async def _serve(self, socket: WebSocket, pod: Object, fault: Fault | None) -> None:
        assert self.run is not None
        query = socket.query_params
        assert (query["container"], query["stdout"], query["stderr"]) == ("host", "true", "true")
        sent = 0

        async def send(channel: int, data: bytes) -> None:
            nonlocal sent
            for at in range(0, len(data), 32 << 10):  # as the kubelet does
                if fault is not None and fault.how == "half" and sent > 100:
                    await socket.close(1011)
                    raise WebSocketDisconnect
                part = data[at : at + (200 if fault is not None and fault.how == "half" and not sent else 32 << 10)]
                await socket.send_bytes(bytes([channel]) + part)
                sent += len(part)

        if fault is not None and fault.how == "slow":
            await asyncio.sleep(30)
        code = await self.run(Exec(pod, query.getlist("command"), send))
        status: Object = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            status = {
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes},
                "message": f"command terminated with non-zero exit code: {code}",
            }  # fmt: skip
        if fault is not None and fault.how == "half":
            await socket.close(1011)
            return
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()


async def run_process(given: Exec, command: list[str], env: dict[str, str]) -> int:
    """Runs a command of a pod as a process of this machine, and passes on what it writes as it comes."""
    loop, came = asyncio.get_running_loop(), asyncio.Queue[tuple[int, bytes]]()
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    def read() -> None:
        # A thread of its own: asyncio's child processes are waited for by anybody.
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            while data := process.stdout.read1(1 << 20):
                loop.call_soon_threadsafe(came.put_nowait, (1, data))
            loop.call_soon_threadsafe(came.put_nowait, (2, process.stderr.read()))
        loop.call_soon_threadsafe(came.put_nowait, (0, b""))

    thread = threading.Thread(target=read, name="exec")
    thread.start()
    try:
        while (channel_data := await came.get())[0]:
            await given.send(*channel_data)
    except BaseException:
        process.kill()
        raise
    thread.join()
    return process.returncode


def failure(code: int, reason: str, message: str) -> Response:
    """An answer of the API server that says no."""
    return JSONResponse(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason, "code": code,
         "message": message}, code,
    )  # fmt: skip


async def failed(how: int | str | Object) -> Response:
    """An answer that no API server gives when all is well; a Status is given as it is."""
    if isinstance(how, dict):
        return JSONResponse(how, how["code"])
    if how == "slow":
        await asyncio.sleep(30)
    if how == "html":
        return Response("<html>Welcome to the guest network</html>", media_type="text/html")
    if how in ("half", "hang up"):
        sent = b'{"kind": "Status", "api' if how == "half" else b""
        return Response(sent, headers={"content-length": "1000", "content-type": "application/json"})
    if how == 502:
        return Response("<html>502 Bad Gateway</html>", 502, media_type="text/html")
    return failure(int(how), "InternalError", "etcdserver: request timed out")


def violations(spec: Object) -> str:
    """What PodSecurity says of a pod by the level restricted; empty when it passes."""
    found = []
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    for (rule, path), passes in zip(RULES.items(), PASSES, strict=True):
        of_pod = value_at(spec, ("securityContext", *path))
        bad = [each["name"] for each in containers
               if passes not in (value_at(each, ("securityContext", *path)), of_pod)]  # fmt: skip
        if bad:
            names = " and ".join(f'"{name}"' for name in bad)
            found.append(f"{rule} (container {names} must set securityContext.{'.'.join(path)})")
    return f'PodSecurity "restricted:latest": {", ".join(found)}' if found else ""


def value_at(made: Object, path: Iterable[str]) -> object:
    """The value of a field, by its path."""
    found: Any = made
    for part in path:
        found = found.get(part, {}) if isinstance(found, dict) else {}
    return found
