"""The command line that mpirun wants to be run on another host, read without a shell. Pure.

mpirun takes the proxy for ssh and sends text for a shell. Open MPI 4 sends the daemon and its arguments in double
quotes. Open MPI 5 sends, before those, assignments to some variables, so that a daemon that is installed somewhere
finds its libraries. Nothing else is understood, and only daemons of Open MPI are started, so that this is no way to run
anything else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from headrace.agent.program_specs import MPI_DAEMONS

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
