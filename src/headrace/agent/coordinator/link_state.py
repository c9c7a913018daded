"""Whether this host's own network cable is plugged in: this shows which of two hosts that lost each other is cut off.

The kernel reports an interface as "running" when it is up and has a carrier (netdevice(7), IFF_RUNNING). That says
nothing about the network beyond the other end of the cable.
"""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFFLAGS = 0x8913
_IFF_RUNNING = 0x40
_REQUEST = struct.Struct("16sH22x")  # struct ifreq: name, flags


def has_carrier(interface: str) -> bool:
    """Tells whether a network interface of this host has a carrier; True for one that does not exist.

    Args:
        interface: its name, e.g. ``eth0``.
    """
    request = _REQUEST.pack(interface.encode()[:15], 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        except OSError:
            return True
    return bool(_REQUEST.unpack(answer)[1] & _IFF_RUNNING)
