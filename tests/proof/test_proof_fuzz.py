"""Bytes that nobody meant: the decoder and a real feed server refuse them, say so once, and keep nothing.

The frames are made with the real encoder and then damaged, so that the fuzz goes as deep as a peer can: broken headers,
messages under a right check sum that do not decode, messages that decode and make no sense, payloads in broken chunks.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import proof_pipelines
import psutil
import pytest
from effort import number, repeat
from feed_servers import Server, open_descriptors, wait_until
from training import feed_hosts, remote, training

from headrace.errors import ProtocolError
from headrace.feed import DataLoader
from headrace.feed.batch.slab import Slab
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import HANDSHAKE_SECONDS, ClientHandshake
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.frames import Payload
from headrace.feed.worker.feed_server import BURST
from patience import allowed

ERROR = messages.RemoteError("builtins:KeyError", "'x'", "Traceback ...")
ROWS = messages.BatchRows(3, 24, 8, 0, 8, list(range(8)))
REQUEST = messages.SliceRequest(1, 1, 0, 5, (ROWS, ROWS), False, 3, b"l")
SAMPLES: list[messages.Message] = [
    REQUEST, messages.Done(1, 100, [["t", "float32", [1], 0]], b"layout", 0.5, 0.25, False),
    messages.Failed(1, ERROR),
    messages.Hello(messages.VERSION, b"n" * 32, b"m" * 32, "c", 1, 2), messages.Challenge(messages.VERSION, b"n" * 32),
    messages.Open(1, "m:f", {"a": [1, None, {"b": b"x"}]}, "", "", True, "train", "p"), messages.Cancel([1, 2]),
    messages.Opened(1, 10, True, {"torch": "2"}), messages.SlabOffer(1, 65536), messages.SlabDrop(1), messages.Ping(),
]  # fmt: skip
EXTREMES = [0, 1, 0x7F, 0x80, 0xFF, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
HUGE = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]  # counts


class Encoded:
    """A message body that is sent as it is, behind a right header: `messages.encode` is told so."""

    def __init__(self, body: bytes) -> None:
        self.body = body


@pytest.fixture(autouse=True)
def raw_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = messages.encode
    monkeypatch.setattr(messages, "encode", lambda item: item.body if isinstance(item, Encoded) else encode(item))


class Fuzz:
    """Makes frames, whole and damaged, from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        ours, self._theirs = socket.socketpair()
        self._channel = FramedConnection(ours)
        self._theirs.setblocking(False)

    def close(self) -> None:
        self._channel.close()
        self._theirs.close()

    def frame(self, message: Any, payload: int = 0) -> bytes:
        """Returns the bytes of a frame as the real channel sends it."""
        content = Payload([memoryview(self.chance.randbytes(payload))] if payload else [])
        self._channel.send(message, route=self.chance.randrange(4), payload=content)
        found = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                found += self._theirs.recv(1 << 20)
                self._channel.flush()
        return found

    def body(self) -> bytes:
        """Returns a message body that is damaged, nested too deep, or claims too much."""
        chance, kind = self.chance, self.chance.randrange(6)
        body = bytearray(messages.encode(chance.choice(SAMPLES)))
        where = chance.randrange(len(body))
        if kind == 0:
            return self.damaged(bytes(body))
        if kind == 1:
            return bytes(body[:where]) + b"\x91" * chance.choice([100, 2000, 50_000])
        if kind == 2:
            return bytes(body[:where]) + chance.choice(HUGE) + bytes(body[where:])
        if kind == 3:
            return msgspec.msgpack.encode(self.value(0))
        if kind == 4:
            return chance.randbytes(chance.randrange(100))
        return bytes(body) + bytes(body)

    def value(self, depth: int) -> Any:
        """Returns any value that msgpack can hold."""
        chance, kind = self.chance, self.chance.randrange(9 if depth < 5 else 7)
        names = ["Ask", "Hello", "Open", "Done", "Cancel", "SlabOffer", "Fork"]
        if kind >= 7:
            items = [self.value(depth + 1) for _ in range(chance.randrange(6))]
            return items if kind == 7 else {str(place): item for place, item in enumerate(items)}
        simple = [None, True, chance.choice(EXTREMES), -1, chance.random(), chance.choice(names), chance.randbytes(9)]
        return simple[kind]

    def message(self) -> messages.Message:
        """Returns a message that decodes, with fields that make no sense."""
        chance = self.chance
        numbers = [chance.choice([0, 1, 2, 7, 2**31, 2**62, -1, -(2**40)]) for _ in range(8)]
        keys = [[], list(range(8)), ["l", [["v", 1]]], [["t", "float32", [2**40], 2**50]], [None, "x", [[[]]]]]
        pieces = tuple(
            messages.BatchRows(
                *(chance.choice(numbers) for _ in range(5)), chance.choice(keys), chance.random() < 0.5, b"x"
            )
            for _ in range(chance.randrange(4))
        )
        request = messages.SliceRequest(
            *numbers[:4], pieces, chance.random() < 0.5, numbers[1], b"x", numbers[2], numbers[3]
        )
        opening = messages.Open(numbers[0], "proof_pipelines:samples", {"n": -5}, "os:system", "x:y", True)
        others = [
            opening, messages.Open(1, "no:such", {"a": [[[]]]}, "", "", True), messages.Cancel(numbers),
            messages.SlabDrop(numbers[0]), messages.SlabOffer(numbers[0], numbers[1]), messages.Ping(),
            messages.Done(numbers[0], numbers[1], ["x"], b"l", 0.0, 0.0), chance.choice(SAMPLES),
        ]  # fmt: skip
        return chance.choice([request, request, *others])

    def bent(self, message: messages.Message) -> Any:
        """Returns a message as a real client sends it, with some of its values, at any depth, replaced."""
        value = msgspec.to_builtins(message, builtin_types=(bytes,))
        for _ in range(self.chance.randrange(3)):
            self._bend(value)
        return Encoded(msgspec.msgpack.encode(value))

    def _bend(self, items: list[Any]) -> None:
        chance = self.chance
        where = chance.randrange(1, len(items)) if len(items) > 1 else 0
        item = items[where] if items else None
        if isinstance(item, list) and item and chance.random() < 0.8:
            self._bend(item)
        elif items:
            numbers = [-1, 0, 1, 7, 2**31, 2**40, 2**62, -(2**62)]
            layout = msgspec.msgpack.encode([["t", 0], [["float32", [2**40], chance.choice(numbers)]]])
            items[where] = {
                bool: not item, int: chance.choice(numbers), bytes: chance.choice([b"x", layout]), str: "no:such",
            }.get(type(item), chance.choice([[], ["v", 1], ["l", [["t", "float32", [2**40], 0]]]]))  # fmt: skip

    def damaged(self, data: bytes) -> bytes:
        """Returns bytes with some changed, cut out, put in, or overwritten by extreme numbers of 1 to 8 bytes."""
        chance, changed = self.chance, bytearray(data)
        for _ in range(1 + chance.randrange(3)):
            where, kind = chance.randrange(len(changed) + 1), chance.randrange(4)
            if kind == 0:
                changed[where : where + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
            elif kind == 1:
                size = chance.choice([1, 2, 4, 8])
                changed[where : where + size] = (chance.choice(EXTREMES) % 2 ** (8 * size)).to_bytes(size, "little")
            elif kind == 2 and changed:
                changed[where % len(changed)] ^= 1 << chance.randrange(8)
            else:
                del changed[where:]
        return bytes(changed)

    def stream(self) -> bytes:
        """Returns what a broken peer might send: garbage, or frames of which the last is damaged in some way."""
        chance, kind = self.chance, self.chance.randrange(10)
        if kind == 0:
            return chance.randbytes(chance.randrange(300))
        before = b"".join(self.frame(chance.choice(SAMPLES)) for _ in range(chance.randrange(2)))
        if kind <= 4:
            return before + self.frame(Encoded(self.body()))
        if kind <= 6:
            return before + self.frame(self.message(), chance.choice([0, 1, 3000]))
        return before + self.damaged(self.frame(chance.choice(SAMPLES), chance.choice([0, 0, 1, 70_000])))


@pytest.fixture
def fuzz(seed: int) -> Iterator[Fuzz]:
    made = Fuzz(seed)
    yield made
    made.close()


def resident() -> int:
    size: int = psutil.Process().memory_info().rss
    return size


@pytest.mark.promise(
    "feed-guarantees", "nothing is unpickled from a socket; a message is checked before memory is taken for it"
)
def test_whatever_comes_is_a_frame_or_one_of_two_errors_and_costs_no_memory(fuzz: Fuzz) -> None:
    chance = fuzz.chance
    target = memoryview(bytearray(1 << 17))
    places: list[Callable[[Any, int], list[memoryview]]] = [
        lambda _, length: [target[:length]] if length <= len(target) else [],
        lambda _, length: [target[:1], target[1:length]] if 1 < length <= len(target) else [target[:length]],
    ]
    before, memory = open_descriptors(), resident()
    ends = {"frames": 0, "protocol": 0, "closed": 0}
    frames = number(10_000, 1_000_000)
    for _ in range(frames):
        ours, theirs = socket.socketpair()
        handshake = chance.choice([None, None, None, messages.decode_hello, messages.decode_greeting])
        channel = FramedConnection(ours, sink=chance.choice([None, *places, *places]), handshake=handshake)
        with theirs:
            theirs.sendall(fuzz.stream())
            theirs.shutdown(socket.SHUT_WR)
            try:
                while True:
                    for frame in channel.receive():
                        ends["frames"] += 1
                        frame.discard()
            except ProtocolError:
                ends["protocol"] += 1
            except ConnectionClosed:
                ends["closed"] += 1
            finally:
                channel.close()
    print(ends)
    assert ends["protocol"] + ends["closed"] == frames
    assert min(ends.values()) > frames // 20, f"the fuzz reaches all ends: {ends}"
    assert open_descriptors() == before
    assert resident() < memory + (128 << 20), "lengths that are only claimed are not kept"


# A real feed server


def connect(host: Server, fuzz: Fuzz) -> socket.socket:
    if fuzz.chance.random() < 0.5:  # both ways in are treated alike
        return socket.create_connection((host.address, host.port))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + host.unix[1:])
    return connection


def push(raw: socket.socket, data: bytes) -> None:
    """Sends, as far as the server listens; waits for it to close."""
    raw.settimeout(allowed(HANDSHAKE_SECONDS + 10))
    with contextlib.suppress(OSError):
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(1 << 16):
            pass


def garbage(host: Server, fuzz: Fuzz) -> None:
    with connect(host, fuzz) as raw:
        push(raw, fuzz.stream())


def no_peer(host: Server, fuzz: Fuzz) -> None:
    with connect(host, fuzz) as raw:
        push(raw, b"GET / HTTP/1.1\r\nHost: headrace\r\n\r\n")


def not_decodable(host: Server, fuzz: Fuzz) -> None:
    with connect(host, fuzz) as raw:
        push(raw, fuzz.frame(Encoded(b"\xc1")))  # never a message


def wrong_secret(host: Server, fuzz: Fuzz) -> None:
    channel, handshake = FramedConnection(connect(host, fuzz)), ClientHandshake(fuzz.chance.randbytes(32), "stranger")
    try:
        while True:
            for frame in channel.wait(allowed(10)):
                handshake.hear(frame.message, channel)
    except (ProtocolError, ConnectionClosed):
        channel.close()
    assert handshake.welcome is None


def wrong_version(host: Server, fuzz: Fuzz) -> None:
    with connect(host, fuzz) as raw:
        push(raw, fuzz.frame(messages.Hello(fuzz.chance.randrange(2, 100), b"n" * 32, b"m" * 32, "old")))


def oversize(host: Server, fuzz: Fuzz) -> None:
    with connect(host, fuzz) as raw:
        push(raw, fuzz.frame(Encoded(b"\xc6" + b"\xff" * (1 << 16))))


def after_the_handshake(host: Server, fuzz: Fuzz) -> None:
    """Holds the secret, and sends what decodes but makes no sense, then what does not decode."""
    raw, handshake = connect(host, fuzz), ClientHandshake(bytes.fromhex("5e" * 32), "insane")
    unix = raw.family == socket.AF_UNIX
    channel, slab = FramedConnection(raw), Slab.create(1)
    try:
        while handshake.welcome is None:
            for frame in channel.wait(allowed(10)):
                handshake.hear(frame.message, channel)
        for _ in range(fuzz.chance.randrange(1, 8)):
            descriptors = [slab.descriptor] * fuzz.chance.choice([0, 0, 0, 1, 1, 4])
            channel.send(fuzz.message(), descriptors=descriptors if unix else [])
        channel.send(Encoded(fuzz.body()))  # type: ignore[arg-type]
        channel.send(Encoded(b"\xc1"))  # type: ignore[arg-type]  # never a message
        channel.drain(allowed(10))
        while True:
            for frame in channel.wait(allowed(10)):
                frame.discard()
    except ConnectionClosed:
        pass
    finally:
        slab.close()
        channel.close()


class Recorded:
    """What a real client says to a feed server: its Open and its Asks."""

    opening: messages.Open
    asks: list[messages.SliceRequest]

    @classmethod
    def record(cls, host: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[messages.Message] = []
        send = FramedConnection.send

        def record(self: FramedConnection, message: messages.Message, **options: Any) -> None:
            said.append(message)
            send(self, message, **options)

        with monkeypatch.context() as patch:
            patch.setattr(FramedConnection, "send", record)
            for words in (False, True):
                data = proof_pipelines.samples(n=64, delay=0.0, words=words)
                where = {"workers": host.unix_address, "secret_file": str(host.secret)}
                with DataLoader(data, batch_size=8, **where) as loader:
                    assert len(list(loader)) == 8
        cls.opening = next(message for message in said if isinstance(message, messages.Open))
        cls.asks = [message for message in said if isinstance(message, messages.SliceRequest)]


def asking_nonsense(host: Server, fuzz: Fuzz) -> None:
    """Holds the secret, opens the pipeline as a real client does, asks for what cannot be made, and for what can."""
    channel = FramedConnection(connect(host, fuzz), sink=lambda _, length: [memoryview(bytearray(length))])
    handshake = ClientHandshake(bytes.fromhex("5e" * 32), "insane")
    answers, asks = 0, fuzz.chance.randrange(1, 5)
    try:
        while answers < asks:
            for frame in channel.wait(1.0):
                if isinstance(frame.message, messages.Opened):
                    for _ in range(asks):
                        channel.send(fuzz.bent(fuzz.chance.choice(Recorded.asks)))
                elif isinstance(frame.message, (messages.Challenge, messages.Welcome)):
                    handshake.hear(frame.message, channel)
                    if handshake.welcome is not None:
                        channel.send(Recorded.opening)
                else:
                    answers += 1
                frame.discard()
    except (ConnectionClosed, TimeoutError):
        pass  # it was nonsense for the server itself, which has hung up, or the answer goes elsewhere
    finally:
        channel.close()


def out_of_turn(host: Server, fuzz: Fuzz) -> None:
    """Asks for a batch where a handshake begins, and stays until the server hangs up: of one who has gone by then it
    says that he has gone."""
    with connect(host, fuzz) as raw:
        raw.settimeout(allowed(HANDSHAKE_SECONDS + 10))
        with contextlib.suppress(OSError):
            raw.sendall(fuzz.frame(fuzz.chance.choice(Recorded.asks)))
            while raw.recv(1 << 16):
                pass


STRANGERS = [
    garbage,
    garbage,
    no_peer,
    not_decodable,
    wrong_secret,
    wrong_version,
    out_of_turn,
    oversize,
    after_the_handshake,
    asking_nonsense,
    asking_nonsense,
]


def held(host: Server) -> tuple[int, int, int]:
    """Returns what a feed server and its executors have open, slabs apart from the rest, and the bytes of their own."""
    slabs = others = memory = 0
    for process in [psutil.Process(host.process.pid), *host.executors()]:
        memory += process.memory_full_info().uss
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                is_slab = "memfd:" in str(descriptor.readlink())
                slabs, others = slabs + is_slab, others + (not is_slab)
    return others, slabs, memory


@pytest.mark.promise("feed-guarantees", "only who holds the secret is served, and strangers hold nobody up")
def test_a_feed_server_refuses_every_stranger_and_serves_its_client_meanwhile(
    fuzz: Fuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        feed_hosts(tmp_path, 1) as [host],
        training(tmp_path, loader=remote([host]), endless=True, pace=0.02) as trainer,
    ):
        Recorded.record(host, monkeypatch)
        trainer.wait_steps(20)
        for stranger in [*STRANGERS, *STRANGERS]:  # what is loaded or learned once is not a leak
            stranger(host, fuzz)
        others, slabs, memory = held(host)
        silent = [connect(host, fuzz) for _ in range(10)]
        slow = connect(host, fuzz)
        for count in range(number(100, 5000)):
            fuzz.chance.choice(STRANGERS)(host, fuzz)
            if count % 50 == 0:
                with contextlib.suppress(OSError):
                    slow.send(b"H")
                trainer.wait_steps(1)
        for raw in [*silent, slow]:
            with raw:
                raw.settimeout(allowed(HANDSHAKE_SECONDS + 5))
                with contextlib.suppress(ConnectionResetError):
                    while raw.recv(4096):
                        pass  # the server closes it when its time is up
        wait_until(lambda: held(host)[0] <= others, f"open: {held(host)[0]}, before {others}")
        assert held(host)[1] <= slabs + 200, "the client's slabs come and go, the strangers' are closed"
        assert held(host)[2] < memory + (32 << 20), "its memory does not grow"
        assert not host.event("executor_lost"), "no stranger reaches an executor and ends it"
        trainer.wait_steps(20)
        counters = trainer.finish()
        assert counters["workers_lost"] == 0
        log = host.log()
        for words in (
            "wrong secret",
            "no handshake in time",
            "cannot be decoded",
            "Invalid value 'SliceRequest'",  # before the handshake is over only its own messages can be decoded
            "not a headrace peer",
        ):
            assert words in log
        assert "Traceback" not in log


def test_a_flood_of_strangers_does_not_fill_the_log(tmp_path: Path) -> None:
    with feed_hosts(tmp_path, 1) as [host]:
        begun = time.monotonic()
        for _ in repeat(0.01):
            for _ in range(BURST + 200):
                with socket.create_connection((host.address, host.port)) as raw:
                    raw.sendall(b"GET / HTTP/1.1\r\n" + os.urandom(30))
        wait_until(lambda: "more lines about connections were left out" in host.log(), "it says that it is brief")
        assert len(host.log().splitlines()) <= BURST + 2 * (time.monotonic() - begun) + 5
