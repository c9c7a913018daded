"""Network links by rtnetlink(7): what `ip` and `tc` would do, without them. Standard library only.

A `Netlink` speaks to the network namespace in which it was made, also after its process has moved to another.
Addresses are IPv4. Constants and structs: linux/rtnetlink.h, if_link.h, if_addr.h, veth.h, pkt_sched.h.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from types import TracebackType

NEWLINK, DELLINK, GETLINK, NEWADDR, NEWROUTE, NEWQDISC, SETNEIGHTBL = 16, 17, 18, 20, 24, 36, 67
REQUEST, ACK, REPLACE, EXCL, CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
ERROR = 2
IFNAME, MASTER, LINKINFO, NET_NS_FD = 3, 10, 18, 28
HARDWARE_ADDRESS = 1  # IFLA_ADDRESS
BRIDGE_ADDRESS = bytes((0x02, 0x68, 0x72, 0, 0, 1))  # of local administration
INFO_KIND, INFO_DATA, VETH_PEER = 1, 2, 1
UP, RUNNING = 0x1, 0x40
CHANGES_OF_LINKS = 1  # multicast group
TABLE_NAME, TABLE_PARMS = 1, 6
PARMS_LINK, PARMS_RETRANS, PARMS_QUESTIONS = 1, 5, 11
TBF_PARMS, TBF_RATE64, TBF_BURST = 1, 4, 6
ETHERNET = 1  # link layer of a tc_ratespec: the kernel then needs no rate table
ROOT = 0xFFFFFFFF
ASK_SECONDS, ASK_TIMES = 0.05, 60  # for the address of a host that is not there yet; the kernel's own: 1 s, 3 times
QUEUE_SECONDS = 0.05  # what a rate limit lets wait, before it drops
BURST_SECONDS = 0.01
LEAST_BURST = 1 << 17  # a veth carries packets of 64 KiB


def _attribute(kind: int, value: bytes) -> bytes:
    padded = value + b"\0" * (-len(value) % 4)
    return struct.pack("=HH", 4 + len(value), kind) + padded


def _name(name: str) -> bytes:
    return _attribute(IFNAME, name.encode() + b"\0")


def _kind(name: str, data: bytes = b"") -> bytes:
    inside = _attribute(INFO_KIND, name.encode()) + (_attribute(INFO_DATA, data) if data else b"")
    return _attribute(LINKINFO, inside)


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


class Netlink:
    """See the module. All methods raise OSError."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def add_bridge(self, name: str) -> None:
        """Makes a bridge, and brings it up.

        Its hardware address is its own: else it would be that of one of its cables, and another one when that is
        removed, and hosts would send to the old one until they ask again, for up to 45 s.
        """
        link = _link(0, UP, UP) + _attribute(HARDWARE_ADDRESS, BRIDGE_ADDRESS) + _name(name)
        self._ask(NEWLINK, CREATE | EXCL, link + _kind("bridge"), f"add bridge {name}")

    def add_cable(self, name: str, master: int, peer: str, namespace: int) -> None:
        """Makes a veth pair: one end here and up, in a bridge, the other in another network namespace.

        Args:
            name: the end here.
            master: index of the bridge.
            peer: the other end.
            namespace: descriptor of its namespace.
        """
        other = _link() + _name(peer) + _attribute(NET_NS_FD, struct.pack("=i", namespace))
        here = _link(0, UP, UP) + _name(name) + _attribute(MASTER, struct.pack("=i", master))
        self._ask(NEWLINK, CREATE | EXCL, here + _kind("veth", _attribute(VETH_PEER, other)), f"add cable {name}")

    def remove(self, index: int) -> None:
        """Removes a link; of a pair, both ends. It is gone when this returns."""
        self._ask(DELLINK, 0, _link(index), f"remove link {index}")

    def turn(self, index: int, on: bool) -> None:
        """Brings a link up or down."""
        self._ask(NEWLINK, 0, _link(index, UP if on else 0, UP), f"turn link {index} {'on' if on else 'off'}")

    def await_running(self, index: int, seconds: float) -> None:
        """Waits until a link carries packets.

        It does not at once when it is brought up: the kernel's own work has to see that there is a link at the other
        end. Until then all packets are dropped, and the first question for an address is asked again after 1 s only.

        Args:
            index: the link, in this process's network namespace.
            seconds: how long it may take.
        """
        deadline = time.monotonic() + seconds
        changes: socket.socket | None = None
        try:
            while not self._flags(index) & RUNNING:
                if changes is None:  # asked once more, because it may have changed before
                    changes = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
                    changes.bind((0, CHANGES_OF_LINKS))
                    continue
                rest = deadline - time.monotonic()
                if rest <= 0:
                    raise TimeoutError(f"link {index} carries nothing {seconds:g} s after it was brought up")
                changes.settimeout(rest)
                with contextlib.suppress(TimeoutError):
                    changes.recv(1 << 16)
        finally:
            if changes is not None:
                changes.close()

    def _flags(self, index: int) -> int:
        """Flags of a link. The kernel first does what it has still to do about the link (since Linux 6.8)."""
        answer = self._ask(GETLINK, 0, _link(index), f"look at link {index}")
        return int(struct.unpack_from("=BxHiI", answer, 16)[3])

    def add_address(self, index: int, address: str, bits: int) -> None:
        """Gives a link an address in a network of that many bits."""
        raw = socket.inet_aton(address)
        head = struct.pack("=BBBBi", socket.AF_INET, bits, 0, 0, index)
        body = _attribute(1, raw) + _attribute(2, raw)  # IFA_ADDRESS, IFA_LOCAL
        self._ask(NEWADDR, CREATE | EXCL, head + body, f"add address {address}")

    def ask_often(self, index: int) -> None:
        """Has a link ask for a neighbour's address more often than once a second, and for as long as is usual.

        A host that comes first would wait for a whole second for one that comes a moment later.
        """
        retrans = _attribute(PARMS_RETRANS, struct.pack("=Q", int(ASK_SECONDS * 1000)))
        questions = _attribute(PARMS_QUESTIONS, struct.pack("=I", ASK_TIMES))
        parms = _attribute(PARMS_LINK, struct.pack("=I", index)) + retrans + questions
        body = _attribute(TABLE_NAME, b"arp_cache\0") + _attribute(TABLE_PARMS, parms)
        self._ask(SETNEIGHTBL, 0, struct.pack("=B3x", socket.AF_INET) + body, f"ask often on link {index}")

    def add_default_route(self, gateway: str) -> None:
        """Sends what belongs to no network of this namespace to a gateway."""
        # main table, protocol static, scope universe, type unicast
        head = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 254, 4, 0, 1, 0)
        self._ask(NEWROUTE, CREATE | EXCL, head + _attribute(5, socket.inet_aton(gateway)), f"route by {gateway}")

    def limit(self, index: int, bits_per_second: int) -> None:
        """Limits what a link sends, by a token bucket."""
        rate = max(1, bits_per_second // 8)
        burst = max(LEAST_BURST, int(rate * BURST_SECONDS))
        queue = int(rate * QUEUE_SECONDS) + burst
        # tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
        spec = struct.pack("=BBHhHI", 0, ETHERNET, 0, -1, 0, min(rate, 0xFFFFFFFF))
        ticks = min(int(burst / rate * 1e9 / 64), 0xFFFFFFFF)  # psched ticks are 64 ns
        parms = spec + struct.pack("=BBHhHI", 0, 0, 0, 0, 0, 0) + struct.pack("=III", queue, ticks, 0)
        options = _attribute(TBF_PARMS, parms) + _attribute(TBF_BURST, struct.pack("=I", burst))
        if rate > 0xFFFFFFFF:
            options += _attribute(TBF_RATE64, struct.pack("=Q", rate))
        head = struct.pack("=BxHiIII", socket.AF_UNSPEC, 0, index, 1 << 16, ROOT, 0)
        body = _attribute(1, b"tbf\0") + _attribute(2, options)  # TCA_KIND, TCA_OPTIONS
        self._ask(NEWQDISC, CREATE | REPLACE, head + body, f"limit link {index} to {bits_per_second} bit/s")

    def _ask(self, kind: int, flags: int, body: bytes, what: str) -> bytes:
        """Returns the message that came before the acknowledgement; empty when there was none."""
        self._sequence += 1
        head = struct.pack("=IHHII", 16 + len(body), kind, REQUEST | ACK | flags, self._sequence, 0)
        self._socket.send(head + body)
        found = b""
        while True:
            data = self._socket.recv(1 << 16)
            length, answer, _, sequence, _ = struct.unpack_from("=IHHII", data)
            if sequence == self._sequence and answer != ERROR:
                found = data
            elif sequence == self._sequence and length >= 20:
                (code,) = struct.unpack_from("=i", data, 16)
                if code:
                    raise OSError(-code, f"{what}: {os.strerror(-code)}")
                return found
