"""Job controller and kubelet for the tests' own API server: a pod is a process of this machine, with its own folders.

All pods share one network of their own, where a host has an address of the loopback interface. A pod has its own root
(what is mounted in it is nowhere else), processes and host name, so `exec` enters them as the real one does.
"""

from __future__ import annotations

import base64
import ctypes
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kube_server import Exec, KubeServer, run_process

from headrace.engines.kubernetes.cluster import disconnect
from headrace.engines.planning.host_certificates import make_certificates
from needs import require

Object = dict[str, Any]
PREFIX = "127.99.0"
API, API_ADDRESS, API_PORT = "kubernetes", f"{PREFIX}.100", "6443"  # of the API server for pods, with `serve_api`
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
OWN = {"dev", "proc", "sys", "opt", "lost+found"}  # of the root: pods have their own


class Pod:
    """A pod whose container runs, or has ended.

    Args:
        kubelet: whose it is.
        made: the pod's object.
    """

    def __init__(self, kubelet: Kubelet, made: Object) -> None:
        self.kubelet = kubelet
        self.made = made
        self.name: str = made["metadata"]["name"]
        self.folder = kubelet.folder / self.name
        self.folder.mkdir()
        self.word = self.folder / "termination-log"
        self.word.touch()
        self.log = self.folder / "log"
        self.env = {"PATH": os.environ["PATH"], "HOSTNAME": made["spec"]["hostname"]}
        (container,) = made["spec"]["containers"]
        for source in container.get("envFrom", ()):
            found = kubelet.server.objects["secrets", made["metadata"]["namespace"], source["secretRef"]["name"]]
            self.env |= {name: base64.b64decode(value).decode() for name, value in found["data"].items()}
        self.env |= {"KUBERNETES_SERVICE_HOST": API, "KUBERNETES_SERVICE_PORT": API_PORT}
        self.env |= {each["name"]: each["value"] for each in container["env"]}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["nsenter", "-n", "-t", str(kubelet.network.pid), "unshare", "-m", "-u", "-p", "--fork", "--kill-child",
                 "sh", "-c", self._script(container)],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.thread = threading.Thread(target=self._wait, name=f"pod {self.name}")
        self.thread.start()

    def _script(self, container: Object) -> str:
        root = self.folder / "root"
        root.mkdir()
        lines = [f"set -e; mount -t tmpfs pod {root}; cd {root}; hostname {self.made['spec']['hostname']}"]
        for entry in sorted(Path("/").iterdir()):
            if entry.is_symlink():
                lines.append(f"ln -s {os.readlink(entry)} {entry.name}")  # noqa: PTH115
            elif entry.is_dir() and entry.name not in OWN:
                lines.append(f"mkdir {entry.name}; mount --rbind {entry} {entry.name}")
        lines.append("mkdir proc sys dev opt; mount -t proc proc proc; mount --rbind /sys sys")
        lines += [f"mkdir opt/{each.name}; mount --rbind {each} opt/{each.name}" for each in Path("/opt").iterdir()
                  if each.is_dir() and each.name != "ml"]  # fmt: skip
        lines += [f"touch dev/{name}; mount --bind /dev/{name} dev/{name}" for name in DEVICES]
        lines.append("mkdir dev/shm; ln -s /proc/self/fd dev/fd")
        lines.append(f"touch dev/termination-log; mount --bind {self.word} dev/termination-log")
        lines.append(f"mount --bind {self.kubelet.hosts} etc/hosts")
        for mount in sorted(container["volumeMounts"], key=lambda each: each["mountPath"]):
            source = self._volume(mount["name"]) / mount.get("subPath", "")
            source.mkdir(parents=True, exist_ok=True)
            target = shlex.quote(str(root) + mount["mountPath"])
            lines.append(f"mkdir -p {target}; mount --bind {shlex.quote(str(source))} {target}")
        return "\n".join([*lines, f"exec chroot . {shlex.join(container['command'])}"])

    def _volume(self, name: str) -> Path:
        """The folder of a volume, filled."""
        folder = self.folder / "volumes" / name
        if folder.exists():
            return folder
        folder.mkdir(parents=True)
        (volume,) = [each for each in self.made["spec"]["volumes"] if each["name"] == name]
        for source in volume.get("projected", {}).get("sources", ()):
            plural, key = ("secrets", "secret") if "secret" in source else ("configmaps", "configMap")
            found = self.kubelet.server.objects[plural, self.made["metadata"]["namespace"], source[key]["name"]]
            data = {**found.get("data", {}), **found.get("binaryData", {})}
            for item in source[key]["items"]:
                (folder / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))
        return folder

    @property
    def main(self) -> int:
        """Pid of the container's main process here; 0 when it has ended."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with suppress(FileNotFoundError):
            return int(children.read_text().split()[0]) if children.read_text().strip() else 0
        return 0

    def _wait(self) -> None:
        code = self.process.wait()
        code = 128 - code if code < 0 else code
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": self.word.read_text()}
        self.kubelet.ended(self, ended)

    def terminate(self, grace: float = 20.0) -> None:
        """SIGTERM, some time, SIGKILL: as when a pod is deleted."""
        with suppress(ProcessLookupError):
            if self.main:
                os.kill(self.main, signal.SIGTERM)
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to all its processes: as when its node goes down."""
        self.process.kill()
        self.process.wait()


class Kubelet:
    """Makes the pod of every Job and runs it; ends pods that are deleted. Use it in a `with` statement.

    Args:
        server: the API server.
        folder: of the pods.
    """

    def __init__(self, server: KubeServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.pods: dict[str, Pod] = {}
        self.hosts = folder / "hosts"
        self.ending: list[threading.Thread] = []
        self.waiting: list[tuple[Object, set[tuple[str, str, str]]]] = []
        self.leaving = False
        self._numbers = itertools.count(1)

    def __enter__(self) -> Kubelet:
        names = [f"{PREFIX}.{number} algo-{number}" for number in range(1, 20)]
        self.hosts.write_text("\n".join(["127.0.0.1 localhost", f"{API_ADDRESS} {API}", *names, ""]))
        numbers = [*range(1, 20), 100]
        up = "ip link set lo up; " + "; ".join(f"ip addr add {PREFIX}.{number}/32 dev lo" for number in numbers)
        self.network = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", f"{up}; echo ready; exec sleep 1000000"], stdout=subprocess.PIPE
        )
        assert self.network.stdout is not None
        assert self.network.stdout.readline() == b"ready\n"
        self.server.created.append(self._created)
        self.server.deleted.append(self._deleted)
        self.server.patched.append(self._patched)
        self.server.run = self._exec
        return self

    def __exit__(self, *_: object) -> None:
        self.leaving = True
        self.server.created.remove(self._created)
        self.server.deleted.remove(self._deleted)
        self.server.patched.remove(self._patched)
        for pod in list(self.pods.values()):
            pod.kill()
        for thread in [*self.ending, *(pod.thread for pod in self.pods.values())]:
            thread.join(30)
        self.network.kill()
        self.network.communicate()

    @contextmanager
    def serve_api(self) -> Iterator[None]:
        """The API server is there for pods, too."""
        certificates = make_certificates("cluster", [API])[API]
        files = self.folder / "api.pem", self.folder / "api.key"
        for file, data in zip(files, (certificates.certificate, certificates.key), strict=True):
            file.write_bytes(data)
        self.server.authority = certificates.ca

        def listen() -> socket.socket:  # a thread's sockets are of its network
            with Path(f"/proc/{self.network.pid}/ns/net").open() as network:
                assert ctypes.CDLL(None).setns(network.fileno(), NEW_NETWORK) == 0
            return socket.create_server((API_ADDRESS, int(API_PORT)))

        with ThreadPoolExecutor(1) as thread:
            listener = thread.submit(listen).result()
        with listener, self.server.serve_tls(listener, *files):
            yield

    def way_out(self, here: str, there: str) -> None:
        """Joins the pods' network with that of the test: two addresses of one link."""
        words = f"ip link add pods type veth peer name out netns {self.network.pid}; ip addr add {here}/30 dev pods; "
        words += f"ip link set pods up; nsenter -n -t {self.network.pid} ip addr add {there}/30 dev out; "
        subprocess.run(["sh", "-ec", f"{words}nsenter -n -t {self.network.pid} ip link set out up"], check=True)

    def of(self, host: str) -> Pod:
        """The newest pod of a host."""
        return [pod for pod in self.pods.values() if pod.made["metadata"]["labels"]["headrace/host"] == host][-1]

    def _created(self, made: Object) -> None:
        if self.leaving:
            return
        if made.get("kind") != "Job":
            self._begin()
            return
        if made["spec"]["parallelism"]:
            self._make_pod(made)

    def _patched(self, job: Object) -> None:
        """As many pods as a Job now wants: one or none."""
        live = self._live(job)
        if job["spec"]["parallelism"] and not live:
            self._make_pod(job)
        elif not job["spec"]["parallelism"]:
            for pod in live:
                self.server.remove("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])

    def _live(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        pods = [each for each in self.server.of("pods") if each["metadata"]["ownerReferences"][0]["uid"] == uid]
        return [each for each in pods if each["status"]["phase"] in ("Pending", "Running")]

    def _make_pod(self, made: Object) -> None:
        meta, template = made["metadata"], made["spec"]["template"]
        owner = {"kind": "Job", "name": meta["name"], "uid": meta["uid"]}
        pod = self.server.put("pods", {
            "apiVersion": "v1", "kind": "Pod", "spec": {**template["spec"], "nodeName": "node1"},
            "metadata": {**template["metadata"], "name": f"{meta['name']}-{next(self._numbers):05d}",
                         "ownerReferences": [owner]},
            "status": {"phase": "Pending"},
        }, meta["namespace"])  # fmt: skip
        mounted = {
            (plural, meta["namespace"], source[key]["name"])
            for volume in pod["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", ())
            for key, plural in (("secret", "secrets"), ("configMap", "configmaps"))
            if key in source
        }
        self.waiting.append((pod, mounted))
        self._begin()

    def _begin(self) -> None:
        """Begins the pods of which all is there that they mount."""
        for pod, mounted in [*self.waiting]:
            if mounted <= self.server.objects.keys():
                self.waiting.remove((pod, mounted))
                self.pods[pod["metadata"]["name"]] = Pod(self, pod)
                self._status(pod, phase="Running", containerStatuses=[{"name": "host", "state": {"running": {}}}])

    def _status(self, pod: Object, **status: Any) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if ("pods", namespace, name) in self.server.objects:
            self.server.change("pods", name, namespace, status=status)

    def ended(self, pod: Pod, terminated: Object) -> None:
        """A container has ended."""
        with self.server.lock:
            phase = "Succeeded" if terminated["exitCode"] == 0 else "Failed"
            self._status(
                pod.made, phase=phase, containerStatuses=[{"name": "host", "state": {"terminated": terminated}}]
            )
            job = self.server.objects.get(("jobs", pod.made["metadata"]["namespace"], pod.name.rpartition("-")[0]))
            goes_on = job is not None and job["spec"]["parallelism"] and job["spec"]["backoffLimit"] > 1000
            if goes_on and terminated["exitCode"] and not self.leaving:  # what the controller does after a failure
                self._patched(job)

    def _deleted(self, made: Object) -> None:
        pod = self.pods.get(made["metadata"]["name"]) if made.get("kind") == "Pod" else None
        if pod is not None:
            thread = threading.Thread(target=pod.terminate, name=f"delete {pod.name}")
            self.ending.append(thread)
            thread.start()

    async def _exec(self, given: Exec) -> int:
        pod = self.pods[given.pod["metadata"]["name"]]
        command = ["nsenter", "-t", str(pod.main), "-m", "-u", "-n", "-p", "-r", "-w/", *given.command]
        return await run_process(given, command, pod.env)

    def wait_all_ended(self, seconds: float = 30.0) -> None:
        """Waits until no container runs."""
        deadline = time.monotonic() + seconds
        while any(pod.process.poll() is None for pod in self.pods.values()):
            assert time.monotonic() < deadline, json.dumps([pod.name for pod in self.pods.values()])
            time.sleep(0.05)


@contextmanager
def played_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubelet]:
    """A cluster with pods, which headrace uses within it, with a home of its own. It needs root."""
    require("root", "nsenter")
    monkeypatch.setenv("HEADRACE_HOME", str(folder / "home"))
    pods = folder / "pods"
    pods.mkdir()
    with KubeServer(folder) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))
        with Kubelet(server, pods) as kubelet:
            yield kubelet
        disconnect()
