"""What runs on one host: a pure function from the launch plan.

A host whose group runs the entry point has one of these:

* one plain script;
* its ranks of torch.distributed, which the agent starts itself, with the variables that torchrun would set;
* torchrun, when its world is elastic: the ranks are torchrun's;
* mpirun, on the first host of an MPI world: it has the agents start the ranks of all hosts (see `launchers`);
* one worker of MultiWorkerMirroredStrategy.

A host with data workers has a feed server besides, or servers of tf.data.service. The name of a program (its stream)
is its global rank, ``torchrun``, ``mpirun``, ``orted`` (a daemon of mpirun), ``feed``, ``tf-dispatcher`` or
``tf-worker-0``; a plain script is ``0``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.instance import global_ranks
from headrace.instance.entry_command import entry_command
from headrace.instance.frameworks import is_tf_data, tf_data_servers
from headrace.instance.launch_plan import (
    MPI,
    SECRET_NAME,
    DistributionPlan,
    HostPlan,
    LaunchPlan,
    certificate_files,
    channel_dir,
)

FEED = "feed"
TORCHRUN = "torchrun"
MPIRUN = "mpirun"
MPI_DAEMONS = ("orted", "prted")
ABSTRACT_NAME_LIMIT = 107  # bytes of an abstract Unix socket's name, less the leading zero byte
FEED_NICE = 10  # beside ranks, data workers take what the ranks leave


@dataclass(frozen=True)
class ProgramSpec:
    """One program of a host.

    Attributes:
        stream: its name in the run: a global rank, ``torchrun``, ``mpirun``, or that of a server of the data service.
        local_rank: its number on the host; None unless it is a rank of a distribution.
    """

    stream: str
    local_rank: int | None = None

    @property
    def is_service(self) -> bool:
        """Whether it is a server of the data service."""
        return is_service(self.stream)

    @property
    def is_torchrun(self) -> bool:
        """Whether it is torchrun, which starts the ranks of its host."""
        return self.stream == TORCHRUN

    @property
    def is_mpirun(self) -> bool:
        """Whether it is mpirun, which has the ranks of all hosts of its world started."""
        return self.stream == MPIRUN


def programs_of(plan: LaunchPlan, host: str) -> list[ProgramSpec]:
    """Returns the programs of a host, the servers of the data service first.

    Raises:
        KeyError: no such host.
    """
    group = plan.group(plan.host(host).group)
    programs = [ProgramSpec(FEED)] if group.feed_executors else []
    programs += [ProgramSpec(server.stream) for server in tf_data_servers(plan, host)]
    ranks = global_ranks(plan, host) if group.entry_point else range(0)
    world = plan.distribution_of(group.name)
    if ranks and world is not None and world.kind == MPI:
        programs += [ProgramSpec(MPIRUN)] if plan.hosts_of(world)[0] == host else []
    elif ranks and world is not None and world.elastic is not None:
        programs.append(ProgramSpec(TORCHRUN))
    elif ranks:
        programs += [ProgramSpec(str(rank), local) for local, rank in enumerate(ranks)]
    elif group.entry_point:
        programs.append(ProgramSpec("0"))
    return programs


def expected_streams(plan: LaunchPlan, host: str) -> tuple[str, ...]:
    """Returns the streams of the user's programs on a host: without the data service, and without mpirun."""
    if mpi_world(plan, host) is not None:
        return tuple(str(rank) for rank in global_ranks(plan, host))
    return tuple(spec.stream for spec in programs_of(plan, host) if not spec.is_service)


def is_service(stream: str) -> bool:
    """Tells whether a program is a server of the data service."""
    return stream == FEED or is_tf_data(stream)


def mpi_world(plan: LaunchPlan, host: str) -> DistributionPlan | None:
    """Returns the world in which mpirun places ranks on a host, None if there is none."""
    group = plan.group(plan.host(host).group)
    world = plan.distribution_of(group.name)
    return world if world is not None and world.kind == MPI and group.entry_point else None


def mpi_peers(plan: LaunchPlan, host: str) -> tuple[str, ...]:
    """Returns the hosts of a host's MPI world: as long as one has ranks, all have a daemon. Empty outside of MPI."""
    world = mpi_world(plan, host)
    return () if world is None else plan.hosts_of(world)


def is_of_mpirun(stream: str) -> bool:
    """Tells whether a program is mpirun or a daemon of it: it starts ranks and is not a rank itself."""
    return stream.partition("-")[0] in (MPIRUN, *MPI_DAEMONS)


def is_launcher(stream: str) -> bool:
    """Tells whether a program only starts ranks: torchrun, mpirun or a daemon of it."""
    return stream == TORCHRUN or is_of_mpirun(stream)


def goes_on_without(plan: LaunchPlan, host: str, gone: Container[str]) -> bool:
    """Tells whether the ranks of other hosts go on when a host is lost.

    They do in an elastic world that keeps enough hosts, unless it was the first one: that has the rendezvous.

    Args:
        plan: the launch plan.
        host: the host that is lost.
        gone: hosts that were lost before.
    """
    world = plan.distribution_of(plan.host(host).group)
    if world is None or world.elastic is None:
        return False
    hosts = plan.hosts_of(world)
    left = [name for name in hosts if name != host and name not in gone]
    return host != hosts[0] and len(left) >= world.elastic.min_hosts


def program_argv(plan: LaunchPlan, group: str, arguments: Sequence[str], python: str, code: Path | None) -> list[str]:
    """Returns the command line of a group's script or rank.

    Args:
        plan: the launch plan.
        group: the group.
        arguments: its hyperparameters.
        python: the interpreter.
        code: directory with the code; None when it is not known yet (see `entry.kind_of`).
    """
    given = arguments if plan.arguments else ()
    return list(plan.command_of(group)) or entry_command(plan.entry_point_of(group), given, python, code)


def feed_hosts(plan: LaunchPlan) -> tuple[HostPlan, ...]:
    """Returns the hosts with data workers."""
    return tuple(host for host in plan.hosts if plan.group(host.group).feed_executors)


def abstract_socket(secret: bytes, *parts: str) -> str:
    """Returns the name of an abstract Unix socket, ``@`` first: the parts, or their digest if they are too long.

    Everybody may take such a name, so its end is known to nobody before the socket is there but to who has the secret.
    """
    name = "/".join(("headrace", *parts))
    name += "/" + hmac.new(secret, name.encode(), hashlib.sha256).hexdigest()[:20]
    if len(name.encode()) > ABSTRACT_NAME_LIMIT:
        name = "headrace/" + hashlib.sha256(name.encode()).hexdigest()[:40]
    return f"@{name}"


def feed_socket(plan: LaunchPlan, host: str, secret: bytes) -> str:
    """Returns the name of a feed server's socket, see `abstract_socket`."""
    return abstract_socket(secret, plan.run_id, host)


def agent_socket(plan: LaunchPlan, host: str, secret: bytes) -> str:
    """Returns the name of the socket on which an agent serves launchers, see `abstract_socket`."""
    return abstract_socket(secret, plan.run_id, host, "agent")


def feed_argv(plan: LaunchPlan, host: str, secret: bytes, status_fd: int) -> list[str]:
    """Returns the arguments of the feed server after the interpreter."""
    me = plan.host(host)
    group = plan.group(me.group)
    files = certificate_files(me.base_dir)
    tls = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key)) if plan.encrypt else ()
    return [
        *("-m", "headrace.feed.serve"),
        *("--bind", f"{me.address}:{plan.ports.feed}"),
        *("--unix", feed_socket(plan, host, secret)),
        *("--executors", str(group.feed_executors)),
        *("--secret-file", str(channel_dir(me.base_dir) / SECRET_NAME)),
        *("--code", f"{me.base_dir}/code"),
        *("--nice", str(FEED_NICE if group.entry_point else 0)),
        *("--host", host),
        *("--group", group.name),
        *("--status-fd", str(status_fd)),
        *tls,
    ]


def service_argv(plan: LaunchPlan, host: str, stream: str, folder: str, secret: bytes, status_fd: int) -> list[str]:
    """Returns the arguments of a server of the data service after the interpreter.

    Args:
        plan: the launch plan.
        host: where it runs.
        stream: which one.
        folder: where the host keeps state that lives as long as the host.
        secret: the job's secret.
        status_fd: descriptor for its status lines.
    """
    if stream == FEED:
        return feed_argv(plan, host, secret, status_fd)
    return _tf_data_argv(plan, host, stream, folder, status_fd)


def _tf_data_argv(plan: LaunchPlan, host: str, stream: str, folder: str, status_fd: int) -> list[str]:
    options = plan.tf_data
    assert options is not None
    every = tf_data_servers(plan)
    server = next(each for each in every if (each.host, each.stream) == (host, stream))
    nice = FEED_NICE if plan.group(plan.host(host).group).entry_point else 0
    argv = ["-m", "headrace.agent.tf_data_server", "--port", str(server.port)]
    if server.is_dispatcher:
        argv += ["--work-dir", f"{folder}/{stream}"] if options.fault_tolerant else []
        for name in ("worker_timeout", "job_gc_timeout", "job_gc_check_interval"):
            seconds = getattr(options, name)
            argv += [f"--{name.replace('_', '-')}", f"{seconds:g}"] if seconds is not None else []
    else:
        argv += ["--dispatcher", every[0].address, "--address", server.address, "--nice", str(nice)]
    return [*argv, "--status-fd", str(status_fd)]
