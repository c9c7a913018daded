"""A TCP proxy that misbehaves, between a client and a feed server.

    python fault_proxy.py --listen 127.0.0.21:7070 --target 127.0.0.11:7070 --fault corrupt --seed 5 --every 200000

Faults, each at places drawn from the seed:

    none       nothing
    delay      every piece waits for up to 8 ms
    corrupt    one bit of one byte is flipped, every `every` bytes on average, in both directions
    cut        the connection is reset, after `every` bytes on average
    half-open  it accepts, and never says a word
    trickle    after `every` bytes, one byte a second
    stall      after `every` bytes nothing is read or written any more, and nothing is closed

The first `connections` connections have the fault, later ones are passed on as they are (0: all have it). On stdout it
writes one line when it listens, and one for each fault: connection, direction and byte.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import struct

PIECE = 16384
FAULTS = ("none", "delay", "corrupt", "cut", "half-open", "trickle", "stall")


class Proxy:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._accepted = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes one connection on."""
        self._accepted += 1
        number, options = self._accepted, self._options
        faulty = options.connections == 0 or number <= options.connections
        fault = options.fault if faulty else "none"
        chance = random.Random(options.seed * 1000 + number)
        if fault == "half-open":
            self._tell(number, "accepted", 0, fault)
            await self._for_ever()
        host, _, port = options.target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        ends = [writer, far_writer]
        ways = [
            self._pump(number, "up", fault, random.Random(chance.random()), reader, far_writer),
            self._pump(number, "down", fault, random.Random(chance.random()), far_reader, writer),
        ]
        await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            if fault == "cut":  # a reset, not an orderly end
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()

    async def _pump(
        self,
        number: int,
        way: str,
        fault: str,
        chance: random.Random,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        passed = 0
        at = self._next(chance)
        try:
            while data := await reader.read(PIECE):
                if fault == "delay":
                    self._tell(number, way, passed, fault)
                    await asyncio.sleep(chance.uniform(0.0, 0.008))
                while fault not in ("none", "delay") and passed + len(data) > at:
                    await self._write(writer, data[: at - passed])
                    data, passed = data[at - passed :], at
                    self._tell(number, way, at, fault)
                    if fault == "corrupt":
                        data = bytes([data[0] ^ 1 << chance.randrange(8)]) + data[1:]
                        at += self._next(chance)
                    elif fault == "cut":
                        return
                    elif fault == "stall":
                        await self._for_ever()
                    else:
                        await self._trickle(data, reader, writer)
                await self._write(writer, data)
                passed += len(data)
        except (ConnectionError, TimeoutError):
            return

    async def _trickle(self, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data:
            for byte in data:
                await self._write(writer, bytes([byte]))
                await asyncio.sleep(1.0)
            data = await reader.read(PIECE)
        raise ConnectionResetError

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    async def _for_ever(self) -> None:
        await asyncio.Event().wait()

    def _next(self, chance: random.Random) -> int:
        return 1 + int(chance.expovariate(1.0 / self._options.every))

    def _tell(self, number: int, way: str, at: int, fault: str) -> None:
        print(f"{fault}: connection {number}, {way}, byte {at}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=200_000)
    parser.add_argument("--connections", type=int, default=0)
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    server = await asyncio.start_server(Proxy(options).serve, host, int(port))
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
