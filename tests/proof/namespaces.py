"""Hosts as network namespaces: each with an address and a cable of its own, on a switch that nobody else is on.

    with network(["trainer", "one", "two"]) as net:
        Popen([*net.inside("one"), ...])       # runs on that host, at net.address("one")
        net.lose("one", percent=20)            # nft drops that many packets, in both directions
        net.unplug("one"); net.plug("one")     # its cable

Needs root, iproute2 and nftables. The names of the namespaces are chosen at random: another worker's process may have
the same number in its box, and a run that was killed leaves its names behind.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Network:
    """See the module."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._name = f"hr{uuid.uuid4().hex[:12]}"
        self._spaces: list[str] = []
        self._add_space("switch")
        self._ip("switch", "link", "add", "bridge", "type", "bridge")
        self._ip("switch", "link", "set", "bridge", "up")
        for host in self._hosts:
            self._add_space(host)
            cable = f"to-{host}"
            peer = ["peer", "name", "eth0", "netns", self._space(host)]
            self._ip("switch", "link", "add", cable, "type", "veth", *peer)
            self._ip("switch", "link", "set", cable, "master", "bridge", "up")
            self._ip(host, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            self._ip(host, "link", "set", "eth0", "up")

    def _space(self, host: str) -> str:
        return f"{self._name}-{host}"

    def _add_space(self, host: str) -> None:
        _run("ip", "netns", "add", self._space(host))
        self._spaces.append(self._space(host))
        self._ip(host, "link", "set", "lo", "up")

    def _ip(self, host: str, *arguments: str) -> None:
        _run("ip", "-n", self._space(host), *arguments)

    def address(self, host: str) -> str:
        """Returns a host's IP address."""
        return f"10.77.0.{1 + self._hosts.index(host)}"

    def inside(self, host: str) -> list[str]:
        """Returns the words that have a command run on a host; it keeps its process id."""
        return ["ip", "netns", "exec", self._space(host)]

    def unplug(self, host: str) -> None:
        """Takes a host's link down: nobody is told."""
        self._ip("switch", "link", "set", f"to-{host}", "down")

    def plug(self, host: str) -> None:
        """Brings the link up again."""
        self._ip("switch", "link", "set", f"to-{host}", "up")

    def lose(self, host: str, percent: int) -> None:
        """Drops this share of the packets that a host receives, and of those that it sends."""
        drop = f"numgen random mod 100 < {percent} counter drop"
        rules = "flush ruleset\ntable inet loss {\n"
        rules += f"  chain in {{ type filter hook input priority 0; iif eth0 {drop}; }}\n"
        rules += f"  chain out {{ type filter hook output priority 0; oif eth0 {drop}; }}\n}}\n"
        _run(*self.inside(host), "nft", "-f", "-", given=rules)

    def lost(self, host: str) -> int:
        """Returns how many packets were dropped since `lose`."""
        words = _run(*self.inside(host), "nft", "list", "ruleset").split()
        return sum(int(words[place + 1]) for place, word in enumerate(words) if word == "packets")

    def counted(self, host: str) -> int:
        """Returns the bytes that a host has sent and received."""
        told = _run("ip", "-n", self._space(host), "-s", "-o", "link", "show", "eth0")
        parts = told.split("\\")
        return int(parts[3].split()[0]) + int(parts[5].split()[0])

    def remove(self) -> None:
        """Removes the namespaces; their links go with them."""
        while self._spaces:
            _run("ip", "netns", "delete", self._spaces.pop())


@contextmanager
def network(hosts: Sequence[str]) -> Iterator[Network]:
    """Makes hosts, and removes them at the end of the block."""
    made = Network(hosts)
    try:
        yield made
    finally:
        made.remove()


def _run(*command: str, given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
