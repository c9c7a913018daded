"""Tries isolation with one small instance: `python -S -m headrace.hosting.isolation.probe FOLDER OVERLAY`.

FOLDER holds a `Layout` with one instance. The job's network is made with its way out, if the layout has one, and one
instance, by the code that a run uses. Exit code 0 if that works; else the last line of standard output says why not.
Then an overlay is tried in OVERLAY, an empty directory, or "" for none: ``overlay: ...`` on standard output says why it
does not work. Nothing but files in these directories is left when this process has ended. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from headrace.hosting.isolation import channel_views, enter_namespaces, filesystem, network, syscalls
from headrace.hosting.isolation.network_layout import FILE, Layout

SECONDS = 20.0


def main(arguments: list[str]) -> int:
    """Entry point."""
    folder = Path(arguments[0])
    layout = Layout.read(folder / FILE)
    try:
        net, user, bridge = _network(folder) if layout.own_network else (-1, -1, -1)
        user = user if layout.user_namespace else -1
        enter_namespaces.enter(layout, layout.instances[0].name, str(folder), net, user, bridge)
        pid = os.fork()
        if pid == 0:
            _first_process(Path(arguments[1]) if arguments[1] else None, layout.user_namespace)
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


def _first_process(overlay: Path | None, user_namespace: bool) -> None:
    try:
        filesystem.mount_proc()
        if overlay is not None:
            try:
                channel_views.try_overlay(overlay, user_namespace)
            except OSError as error:
                print(f"overlay: {error}", flush=True)
        os._exit(0)
    except OSError as error:
        print(error, flush=True)
        os._exit(1)


if __name__ == "__main__":
    syscalls.adopt_orphans()
    sys.exit(main(sys.argv[1:]))
