"""Whether a host's programs are alive: a port that is listened on, a line or a metric that was written."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from headrace.agent.host.process import Running

POLL = 0.1
_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def listens(address: str, port: int, tables: Iterable[str] = _TABLES) -> bool:
    """Tells whether something listens on a TCP port of an address, or of all addresses.

    It looks into the kernel's tables and does not connect: a program may count its callers.

    Args:
        address: an IPv4 address of this host.
        port: the port.
        tables: files in the form of /proc/net/tcp.
    """
    own = "".join(f"{int(octet):02X}" for octet in reversed(address.split(".")))
    wanted = {own, "0" * 8, "0" * 32, f"{'0' * 16}FFFF0000{own}", f"{'0' * 16}FFFF0000{'0' * 8}"}
    for table in tables:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in lines:
            place, _, state = line.split()[1:4]
            host, _, number = place.partition(":")
            if state == _LISTEN and int(number, 16) == port and host in wanted:
                return True
    return False


async def until_listens(address: str, port: int) -> None:
    """Waits until `listens`, or until cancelled: the coordinator limits the time."""
    while not listens(address, port):
        await asyncio.sleep(POLL)


def quiet_times(running: Mapping[str, Running], files: Callable[[str], Iterable[Path]]) -> dict[str, float]:
    """Returns for how many seconds each program that runs has written nothing.

    Args:
        running: the programs of this host by stream.
        files: returns the files to which a program, or the agent for it, appends.
    """
    now, clock = time.monotonic(), time.time()
    quiet = {}
    for stream, program in running.items():
        if not program.ended.is_set():
            ages = [clock - at for path in files(stream) if (at := _modified(path)) is not None]
            quiet[stream] = max(0.0, min([now - program.heard, *ages]))
    return quiet


def _modified(path: Path) -> float | None:
    try:
        return os.stat(path).st_mtime  # noqa: PTH116  (it runs twice a second)
    except OSError:
        return None
