"""A real Slurm cluster on this machine: a login node and five nodes in two partitions, in namespaces, without systemd.

    with slurm_cluster(folder) as cluster:                # slurmctld on `head`, a slurmd on each node
        cluster.on("head", "sbatch", ...)                 # users submit there
        cluster.kill("data1")                             # the node is gone, with all that ran on it
        cluster.revive("data1")
        cluster.await_nodes()

Every host has a network, a name, processes, /tmp, /run and /dev/shm of its own. What they share is the machine's file
system, and of /tmp only `folder` and the folders in which headrace and Python lie: runs are kept in `folder`, as on a
shared file system. Nothing listens on the machine's own network. When the first process of the cluster ends, the
kernel ends all others.

Needs root, util-linux, iproute2 and Debian's packages slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import headrace
from patience import allowed

NEEDS = ("slurm", "sbatch", "munge", "nsenter", "ip", "root")
NODES = {"data1": 11, "data2": 12, "data3": 13, "dnn1": 21, "dnn2": 22}
HEAD = "head"
HOSTS = {HEAD: 254, **NODES}
NETWORK = "10.88.0"

SETTINGS = {
    "ClusterName": "test",
    "SlurmctldHost": f"head({NETWORK}.254)",
    "AuthType": "auth/munge",
    "AuthInfo": "socket=/run/munge.sock,cred_expire=5",  # so long a job that is queued again waits at least
    "SlurmUser": "root",
    "SlurmdUser": "root",
    "StateSaveLocation": "{folder}/state",
    "SlurmdSpoolDir": "/run/slurmd.%n",
    "SlurmctldPidFile": "/run/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.%n.pid",
    "SlurmctldLogFile": "{folder}/log/slurmctld.log",
    "SlurmdLogFile": "{folder}/log/slurmd.%n.log",
    "SlurmctldDebug": "info",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "MpiDefault": "none",
    "ReturnToService": "2",
    "SlurmctldTimeout": "10",
    "SlurmdTimeout": "10",
    "MessageTimeout": "5",
    "InactiveLimit": "0",
    "KillWait": "5",
    "MinJobAge": "300",
    "WaitTime": "0",
    "OverTimeLimit": "0",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0,bf_hetjob_immediate"
    ",disable_hetjob_steps",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "SlurmdParameters": "config_overrides",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "JobCompType": "jobcomp/none",
    "AccountingStorageType": "accounting_storage/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "GresTypes": "gpu",
}
PARTITIONS = """
NodeName=data[1-3] NodeAddr={network}.[11-13] CPUs=2 RealMemory=4000 Feature=cpu State=UNKNOWN
NodeName=dnn[1-2] NodeAddr={network}.[21-22] CPUs=2 RealMemory=4000 Feature=gpu Gres=gpu:2 State=UNKNOWN
PartitionName=data Nodes=data[1-3] Default=YES MaxTime=INFINITE DefMemPerCPU=500 State=UP
PartitionName=dnn Nodes=dnn[1-2] MaxTime=INFINITE DefMemPerCPU=500 State=UP
PartitionName=urgent Nodes=data[1-3],dnn[1-2] MaxTime=INFINITE DefMemPerCPU=500 PriorityTier=100 State=UP
PartitionName=cancelled Nodes=data[1-3],dnn[1-2] MaxTime=INFINITE DefMemPerCPU=500 PreemptMode=CANCEL State=UP
"""
WIDE = """
NodeName=wide[1-{number}] NodeAddr={network}.[24-{last}] CPUs=1 RealMemory=4000 State=UNKNOWN
PartitionName=wide Nodes=wide[1-{number}] MaxTime=INFINITE DefMemPerCPU=500 State=UP
"""
GRES = "NodeName=dnn[1-2] Name=gpu File=/dev/null\nNodeName=dnn[1-2] Name=gpu File=/dev/zero\n"

# The first process of the cluster is the switch, on which the hosts are. Arguments: folder, then name=address of each.
SWITCH = """
set -e
folder=$1; shift
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
for host in "$@"; do sh "$folder/etc/plug" "$folder" "$host"; done
touch "$folder/run/ready"
sleep infinity & wait
"""
PLUG = """
set -e
folder=$1; name=${2%%=*}
setsid unshare --net --uts --pid --mount --ipc --fork sh "$folder/etc/host" "$folder" "$2" > "$folder/log/$name" 2>&1 &
until child=$(cat /proc/$!/task/$!/children) && [ -n "$child" ]; do sleep 0.02; done
child=${child% }
ip link add "v-$name" type veth peer name eth0 netns "$child"
ip link set "v-$name" master br0 up
echo "$child" > "$folder/run/$name"
"""
HOST = """
set -e
folder=$1; name=${2%%=*}; address=${2#*=}
mount --make-rprivate /
if [ -e "$folder/etc/release" ]; then
    release=$(cat "$folder/etc/release")
    mount -t overlay overlay -o "lowerdir=$release/usr:/usr" /usr
    plugins=usr/lib/$(uname -m)-linux-gnu/slurm-wlm
    [ ! -d "/$plugins" ] || mount --bind "$release/$plugins" "/$plugins"
fi
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt
while read -r kept; do
    mkdir -p "/mnt/${kept#/tmp/}"
    mount --rbind "$kept" "/mnt/${kept#/tmp/}"
done < "$folder/etc/kept"
chmod 1777 /mnt
mount --move /mnt /tmp
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
chmod 1777 /dev/shm
mount --bind "$folder/etc/hosts" /etc/hosts
hostname "$name"
until ip link show eth0 > /dev/null 2>&1; do sleep 0.02; done
ip link set lo up
ip addr add "$address/24" dev eth0
ip link set eth0 up
export SLURM_CONF="$folder/etc/slurm.conf"
munged --force --key-file="$folder/etc/munge.key" --socket=/run/munge.sock --pid-file=/run/munged.pid \
    --log-file=/run/munged.log --seed-file=/run/munge.seed
[ ! -e "$folder/etc/before-$name" ] || sh "$folder/etc/before-$name" "$folder"
if [ "$name" = head ]; then slurmctld -c; else slurmd -N "$name"; fi
sleep infinity & wait
"""


def unpacked(release: str) -> Path:
    """Returns where `scripts/slurm-release` unpacks a release of Slurm."""
    return Path(__file__).parents[2] / ".cache" / f"slurm-{release}"


class SlurmCluster:
    """See the module.

    Args:
        folder: what all hosts share, on no other machine's file system.
        settings: of slurm.conf, in place of `SETTINGS`.
        release: folder with the unpacked packages of another release of Slurm; None for the one that is installed.
        wide: nodes of another partition of that name, at most 200.
        files: further files of its folder etc; a host runs the script `before-HOST`, with the folder, before Slurm.

    Attributes:
        folder: as given.
        variables: of its users, beside those of every user.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        release: Path | None = None,
        wide: int = 0,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.variables: dict[str, str] = {}
        for name in ("etc", "run", "log", "state"):
            (self.folder / name).mkdir(parents=True)
        etc = self.folder / "etc"
        for name, text in {"switch": SWITCH, "plug": PLUG, "host": HOST, "gres.conf": GRES}.items():
            (etc / name).write_text(text)
        for name, text in (files or {}).items():
            (etc / name).parent.mkdir(exist_ok=True)
            (etc / name).write_text(text)
            (etc / name).chmod(0o600)
        lines = "".join(f"{name}={value}\n" for name, value in {**SETTINGS, **(settings or {})}.items())
        more = WIDE.format(network=NETWORK, number=wide, last=23 + wide) if wide else ""
        nodes = PARTITIONS.format(network=NETWORK)
        (etc / "slurm.conf").write_text(f"{lines.format(folder=self.folder)}{nodes}{more}")
        if release is not None:
            (etc / "release").write_text(str(release))
        (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (etc / "munge.key").write_bytes(os.urandom(1024))
        (etc / "munge.key").chmod(0o600)
        self._hosts = HOSTS | {f"wide{number}": 23 + number for number in range(1, wide + 1)}
        names = "".join(f"{NETWORK}.{number} {host}\n" for host, number in self._hosts.items())
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        (etc / "kept").write_text("".join(f"{place}\n" for place in self._kept()))
        addresses = [f"{host}={NETWORK}.{number}" for host, number in self._hosts.items()]
        apart = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (self.folder / "log" / "switch").open("wb") as log:
            self._switch = subprocess.Popen(
                [*apart, "sh", str(etc / "switch"), str(self.folder), *addresses],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
            )

    def _kept(self) -> list[Path]:
        """Folders below /tmp that every host must see."""
        needed = {self.folder, Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix)}
        needed.add(Path(headrace.__file__).parents[1])
        below = sorted(path.resolve() for path in needed if path.resolve().is_relative_to("/tmp"))
        return [path for path in below if not any(path != other and path.is_relative_to(other) for other in below)]

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
        return {"PATH": path, "HOME": "/root", "SLURM_CONF": str(self.folder / "etc" / "slurm.conf"), "LANG": "C.UTF-8"}

    def await_nodes(self) -> None:
        """Waits until all nodes are idle."""
        latest = time.monotonic() + allowed(60)
        while self._idle() < len(self._hosts) - 1:
            if time.monotonic() > latest or self._switch.poll() is not None:
                logs = "\n".join(path.read_text()[-2000:] for path in sorted((self.folder / "log").iterdir()))
                raise AssertionError(f"no cluster:\n{logs}")
            time.sleep(0.1)

    def _idle(self) -> int:
        if not (self.folder / "run" / "ready").exists():
            return 0
        listed = self.on(HEAD, "sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False).stdout
        return len(set(listed.split()))

    def inside(self, host: str) -> list[str]:
        """Returns the words that have a command run on a host."""
        outer = Path(f"/proc/{self._switch.pid}/task/{self._switch.pid}/children").read_text().strip()
        inner = (self.folder / "run" / host).read_text().strip()
        enter = ["nsenter", "--all", "--target"]
        return [*enter, outer, *enter, inner]

    def environment(self) -> dict[str, str]:
        """Returns the variables of a user of the cluster, whose runs lie in its folder."""
        return {**self._environment(), "HEADRACE_HOME": str(self.folder / "headrace"), **self.variables}

    def on(
        self, host: str, *command: str, check: bool = True, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a host."""
        words = [*self.inside(host), *command]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=timeout, env=self.environment(), cwd=self.folder
        )
        assert done.returncode == 0 or not check, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def start(self, host: str, *command: str) -> subprocess.Popen[str]:
        """Starts a command on a host; what it prints is in its pipes."""
        return subprocess.Popen(
            [*self.inside(host), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
            cwd=self.folder,
        )

    def processes(self, host: str) -> list[str]:
        """Returns the command lines of what runs on a host, without Slurm's and the host's own."""
        listed = self.on(host, "ps", "-e", "-o", "args=").stdout.splitlines()
        own = ("munged", "slurmd", "slurmctld", "slurmstepd", "sleep infinity", "sh ", "ps -e", "/usr/sbin")
        return [line for line in listed if line.strip() and not line.startswith(own) and "<defunct>" not in line]

    def _in_switch(self, *command: str) -> None:
        outer = Path(f"/proc/{self._switch.pid}/task/{self._switch.pid}/children").read_text().strip()
        subprocess.run(["nsenter", "--all", "--target", outer, *command], check=True, env=self._environment())

    def kill(self, host: str) -> None:
        """Ends a host with all that runs on it, as a power cut does."""
        self._in_switch("kill", "-9", (self.folder / "run" / host).read_text().strip())

    def revive(self, host: str) -> None:
        """Starts a host again that was killed."""
        words = ["sh", str(self.folder / "etc" / "plug"), str(self.folder), f"{host}={NETWORK}.{self._hosts[host]}"]
        self._in_switch(*words)

    def close(self) -> None:
        """Ends all hosts."""
        self._switch.kill()
        self._switch.wait()


@contextmanager
def slurm_cluster(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    release: Path | None = None,
    wide: int = 0,
    files: Mapping[str, str] | None = None,
) -> Iterator[SlurmCluster]:
    """Starts a cluster, and ends it after the block. See `SlurmCluster`."""
    cluster = SlurmCluster(folder, settings, release, wide, files)
    try:
        cluster.await_nodes()
        yield cluster
    finally:
        cluster.close()
