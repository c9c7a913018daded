#!/usr/bin/env python3
"""A Kubernetes cluster on this machine: a control plane and nodes, in namespaces, without systemd, without a registry.

    cluster.py up DIR [--nodes 2]         starts it, waits until all nodes are ready
    cluster.py on DIR COMMAND ...         runs a command where the API server can be reached, as the administrator
    cluster.py on-node DIR 1 COMMAND ...  runs a command on a node, among its processes
    cluster.py cut DIR 2 | heal DIR 2     takes a node's cable out | puts it back
    cluster.py kill DIR 2 | revive DIR 2  ends a node with all that runs on it, as a power cut does | starts it again
    cluster.py down DIR                   ends all, and removes what is left: cgroups and the folder
    cluster.py run COMMAND ...            up, the command as with `on`, down; whatever happens to the command

Nothing listens on the machine's own network. When the first process of the cluster ends, the kernel ends all others,
and mounts and networks go with them. `run` ties what it starts to itself: a killed `run` leaves folders only, which
`down` removes.

Needs root, cgroup v1, what scripts/kubernetes/build makes (KUBERNETES: its folder, by default .cache/kubernetes in the
checkout) and on Debian 12:
apt-get install --no-install-recommends containerd runc containernetworking-plugins etcd-server iproute2 openssl
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
CGROUPS = Path("/sys/fs/cgroup")
TOOLS = ("etcd", "containerd", "ctr", "runc", "unshare", "nsenter", "setpriv", "ip", "openssl")
STARTING = 180.0  # seconds
ENDING = 60.0


class ClusterError(Exception):
    """There is no such cluster; the text says why."""


def kept() -> Path:
    """The folder of scripts/kubernetes/build."""
    return Path(os.environ.get("KUBERNETES") or HERE.parents[1] / ".cache" / "kubernetes").resolve()


def why_not() -> str:
    """Returns why there can be no cluster here; nothing if there can."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} not installed; on Debian: apt-get install containerd runc etcd-server iproute2"
    if not Path("/usr/lib/cni/bridge").exists():
        return "/usr/lib/cni/bridge is missing; on Debian: apt-get install containernetworking-plugins"
    if not (kept() / "bin" / "kubelet").exists():
        return f"{kept()}/bin/kubelet is missing; scripts/kubernetes/build makes it"
    if os.geteuid() != 0:
        return "needs root"
    return (
        "" if (CGROUPS / "memory" / "tasks").exists() else "needs cgroup v1 (the kubelet of 1.20 is not tried with v2)"
    )


def _path() -> str:
    return f"{kept() / 'bin'}:{os.environ['PATH']}:/usr/sbin:/sbin"


def _plain_environment() -> dict[str, str]:
    """Variables for what outlives its caller: nothing of the caller's, such as its folder for temporary files."""
    return {"PATH": _path(), "HOME": "/root", "LANG": "C.UTF-8"}


def _wait(what: str, done: Callable[[], bool], seconds: float) -> None:
    latest = time.monotonic() + seconds
    while not done():
        if time.monotonic() > latest:
            raise ClusterError(f"{what} took longer than {seconds:.0f} s")
        time.sleep(0.1)


class Cluster:
    """A cluster whose files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def up(self, nodes: int, *, tied: bool = False) -> None:
        """Starts it. `tied`: it ends when this process does."""
        if reason := why_not():
            raise ClusterError(reason)
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ClusterError(f"{self.folder} is not empty")
        for name in ("run", "log"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "run" / "kept").write_text(str(kept()))
        (self.folder / "cgroup").write_text(f"/headrace-kubernetes-{os.getpid()}")
        tie = ["setpriv", "--pdeathsig", "KILL"] if tied else []
        apart = [
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--propagation",
            "private",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        with (self.folder / "log" / "control").open("wb") as log:
            started = subprocess.Popen(
                [*tie, *apart, str(HERE / "control"), str(self.folder), str(kept()), str(nodes)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_plain_environment(),
                start_new_session=True,
            )
        (self.folder / "run" / "cluster").write_text(str(started.pid))

        def ready() -> bool:
            if started.poll() is not None:
                raise ClusterError(f"the control plane ended with {started.returncode}")
            if failed := _read(self.folder / "run" / "failed"):
                raise ClusterError(f"a node did not start: {failed.strip()}")
            return (self.folder / "run" / "started").exists() and self.ready_nodes() == nodes

        try:
            _wait("the start of the cluster", ready, STARTING)
        except ClusterError as error:
            logs = "\n".join(
                f"{path.name}: {path.read_text()[-1500:]}" for path in sorted((self.folder / "log").iterdir())
            )
            self.down()
            raise ClusterError(f"{error}\n{logs}") from None

    def ready_nodes(self) -> int:
        """Returns how many nodes can be used."""
        told = subprocess.run(
            self.words("kubectl", "get", "nodes", "-o", "json"),
            capture_output=True,
            text=True,
            env=self.environment(),
            check=False,
        )
        if told.returncode != 0:
            return 0
        conditions = [
            each for node in json.loads(told.stdout)["items"] for each in node["status"].get("conditions", [])
        ]
        return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def environment(self) -> dict[str, str]:
        """Returns the variables of the cluster's administrator."""
        return {
            **os.environ,
            "PATH": _path(),
            "KUBECONFIG": str(self.folder / "admin.conf"),
            "KUBERNETES_CLUSTER": str(self.folder),
        }

    def _first(self) -> str:
        """The cluster's first process, as this machine counts processes."""
        try:
            wrapper = (self.folder / "run" / "cluster").read_text()
            first = Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            first = ""
        if not first:
            raise ClusterError(f"no cluster runs in {self.folder}")
        return first

    def _node(self, node: int) -> str:
        """A node's first process, as the cluster counts processes."""
        return (self.folder / "run" / f"node{node}").read_text().strip()

    def words(self, *command: str) -> list[str]:
        """Returns the words that run a command in the control plane's network, on the machine's files."""
        return ["nsenter", "--net", "--target", self._first(), *command]

    def words_on(self, node: int, *command: str) -> list[str]:
        """Returns the words that run a command on a node."""
        return [*self._among("--all"), "nsenter", "--all", "--target", self._node(node), *command]

    def _among(self, *spaces: str) -> list[str]:
        return ["nsenter", *spaces, "--target", self._first()]

    def _do(self, *command: str) -> None:
        subprocess.run([*self._among("--all"), *command], check=True, env=_plain_environment())

    def cut(self, node: int) -> None:
        """Takes a node's cable out: nobody is told."""
        self._do("ip", "link", "set", f"kv{node}", "down")

    def heal(self, node: int) -> None:
        """Puts a node's cable back."""
        self._do("ip", "link", "set", f"kv{node}", "up")
        self._do("ip", "route", "replace", f"10.244.{node}.0/24", "via", f"10.90.0.{node}", "dev", "kbr", "onlink")

    def kill(self, node: int) -> None:
        """Ends a node with all that runs on it, as a power cut does."""
        self._do("kill", "-9", self._node(node))

    def revive(self, node: int) -> None:
        """Starts a node again that was killed; its disk is as it was."""
        kept_there = (self.folder / "run" / "kept").read_text()  # another checkout may have started it
        self._do(str(HERE / "plug"), str(self.folder), kept_there, str(node))

    def down(self) -> None:
        """Ends all processes, and removes the cgroups and the folder."""
        wrapper = self.folder / "run" / "cluster"
        if wrapper.exists():
            try:
                first = Path(f"/proc/{self._first()}")
            except ClusterError:
                first = None
            try:
                os.kill(int(wrapper.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
            if first is not None:
                # It ends after all others of its namespace; a zombie has ended.
                _wait(
                    "the end of the cluster",
                    lambda: not first.exists() or "\nState:\tZ" in _read(first / "status"),
                    ENDING,
                )
        cgroup = self.folder / "cgroup"
        if cgroup.exists():
            name = cgroup.read_text().strip("/")
            _wait(
                "the removal of the cluster's cgroups",
                lambda: all(_removed(each / name) for each in CGROUPS.iterdir()),
                ENDING,
            )
        shutil.rmtree(self.folder, ignore_errors=False)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _removed(cgroup: Path) -> bool:
    """Removes an empty cgroup with those below it; False while something is in one of them."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError:
            return False
    return True


def _run(command: Sequence[str], nodes: int) -> int:
    """Runs a command in a cluster that ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="kubernetes-"))
    cluster = Cluster(folder)
    try:
        cluster.up(nodes, tied=True)
        tied = ["setpriv", "--pdeathsig", "TERM"]
        running = subprocess.Popen(cluster.words(*tied, *command), env=cluster.environment())
        ended = False

        def pass_on(number: int, _frame: FrameType | None) -> None:
            nonlocal ended
            ended = True
            running.send_signal(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        code = running.wait()
        return 128 - code if code < 0 else code or int(ended)
    finally:
        if folder.exists():
            cluster.down()


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "on", "on-node", "cut", "heal", "kill", "revive", "down", "run"):
        one = verbs.add_parser(verb)
        if verb != "run":
            one.add_argument("folder", type=Path)
        if verb in ("up", "run"):
            one.add_argument("--nodes", type=int, default=2)
        if verb in ("on-node", "cut", "heal", "kill", "revive"):
            one.add_argument("node", type=int)
        if verb in ("on", "on-node", "run"):
            one.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    try:
        if given.verb == "run":
            return _run(given.command, given.nodes)
        cluster = Cluster(given.folder)
        if given.verb in ("on", "on-node"):
            words = (
                cluster.words(*given.command) if given.verb == "on" else cluster.words_on(given.node, *given.command)
            )
            os.execvpe(words[0], words, cluster.environment())
        if given.verb == "up":
            cluster.up(given.nodes)
        elif given.verb == "down":
            cluster.down()
        else:
            getattr(cluster, given.verb)(given.node)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
