"""How many bytes a server in this process has sent from its port, as the kernel counts them.

The server may be a library's own, which does not tell: its connections are found among this process's descriptors, and
TCP_INFO (Linux 4.2) has the bytes of each that the other side has acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

_ACKNOWLEDGED = struct.Struct("=Q")
_OFFSET = 120  # of tcpi_bytes_acked in struct tcp_info
_INFO_BYTES = _OFFSET + _ACKNOWLEDGED.size


class BytesSent:
    """The bytes that left from one port of this process.

    Args:
        port: a TCP port on which this process listens.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._seen: dict[str, int] = {}  # by the kernel's name of the socket, also of those that are closed by now

    def look(self) -> int:
        """Returns the bytes so far, without those of a connection since the last look before it was closed."""
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (names are enough)
            with contextlib.suppress(OSError):  # it was closed meanwhile, or is no connection
                inode = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
                if inode.startswith("socket:"):
                    self._add(inode, int(name))
        return sum(self._seen.values())

    def _add(self, inode: str, descriptor: int) -> None:
        borrowed = socket.socket(fileno=descriptor)
        try:
            if borrowed.family in (socket.AF_INET, socket.AF_INET6) and borrowed.getsockname()[1] == self._port:
                info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                if len(info) == _INFO_BYTES:
                    self._seen[inode] = max(self._seen.get(inode, 0), _ACKNOWLEDGED.unpack_from(info, _OFFSET)[0])
        finally:
            borrowed.detach()  # it belongs to the server
