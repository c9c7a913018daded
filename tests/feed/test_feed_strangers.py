"""A peer without the secret changes nothing: on the port, on the Unix socket, and as a server."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import feed_data
import psutil
import pytest
from feed_data import flat
from feed_servers import Pair, Server, wait_until

from headrace.errors import ProtocolError, WorkersLost
from headrace.feed import DataLoader
from headrace.feed.batch.slab import Slab
from headrace.feed.client import remote_pool
from headrace.feed.wire import messages
from headrace.feed.wire.forks import Fork
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.frames import FIELDS, MAGIC, WIRE_VERSION
from headrace.feed.wire.handshake import (  # fmt: skip
    HANDSHAKE_SECONDS,
    ClientHandshake,
    RefusedByServer,
    answer,
    challenge,
    check_answer,
    welcome,
)
from headrace.feed.worker.feed_server import MAX_PENDING
from patience import allowed

SECRET = bytes.fromhex("5e" * 32)
REQUEST = messages.SliceRequest(1, 1, 0, 5, (messages.BatchRows(0, 0, 8, 0, 8, list(range(8))),), False)
OPEN = messages.Open(1, "feed_data:noise", {}, "", "", True)


def connect(server: Server, by: str) -> socket.socket:
    if by == "tcp":
        return socket.create_connection(("127.0.0.1", server.port))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + server.unix[1:])
    return connection


def shake_hands(secret: bytes, server: Server, by: str = "tcp") -> tuple[FramedConnection, ClientHandshake]:
    """Makes a client's handshake on a raw connection."""
    channel = FramedConnection(connect(server, by))
    handshake = ClientHandshake(secret, "test")
    try:
        while handshake.welcome is None:
            for frame in channel.wait(5):
                handshake.step(frame.message, channel.send)
    except BaseException:
        channel.close()
        raise
    return channel, handshake


def closed(channel: FramedConnection) -> bool:
    """Waits for the peer to close, without believing anything that it says."""
    try:
        while True:
            for frame in channel.wait(5):
                assert isinstance(frame.message, (messages.Challenge, messages.Refused))
    except (ConnectionClosed, TimeoutError) as error:
        return isinstance(error, ConnectionClosed)
    finally:
        channel.close()


def sockets_of(server: Server) -> int:
    count = 0
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(descriptor.readlink()).startswith("socket:")
    return count


def count(server: Server, words: str) -> int:
    return server.log().count(words)


# The handshake


def test_a_client_and_a_server_that_hold_the_secret_believe_each_other() -> None:
    offered = challenge()
    client = ClientHandshake(SECRET, "c", 1, 2)
    said: list[messages.Message] = []
    client.step(offered, said.append)
    [hello] = said
    assert isinstance(hello, messages.Hello)
    assert check_answer(SECRET, offered, hello) == ""
    client.step(welcome(SECRET, offered, hello, "host", 4), said.append)
    assert client.welcome is not None
    assert (client.welcome.host, client.welcome.executors) == ("host", 4)


def test_every_field_of_a_hello_is_covered_by_its_proof() -> None:
    offered = challenge()
    hello = answer(SECRET, offered, "c", 1, 2)
    for change in ({"client": "d"}, {"rank": 0}, {"world_size": 3}, {"nonce": os.urandom(32)}, {"mac": b""}):
        changed = messages.Hello(**({f: getattr(hello, f) for f in hello.__struct_fields__} | change))
        assert check_answer(SECRET, offered, changed) == "wrong secret"
    assert check_answer(SECRET, challenge(), hello) == "wrong secret", "a replayed hello is worth nothing"
    assert check_answer(b"other", offered, hello) == "wrong secret"


def test_a_short_nonce_is_refused() -> None:
    import headrace.feed.wire.handshake as auth

    offered = challenge()
    mac = auth._mac(SECRET, "client", messages.VERSION, offered.nonce, b"x", "c", 0, 1)
    assert check_answer(SECRET, offered, messages.Hello(messages.VERSION, b"x", mac, "c")) == "wrong secret"


def test_other_versions_are_refused_in_words() -> None:
    with pytest.raises(RefusedByServer, match=f"speaks protocol 9, this client {messages.VERSION}"):
        answer(SECRET, messages.Challenge(9, b"n"), "c")
    assert "the client 9" in check_answer(SECRET, challenge(), messages.Hello(9, b"n" * 32, b"m", "c"))


@pytest.mark.parametrize("lie", ["other secret", "other host", "other executors", "the client's own proof", "no hello"])
def test_a_server_that_cannot_prove_itself_is_not_believed(lie: str) -> None:
    offered = challenge()
    client = ClientHandshake(SECRET, "c")
    said: list[messages.Message] = []
    if lie == "no hello":
        with pytest.raises(ProtocolError, match="unexpected Welcome"):
            client.step(messages.Welcome(b"m", "h", 1), said.append)
        return
    client.step(offered, said.append)
    [hello] = said
    assert isinstance(hello, messages.Hello)
    true = welcome(SECRET, offered, hello, "h", 1)
    false = {
        "other secret": welcome(b"other", offered, hello, "h", 1),
        "other host": messages.Welcome(true.mac, "i", 1),
        "other executors": messages.Welcome(true.mac, "h", 2),
        "the client's own proof": messages.Welcome(hello.mac, "h", 1),
    }[lie]
    with pytest.raises(ProtocolError, match="could not prove"):
        client.step(false, said.append)
    assert client.welcome is None


def test_a_second_challenge_is_not_answered() -> None:
    client = ClientHandshake(SECRET, "c")
    client.step(challenge(), lambda _: None)
    with pytest.raises(ProtocolError, match="unexpected Challenge"):
        client.step(challenge(), lambda _: pytest.fail("it answered"))


# On a real server, while a good client works


@contextmanager
def good_client_goes_on(pair: Pair) -> Iterator[None]:
    """A good client's epoch, bit-identical, while the block does its worst."""
    before = sockets_of(pair.a)
    with DataLoader(feed_data.noise(delay=0.003), batch_size=8, seed=3) as alone:
        expected = [flat(batch) for batch in alone]
    with DataLoader(
        feed_data.noise(delay=0.003), batch_size=8, seed=3, workers=f"{pair.a.tcp},{pair.a.unix_address}",
        secret_file=pair.secret, prefetch_factor=1,
    ) as loader:  # fmt: skip
        batches = iter(loader)
        got = [flat(next(batches)) for _ in range(2)]
        yield
        got += [flat(batch) for batch in batches]
        assert got == expected
        assert loader.stats()["workers_lost"] == 0
    wait_until(lambda: sockets_of(pair.a) <= before, "the server closed its ends", 8)


@pytest.mark.parametrize("by", ["tcp", "unix"])
def test_garbage_is_refused_and_logged_once(by: str, pair: Pair) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)

    def header(size: int, payload: int) -> bytes:
        return FIELDS.pack(MAGIC, WIRE_VERSION, 0, 0, 0, size, payload) + bytes(4)

    pieces = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 100, header(1 << 31, 0),
        header(10, 1 << 40),
        header(5000, 0), header(4000, 0) + b"\x91" * 4000, header(4000, 0) + b"\xdd" * 4000,
        header(4000, 0) + b"\x9d\xa3Ask" + b"\x01" * 8 + b"\x91" * 3987, *(chance.randbytes(500) for _ in range(20)),
    ]  # fmt: skip
    with good_client_goes_on(pair):
        before = count(pair.a, "closed:")
        for piece in pieces:
            with connect(pair.a, by) as raw:
                raw.sendall(piece)
                raw.settimeout(5)
                with suppress(ConnectionResetError):
                    while raw.recv(4096):
                        pass
        wait_until(lambda: count(pair.a, "closed:") == before + len(pieces), "each is logged once")
        assert "a message of 5000 bytes, at most 4096 are allowed" in pair.a.log()


@pytest.mark.parametrize("by", ["tcp", "unix"])
def test_whoever_speaks_before_the_handshake_is_not_heard(by: str, pair: Pair) -> None:
    with good_client_goes_on(pair):
        for first in (OPEN, REQUEST, messages.SlabDrop(1), messages.Ping(), messages.Cancel([1])):
            channel = FramedConnection(connect(pair.a, by))
            channel.send(first)
            assert closed(channel)


@pytest.mark.parametrize("by", ["tcp", "unix"])
def test_a_client_with_another_secret_is_refused_and_logged_once(by: str, pair: Pair) -> None:
    with good_client_goes_on(pair):
        before = count(pair.a, "wrong secret")
        with pytest.raises(RefusedByServer, match="wrong secret"):
            shake_hands(b"other", pair.a, by)
        wait_until(lambda: count(pair.a, "wrong secret") == before + 1, "it is logged")


def test_a_recorded_hello_is_refused_on_another_connection(pair: Pair) -> None:
    recorded: list[messages.Message] = []
    channel = FramedConnection(connect(pair.a, "tcp"))
    handshake = ClientHandshake(SECRET, "test")
    [frame] = channel.wait(5)
    handshake.step(frame.message, recorded.append)
    channel.send(recorded[0])
    assert isinstance(channel.wait(5)[0].message, messages.Welcome)
    channel.close()
    channel = FramedConnection(connect(pair.a, "tcp"))
    assert isinstance(channel.wait(5)[0].message, messages.Challenge)
    channel.send(recorded[0])
    assert channel.wait(5)[0].message == messages.Refused("wrong secret")
    assert closed(channel)


def test_descriptors_of_a_stranger_are_closed(pair: Pair) -> None:
    before = psutil.Process(pair.a.process.pid).num_fds()
    slab = Slab.create(1)
    for _ in range(50):
        channel = FramedConnection(connect(pair.a, "unix"))
        channel.send(messages.Hello(1, b"n" * 32, b"m" * 32, "c"), descriptors=[slab.descriptor] * 4)
        assert closed(channel)
    slab.close()
    wait_until(lambda: psutil.Process(pair.a.process.pid).num_fds() <= before, "they are closed", 5)


def test_a_silent_connection_is_closed_after_the_deadline(pair: Pair) -> None:
    begun = time.monotonic()
    with connect(pair.a, "tcp") as raw:
        raw.settimeout(HANDSHAKE_SECONDS + 5)
        while raw.recv(4096):
            pass
    assert HANDSHAKE_SECONDS - 0.5 < time.monotonic() - begun < allowed(HANDSHAKE_SECONDS + 3)
    assert "no handshake in time" in pair.a.log()


def test_thousands_of_connections_do_not_stop_the_others(pair: Pair) -> None:
    with good_client_goes_on(pair):
        for _ in range(1000):
            connect(pair.a, "tcp").close()
        silent = [connect(pair.a, "tcp") for _ in range(MAX_PENDING + 40)]
        channel, handshake = shake_hands(SECRET, pair.a)
        assert handshake.welcome is not None
        channel.close()
        for raw in silent:
            raw.close()
    assert count(pair.a, "too many connections that do not speak") >= 40


# What a client with the secret may not do either


@pytest.mark.parametrize(
    "message",
    [
        REQUEST,
        messages.Welcome(b"", "", 1),
        Fork(0, 1),
        messages.Dial("tcp://h:1", b"", "c"),
        messages.Done(1, 0, 0, [], b"", 0, 0),
        messages.SlabOffer(1, 100),
    ],
)
def test_a_message_out_of_place_ends_its_connection_only(message: messages.Message, pair: Pair) -> None:
    channel, _ = shake_hands(SECRET, pair.a, "unix")
    channel.send(message)
    with pytest.raises(ConnectionClosed):
        channel.wait(5)
    channel.close()
    shake_hands(SECRET, pair.a)[0].close()


@pytest.mark.parametrize("fault", ["too small", "twice", "two descriptors", "no descriptor"])
def test_a_bad_slab_is_refused_and_no_descriptor_is_kept(fault: str, pair: Pair) -> None:
    before = psutil.Process(pair.a.process.pid).num_fds()
    channel, _ = shake_hands(SECRET, pair.a, "unix")
    slab = Slab.create(1)
    count = {"two descriptors": 2, "no descriptor": 0}.get(fault, 1)
    for _ in range(2 if fault == "twice" else 1):
        size = slab.size + (fault == "too small")
        channel.send(messages.SlabOffer(1, size), descriptors=[slab.descriptor] * count)
    with pytest.raises(ConnectionClosed):
        channel.wait(5)
    channel.close()
    slab.close()
    wait_until(lambda: psutil.Process(pair.a.process.pid).num_fds() <= before, "they are closed", 5)


def test_a_ping_is_answered_at_once(pair: Pair) -> None:
    channel, _ = shake_hands(SECRET, pair.a)
    channel.send(messages.Ping())
    assert channel.wait(5)[0].message == messages.Pong()
    channel.close()


# A false server


@pytest.fixture
def impostor() -> Iterator[Callable[[Callable[[FramedConnection], None]], str]]:
    """Listens on a port and does something with every connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(act: Callable[[FramedConnection], None]) -> str:
        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                channel = FramedConnection(connection)
                try:
                    act(channel)
                    while True:
                        channel.wait(1)
                except (ConnectionClosed, TimeoutError):
                    channel.close()

        threads.append(threading.Thread(target=serve))
        threads[0].start()
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join()


LIES: dict[str, tuple[Callable[[FramedConnection], None], str]] = {
    "accepts without a proof": (
        lambda channel: (channel.send(challenge()), channel.send(messages.Welcome(b"m" * 32, "liar", 2)))[0],
        "could not prove that it holds the secret",
    ),
    "sends a batch at once": (lambda channel: channel.send(messages.Done(1, 0, 9, [], b"", 0, 0)), "cannot be decod"),
    "sends deep nesting": (lambda channel: channel.send(messages.Open(1, "", {"a": _deep()}, "", "", True)), "decoded"),
    "speaks http": (
        lambda channel: channel._stream._socket.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        "not a headrace peer",
    ),
}  # type: ignore[dict-item]


def _deep() -> list[object]:
    value: list[object] = []
    for _ in range(500):
        value = [value]
    return value


@pytest.mark.parametrize("lie", LIES)
def test_a_false_server_is_refused_and_the_true_one_serves(
    lie: str, pair: Pair, impostor: Callable[[Callable[[FramedConnection], None]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    act, words = LIES[lie]
    address = impostor(act)
    with DataLoader(
        feed_data.noise(), batch_size=8, workers=f"{address},{pair.a.tcp}", secret_file=pair.secret
    ) as loader:
        assert len(list(loader)) == 12
    monkeypatch.setattr(remote_pool, "START_SECONDS", 3.0)  # a receiver starts and connects in that time
    with (
        DataLoader(feed_data.noise(), batch_size=8, workers=address, secret_file=pair.secret) as loader,
        pytest.raises(WorkersLost, match=words),
    ):
        next(iter(loader))
