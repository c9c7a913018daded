"""The command line of mpirun: what SageMaker's launcher passes, in the words of the installed version. Pure.

Differences to SageMaker, and why:

* ``--leave-session-attached``: daemons stay children of their agents, which watch them.
* ``plm_rsh_agent``: instead of ssh.
* no ``-x SM_*``: SageMaker gives every rank the first host's. Here each rank has its own host's (see `mpi_variables`).
* no ``-x LD_PRELOAD`` of a library that makes gethostname() answer the host's name.
* variables that are not set are not named, since mpirun warns of them.
* no ``--tag-output`` and ``--display-map``: the output of ranks does not pass through mpirun, and each has its log.
* ``btl ^openib,uct,ofi`` instead of ``^openib``: the exclusion replaces the one of the system's configuration, which
  has all three, and opening the others makes MPI_Init and MPI_Finalize a second slower.
* a parameter that the user sets with ``-mca`` is not set a second time: mpirun would refuse it.

Open MPI 5 has other names for the same: its launcher is PRRTE.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.instance.launch_plan import DistributionPlan, LaunchPlan

KNOWN = (4, 5)
LOOPBACK = "lo"
NCCL_DEBUG = "--NCCL_DEBUG"
_VERSION = re.compile(r"\(Open MPI\) (\d+)\.(\d+)\.(\d+)")
_PARAMETER = re.compile(r"--?(g|prte|pmix|o)?mca")
_FORWARDED = ("LD_LIBRARY_PATH", "PATH")


@dataclass(frozen=True)
class Slots:
    """A host and its ranks.

    Attributes:
        host: its name or address for mpirun.
        count: ranks on it.
    """

    host: str
    count: int

    def __str__(self) -> str:
        return self.host if self.count == 1 else f"{self.host}:{self.count}"


def slots_of(plan: LaunchPlan, world: DistributionPlan, named: bool) -> list[Slots]:
    """Returns the hosts of a world, with their names or addresses for mpirun.

    Args:
        plan: the launch plan.
        world: an MPI world.
        named: by name, where the hosts' names are those of their machines; else by address.
    """
    hosts = [plan.host(name) for name in plan.hosts_of(world)]
    return [
        Slots(host.name if named else host.address, plan.group(host.group).processes_per_host or 1) for host in hosts
    ]


def plain_command(hosts: Sequence[Slots], program: Sequence[str], options: Sequence[str]) -> list[str]:
    """Returns the command line of `mpirun_command` without what follows from the machine and the version of Open MPI.

    Raises:
        ValueError: an option without its value.
    """
    custom, nccl_debug = split_options(options)
    return ["mpirun", *_where(hosts), "-x", f"NCCL_DEBUG={nccl_debug}", *custom, *program]


def _where(hosts: Sequence[Slots]) -> list[str]:
    return ["--host", ",".join(map(str, hosts)), "-np", str(sum(host.count for host in hosts))]


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Returns the version of Open MPI, None if the text is not from it.

    Args:
        text: what ``mpirun --version`` printed.
    """
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def split_options(options: Sequence[str]) -> tuple[list[str], str]:
    """Takes the pseudo option out of the user's ones.

    Args:
        options: the words of custom_mpi_options.

    Returns:
        The other words, and the value of ``--NCCL_DEBUG X`` or ``--NCCL_DEBUG=X``; INFO without one.

    Raises:
        ValueError: ``--NCCL_DEBUG`` is the last word.
    """
    rest: list[str] = []
    level = "INFO"
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        if name != NCCL_DEBUG:
            rest.append(word)
        elif equals:
            level = value
        else:
            following = next(words, None)
            if following is None:
                raise ValueError(f"{NCCL_DEBUG} needs a value, e.g. {NCCL_DEBUG} INFO")
            level = following
    return rest, level


def mpirun_command(
    version: tuple[int, int, int],
    hosts: Sequence[Slots],
    *,
    interface: str,
    daemon_agent: Sequence[str],
    program: Sequence[str],
    environment: Mapping[str, str],
    options: Sequence[str] = (),
) -> list[str]:
    """Returns the command line.

    Args:
        version: of Open MPI.
        hosts: in rank order.
        interface: network interface between the hosts, e.g. ``eth0``.
        daemon_agent: what is called with a host and the daemon's command line.
        program: what every rank starts.
        environment: variables of mpirun, to know which of those it forwards are set.
        options: words of custom_mpi_options; the user's come last and win.

    Raises:
        ValueError: a version that is not known or does not work here, an option without its value.
    """
    custom, nccl_debug = split_options(options)
    if version[0] not in KNOWN:
        majors = " and ".join(str(major) for major in KNOWN)
        raise ValueError(f"Open MPI {'.'.join(map(str, version))} is not known here; known are {majors}")
    if version[0] == 5 and interface == LOOPBACK:
        raise ValueError(
            "Open MPI 5 does not work over the loopback interface: use Open MPI 4, or `isolation: namespace`, "
            "which gives every host an interface of its own"
        )
    flags = _flags_4 if version[0] == 4 else _flags_5
    forwarded = [f"NCCL_SOCKET_IFNAME={interface}", f"NCCL_DEBUG={nccl_debug}"]
    forwarded += [name for name in _FORWARDED if environment.get(name)]
    taken = _parameters_in(custom)
    return [
        "mpirun",
        *_where(hosts),
        "--allow-run-as-root",
        "--leave-session-attached",
        *("--bind-to", "none", "--map-by", "slot"),
        *(
            word
            for option, name, value in flags(interface, shlex.join(daemon_agent))
            if name not in taken
            for word in (option, name, value)
        ),
        *(word for name in forwarded for word in ("-x", name)),
        *custom,
        *program,
    ]


def _parameters_in(options: Sequence[str]) -> set[str]:
    """Names of the parameters that the user sets himself."""
    return {name for option, name in itertools.pairwise(options) if _PARAMETER.fullmatch(option)}


def _flags_4(interface: str, daemon_agent: str) -> list[tuple[str, str, str]]:
    parameters = {
        "btl_tcp_if_include": interface,
        "oob_tcp_if_include": interface,
        "plm_rsh_agent": daemon_agent,
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "^openib,uct,ofi",
        "orte_abort_on_non_zero_status": "1",
        "btl_vader_single_copy_mechanism": "none",
    }
    return [("-mca", name, value) for name, value in parameters.items()]


def _flags_5(interface: str, daemon_agent: str) -> list[tuple[str, str, str]]:
    launcher = {
        "prte_if_include": interface,
        "plm_ssh_agent": daemon_agent,
        "plm_ssh_no_tree_spawn": "1",
    }
    library = {
        "btl_tcp_if_include": interface,
        "pml": "ob1",
        "btl": "^uct,ofi",
        "smsc": "^cma,knem,xpmem",
    }
    words = [("--prtemca", name, value) for name, value in launcher.items()]
    return words + [("--mca", name, value) for name, value in library.items()]
