"""What runs on one host: a pure function from the launch plan.

A host whose group runs the entry point has either one plain script, or the ranks of torch.distributed that the plan
gives it; the agent starts the ranks itself, with the variables that torchrun would set. A host with data workers has
a feed server besides. The name of a program (its stream) is its global rank, or ``feed``; a plain script is ``0``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from headrace.instance import global_ranks
from headrace.instance.certificates import certificate_files
from headrace.instance.launch import SECRET_NAME, HostPlan, LaunchPlan, channel_dir

FEED = "feed"
ABSTRACT_NAME_LIMIT = 107  # bytes of a Unix socket's name, less the leading zero byte
FEED_NICE = 10  # beside ranks, data workers take what the ranks leave


@dataclass(frozen=True)
class ProgramSpec:
    """One program of a host.

    Attributes:
        stream: its name in the run: a global rank, or ``feed``.
        local_rank: its number on the host; None unless it is a rank of torch.distributed.
    """

    stream: str
    local_rank: int | None = None

    @property
    def is_feed(self) -> bool:
        """Whether it is the feed server."""
        return self.stream == FEED


def programs_of(plan: LaunchPlan, host: str) -> list[ProgramSpec]:
    """Returns the programs of a host, the feed server first.

    Raises:
        KeyError: no such host.
    """
    group = plan.group(plan.host(host).group)
    programs = [ProgramSpec(FEED)] if group.feed_executors else []
    ranks = global_ranks(plan, host) if group.entry_point else range(0)
    if ranks:
        programs += [ProgramSpec(str(rank), local) for local, rank in enumerate(ranks)]
    elif group.entry_point:
        programs.append(ProgramSpec("0"))
    return programs


def expected_streams(plan: LaunchPlan, host: str) -> tuple[str, ...]:
    """Returns the streams of the user's programs on a host, without the feed server."""
    return tuple(spec.stream for spec in programs_of(plan, host) if not spec.is_feed)


def feed_hosts(plan: LaunchPlan) -> tuple[HostPlan, ...]:
    """Returns the hosts with data workers."""
    return tuple(host for host in plan.hosts if plan.group(host.group).feed_executors)


def feed_socket(plan: LaunchPlan, host: str) -> str:
    """Returns the name of a feed server's abstract Unix socket, ``@`` first."""
    name = f"headrace/{plan.run_id}/{host}"
    if len(name.encode()) > ABSTRACT_NAME_LIMIT:
        name = "headrace/" + hashlib.sha256(name.encode()).hexdigest()[:40]
    return f"@{name}"


def feed_argv(plan: LaunchPlan, host: str, status_fd: int) -> list[str]:
    """Returns the arguments of the feed server after the interpreter."""
    me = plan.host(host)
    group = plan.group(me.group)
    files = certificate_files(me.base_dir)
    tls = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key)) if plan.encrypt else ()
    return [
        *("-m", "headrace.feed.serve"),
        *("--bind", f"{me.address}:{plan.ports.feed}"),
        *("--unix", feed_socket(plan, host)),
        *("--executors", str(group.feed_executors)),
        *("--secret-file", str(channel_dir(me.base_dir) / SECRET_NAME)),
        *("--code", f"{me.base_dir}/code"),
        *("--nice", str(FEED_NICE if group.entry_point else 0)),
        *("--host", host),
        *("--group", group.name),
        *("--status-fd", str(status_fd)),
        *tls,
    ]
