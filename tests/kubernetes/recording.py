"""What the API server of a cluster says about the objects of a namespace, step by step, with the time of each."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
KINDS = {"pods": "/api/v1", "events": "/api/v1", "jobs": "/apis/batch/v1"}


class Api:
    """The API server, as the administrator sees it."""

    def __init__(self) -> None:
        config = subprocess.run(
            ["kubectl", "config", "view", "--raw", "-o", "json"], capture_output=True, check=True
        ).stdout
        read = json.loads(config)
        cluster = read["clusters"][0]["cluster"]
        self._server: str = cluster["server"]
        self._token: str = read["users"][0]["user"]["token"]
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])

    def open(self, method: str, path: str, body: object = None, timeout: float = 30.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._server + path, data=data, headers=headers, method=method)
        return urllib.request.urlopen(request, context=self._context, timeout=timeout)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        try:
            with self.open(method, path, body) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code}: {error.read().decode()}") from None


# What of an object a client may want; all else (volumes, tolerations, managedFields ...) is as it was asked for.
METADATA = (
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "labels", "ownerReferences",
)  # fmt: skip
SPEC = (
    "nodeName", "hostname", "subdomain", "nodeSelector", "priorityClassName", "activeDeadlineSeconds",
    "terminationGracePeriodSeconds", "containers", "completions", "parallelism", "backoffLimit",
)  # fmt: skip
CONTAINER = ("name", "image", "resources")
EVENT = (
    "involvedObject",
    "reason",
    "message",
    "type",
    "count",
    "eventTime",
    "firstTimestamp",
    "lastTimestamp",
    "source",
)


def trimmed(thing: Object) -> Object:
    """Returns an object without what says nothing of a host's life."""
    kept: Object = {
        "metadata": _chosen(thing["metadata"], METADATA),
        **_chosen(thing, ("kind", "apiVersion", "status", *EVENT)),
    }
    if "spec" in thing:
        kept["spec"] = _chosen(thing["spec"], SPEC)
        if "containers" in kept["spec"]:
            kept["spec"]["containers"] = [_chosen(each, CONTAINER) for each in kept["spec"]["containers"]]
    return kept


def _chosen(thing: Object, names: tuple[str, ...]) -> Object:
    return {name: thing[name] for name in names if name in thing}


@dataclass
class Recording:
    """What happens in a namespace from now on."""

    api: Api
    namespace: str
    began: float = field(default_factory=time.monotonic)
    steps: list[Object] = field(default_factory=list)
    deeds: list[Object] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    over: bool = False

    def now(self) -> float:
        return round(time.monotonic() - self.began, 2)

    def did(self, deed: str) -> None:
        self.deeds.append({"at": self.now(), "deed": deed})

    def follow(self, kind: str) -> None:
        """Adds what a watch is sent, until it ends with the namespace."""
        path = f"{KINDS[kind]}/namespaces/{self.namespace}/{kind}?watch=true"
        with suppress(OSError), self.api.open("GET", path, timeout=900) as lines:
            for line in lines:
                change = json.loads(line)
                with self.changed:
                    if self.over:
                        return
                    self.steps.append(
                        {"at": self.now(), "kind": kind, "type": change["type"], "object": trimmed(change["object"])}
                    )
                    self.changed.notify_all()

    def wait(self, what: Callable[[Object], object], seconds: float = 90.0, kind: str = "pods") -> None:
        """Waits for a step of that kind."""
        seen = 0
        latest = time.monotonic() + seconds
        with self.changed:
            while True:
                for step in self.steps[seen:]:
                    if step["kind"] == kind and what(step["object"]):
                        return
                seen = len(self.steps)
                if not self.changed.wait(latest - time.monotonic()):
                    raise RuntimeError(f"{self.namespace}: not seen within {seconds} s")

    def stay(self, seconds: float) -> None:
        """Records for some time more what follows, or that nothing does."""
        time.sleep(seconds)

    def last(self) -> dict[str, Object]:
        """Returns the objects as the last steps have them, by uid."""
        found: dict[str, Object] = {}
        for step in self.steps:
            uid = step["object"]["metadata"]["uid"]
            found[uid] = step["object"]
            if step["type"] == "DELETED":
                del found[uid]
        return found

    def listed(self) -> dict[str, Object]:
        """Returns the objects as the API lists them, by uid."""
        lists = {
            kind: self.api.ask("GET", f"{path}/namespaces/{self.namespace}/{kind}") for kind, path in KINDS.items()
        }
        return {each["metadata"]["uid"]: each for one in lists.values() for each in one["items"]}

    def catch_up(self) -> None:
        """Waits until the steps say what lists say."""
        latest = time.monotonic() + 10
        version = "resourceVersion"
        while True:
            listed = {uid: each["metadata"][version] for uid, each in self.listed().items()}
            with self.changed:
                if listed == {uid: each["metadata"][version] for uid, each in self.last().items()}:
                    self.over = True
                    return
            if time.monotonic() > latest:
                raise RuntimeError(f"{self.namespace}: the watches have not seen what lists say")
            time.sleep(0.2)


@contextmanager
def recording(api: Api, namespace: str) -> Iterator[Recording]:
    """A new namespace and what happens in it; the namespace is removed after the block."""
    api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    latest = time.monotonic() + 30
    while not api.ask("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"]:  # pods are refused before
        assert time.monotonic() < latest
        time.sleep(0.1)
    made = Recording(api, namespace)
    threads = [threading.Thread(target=made.follow, args=(kind,), daemon=True) for kind in KINDS]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        with made.changed:
            made.over = True
        api.ask("DELETE", f"/api/v1/namespaces/{namespace}")
