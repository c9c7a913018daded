"""Whether a host's programs are alive: a port that is listened on, a line or a metric that was written."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from headrace.agent.control.control_messages import Demand
from headrace.agent.host.process import Running
from headrace.record_files import decode_record, open_record
from headrace.runs import LoaderSecond

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


TAIL = 4096  # bytes, several lines
FRESH_SECONDS = 10.0

_decoder = msgspec.json.Decoder(LoaderSecond)


def latest_demand(path: Path) -> Demand | None:
    """Returns what a rank's loaders told last; None when that is old, or they did not tell.

    Args:
        path: its metric file, which it appends to.
    """
    try:
        with os.fdopen(open_record(path), "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().split(b"\n")[1:-1]  # the first may be cut off, the last be under way
    except OSError:  # not there yet, or none that a loader has written
        return None
    for line in reversed(lines):
        try:
            second = decode_record(_decoder, line)
        except msgspec.DecodeError:
            continue  # another kind of record
        if second.needed is None or not second.steps:
            continue
        fresh = time.time() - second.t < FRESH_SECONDS
        stall = second.wait / second.step if second.step else 0.0
        return Demand(second.needed, stall, second.link or 0.0) if fresh else None
    return None
