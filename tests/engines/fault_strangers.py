"""Peers without the job's secret and certificates, on every socket on which a job listens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
from typing import TYPE_CHECKING

import fault_machine

from agent_connection import connect
from headrace.agent.control.control_messages import Exited, Report
from headrace.engines.planning.host_certificates import make_certificates
from headrace.feed.wire import messages
from headrace.feed.wire.frames import write_header
from headrace.instance.launch_plan import read_plan

if TYPE_CHECKING:
    from fault_play import Play

TIMEOUT = 5.0
OUR_PORTS = (7070, 7071)
REFUSED = 1.0  # for a handshake that cannot succeed
ANSWER = 0.1  # for a stranger to hear something


def words() -> dict[str, bytes]:
    """Returns what strangers say: name and bytes."""
    hello = messages.encode(messages.Hello(1, b"n" * 32, b"m" * 32, "stranger"))
    request = {"kind": "rank", "runner": [], "variables": {}, "cpus": [], "secret": "0" * 64}
    daemon = {"kind": "daemon", "host": "algo-2", "command": ["touch", "/tmp/owned"], "secret": ""}
    return {
        "nothing": b"",
        "junk": os.urandom(4096),
        "zeros": bytes(1 << 16),
        "lengths": b"\xff" * 64,
        "half a line": b"GET / HT",
        "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "gRPC": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
        "TLS": client_hello(),
        "feed": write_header(hello) + hello,
        "agent": json.dumps(request).encode() + b"\n",
        "daemon": json.dumps(daemon).encode() + b"\n",
    }


def client_hello() -> bytes:
    """Returns the first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="algo-1").do_handshake()
    return outgoing.read()


def attack(play: Play) -> None:
    """Says all of that to every socket; the connections stay open until the job has ended."""
    addresses: list[tuple[str, int] | str] = [
        ("127.0.0.1" if address in {"0.0.0.0", "::"} else address, port) for address, port in fault_machine.tcp_ports()
    ]
    addresses += ["\0" + name[1:] if name.startswith("@") else name for name in fault_machine.unix_sockets()]
    play.notes.append(f"listening: {addresses}")
    ours = [address for address in addresses if isinstance(address, str) or address[1] in OUR_PORTS]
    assert ours
    for address in addresses:
        for name, said in words().items():
            stranger = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
            with contextlib.ExitStack() as stack:
                if address in ours:
                    play.closing.append(stranger.close)
                else:  # Open MPI and torch know no secret and listen to one peer after the other
                    stack.enter_context(stranger)
                heard = _say(stranger, address, said)
            play.notes.append(f"{address}: {name!r} heard {heard!r}")
    asyncio.run(_lie(play))


def unreachable(play: Play) -> None:
    """There is nothing to which a stranger could talk."""
    found = fault_machine.tcp_ports() | fault_machine.unix_sockets()
    assert not found, found


def _say(stranger: socket.socket, address: tuple[str, int] | str, said: bytes) -> str:
    stranger.settimeout(TIMEOUT)
    try:
        stranger.connect(address)
        stranger.sendall(said)
        stranger.settimeout(ANSWER)
        return str(stranger.recv(1 << 10)[:40])
    except OSError as error:
        return str(error)


async def _lie(play: Play) -> None:
    """An agent with certificates of its own making says that a program has ended."""
    plan = read_plan(play.run.paths.host("algo-1"))
    address = f"{plan.host(plan.leader).address}:{plan.ports.control}"
    liar = make_certificates(plan.run_id, ["algo-2"])["algo-2"]
    with contextlib.suppress(ConnectionError):
        async with connect(address, plan.leader, liar, b"i" * 16, seconds=REFUSED) as connection:
            await connection.send(Report(1, Exited("0", 0.0, exit_code=3)))
            await connection.receive()
        raise AssertionError("an agent with certificates of its own making was heard")
