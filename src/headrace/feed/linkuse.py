"""How busy the connections to clients on other hosts are, as the kernel counts it.

TCP_INFO (Linux 4.10) has, for every connection, the time in which it had bytes to send or to be acknowledged, and how
much of that the receiver's window did not let it. The difference is time that the network took.
"""

from __future__ import annotations

import struct
from typing import Protocol

_BUSY = struct.Struct("=QQ")  # microseconds: busy, and of these limited by the receiver's window
_BUSY_OFFSET = 168  # of tcpi_busy_time in struct tcp_info
_INFO_BYTES = _BUSY_OFFSET + _BUSY.size


class Connection(Protocol):
    """A connection, see `wire.Channel`."""

    bytes_sent: int

    def tcp_info(self, size: int) -> bytes:
        """Returns the kernel's TCP_INFO; empty when the connection is closed."""


class LinkUse:
    """Sums over the connections of a server."""

    def __init__(self) -> None:
        self._seen: dict[Connection, tuple[int, float]] = {}
        self._ended: list[Connection] = []

    def begin(self, connection: Connection) -> None:
        """A client has come over TCP."""
        self._seen[connection] = (0, 0.0)

    def end(self, connection: Connection) -> None:
        """Its connection is closed."""
        if connection in self._seen:
            self._ended.append(connection)

    def take(self) -> tuple[int, float]:
        """Returns the bytes that have left since the last time, and the seconds that the busiest connection took."""
        sent, longest = 0, 0.0
        for connection, (bytes_before, busy_before) in self._seen.items():
            busy = max(busy_before, busy_seconds(connection.tcp_info(_INFO_BYTES)))
            sent += connection.bytes_sent - bytes_before
            longest = max(longest, busy - busy_before)
            self._seen[connection] = (connection.bytes_sent, busy)
        for connection in self._ended:
            self._seen.pop(connection, None)
        self._ended.clear()
        return sent, longest


def busy_seconds(info: bytes) -> float:
    """Returns the seconds of a TCP_INFO in which the network was busy; 0 for a closed connection's."""
    if len(info) < _INFO_BYTES:
        return 0.0
    busy: int
    limited: int
    busy, limited = _BUSY.unpack_from(info, _BUSY_OFFSET)
    return max(0, busy - limited) / 1e6
