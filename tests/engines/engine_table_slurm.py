"""A Slurm cluster for the table: the one of `slurm_cluster`, with two nodes that prepare data and two that train."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import slurm_cluster
from engine_table_platform import Fields, Platform, RunsInFolder, address_of, pid_of_program
from slurm_cluster import HEAD, HOSTS, NETWORK, NODES, SlurmCluster

from headrace.engines.slurm.handover import SlurmTicket
from headrace.engines.ticket import read_ticket
from headrace.instance.launch_plan import read_plan
from headrace.runs import Run
from patience import allowed, until

ENGINE = "slurm"
HEADRACE = (sys.executable, "-m", "headrace.cli")
ALL = "all"  # a partition with every node, for groups of more than two hosts
MEMORY = Path("/sys/fs/cgroup/memory")
ROOM = 200 << 20


class SlurmPlatform(RunsInFolder):
    """See the module."""

    engine = ENGINE

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__(cluster.folder / "headrace")
        self.cluster = cluster
        self.folder = cluster.folder
        self._dead: set[str] = set()
        self._cut: set[str] = set()
        self._groups: list[Path] = []
        names = ",".join(NODES)
        for node in NODES:
            self._gather(node)
        cluster.on(HEAD, "scontrol", "create", f"PartitionName={ALL}", f"Nodes={names}", "DefMemPerCPU=500")

    def fitted(self, job: Fields, python: str) -> Fields:
        both = {"data", "data_group"}
        groups = {}
        for group in job["instance_groups"]:
            own = "data" if group["name"] in both else "dnn"
            groups[group["name"]] = {"partition": own if group["count"] <= 2 else ALL}
        own_python = {"python": python} if python else {}
        return {**job, "engines": {ENGINE: {"groups": groups, "stop_grace": 3, **own_python}}}

    def headrace(self, *words: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        return self.cluster.on(HEAD, *HEADRACE, *words, check=False, timeout=allowed(seconds))

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return self.cluster.start(HEAD, *HEADRACE, *words)

    def kill_submitter(self, submitter: subprocess.Popen[str], run: Run) -> None:
        self.cluster.on(HEAD, "pkill", "-KILL", "-f", f"headrace.cli run .*{run.header.job_name}")

    def _node(self, run: Run, host: str) -> str:
        address = address_of(run, host)
        return next(name for name, number in HOSTS.items() if f"{NETWORK}.{number}" == address)

    def _inside(self, run: Run, host: str, *command: str) -> None:
        """Runs a command in the namespaces of a host."""
        node = self._node(run, host)
        agent = self.cluster.on(node, "pgrep", "-f", "[-]m headrace.agent").stdout.split()[0]
        self.cluster.on(node, "nsenter", "--target", agent, "--pid", "--mount", *command)

    def kill_program(self, run: Run, host: str, stream: str) -> None:
        self._inside(run, host, "kill", "-KILL", str(pid_of_program(run, host, stream)))

    def kill_agent(self, run: Run, host: str) -> None:
        self.cluster.on(self._node(run, host), "pkill", "-KILL", "-f", "[-]m headrace.agent$")

    def kill_node(self, run: Run, host: str) -> None:
        node = self._node(run, host)
        self.cluster.kill(node)
        self._dead.add(node)

    def cut(self, run: Run, host: str) -> None:
        node = self._node(run, host)
        self._cable(node, "down")
        self._cut.add(node)

    def _cable(self, node: str, state: str) -> None:
        self.cluster._in_switch("ip", "link", "set", f"v-{node}", state)

    def fill_disk(self, run: Run, host: str) -> None:
        model = f"{read_plan(run.paths.host(host)).host(host).base_dir}/model"
        self._inside(run, host, "mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", model)

    def _group(self, node: str) -> Path:
        return MEMORY / f"headrace-test-{os.getpid()}-{node}"

    def _gather(self, node: str) -> None:
        """Puts a node, with all that it will start, into a control group of its own."""
        group = self._group(node)
        group.mkdir(exist_ok=True)
        if group not in self._groups:
            self._groups.append(group)
        first = Path(f"/proc/{self._pid(node)}/ns/pid").readlink()
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and _space(each) == first:
                with suppress(ProcessLookupError):
                    (group / "cgroup.procs").write_text(each.name)

    def limit_memory(self, run: Run, host: str) -> None:
        group = self._group(self._node(run, host))
        (group / "memory.limit_in_bytes").write_text(str(ROOM))

    def _pid(self, node: str) -> int:
        """The first process of a node, as this machine numbers it."""
        inside = self.cluster.inside(node)
        switch = Path(f"/proc/{inside[inside.index('--target') + 1]}/ns/pid").readlink()
        number = (self.cluster.folder / "run" / node).read_text().strip()
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                try:
                    rows = (each / "status").read_text().splitlines()
                except OSError:  # it has just ended
                    continue
                spaces = next(row.split()[1:] for row in rows if row.startswith("NSpid:"))
                if len(spaces) >= 3 and spaces[-2] == number and spaces[-1] == "1":
                    return int(each.name)
        raise AssertionError(f"no process of {node} in {switch}")

    def take_back(self, run: Run) -> None:
        self.cluster.on(HEAD, "scancel", str(read_ticket(run.paths, SlurmTicket).job_id))

    def left(self, run: Run) -> list[str]:
        found = []
        for host in run.paths.root.joinpath("hosts").iterdir():
            node = self._node(run, host.name)
            if node not in self._dead:
                found += [f"{node}: {line}" for line in self.cluster.processes(node)]
                listed = self.cluster.on(node, "sh", "-c", "ls -d /tmp/headrace-* /dev/shm/*", check=False).stdout
                found += [f"{node}: {line}" for line in listed.split()]
        queue = self.cluster.on(HEAD, "squeue", "-h", "-o", "%A %T %k").stdout.splitlines()
        return found + [f"in the queue: {line}" for line in queue if line.endswith(run.id) and not self._down()]

    def _down(self) -> bool:
        """Whether nodes are away, whose jobs Slurm cannot complete."""
        return bool(self._dead | self._cut)

    def mend(self) -> None:
        jobs = self.cluster.on(HEAD, "squeue", "-h", "-o", "%A").stdout.split()
        if jobs:
            self.cluster.on(HEAD, "scancel", *set(jobs), check=False)
        for node in self._cut:
            self._cable(node, "up")
        for node in self._dead:
            self.cluster.revive(node)
        self._cut.clear()
        self.cluster.await_nodes()
        for group in self._groups:
            (group / "memory.limit_in_bytes").write_text("-1")
        for node in self._dead:
            self._gather(node)
        self._dead.clear()

    def close(self) -> None:
        """Removes the control groups of the nodes."""
        for group in self._groups:
            for pid in (group / "cgroup.procs").read_text().split():
                (group.parent / "cgroup.procs").write_text(pid)
            until(lambda group=group: _removed(group), 10, f"{group} is gone")
        self._groups.clear()


def _space(process: Path) -> Path | None:
    try:
        return (process / "ns" / "pid").readlink()
    except OSError:  # it has ended
        return None


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


class SlurmNodes:
    """Opens the Slurm cluster."""

    needs = slurm_cluster.NEEDS

    @contextmanager
    def open(self, folder: Path) -> Iterator[Platform]:
        with slurm_cluster.slurm_cluster(folder / "shared") as cluster:
            platform = SlurmPlatform(cluster)
            try:
                yield platform
            finally:
                platform.mend()
                platform.close()
