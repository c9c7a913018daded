"""Addresses of hosts."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """Tells whether a host is a loopback address of a machine, which it then shares with others; False for a name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name, as on SageMaker
        return False
