"""The launch plan: all that an agent must know beyond SageMaker's own files.

An engine writes it, every agent of the job reads it, and it never changes. It is the whole job seen from
the cluster: groups, hosts, what runs where, ports, time limits. It holds no secret (see `SECRET_NAME`) and no code.

It lies in `<base>/input/data/headrace/` (`base` is /opt/ml, or $SAGEMAKER_BASE_DIR), because on SageMaker it
travels as one more input channel:

    plan.json   this plan
    secret      32 random bytes as hex, mode 0600: the key of the job's control and feed connections

`feed.json`, written by the agent for the training processes of its host, is described in `FeedHosts`.

Certificates of a run's hosts, where they lie in an instance's tree.

They travel with the plan and the secret, in headrace's own channel:

    ca.pem     the run's certificate authority; it signed the certificates of this run's hosts and nothing else
    tls.pem    certificate of this host, for its name in the run
    tls.key    its private key, mode 0600

Control connections are always under TLS, and both ends show a certificate. Where the job asks for it, feed connections
are, too; there the server shows one, and the client proves with the secret who it is. The authority's own key is not
kept.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.private_folders import write_atomically, write_private

NAMESPACE = "namespace"
SHARED_NETWORK = "shared_network"
NO_ISOLATION = "none"
BY_NODE = "auto"


class Isolation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the hosts of one machine are kept apart.

    Attributes:
        level: ``none``: they share the machine's files, processes and network; ``shared_network``: its network only;
            ``namespace``: nothing; ``auto``: every machine takes the best that works there.
        why: why this level, in words.
        outward: whether they reach other machines than the job's hosts.
        why_not_outward: why not; empty if they do.
        shared_code: whether each sees the run's one snapshot of the code, and has only what it changes for itself.
    """

    level: str = NO_ISOLATION
    why: str = ""
    outward: bool = True
    why_not_outward: str = ""
    shared_code: bool = False

    @property
    def own_files(self) -> bool:
        """Whether every host has its own /opt/ml, /tmp, name, processes, and the hosts' names in its /etc/hosts."""
        return self.level in {SHARED_NETWORK, NAMESPACE}

    @property
    def own_network(self) -> bool:
        """Whether every host has a network of its own: its addresses, its ports, and a limit of its bandwidth."""
        return self.level == NAMESPACE

    def words(self) -> str:
        """Returns in one line how hosts are isolated, why, and what they cannot reach.

        >>> Isolation("none", "engines.local.isolation says so").words()
        'isolation: none (engines.local.isolation says so)'
        """
        why = f" ({self.why})" if self.why else ""
        alone = "" if self.outward else f"; hosts reach only each other: {self.why_not_outward}"
        return f"isolation: {self.level}{why}{alone}"


def is_loopback(address: str) -> bool:
    """Tells whether a host is a loopback address of a machine, which it then shares with others; False for a name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name, as on SageMaker
        return False


CHANNEL = "headrace"
PLAN_NAME = "plan.json"
SECRET_NAME = "secret"
FEED_NAME = "feed.json"

CONTROL_PORT = 7071
FEED_PORT = 7070
TF_DATA_PORT = 7072
TF_CONFIG_PORT = 8890  # as in SageMaker's containers
MASTER_PORT = 7777  # what SageMaker's own launchers use for torchrun


class Ports(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TCP ports, the same on every host of the job.

    Attributes:
        control: coordinator, and the supervisor of the leader, on its host only.
        feed: feed server, on every host that runs data workers.
        master: MASTER_PORT of torch.distributed, on the first host of the distribution.
        tf_data: dispatcher of tf.data.service; its workers have the ports after it, see `headrace.instance.frameworks`.
        tf_config: workers of MultiWorkerMirroredStrategy, see `headrace.instance.frameworks`.
    """

    control: int = CONTROL_PORT
    feed: int = FEED_PORT
    master: int = MASTER_PORT
    tf_data: int = TF_DATA_PORT
    tf_config: int = TF_CONFIG_PORT


class HostPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One instance.

    Attributes:
        name: ``algo-1`` .. ``algo-n``.
        group: name of its instance group.
        address: IP address or resolvable name where its ports are.
        base_dir: its /opt/ml.
        record_dir: run directory to which its agent appends events, metrics and logs.
        cpus: CPU ids that its processes may use; empty means all.
        gpus: ids of the GPUs that its programs may use, as in CUDA_VISIBLE_DEVICES; None means all that are visible.
        memory: bytes that all its processes together may use; 0 means no limit.
        cpu_weight: its part of the CPU time while the hosts of one machine compete, 1 is all of it; 0 means that
            nothing is set.
    """

    name: str
    group: str
    address: str
    base_dir: str
    record_dir: str
    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] | None = None
    memory: int = 0
    cpu_weight: float = 0.0


class Readiness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a group counts as ready, for the groups that wait for it.

    Attributes:
        port: TCP port on which every host of the group must accept connections; 0 means that its programs (and
            feed server) run.
        timeout: seconds within which it must be ready, else the job fails.
    """

    port: int = 0
    timeout: float = 300.0


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a failed job is started again.

    Attributes:
        attempts: how often, beyond the first attempt.
        any: after every failure; else only when a host or an agent failed, and not the user's program.
    """

    attempts: int = 0
    any: bool = False


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much the job may cost.

    Attributes:
        max_cost: USD.
        per_second: USD that a second of one instance costs, by instance group.
        region: whose prices these are.
        basis: the prices with source and date, in words.
        before: USD that other instances have cost, in attempts of the run that are no part of its record.
    """

    max_cost: float
    per_second: dict[str, float]
    region: str
    basis: str
    before: float = 0.0

    def words(self, cost: float) -> str:
        """Returns in one sentence that a cost is too much."""
        return f"the job has cost {cost:.6f} USD, more than max_cost, {self.max_cost:g} USD ({self.basis})"


class GroupPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the hosts of one instance group run.

    Attributes:
        name: instance group name.
        instance_type: e.g. ``ml.c5.xlarge``.
        hosts: host names, in the group's order.
        entry_point: whether its hosts run the user's entry point.
        script: its own entry point; empty means the job's.
        environment: variables of its programs, over the job's.
        python: interpreter of its programs; empty means the job's.
        processes_per_host: ranks a host when the group belongs to a distribution; 0 means one plain script.
        feed_executors: data worker processes a host; 0 means no feed server.
        feed_fills: there will be one for each CPU that the ranks of a host leave, once the CPUs are known.
        depends_on: groups that must be ready before its programs start.
        ready: when the group itself is ready.
    """

    name: str
    instance_type: str
    hosts: tuple[str, ...]
    entry_point: bool = True
    script: str = ""
    environment: dict[str, str] = {}
    python: str = ""
    processes_per_host: int = 0
    feed_executors: int = 0
    feed_fills: bool = False
    depends_on: tuple[str, ...] = ()
    ready: Readiness = Readiness()


class Elastic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """torchrun's elasticity.

    Attributes:
        min_hosts: the world may shrink to so many hosts.
        max_restarts: how often the ranks are started again.
    """

    min_hosts: int
    max_restarts: int = 0


class DistributionPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One world of ranks. A group belongs to one at most; ranks are numbered in the order of `groups`.

    Attributes:
        kind: ``torch_distributed``, ``mpi`` or ``multi_worker_mirrored_strategy``.
        groups: its instance groups.
        options: what the user adds to mpirun's command line.
        horovod: whether the ranks get Horovod's environment too.
        elastic: torchrun's elasticity; None means a fixed world.
    """

    kind: str
    groups: tuple[str, ...]
    options: tuple[str, ...] = ()
    horovod: bool = False
    elastic: Elastic | None = None


class TfDataPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tf.data.service that the agents run.

    Attributes:
        groups: whose hosts have workers; the dispatcher is on the first host of the first one.
        workers_per_host: workers on each of these hosts.
        fault_tolerant: whether the dispatcher keeps its state on disk.
        worker_timeout, job_gc_timeout, job_gc_check_interval: seconds; None means TensorFlow's own.
    """

    groups: tuple[str, ...]
    workers_per_host: int = 1
    fault_tolerant: bool = True
    worker_timeout: float | None = None
    job_gc_timeout: float | None = None
    job_gc_check_interval: float | None = None


TORCH_DISTRIBUTED = "torch_distributed"
MPI = "mpi"
MULTI_WORKER_MIRRORED = "multi_worker_mirrored_strategy"


class MetricDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure to be found in the programs' output.

    Attributes:
        name: of the metric.
        regex: valid for Python's re; its first group is the figure.
    """

    name: str
    regex: str


class FeedRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts of data workers that come and go while the job runs, as its ranks need them.

    Attributes:
        hosts: those that may, the first ones first.
        least, most: how many of them serve; the first `least` are there from the start.
        idle_after: seconds for which fewer must have done before one leaves.
    """

    hosts: tuple[str, ...]
    least: int
    most: int
    idle_after: float = 30.0


class LaunchPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole job, as its agents see it.

    Attributes:
        job_name: TrainingJobName.
        run_id: id of this execution.
        entry_point: what the programs run, inside the code directory, e.g. ``train.py`` (see `instance.entry`).
        command: the whole command line of the programs, instead of an entry point; it gets no hyperparameters.
        groups: in the job file's order.
        hosts: ordered by number: algo-1, algo-2, ...
        leader: host that the coordinator stands for; it is on its machine, unless `coordinator` says where else.
        coordinator: address of the coordinator; empty for the leader's.
        distributions: the worlds of ranks; empty when every program runs alone.
        completion_groups: the job succeeds when every program of these groups exits 0.
        environment: the user's variables, for every program.
        stop_grace: seconds between SIGTERM and SIGKILL.
        start_timeout: seconds within which every host must have registered.
        max_run: seconds after which the job is stopped, all attempts together; 0 means no limit.
        stall_after: seconds without any output, metric or delivered batch after which it fails; 0 means no limit.
        budget: what it may cost, all attempts together; None means no limit.
        encrypt: whether feed connections are under TLS, as control always is.
        retry: whether a failed job is started again.
        python: interpreter for the user's programs; empty means the agent's own.
        isolation: how hosts on one machine are kept apart.
        tf_data: the job's tf.data.service; None without one.
        metric_definitions: figures that the agents find in the lines of their programs.
        job_arn: TrainingJobArn, which programs get; empty for none.
        feed_range: hosts of data workers that come and go; None where all of them serve all the time.
        arguments: whether programs get their hyperparameters as arguments, besides the file of them.
        keep: places outside of what a host keeps, which go with its output.
        region: of AWS, whose instances the hosts are; empty where they are not.
    """

    job_name: str
    run_id: str
    entry_point: str
    groups: tuple[GroupPlan, ...]
    hosts: tuple[HostPlan, ...]
    leader: str
    distributions: tuple[DistributionPlan, ...] = ()
    completion_groups: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    ports: Ports = Ports()
    stop_grace: float = 30.0
    start_timeout: float = 60.0
    max_run: float = 86400.0
    stall_after: float = 0.0
    budget: Budget | None = None
    encrypt: bool = False
    retry: Retry = Retry()
    python: str = ""
    command: tuple[str, ...] = ()
    isolation: Isolation = Isolation()
    tf_data: TfDataPlan | None = None
    metric_definitions: tuple[MetricDefinition, ...] = ()
    job_arn: str = ""
    region: str = ""
    feed_range: FeedRange | None = None
    keep: tuple[str, ...] = ()
    arguments: bool = True
    coordinator: str = ""
    version: int = 1

    @property
    def coordinator_address(self) -> str:
        """Where agents find the coordinator."""
        return self.coordinator or self.host(self.leader).address

    def comes_and_goes(self, host: str) -> bool:
        """Tells whether a host has an instance only while the coordinator wants it."""
        return self.feed_range is not None and host in self.feed_range.hosts

    def comes_later(self, host: str) -> bool:
        """Tells whether a host is not there from the start: it comes when it is needed."""
        return self.feed_range is not None and host in self.feed_range.hosts[self.feed_range.least :]

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

    def distribution_of(self, group: str) -> DistributionPlan | None:
        """Returns the world to which a group's ranks belong; None when its programs run alone."""
        return next((world for world in self.distributions if group in world.groups), None)

    def hosts_of(self, world: DistributionPlan) -> tuple[str, ...]:
        """Hosts of a world, in rank order."""
        return tuple(host for name in world.groups for host in self.group(name).hosts)

    def entry_point_of(self, group: str) -> str:
        """Entry point of a group's programs."""
        return self.group(group).script or self.entry_point

    def environment_of(self, group: str) -> dict[str, str]:
        """The user's variables of a group's programs."""
        return self.environment | self.group(group).environment

    def command_of(self, group: str) -> tuple[str, ...]:
        """Command line of a group's programs that replaces the entry point; empty when they run one."""
        return () if self.group(group).script else self.command

    def python_of(self, group: str) -> str:
        """Interpreter of a group's programs; empty means the agent's own."""
        return self.group(group).python or self.python

    def master_port_of(self, world: DistributionPlan) -> int:
        """Port on the first host of a world at which its ranks meet.

        Every world has one of its own: torch takes the port on all addresses of a machine, and one machine may play
        the hosts of all worlds.
        """
        port = self.ports.master
        for other in self.distributions:
            if other == world:
                break
            port += 1
            while port in (self.ports.control, self.ports.feed):
                port += 1
        return port


class FeedHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One host with data workers, as a training process sees it.

    Attributes:
        host: host name, for messages.
        group: its instance group.
        address: ``tcp://ip:port``, or ``unix:@name`` (abstract socket) on the reader's own host.
        executors: how many executor processes serve there.
        state: ``starting``, ``ready``, ``leaving`` (it is asked for nothing more) or ``lost``.
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


def plan_text(plan: LaunchPlan) -> str:
    """Returns plan.json."""
    return msgspec.json.format(msgspec.json.encode(plan)).decode() + "\n"


def write_plan(text: str, base_dir: str | os.PathLike[str]) -> None:
    """Writes the plan, as `plan_text` has it, into an instance's tree. Raises OSError."""
    directory = channel_dir(base_dir)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / PLAN_NAME, text.encode())


def write_secret(secret: str, base_dir: str | os.PathLike[str]) -> None:
    """Writes the job's secret into an instance's tree. Raises OSError."""
    write_private(channel_dir(base_dir) / SECRET_NAME, secret.encode())


def read_plan(base_dir: str | os.PathLike[str]) -> LaunchPlan:
    """Reads the plan. Raises OSError or msgspec.ValidationError."""
    return msgspec.json.decode((channel_dir(base_dir) / PLAN_NAME).read_bytes(), type=LaunchPlan)


def read_secret(base_dir: str | os.PathLike[str]) -> bytes:
    """Reads the job's secret: 32 bytes. Raises OSError or ValueError."""
    return bytes.fromhex((channel_dir(base_dir) / SECRET_NAME).read_text())


CA_NAME = "ca.pem"
CERTIFICATE_NAME = "tls.pem"
KEY_NAME = "tls.key"


@dataclass(frozen=True)
class Certificates:
    """What one host has, each as PEM."""

    ca: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class CertificateFiles:
    """Where it has them."""

    ca: Path
    certificate: Path
    key: Path


def certificate_files(base_dir: str | os.PathLike[str]) -> CertificateFiles:
    """Returns where a host's certificates are."""
    folder = channel_dir(base_dir)
    return CertificateFiles(folder / CA_NAME, folder / CERTIFICATE_NAME, folder / KEY_NAME)


def write_certificates(base_dir: str | os.PathLike[str], certificates: Certificates) -> None:
    """Writes them into a tree that has the plan already. Raises OSError."""
    files = certificate_files(base_dir)
    write_atomically(files.ca, certificates.ca)
    write_atomically(files.certificate, certificates.certificate)
    write_atomically(files.key, certificates.key, mode=0o600)


def read_certificates(base_dir: str | os.PathLike[str]) -> Certificates:
    """Reads them. Raises OSError."""
    files = certificate_files(base_dir)
    return Certificates(files.ca.read_bytes(), files.certificate.read_bytes(), files.key.read_bytes())
