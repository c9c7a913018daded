"""Makes the job's network and stays with it: `python -S -m headrace.hosting.isolation.network LAYOUT`.

Its standard input is a Unix socket. Through it the caller gets ``{"keeper": pid}``, then ``{"bridge": index}`` with
descriptors of the network namespace, the user namespace and a socket that listens at the bridge; or, instead of either,
``{"error": "..."}``. The network lasts as long as a process has the descriptor; the way out of it as long as the caller
holds the socket's other end.

    caller ── this ── keeper, process 1 of a PID namespace: makes bridge and rule, waits for the caller's end
                          └─ pasta, started from the machine's network

When the keeper goes the kernel ends pasta, so both go with the caller, whatever killed it. Without a way out the
keeper goes at once; when pasta ends it says ``{"closed": wait status}``, and goes.

pasta (of passt) makes an interface in the job's network namespace and carries what goes through it as the machine's
own sockets: no route, bridge or firewall rule of the machine is touched, and root is not needed. It serves one
address, so the namespace rewrites the instances' addresses to its own (an nft rule inside the namespace).

    instances ── eth0 ── bridge ── [ masquerade ] ── out0 ── pasta ── the machine's sockets

Nothing listens on the machine: there is no way in. 169.254.77.1 is the machine's 127.0.0.1. Standard library only.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from headrace.hosting.isolation import filesystem, syscalls
from headrace.hosting.isolation.netlink import Netlink
from headrace.hosting.isolation.network_layout import BITS, BRIDGE, CLOSED, DNS_ADDRESS, MACHINE_ADDRESS, Layout

INTERFACE = "out0"
ADDRESS = "169.254.77.2"
SECONDS = 10.0
PROGRAMS = {"pasta": "Debian and Ubuntu: apt install passt", "nft": "Debian and Ubuntu: apt install nftables"}
DEVICE = "/dev/net/tun"
FORWARDING = "/proc/sys/net/ipv4/ip_forward"
RULES = f"""
table ip headrace {{
    chain out {{ type nat hook postrouting priority 100; oifname "{INTERFACE}" masquerade; }}
}}
"""


def program(name: str) -> str | None:
    """Returns where a program is; people who are not root often have no sbin in their PATH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return shutil.which(name, path=path)


def missing() -> list[str]:
    """Returns what this machine lacks for a way out, in words."""
    lacking = [f"{name} is not installed ({how})" for name, how in PROGRAMS.items() if program(name) is None]
    if not Path(DEVICE).exists():
        lacking.append(f"{DEVICE} does not exist")
    elif not os.access(DEVICE, os.R_OK | os.W_OK):
        lacking.append(f"{DEVICE} may not be opened by this user")
    return lacking


def rewrite_addresses() -> None:
    """Lets this network namespace pass packets on, and send them out under its own address. Raises OSError."""
    Path(FORWARDING).write_text("1")
    run([str(program("nft")), "-f", "-"], RULES)


def open_way(namespace: str, forward_names: bool) -> None:
    """Starts pasta, which stays in the background. Returns when its interface is up. Raises OSError.

    Args:
        namespace: file of the network namespace that gets the way out. A file in /proc will not do: pasta gives up
            the right to open it before it does.
        forward_names: whether DNS_ADDRESS stands for the machine's name server. Only where nothing else does: old
            versions then give that address to the name server's other answers too.
    """
    ports = [word for option in "tuTU" for word in (f"-{option}", "none")]
    address = ["-a", ADDRESS, "-n", "255.255.255.252", "-g", MACHINE_ADDRESS]
    names = ["--dns-forward", DNS_ADDRESS] if forward_names else []
    target = ["--netns-only", "--netns", namespace]
    run([str(program("pasta")), "-q", "-4", "--config-net", "-I", INTERFACE, *address, *names, *ports, *target])


def run(argv: list[str], given: str = "") -> None:
    """Runs a program to its end. Raises OSError with its last words when it fails."""
    try:
        # A file, not a pipe: what stays in the background would keep a pipe open.
        with open(os.memfd_create("words"), "w+b") as words:  # noqa: PTH123
            done = subprocess.run(argv, input=given.encode(), stdout=words, stderr=words, timeout=SECONDS, check=False)
            words.seek(0)
            told = words.read().decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        raise OSError(f"{argv[0]} did not answer for {SECONDS:g} s") from None
    if done.returncode != 0:
        raise OSError(f"{argv[0]} failed with code {done.returncode}: {told or 'without a message'}")


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
        rewrite_addresses()
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
                open_way(str(PLACE), forward_names)
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
