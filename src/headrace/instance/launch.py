"""The launch plan: all that an agent must know beyond SageMaker's own files.

An engine writes it, every agent of the job reads it, nobody changes it afterwards. It is the whole job seen from
the cluster: groups, hosts, what runs where, ports, time limits. It holds no secret (see `SECRET_NAME`) and no code.

It lies in `<base>/input/data/headrace/` (`base` is /opt/ml, or $SAGEMAKER_BASE_DIR), because on SageMaker it
travels as one more input channel:

    plan.json   this plan
    secret      32 random bytes as hex, mode 0600: the key of the job's control and feed connections

`feed.json`, written by the agent for the training processes of its host, is described in `FeedHosts`.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

CHANNEL = "headrace"
PLAN_NAME = "plan.json"
SECRET_NAME = "secret"
FEED_NAME = "feed.json"

CONTROL_PORT = 7071
FEED_PORT = 7070
MASTER_PORT = 7777  # what SageMaker's own launchers use for torchrun


class Ports(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TCP ports, the same on every host of the job.

    Attributes:
        control: coordinator, on the leader's host only.
        feed: feed server, on every host that runs data workers.
        master: MASTER_PORT of torch.distributed, on the first host of the distribution.
    """

    control: int = CONTROL_PORT
    feed: int = FEED_PORT
    master: int = MASTER_PORT


class HostPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One instance.

    Attributes:
        name: ``algo-1`` .. ``algo-n``.
        group: name of its instance group.
        address: IP address or resolvable name where its ports are.
        base_dir: its /opt/ml.
        record_dir: run directory to which its agent appends events, metrics and logs.
        cpus: CPU ids that its processes may use; empty means all.
    """

    name: str
    group: str
    address: str
    base_dir: str
    record_dir: str
    cpus: tuple[int, ...] = ()


class GroupPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the hosts of one instance group run.

    Attributes:
        name: instance group name.
        instance_type: e.g. ``ml.c5.xlarge``.
        hosts: host names, in the group's order.
        entry_point: whether its hosts run the user's entry point.
        processes_per_host: ranks a host when the group belongs to the distribution; 0 means one plain script.
        feed_executors: data worker processes a host; 0 means no feed server.
    """

    name: str
    instance_type: str
    hosts: tuple[str, ...]
    entry_point: bool = True
    processes_per_host: int = 0
    feed_executors: int = 0


class LaunchPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole job, as its agents see it.

    Attributes:
        job_name: TrainingJobName.
        run_id: id of this execution.
        entry_point: script inside the code directory, e.g. ``train.py``.
        groups: in the job file's order.
        hosts: ordered by number: algo-1, algo-2, ...
        leader: host whose agent is the coordinator.
        distribution_groups: groups of the torch.distributed world, ranks in this order; empty without one.
        completion_groups: the job succeeds when every program of these groups exits 0.
        environment: the user's variables, for every program.
        stop_grace: seconds between SIGTERM and SIGKILL.
        start_timeout: seconds within which every host must have registered.
        max_run: seconds after which the job is stopped; 0 means no limit.
        python: interpreter for the user's programs; empty means the agent's own.
    """

    job_name: str
    run_id: str
    entry_point: str
    groups: tuple[GroupPlan, ...]
    hosts: tuple[HostPlan, ...]
    leader: str
    distribution_groups: tuple[str, ...] = ()
    completion_groups: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    ports: Ports = Ports()
    stop_grace: float = 30.0
    start_timeout: float = 60.0
    max_run: float = 86400.0
    python: str = ""
    version: int = 1

    def host(self, name: str) -> HostPlan:
        """Returns the host of that name. Raises KeyError."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)

    def group(self, name: str) -> GroupPlan:
        """Returns the group of that name. Raises KeyError."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)

    @property
    def distribution_hosts(self) -> tuple[str, ...]:
        """Hosts of the distribution, in rank order."""
        return tuple(host for name in self.distribution_groups for host in self.group(name).hosts)


class FeedHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One host with data workers, as a training process sees it.

    Attributes:
        host: host name, for messages.
        group: its instance group.
        address: ``tcp://ip:port``, or ``unix:@name`` (abstract socket) on the reader's own host.
        executors: how many executor processes serve there.
        state: ``starting``, ``ready`` or ``lost``.
    """

    host: str
    group: str
    address: str
    executors: int
    state: str


class FeedHosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`<base>/input/data/headrace/feed.json`: where the data workers are. Rewritten atomically by the agent.

    The path is in HEADRACE_FEED of every training process. `generation` grows by one with every change.
    """

    generation: int
    secret_file: str
    hosts: tuple[FeedHost, ...]
    version: int = 1


def channel_dir(base_dir: str | os.PathLike[str]) -> Path:
    """Returns the directory of headrace's own input channel in an instance's tree."""
    return Path(base_dir) / "input" / "data" / CHANNEL


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes a file so that a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)


def write_plan(plan: LaunchPlan, base_dir: str | os.PathLike[str], secret: str) -> None:
    """Writes plan and secret into an instance's tree."""
    directory = channel_dir(base_dir)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / PLAN_NAME, msgspec.json.format(msgspec.json.encode(plan)))
    write_atomically(directory / SECRET_NAME, secret.encode(), mode=0o600)


def read_plan(base_dir: str | os.PathLike[str]) -> LaunchPlan:
    """Reads the plan. Raises OSError or msgspec.ValidationError."""
    return msgspec.json.decode((channel_dir(base_dir) / PLAN_NAME).read_bytes(), type=LaunchPlan)


def read_secret(base_dir: str | os.PathLike[str]) -> bytes:
    """Reads the job's secret: 32 bytes. Raises OSError or ValueError."""
    return bytes.fromhex((channel_dir(base_dir) / SECRET_NAME).read_text())
