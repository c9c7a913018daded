"""A real Kubernetes cluster for the table of engines: four nodes, of which the first is of another kind.

Hosts of a run never share a node. The image of the hosts is empty but for /etc: what programs need, pods mount from
their nodes. Deeds are done from outside: to processes by their cgroup, to nodes by their cable and their power.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from cluster import Cluster as Nodes
from engine_table_platform import Fields, Platform, RunsInFolder, pid_of_agent, pid_of_program
from team import FOLDER, NAMESPACE, USER_CONF, kubectl, listed, make_team

from headrace.engines.asking import AskEngine
from headrace.engines.kubernetes.cluster import disconnect
from headrace.runs import Run, RunPaths
from patience import allowed, until

ENGINE = "kubernetes"
NODES = (1, 2, 3, 4)
RUN, HOST = "headrace/run", "headrace/host"
OBJECTS = "pods,jobs,services,secrets,configmaps,serviceaccounts,roles,rolebindings"
KUBEPODS = Path("/sys/fs/cgroup/memory")
ROOM = 100 << 20  # bytes that a host may take besides what it has
# What programs of Debian need of the node: MPI its settings, and commands that are links to /etc/alternatives.
OF_NODE = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/openmpi")
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}


def urgent_pod(node: str) -> Fields:
    """A pod of a higher priority that wants a node for itself, without those of runs."""
    runs = {"labelSelector": {"matchExpressions": [{"key": RUN, "operator": "Exists"}]}}
    alone = [{**runs, "topologyKey": "kubernetes.io/hostname"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"urgent-{node}", "labels": {"urgent": node}},
        "spec": {
            "priorityClassName": "urgent",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": alone}},
            "containers": [{"name": "work", "image": "docker.io/local/pause:1", "imagePullPolicy": "Never"}],
        },
    }


def _is_leaving(pod: str) -> bool:
    told = kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.deletionTimestamp}", "--ignore-not-found", check=False)
    return bool(told) or not kubectl("get", "pod", pod, "-o", "name", "--ignore-not-found")


class KubernetesPlatform(RunsInFolder):
    """See the module.

    Args:
        folder: of those who submit.

    Attributes:
        keys: Secrets of the namespace whose keys are variables of the programs.
    """

    engine = ENGINE
    gone = 60.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "home")
        self.folder = folder
        self._nodes = Nodes(FOLDER)
        self._ask = AskEngine(told=lambda _: None)
        self.keys: list[str] = []
        self._dead: set[int] = set()
        self._cut: set[int] = set()
        os.environ["KUBECONFIG"] = USER_CONF  # for `run`, which asks from this process

    def fitted(self, job: Fields, python: str = "") -> Fields:
        groups = {}
        for group in job["instance_groups"]:
            if group["name"].startswith("data"):
                groups[group["name"]] = {"node_selector": {"group": "data"}}
            elif len(job["instance_groups"]) > 1 and group["count"] == 1:
                groups[group["name"]] = {"node_selector": {"group": "dnn"}}
        data = [Path(channel["s3_data"]) for channel in job.get("inputs", {}).values()]
        return {**job, "engines": {ENGINE: {**self._options(python, data), "groups": groups}}}

    def _options(self, python: str, data: Sequence[Path]) -> Fields:
        other = {"labelSelector": {"matchExpressions": [{"key": RUN, "operator": "Exists"}]}}
        alone = [{**other, "topologyKey": "kubernetes.io/hostname"}]
        folders = {Path(path) for path in OF_NODE if Path(path).exists()}
        folders |= {Path(sys.prefix), Path(sys.base_prefix), *data}
        if python:
            folders.add(Path(python).parents[1])
        top = [path for path in folders if not any(other in folders for other in path.parents)]
        return {
            "namespace": NAMESPACE,
            "image": "docker.io/local/host:1",
            "image_pull_policy": "Never",
            "python": python or sys.executable,
            "gpus": 0,
            "size_of_instance": False,
            "stop_grace": 3,
            "linger": 120,
            "environment_secrets": self.keys,
            "pod": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": alone}}},
            "volumes": {
                "-".join(path.parts[1:]).strip(".").replace(".", "").replace("_", "-").lower()[:50]: {
                    "mount_path": str(path),
                    "host_path": str(path),
                    "read_only": True,
                }
                for path in sorted(top)
            },
        }

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HEADRACE_HOME": str(self.home), "KUBECONFIG": USER_CONF}

    def headrace(self, *words: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace.cli", *words],
            env=self._environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=allowed(seconds),
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *words],
            env=self._environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, run_id: str) -> Run:
        run = Run(RunPaths(self.home / "runs" / run_id), alive=lambda _: True)
        if (run.paths.root / "run.json").exists():
            self._ask(run)
        return run

    def kill_submitter(self, submitter: subprocess.Popen[str], run: Run) -> None:
        submitter.kill()

    def touch(self, run: Run, host: str, name: str) -> None:
        pod = self._pod(run, host)["metadata"]["name"]
        kubectl("exec", pod, "--", "touch", f"/opt/ml/code/{name}")

    def result(self, run: Run, host: str, name: str) -> bytes | None:
        if host != "algo-1":  # one archive holds what all hosts have made
            return None
        with tarfile.open(run.paths.output / "output.tar.gz") as archive:
            (member,) = (each for each in archive.getmembers() if Path(each.name).name == name)
            file = archive.extractfile(member)
            assert file is not None
            return file.read()

    def _pod(self, run: Run, host: str) -> dict[str, Any]:
        """The newest pod of a host."""
        name = json.loads((run.paths.engine / "ticket.json").read_bytes())["name"]
        pods = listed("pods", "-l", f"{RUN}={name},{HOST}={host}")
        return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def _node(self, run: Run, host: str) -> int:
        return int(self._pod(run, host)["spec"]["nodeName"].removeprefix("node"))

    def _process(self, run: Run, host: str, pid: int) -> int:
        """A process of a host, as this machine numbers it."""
        (container,) = self._pod(run, host)["status"]["containerStatuses"]
        mark = f"/{container['containerID'].removeprefix('containerd://')}"
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and mark in _read(each / "cgroup"):
                numbers = next(
                    row.split()[1:] for row in _read(each / "status").splitlines() if row.startswith("NSpid")
                )
                if numbers[-1] == str(pid):
                    return int(each.name)
        raise AssertionError(f"no process {pid} in the pod of {host}")

    def kill_program(self, run: Run, host: str, stream: str) -> None:
        os.kill(self._process(run, host, pid_of_program(run, host, stream)), signal.SIGKILL)

    def kill_agent(self, run: Run, host: str) -> None:
        os.kill(self._process(run, host, pid_of_agent(run, host)), signal.SIGKILL)

    def kill_node(self, run: Run, host: str) -> None:
        node = self._node(run, host)
        self._nodes.kill(node)
        self._dead.add(node)

    def cut(self, run: Run, host: str) -> None:
        node = self._node(run, host)
        self._nodes.cut(node)
        self._cut.add(node)

    def fill_disk(self, run: Run, host: str) -> None:
        inside = ["nsenter", "--mount", "--target", str(self._process(run, host, 1))]
        subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", "/opt/ml/model"], check=True)

    def limit_memory(self, run: Run, host: str) -> None:
        (group,) = KUBEPODS.glob(f"headrace-kubernetes-*/**/pod{self._pod(run, host)['metadata']['uid']}")
        used = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(str(used + ROOM))

    def take_back(self, run: Run) -> None:
        """Has pods of a higher priority want the nodes for themselves: the scheduler preempts those of the run."""
        kubectl("apply", "-f", "-", given=URGENT)
        hosts = [host["name"] for host in json.loads(run.paths.plan.read_bytes())["hosts"]]
        pods = [self._pod(run, host) for host in hosts]
        for pod in pods:
            kubectl("create", "-f", "-", given=urgent_pod(pod["spec"]["nodeName"]))
        names = [pod["metadata"]["name"] for pod in pods]
        try:
            until(lambda: all(_is_leaving(name) for name in names), 60, "the pods are preempted")
        finally:
            kubectl("delete", "pods", "-l", "urgent", "--wait=false")

    def remove(self, run: Run, host: str, how: str) -> None:
        pod = self._pod(run, host)
        name = pod["metadata"]["name"]
        if how == "delete":
            kubectl("delete", "pod", name, "--wait=false")
        elif how == "drain":
            kubectl("drain", pod["spec"]["nodeName"], "--delete-emptydir-data")
        else:
            meta = {"name": name, "namespace": NAMESPACE}
            eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": meta}
            kubectl(
                "create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", "-f", "-", given=eviction
            )

    def set_right(self, given: bool) -> None:
        make_team("" if given else "pods/exec")

    def left(self, run: Run) -> list[str]:
        found = [f"on this machine: {line}" for line in _processes_of(run.id)]
        gone = {f"node{number}" for number in self._dead | self._cut}
        for each in listed(OBJECTS, "-l", RUN):
            if each["kind"] != "Pod" or each.get("spec", {}).get("nodeName") not in gone:
                found.append(f"in the cluster: {each['kind']} {each['metadata']['name']}")
        for node in NODES:
            if f"node{node}" not in gone:
                found += [f"node{node}: {line}" for line in self._left_on(node)]
        return found

    def _left_on(self, node: int) -> list[str]:
        """What of pods is on a node: processes, cgroups, folders, mounts."""
        found = [str(path) for path in KUBEPODS.glob(f"headrace-kubernetes-*/node{node}/**/pod*")]
        pods = FOLDER / f"node{node}" / "kubelet" / "pods"
        found += [str(path) for path in pods.glob("*")]
        words = self._nodes.words_on(node, "sh", "-c", "cat /proc/mounts; ps -e -o comm=")
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        return found + [line for line in told if f"{pods}/" in line or line.startswith("containerd-shim")]

    def mend(self) -> None:
        disconnect()
        for node in self._cut:
            self._nodes.heal(node)
        for node in self._dead:
            # Another machine takes its place: a kubelet of 1.20 never removes the folders of pods that were deleted
            # while its node had no power (kubernetes/kubernetes#60987).
            shutil.rmtree(FOLDER / f"node{node}" / "kubelet" / "pods", ignore_errors=True)
            self._nodes.revive(node)
        self._cut.clear()
        self._dead.clear()
        self.set_right(True)
        kubectl("uncordon", *(f"node{node}" for node in NODES))
        kubectl("delete", "jobs", "-l", RUN, "--wait=false")
        kubectl("delete", "pods", "-l", "urgent", "--wait=false")
        began = time.monotonic()
        while left := self._not_mended():
            assert time.monotonic() - began < allowed(120), f"not mended: {left}"
            time.sleep(0.5)

    def _not_mended(self) -> list[str]:
        """After a fault, too, nothing may be left once all nodes are back."""
        if self._nodes.ready_nodes() != len(NODES):
            return ["nodes that are not ready"]
        left = [f"{each['kind']} {each['metadata']['name']}" for each in listed(OBJECTS, "-l", RUN)]
        return left + [f"node{node}: {line}" for node in NODES for line in self._left_on(node)]


def _processes_of(run_id: str) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if run_id in line:
            found.append(line)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""


class KubernetesNodes:
    """Opens the cluster in which `make kubernetes` runs the tests."""

    needs = ("kubernetes",)

    @contextmanager
    def open(self, folder: Path) -> Iterator[Platform]:
        make_team()
        platform = KubernetesPlatform(folder)
        try:
            yield platform
        finally:
            platform.mend()
            shutil.rmtree(folder, ignore_errors=True)
