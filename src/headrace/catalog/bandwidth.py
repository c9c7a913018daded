"""How a bandwidth is written: a number and ``kbit``, ``mbit`` or ``gbit``."""

from __future__ import annotations

import re

_BANDWIDTH = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([kmg])bit")


def parse_bandwidth(text: str) -> int:
    """Returns bits per second.

    >>> parse_bandwidth("200mbit"), parse_bandwidth("1.5gbit")
    (200000000, 1500000000)

    Raises:
        ValueError: not a number and ``kbit``, ``mbit`` or ``gbit``, or below 8 kbit.
    """
    match = _BANDWIDTH.fullmatch(text)
    bits = round(float(match[1]) * {"k": 10**3, "m": 10**6, "g": 10**9}[match[2]]) if match else 0
    if not 8000 <= bits <= 10**13:
        raise ValueError(f"{text!r} is not a bandwidth, e.g. 200mbit; at least 8kbit")
    return bits
