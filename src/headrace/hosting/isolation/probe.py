"""Tries isolation with one small instance: `python -S -m headrace.hosting.isolation.probe FOLDER OVERLAY`.

FOLDER holds a `Layout` with one instance. The job's network is made with its way out, if the layout has one, and one
instance, by the code that a run uses. By the way out, a byte goes to this machine and has to come back: some pastas
connect on some kernels and carry nothing. Exit code 0 if all that works; else the last line of standard output
says why not. Then an overlay is tried in OVERLAY, an empty directory, or "" for none: ``overlay: ...`` on standard
output says why it does not work. Nothing but files in these directories is left when this process has ended. Standard
library only.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from headrace.hosting.isolation import enter_namespaces, filesystem, network, syscalls
from headrace.hosting.isolation.network_layout import FILE, MACHINE_ADDRESS, Layout

SECONDS = 20.0
BYTE_SECONDS = 5.0
_BYTE = b"?"


def main(arguments: list[str]) -> int:
    """Entry point."""
    folder = Path(arguments[0])
    layout = Layout.read(folder / FILE)
    try:
        echo = socket.create_server(("127.0.0.1", 0)) if layout.outward else None  # in this machine's network
        net, user, bridge = _network(folder) if layout.own_network else (-1, -1, -1)
        user = user if layout.user_namespace else -1
        enter_namespaces.enter(layout, layout.instances[0].name, str(folder), net, user, bridge)
        pid = os.fork()
        if pid == 0:
            _first_process(Path(arguments[1]) if arguments[1] else None, layout.user_namespace, echo)
        if echo is not None:
            _send_back(echo, pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except OSError as error:
        print(error)
        return 1


def _network(folder: Path) -> tuple[int, int, int]:
    """Makes the job's network. Returns descriptors of its namespace and of its user namespace, and the bridge's index.

    Raises:
        OSError: it could not be made.
    """
    caller, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(SECONDS)
    if os.fork() == 0:
        caller.close()
        os.dup2(end.fileno(), 0)
        end.close()
        os._exit(network.main([str(folder / FILE)]))
    end.close()
    told, descriptors = _answer(caller)
    if "keeper" in told:
        told, descriptors = _answer(caller)
    if "error" in told:
        raise OSError(told["error"])
    caller.detach()  # stays open: the way out lasts as long as this end
    net, user = descriptors
    return net, user, int(told["bridge"])


def _answer(caller: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns the next message of the process that makes the network, and the descriptors that came with it."""
    data, descriptors, _, _ = socket.recv_fds(caller, 1 << 16, 2)
    return json.loads(data or b'{"error": "the process that makes the network ended without a message"}'), descriptors


def _send_back(echo: socket.socket, pid: int) -> None:
    """Sends back what the first caller sends; ends with the process that is to call."""
    ended = os.pidfd_open(pid)
    try:
        if _readable(echo, ended):
            with echo.accept()[0] as caller:
                if _readable(caller, ended):
                    caller.send(caller.recv(len(_BYTE)))
    finally:
        os.close(ended)


def _readable(end: socket.socket, ended: int) -> bool:
    """Waits until there is something to read, or the process of a descriptor has ended. Returns whether there is."""
    return end.fileno() in select.select([end.fileno(), ended], [], [], SECONDS)[0]


def _ask_back(echo: socket.socket) -> None:
    """Sends a byte by the way out, and has it back. Raises OSError when it does not come."""
    deadline = time.monotonic() + BYTE_SECONDS
    step = "connect to"
    try:
        with socket.create_connection((MACHINE_ADDRESS, echo.getsockname()[1]), BYTE_SECONDS) as caller:
            step = "have a byte back from"
            caller.sendall(_BYTE)
            caller.settimeout(max(0.1, deadline - time.monotonic()))
            if caller.recv(len(_BYTE)) != _BYTE:
                raise ConnectionResetError("the connection was closed")
    except OSError as error:
        words = f"pasta carries no data: an instance could not {step} this machine within {BYTE_SECONDS:g} s"
        raise OSError(f"{words} ({error}); a newer pasta (package passt) may") from error


def _first_process(overlay: Path | None, user_namespace: bool, echo: socket.socket | None) -> None:
    try:
        if echo is not None:
            _ask_back(echo)
        filesystem.mount_proc()
        if overlay is not None:
            try:
                filesystem.try_overlay(overlay, user_namespace)
            except OSError as error:
                print(f"overlay: {error}", flush=True)
        os._exit(0)
    except OSError as error:
        print(error, flush=True)
        os._exit(1)


if __name__ == "__main__":
    syscalls.adopt_orphans()
    sys.exit(main(sys.argv[1:]))
