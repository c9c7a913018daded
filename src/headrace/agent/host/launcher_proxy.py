"""A proxy of a program that the agent of this host runs, or has another host's agent run.

    python -I -S launcher_proxy.py rank [RUNNER]           a rank, started by a launcher (mpirun, torchrun)
    python -I -S launcher_proxy.py daemon HOST COMMAND...  a daemon of mpirun on HOST, in place of ssh

The launcher takes this process for the program. The proxy sends the agent what the launcher gave it (variables, CPUs,
the command line) over a Unix socket, forwards the signals that it gets, and ends as the program ends: with its exit
code, or by the same signal. RUNNER is a module by which Python scripts are run, e.g. ``mpi4py``.

Both ends check that the other is of the same user; the agent also requires the job's secret.

Run by its path, with the standard library only: this is part of the start time of every rank.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import sys
from types import FrameType
from typing import NoReturn

AGENT_VARIABLE = "HEADRACE_AGENT"  # name of the agent's abstract socket, ``@`` first
SECRET_VARIABLE = "HEADRACE_AGENT_SECRET"  # path of the file with the job's secret
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
NOT_REACHED = 255  # what ssh returns when it fails itself
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


def uid_of_peer(connection: socket.socket) -> int:
    """Returns the user of the process at the other end."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def request_of(arguments: list[str]) -> dict[str, object]:
    """Returns what the agent is asked for. Raises ValueError."""
    match arguments:
        case ["rank", *runner]:
            variables = dict(os.environ)
            return {"kind": "rank", "runner": runner, "variables": variables, "cpus": sorted(os.sched_getaffinity(0))}
        case ["daemon", host, *command]:
            return {"kind": "daemon", "host": host, "command": command}
    raise ValueError(f"unknown arguments: {arguments}")


def connect() -> socket.socket:
    """Connects to the agent of this host. Raises OSError, KeyError."""
    name = os.environ[AGENT_VARIABLE]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect("\0" + name.removeprefix("@"))
    if uid_of_peer(connection) != os.getuid():
        raise PermissionError(f"{name} belongs to another user")
    return connection


def end_as(exit_code: int | None, number: int | None) -> NoReturn:
    """Ends this process as the program ended."""
    if number is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.stderr.flush()
    os._exit(NOT_REACHED if exit_code is None else exit_code)


def main(arguments: list[str]) -> NoReturn:
    """Entry point."""
    try:
        request = request_of(arguments)
        with open(os.environ[SECRET_VARIABLE]) as file:  # noqa: PTH123  (pathlib would double the start time)
            secret = file.read().strip()
        connection = connect()
        connection.sendall(json.dumps({"secret": secret} | request).encode() + b"\n")
    except (OSError, ValueError, KeyError) as error:
        print(f"error: the agent of this host cannot be asked: {error!r}", file=sys.stderr)
        end_as(NOT_REACHED, None)

    def forward(number: int, _: FrameType | None) -> None:
        try:
            connection.sendall(b"%d\n" % number)
        except OSError:
            pass  # the end of the connection is about to be read

    for number in FORWARDED:
        signal.signal(number, forward)
    with connection.makefile("rb") as answers:
        line = answers.readline()
    if not line:
        print("error: the agent of this host is gone", file=sys.stderr)
        end_as(NOT_REACHED, None)
    answer = json.loads(line)
    if answer["says"]:
        print(answer["says"], file=sys.stderr)
    end_as(answer["exit_code"], answer["signal"])


if __name__ == "__main__":
    main(sys.argv[1:])
