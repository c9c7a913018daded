"""Ends the data hosts when training has ended: a small exchange on a port of its own.

The data host sends a random number; a host that wants it to end answers with the HMAC of that number and a
reason, and gets "bye". A connection that knows less (a port scan, a health probe) is closed and changes nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket

ANSWER_SECONDS = 10.0
LINE = 4096


def seal(token: bytes, number: str, reason: str) -> str:
    """What shows that the request is of this job, and new."""
    return hmac.new(token, f"{number} {reason}".encode(), "sha256").hexdigest()


async def wait_for_request(port: int, token: bytes) -> str:
    """Waits until a host of the job asks for the end. Returns the reason."""
    asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = secrets.token_hex(16)
        try:
            writer.write(f"{number}\n".encode())
            line = await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
            given, _, reason = line.decode(errors="replace").strip().partition(" ")
            if hmac.compare_digest(given.encode(), seal(token, number, reason).encode()):
                writer.write(b"bye\n")
                await writer.drain()
                if not asked.done():
                    asked.set_result(reason)
        except (OSError, ValueError, asyncio.TimeoutError):
            pass  # a stranger
        finally:
            writer.close()

    server = await asyncio.start_server(talk, port=port, limit=LINE)
    async with server:
        return await asked


def ask(host: str, port: int, token: bytes, reason: str, seconds: float) -> None:
    """Asks a data host to end.

    Raises:
        OSError: it did not do so within the time.
    """
    with socket.create_connection((host, port), timeout=seconds) as connection, connection.makefile("rw") as lines:
        number = lines.readline(LINE).strip()
        lines.write(f"{seal(token, number, reason)} {reason}\n")
        lines.flush()
        if lines.readline(LINE).strip() != "bye":
            raise ConnectionError(f"{host}:{port} did not accept the request to end")
