"""A peer without the secret changes nothing: on the port, on the Unix socket, and as a server."""

from __future__ import annotations

import functools
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import feed_data
import psutil
import pytest
from feed_data import flat
from feed_servers import Pair, Server, free_port, wait_until

from headrace.errors import ProtocolError, WorkersLost
from headrace.feed import DataLoader
from headrace.feed.batch.slab import Slab
from headrace.feed.client import remote_pool
from headrace.feed.client.remote_pool import inquire
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import (  # fmt: skip
    HANDSHAKE_SECONDS,
    ClientHandshake,
    Endpoints,
    RefusedByServer,
    answer,
    challenge,
    check_answer,
    welcome,
)
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.frames import (
    CHECK,
    CHUNK_HEADER,
    DATA,
    FIELDS,
    HEADER_BYTES,
    MAGIC,
    WIRE_VERSION,
    OtherVersion,
    Payload,
    Seal,
    checksum,
    write_header,
)
from headrace.feed.wire.messages import Fork
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
                handshake.hear(frame.message, channel)
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
    for change in (
        {"client": "d"},
        {"rank": 0},
        {"world_size": 3},
        {"nonce": os.urandom(32)},
        {"mac": b""},
        {"dialled": "h:1"},
    ):
        changed = messages.Hello(**({f: getattr(hello, f) for f in hello.__struct_fields__} | change))
        assert check_answer(SECRET, offered, changed) == "wrong secret"
    assert check_answer(SECRET, challenge(), hello) == "wrong secret", "a replayed hello is worth nothing"
    assert check_answer(b"other", offered, hello) == "wrong secret"


def test_a_short_nonce_is_refused() -> None:
    import headrace.feed.wire.endpoints as auth

    offered = challenge()
    mac = auth._mac(SECRET, "client", messages.VERSION, offered.nonce, b"x", "c", 0, 1, "")
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


RELAY = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)

def pump(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)

while True:
    client, server = listener.accept()[0], socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for pair in ((client, server), (server, client)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


@contextmanager
def relay(server: Server, port: int) -> Iterator[None]:
    """A process of somebody else, which passes on what comes to its port."""
    command = [sys.executable, "-c", RELAY, str(port), str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.promise("feed-tls", "nobody between trainer and server can read, change or forge a frame")
@pytest.mark.promise("security", "who stands between a trainer and a feed server is refused")
def test_a_relay_between_trainer_and_server_is_refused_and_sees_no_sample(pair: Pair) -> None:
    port = free_port()
    with (
        relay(pair.a, port),
        DataLoader(feed_data.noise(), workers=f"tcp://127.0.0.1:{port}", secret_file=str(pair.a.secret)) as loader,
        pytest.raises(WorkersLost, match=rf"it dialled 127.0.0.1:{port}, and came to 127.0.0.1:{pair.a.port}"),
    ):
        next(iter(loader))


@pytest.mark.usefixtures("without_torch")
def test_a_forwarded_port_serves_where_the_server_is_told_of_it(own_server: Callable[..., Server]) -> None:
    port = free_port()
    server = own_server("behind", arguments=["--advertise", f"127.0.0.1:{port}"])
    with relay(server, port):
        [answer] = inquire(Endpoints(f"tcp://127.0.0.1:{port}", str(server.secret)))
    assert answer.status is not None, answer.reason


@pytest.mark.parametrize("by", ["tcp", "unix"])
def test_a_proof_for_another_socket_of_the_server_is_worth_nothing(by: str, pair: Pair) -> None:
    """A relay from the Unix socket to the port, or back, is no way round."""
    with closing(FramedConnection(connect(pair.a, by))) as channel:
        other = pair.a.unix_address if by == "tcp" else f"127.0.0.1:{pair.a.port}"
        handshake = ClientHandshake(SECRET, "test")
        [offered] = channel.wait(5)
        handshake.step(offered.message, channel.send, dialled=other)
        [refused] = channel.wait(5)
        with pytest.raises(RefusedByServer, match=f"it dialled {other}"):
            handshake.step(refused.message, channel.send)


@pytest.mark.promise("feed-tls", "nobody between trainer and server can read, change or forge a frame")
@pytest.mark.parametrize("fault", ["no seal", "a frame again", "a changed byte"])
def test_a_frame_that_the_holder_of_the_secret_has_not_sent_ends_the_connection(fault: str, pair: Pair) -> None:
    channel, handshake = shake_hands(SECRET, pair.a)
    with closing(channel):
        raw, body = channel.stream._socket, messages.encode(messages.Ping())
        assert handshake.keys is not None
        seal = None if fault == "no seal" else Seal(handshake.keys.client)
        frame = write_header(body, seal=seal) + body
        if fault == "a changed byte":
            frame = frame[:-1] + bytes([frame[-1] ^ 1])
        raw.sendall(frame)
        if fault == "a frame again":
            assert isinstance(channel.wait(5)[0].message, messages.Pong)
            raw.sendall(frame)
        with pytest.raises(ConnectionClosed):
            channel.wait(5)
    wait_until(lambda: "its seal is wrong" in pair.a.log(), "the server says why")


def sealed_pair() -> tuple[FramedConnection, FramedConnection, bytearray]:
    """Two ends of a TCP connection whose frames are sealed, and the memory that payloads to the second one go to."""
    memory = bytearray(1000)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        one = FramedConnection(socket.create_connection(listener.getsockname()))
        other = FramedConnection(listener.accept()[0], sink=lambda _, size: [memoryview(memory)[:size]])
    one.trust(b"1" * 32, b"2" * 32)
    other.trust(b"2" * 32, b"1" * 32)
    return one, other, memory


@pytest.mark.promise("feed-tls", "nobody between trainer and server can read, change or forge a frame")
@pytest.mark.parametrize("with_sum", [False, True])
def test_a_changed_byte_of_a_batch_is_found_also_when_its_sum_is_made_anew(with_sum: bool) -> None:
    one, other, memory = sealed_pair()
    between, away = socket.socketpair()  # what the attacker holds: what one sent, and what he makes of it
    payload = os.urandom(1000)
    with closing(one), closing(other), closing(between), closing(away):
        one.send(messages.Cancelled(1), payload=Payload([memoryview(payload)]))
        assert other.wait(5)[0].message == messages.Cancelled(1)
        assert memory == payload
        one.send(messages.Cancelled(2), payload=Payload([memoryview(payload)]))
        raw, size = other.stream._socket, HEADER_BYTES + len(messages.encode(messages.Cancelled(2)))
        sent = bytearray(raw.recv(1 << 16))
        sent[-1] ^= 1
        if with_sum:
            sent[size : size + CHUNK_HEADER.size] = CHUNK_HEADER.pack(1000, DATA, checksum(memoryview(sent)[-1000:]))
        away.sendall(sent)
        other.stream._socket = between
        with pytest.raises(ProtocolError, match="a damaged chunk of 1000 bytes"):
            other.wait(5)
        raw.close()


def test_what_is_taken_from_the_queue_before_it_left_leaves_no_gap_in_the_seals() -> None:
    one, other, memory = sealed_pair()
    with closing(one), closing(other):
        one.stream.send = lambda *_: (_ for _ in ()).throw(BlockingIOError)  # type: ignore[method-assign]
        one.send(messages.Ping())
        one.send(messages.Cancelled(1), payload=Payload([memoryview(memory)]), key="unwanted")
        one.send(messages.Cancelled(2))
        assert one.abort("unwanted")
        del one.stream.send
        one.drain(5)
        received = [frame.message for frame in other.wait(5)]
        assert received == [messages.Ping(), messages.Cancelled(2)]


def test_a_peer_of_another_version_is_told_to_install_the_same() -> None:
    ours, theirs = socket.socketpair()
    with closing(FramedConnection(ours)) as channel, closing(theirs):
        theirs.sendall(FIELDS.pack(MAGIC, WIRE_VERSION - 1, 0, 0, 0, 40, 0) + bytes(40))
        with pytest.raises(OtherVersion, match=f"wire version {WIRE_VERSION - 1}, this is {WIRE_VERSION}: install"):
            channel.wait(5)


# On a real server, while a good client works


@functools.cache
def batches_alone() -> list[bytes]:
    """What the good client is to get."""
    with DataLoader(feed_data.noise(), batch_size=8, seed=3) as alone:
        return [flat(batch) for batch in alone]


@contextmanager
def good_client_goes_on(pair: Pair) -> Iterator[None]:
    """A good client's epoch, bit-identical, while the block does its worst."""
    before = sockets_of(pair.a)
    with DataLoader(
        feed_data.noise(delay=0.003), batch_size=8, seed=3, workers=f"{pair.a.tcp},{pair.a.unix_address}",
        secret_file=pair.secret, prefetch_factor=1,
    ) as loader:  # fmt: skip
        batches = iter(loader)
        got = [flat(next(batches)) for _ in range(2)]
        yield
        got += [flat(batch) for batch in batches]
        assert got == batches_alone()
        assert loader.stats()["workers_lost"] == 0
    wait_until(lambda: sockets_of(pair.a) <= before, "the server closed its ends", 8)


@pytest.mark.parametrize("by", ["tcp", "unix"])
@pytest.mark.promise("security", "a stranger at a feed server gets one challenge and is closed")
def test_garbage_is_refused_and_logged_once(by: str, pair: Pair) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)

    def header(size: int, payload: int) -> bytes:
        return FIELDS.pack(MAGIC, WIRE_VERSION, 0, 0, 0, size, payload) + bytes(CHECK.size)

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


@pytest.mark.promise("feed-guarantees", "only who holds the secret is served, and strangers hold nobody up")
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
    handshake.step(frame.message, recorded.append, dialled=f"127.0.0.1:{pair.a.port}")
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


@pytest.mark.promise("feed-guarantees", "only who holds the secret is served, and strangers hold nobody up")
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
        messages.Done(1, 0, [], b"", 0, 0),
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
@pytest.mark.promise("security", "a peer's impossible batch ends its connection")
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
def impostors() -> Iterator[list[str]]:
    """Addresses of servers, of which each does one of LIES with every connection."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in LIES]

    def serve(listener: socket.socket, act: Callable[[FramedConnection], None]) -> None:
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

    acts = [act for act, _ in LIES.values()]
    threads = [threading.Thread(target=serve, args=each) for each in zip(listeners, acts, strict=True)]
    for thread in threads:
        thread.start()
    yield [f"tcp://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join()


LIES: dict[str, tuple[Callable[[FramedConnection], None], str]] = {
    "accepts without a proof": (
        lambda channel: (channel.send(challenge()), channel.send(messages.Welcome(b"m" * 32, "liar", 2)))[0],
        "could not prove that it holds the secret",
    ),
    "sends a batch at once": (lambda channel: channel.send(messages.Done(1, 9, [], b"", 0, 0)), "cannot be decod"),
    "sends deep nesting": (lambda channel: channel.send(messages.Open(1, "", {"a": _deep()}, "", "", True)), "decoded"),
    "speaks http": (
        lambda channel: channel.stream._socket.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        "not a headrace peer",
    ),
}  # type: ignore[dict-item]


def _deep() -> list[object]:
    value: list[object] = []
    for _ in range(500):
        value = [value]
    return value


@pytest.mark.promise("sagemaker-differences", "absent here: data ports without authentication")
def test_false_servers_are_refused_and_the_true_one_serves(
    pair: Pair, impostors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"batch_size": 8, "secret_file": pair.secret}
    with DataLoader(feed_data.noise(), workers=",".join([*impostors, pair.a.tcp]), **options) as loader:
        assert len(list(loader)) == 12
    monkeypatch.setattr(remote_pool, "START_SECONDS", allowed(3.0))  # a receiver starts and connects in that time
    with (
        DataLoader(feed_data.noise(), workers=",".join(impostors), **options) as loader,
        pytest.raises(WorkersLost) as error,
    ):
        next(iter(loader))
    for address, (_, words) in zip(impostors, LIES.values(), strict=True):
        assert re.search(rf"{address.removeprefix('tcp://')}[^;]*{words}", str(error.value)), words
