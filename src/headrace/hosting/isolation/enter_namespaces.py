"""Becomes the first process of an instance: `enter_namespaces SCRATCH LAYOUT HOST REPORT NET USER BRIDGE -- ARGV`.

It enters or makes the instance's namespaces, lays its cable to the job's bridge, makes its mounts, and starts ARGV as
process 1 of a PID namespace: when that ends, the kernel ends every process of the instance. This process then writes
a report (`child_report`) to the descriptor REPORT, with the pid that process 1 has outside or with what failed, and
exits, so that process 1 becomes a child of the caller, which is a child subreaper.

NET and USER are descriptors of the job's namespaces; USER is -1 when run as root. Process 1 keeps NET open: the
network lasts as long as there are instances, also when the engine's supervisor was killed. Both are -1 when instances
have the machine's network: then each makes a user namespace of its own, unless run as root.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.child_python import ChildReport
from headrace.hosting.isolation import filesystem, syscalls
from headrace.hosting.isolation.netlink import Netlink
from headrace.hosting.isolation.network_layout import BITS, INTERFACE, Layout
from headrace.private_folders import open_private

LINK_SECONDS = 10.0
SEPARATE = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWPID


def lay_cable(layout: Layout, host: str, job: int, bridge: int) -> None:
    """Connects this process's network namespace with the job's bridge. Raises OSError.

    Args:
        layout: the job's.
        host: the host that this process becomes.
        job: descriptor of the job's network namespace.
        bridge: index of the bridge there.
    """
    instance = layout.instance(host)
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(job, syscalls.CLONE_NEWNET)
        with Netlink() as there:
            _remove_former(there, host)
            there.add_cable(host, bridge, INTERFACE, own)
            if instance.bandwidth:
                there.limit(socket.if_nametoindex(host), instance.bandwidth)
        syscalls.setns(own, syscalls.CLONE_NEWNET)
        with Netlink() as here:
            index = socket.if_nametoindex(INTERFACE)
            here.turn(socket.if_nametoindex("lo"), on=True)
            here.add_address(index, instance.address, BITS)
            here.turn(index, on=True)
            here.ask_often(index)
            if instance.bandwidth:
                here.limit(index, instance.bandwidth)
            if layout.outward:
                here.add_default_route(layout.gateway)
            here.await_running(index, LINK_SECONDS)
        syscalls.setns(job, syscalls.CLONE_NEWNET)
        with Netlink() as there:
            there.await_running(socket.if_nametoindex(host), LINK_SECONDS)
        syscalls.setns(own, syscalls.CLONE_NEWNET)
    finally:
        os.close(own)


def _remove_former(links: Netlink, name: str) -> None:
    """Removes the cable of a former attempt: the kernel takes its time to do so after its host has ended."""
    for index, other in socket.if_nameindex():
        if other == name:
            with contextlib.suppress(OSError):  # it may be gone already; if not, making the new one fails
                links.remove(index)


def enter(layout: Layout, host: str, scratch: str, net: int, user: int, bridge: int) -> None:
    """Makes this process, and its children even more so, one of the instance. Raises OSError."""
    if user >= 0:
        syscalls.setns(user, syscalls.CLONE_NEWUSER)
    elif layout.user_namespace:
        syscalls.become_root(layout.keep_ids)
    syscalls.unshare(SEPARATE)
    if layout.own_network:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        lay_cable(layout, host, net, bridge)
    socket.sethostname(host)
    filesystem.arrange(layout, host, scratch)


def main(arguments: Sequence[str]) -> int:
    """Entry point. Returns 0 when process 1 was started."""
    scratch, path, host, *numbers, _ = arguments[: arguments.index("--") + 1]
    argv = [*arguments[arguments.index("--") + 1 :]]
    report, net, user, bridge = (int(number) for number in numbers)
    folder = os.getcwd()  # noqa: PTH109
    try:
        enter(_read(scratch, path), host, scratch, net, user, bridge)
        ready, ready_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            os.close(report)
            _become(argv, folder, ready_end)
        os.close(ready_end)
        words = os.read(ready, 4096).decode(errors="replace")  # empty: its end was closed by execve
        (ChildReport(error=words) if words else ChildReport(ready=True, pid=pid)).send(report)
        return int(bool(words))
    except (OSError, ValueError, KeyError) as error:
        ChildReport(error=str(error)).send(report)
        return 1


def _read(scratch: str, path: str) -> Layout:
    """Reads the layout; a path that is not absolute lies in the run's temporary files. Raises OSError, ValueError."""
    held = open_private(scratch)
    try:
        return Layout.read(Path(f"/proc/self/fd/{held}", path))
    finally:
        os.close(held)


def _become(argv: list[str], folder: str, failed: int) -> None:
    """Ends in the program, or says on `failed` why not."""
    try:
        filesystem.mount_proc()
        os.chdir(folder)  # once more: the directory as this mount namespace shows it
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(failed, str(error).encode())
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
