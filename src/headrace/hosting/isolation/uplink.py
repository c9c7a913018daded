"""The way out of the job's network, with nothing left on the machine: pasta, and one nft rule.

pasta (of passt) makes an interface in the job's network namespace and carries what goes through it as the machine's
own sockets: no route, bridge or firewall rule of the machine is touched, and root is not needed. It serves one
address, so the namespace rewrites the instances' addresses to its own (an nft rule inside the namespace).

    instances ── eth0 ── bridge ── [ masquerade ] ── out0 ── pasta ── the machine's sockets

Nothing listens on the machine: there is no way in. 169.254.77.1 is the machine's 127.0.0.1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from headrace.hosting.isolation.network_layout import DNS_ADDRESS, MACHINE_ADDRESS

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
