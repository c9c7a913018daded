"""Makes the job's network and stays with it: `python -S -m headrace.hosting.isolation.network LAYOUT`.

Its standard input is a Unix socket. Through it the caller gets ``{"keeper": pid}``, then ``{"bridge": index}`` with
descriptors of the network namespace, the user namespace and a socket that listens at the bridge; or, instead of either,
``{"error": "..."}``. The network lasts as long as a process has the descriptor; the way out of it as long as the caller
holds the socket's other end.

    caller ── this ── keeper, process 1 of a PID namespace: makes bridge and rule, waits for the caller's end
                          └─ pasta, started from the machine's network

When the keeper goes the kernel ends pasta, so both go with the caller, whatever killed it. Without a way out the
keeper goes at once; when pasta ends it says ``{"closed": wait status}``, and goes. Standard library only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from headrace.hosting.isolation import filesystem, syscalls, uplink
from headrace.hosting.isolation.netlink import Netlink
from headrace.hosting.isolation.network_layout import BITS, BRIDGE, CLOSED, Layout

BACKLOG = 1024  # agents of a job that connect at once
PLACE = Path("/tmp/net")  # file of the network namespace, in the keeper's own mount namespace


def main(arguments: list[str]) -> int:
    """Entry point. Returns 0 when the keeper was started."""
    layout = Layout.read(Path(arguments[0]))
    caller = socket.socket(fileno=0)
    try:
        if layout.user_namespace or layout.outward:
            syscalls.become_root()
        parent = os.pidfd_open(os.getpid())
        syscalls.unshare(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
        pid = os.fork()
        if pid:
            caller.send(json.dumps({"keeper": pid}).encode())
            return 0
        keeper(layout, caller, parent)
    except OSError as error:
        caller.send(json.dumps({"error": str(error)}).encode())
        return 1
    return 0


def keeper(layout: Layout, caller: socket.socket, parent: int) -> None:
    """Makes the network, tells the caller, and stays while there is a way out. Raises OSError."""
    filesystem.keep_mounts_inside()
    filesystem.mount_proc()
    select.select([parent], [], [])  # it has gone: from here on the caller is the parent
    os.close(parent)
    syscalls.die_with_parent(signal.SIGKILL)
    opener = Opener(layout.own_resolver) if layout.outward else None
    syscalls.unshare(syscalls.CLONE_NEWNET)
    with Netlink() as net:
        net.turn(socket.if_nametoindex("lo"), on=True)
        net.add_bridge(BRIDGE)
        bridge = socket.if_nametoindex(BRIDGE)
        net.add_address(bridge, layout.gateway, BITS)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    user = os.open("/proc/self/ns/user", os.O_RDONLY)
    if opener is not None:
        uplink.rewrite_addresses()
        opener.open()
    listener = socket.create_server((layout.gateway, layout.control), backlog=BACKLOG)
    socket.send_fds(caller, [json.dumps({"bridge": bridge}).encode()], [own, user, listener.fileno()])
    listener.close()  # the caller has it
    if layout.outward:
        wait(caller)


class Opener:
    """A child that stays in the machine's network, to open the way out from there. Raises OSError."""

    def __init__(self, forward_names: bool) -> None:
        syscalls.mount("tmpfs", str(PLACE.parent), "tmpfs")
        PLACE.touch()
        self._here, there = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._here.close()
            self._wait_and_open(there, forward_names)
        there.close()

    @staticmethod
    def _wait_and_open(keeper: socket.socket, forward_names: bool) -> None:
        code = 1
        try:
            if keeper.recv(1):
                uplink.open_way(str(PLACE), forward_names)
                code = 0
        except OSError as error:
            keeper.send(str(error).encode())
        finally:
            os._exit(code)

    def open(self) -> None:
        """Opens the way out of this process's network namespace. Raises OSError."""
        syscalls.bind("/proc/self/ns/net", str(PLACE))
        self._here.send(b"1")
        words = self._here.recv(1 << 16).decode(errors="replace")
        os.waitpid(self._pid, 0)
        self._here.close()
        if words:
            raise OSError(words)


def wait(caller: socket.socket) -> None:
    """Returns when the caller has closed its end or died, or when pasta has ended, which it reports to the caller."""
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    while True:
        ready, _, _ = select.select([caller, woken], [], [])
        if caller in ready and not caller.recv(1):
            return
        if woken in ready:
            woken.recv(4096)
            status = _status_of_last()
            if status is not None:
                caller.send(json.dumps({CLOSED: status}).encode())
                return


def _status_of_last() -> int | None:
    """Returns how the last child ended; None while there is one. pasta is the last, and as a rule the only one."""
    status = None
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            status = found[1]
    except ChildProcessError:
        return status
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
