"""Pods without a cluster: each host in a mount namespace with a folder of its own for what is an emptyDir in a pod.

What a pod gets is unpacked from what travels, and started with the words of its container. All pods of a run share a
network, in which algo-N are addresses of one interface.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.engines.host_start import INDEX, PACKAGE, RUN_FILES
from headrace.engines.kubernetes.kubernetes_job import KubernetesJob, plan_kubernetes_job
from headrace.engines.kubernetes.objects import FOLDER, INPUT, WORD, objects
from headrace.engines.kubernetes.pack_run import Payload, prepare_kubernetes_run
from headrace.job import Job
from headrace.runs import RunPaths, create_run

AS_USER = [
    "setpriv",
    "--clear-groups",
    "--inh-caps",
    "-all,+dac_read_search",
    "--ambient-caps",
    "-all,+dac_read_search",
]
"""The Python of these tests may lie in a folder that only root may enter; an image's does not."""
NETWORK = """set -e
ip link set lo up
for n in $(seq "$1"); do ip address add "10.96.7.$n/32" dev lo; done
read _ || true"""
POD = """set -e
mount --make-rprivate /
mount --bind "$1/run" "$2"
mount -t tmpfs -o mode=755 tmpfs /opt
mkdir /opt/ml
mount --bind "$1/run/$3" /opt/ml
mount --bind "$1/hosts" /etc/hosts
shift 3
exec "$@" """


@dataclass
class Pods:
    """The pods of a run.

    Attributes:
        planned: the job, in its run.
        folder: where the pods' folders are.
        user: uid of their processes.
        started: host name to its main process.
    """

    planned: KubernetesJob
    payload: Payload
    folder: Path
    user: int = 0
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    network: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Makes the network."""
        count = str(len(self.planned.plan.hosts))
        words = ["unshare", "--net", "sh", "-c", NETWORK, "network", count]
        self.network = subprocess.Popen(words, stdin=subprocess.PIPE)
        deadline = time.monotonic() + 10
        while f"10.96.7.{count}" not in self._addresses():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _addresses(self) -> str:
        assert self.network is not None
        words = ["nsenter", "--net", "--target", str(self.network.pid), "ip", "-o", "address"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def run_of(self, host: str) -> RunPaths:
        """The run's directory inside a pod, seen from here."""
        return RunPaths(self.folder / host / "run")

    def word_of(self, host: str) -> Mapping[str, object]:
        """The termination message of a pod."""
        return json.loads((self.folder / host / "word").read_bytes())

    def start(self, host: str, variables: Mapping[str, str] | None = None) -> None:
        """Starts the pod of a host, with the words of its container."""
        assert self.network is not None
        pod = self.folder / host
        in_set = self.planned.options.is_jobset
        tree = "ml" if in_set else f"hosts/{host}"
        for name in (f"run/{tree}", "headrace/in", "tmp"):
            (pod / name).mkdir(parents=True)
        for name, data in ((PACKAGE, self.payload.package), (RUN_FILES, self.payload.shared)):
            (pod / "headrace/in" / name).write_bytes(data)
        (pod / "headrace/in" / f"{host}.tar.gz").write_bytes(self.payload.hosts[host])
        names = (f"10.96.7.{n}\t{each.address}\n" for n, each in enumerate(self.planned.plan.hosts, start=1))
        (pod / "hosts").write_text("127.0.0.1\tlocalhost\n" + "".join(names))
        (pod / "word").write_bytes(b"")
        for path in (pod, *pod.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o644)
        (pod / "word").chmod(0o666)
        container = self._container(host)
        moved = {
            FOLDER: str(pod / "headrace"),
            WORD: str(pod / "word"),
            f"{INPUT}/{PACKAGE}": str(pod / "headrace/in" / PACKAGE),
        }
        words = [moved.get(word, word) for word in container["command"]]
        words[0] = sys.executable
        own = {each["name"]: each["value"].replace(FOLDER, str(pod / "headrace")) for each in container["env"]}
        environment = {**os.environ, **own, "TMPDIR": str(pod / "tmp"), "HOSTNAME": host, **(variables or {})}
        environment.pop("PYTHONHOME", None)
        if in_set:
            group = self.planned.plan.group(self.planned.plan.host(host).group)
            environment[INDEX] = str(group.hosts.index(host))
        as_user = [*AS_USER, "--reuid", str(self.user), "--regid", str(self.user)] if self.user else []
        inside = ["nsenter", "--net", "--target", str(self.network.pid), "unshare", "--mount", "sh", "-c", POD, "pod"]
        with (pod / "log").open("ab") as log:
            self.started[host] = subprocess.Popen(
                [*inside, str(pod), self.planned.root, tree, *as_user, *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

    def _container(self, host: str) -> dict:
        if self.planned.options.is_jobset:
            plan = self.planned.plan
            part = [group.name for group in plan.groups].index(plan.host(host).group)
            job = objects(self.planned)[0]["spec"]["replicatedJobs"][part]["template"]
        else:
            jobs = [made for made in objects(self.planned) if made["kind"] == "Job"]
            (job,) = (made for made in jobs if made["metadata"]["labels"]["headrace/host"] == host)
        return job["spec"]["template"]["spec"]["containers"][0]

    def ended(self, host: str, seconds: float = 60.0) -> int:
        """Waits for a pod's end and returns its exit code."""
        try:
            return self.started[host].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError((self.folder / host / "log").read_text()) from None

    def close(self) -> None:
        """Ends all."""
        for process in self.started.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self.network is not None:
            assert self.network.stdin is not None
            self.network.stdin.close()
            self.network.wait(10)


def play_pods(job: Job, folder: Path, user: int = 0, hosts: Sequence[str] | None = None) -> Pods:
    """Prepares a run of a job and starts its pods; of some hosts, when they are named."""
    paths = create_run(job.job_name, "kubernetes", base_path=str(job.base_path))
    paths = RunPaths(paths.root.resolve())
    for folder_above in (paths.root.parent, paths.root.parent.parent):
        folder_above.chmod(0o711)  # in a pod the runtime makes them, as the way to what is mounted
    planned = plan_kubernetes_job(job, paths).in_run(paths)
    pods = Pods(planned, prepare_kubernetes_run(planned, paths), folder, user)
    pods.open()
    for host in [host.name for host in planned.plan.hosts] if hosts is None else hosts:
        pods.start(host)
    return pods
