"""A connection to a coordinator as an agent has one, for tests that play agents."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from headrace.agent.control.control_messages import Joining, Orders, Report, decode_orders, encode
from headrace.agent.control.control_transport import HANDSHAKE_SECONDS, Stream, open_stream
from headrace.instance.launch_plan import Certificates


class Connection:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def send(self, report: Report) -> None:
        await self._stream.send(encode(report))

    async def receive(self) -> Orders:
        return decode_orders(await self._stream.receive())


@contextlib.asynccontextmanager
async def connect(
    address: str,
    leader: str,
    tls: Certificates,
    process: bytes,
    attempt: int = 1,
    seconds: float = HANDSHAKE_SECONDS,
) -> AsyncIterator[Connection]:
    async with open_stream(address, leader, tls, seconds) as stream:
        await stream.send(encode(Joining(attempt, process)))
        yield Connection(stream)
