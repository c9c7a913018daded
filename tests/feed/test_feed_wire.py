"""Frames over real sockets: whatever the peer sends, messages or an error, and no descriptor left behind."""

from __future__ import annotations

import array
import contextlib
import os
import random
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pytest
from feed_servers import open_descriptors

from headrace.errors import ProtocolError
from headrace.feed.batch.slab import Slab
from headrace.feed.identifiers import SlabNumber
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import (
    MAX_DESCRIPTORS,
    MAX_HANDSHAKE,
    MAX_MESSAGE,
    MAX_PAYLOAD,
    ConnectionClosed,
    FramedConnection,
    Link,
)
from headrace.feed.wire.frames import (
    ABORT,
    CHECK,
    CHUNK,
    CHUNK_HEADER,
    DATA,
    FIELDS,
    HEADER_BYTES,
    HOT,
    MAGIC,
    WIRE_VERSION,
    Frame,
    Payload,
    checksum,
)
from headrace.feed.wire.messages import Exited, Fork, Forked
from headrace.feed.wire.transport import TCP_INFO_BYTES, configure_tcp, has_vanished

ERROR = messages.RemoteError("builtins:KeyError", "'x'", "Traceback ...")
DONE = messages.Done(
    7,
    100,
    [["t", "float32", [1], 0], None],
    b"layout",
    0.5,
    0.25,
    False,
    (messages.Failure(1, 3, ERROR),),
    2,
    [b"d"],
)
BATCHES = (
    messages.BatchRows(4, 32, 8, 0, 8, list(range(8))),
    messages.BatchRows(5, 40, 8, 0, 8, ["l", []], True, b"k", (3,)),
)
REQUEST = messages.SliceRequest(1, 1, 0, 2**63, BATCHES, True, 3, b"l", messages.MAKE_AND_SUM, 1, 120.0)
PONG = messages.encode(messages.Pong())


def header(
    *, magic: bytes = MAGIC, version: int = WIRE_VERSION, fds: int = 0, route: int = 0, size: int = 0, payload: int = 0,
    body: bytes = b"",
) -> bytes:  # fmt: skip
    fields = FIELDS.pack(magic, version, fds, route, 0, size or len(body), payload)
    return fields + CHECK.pack(zlib.crc32(body, zlib.crc32(fields)))


def framed(body: bytes, **fields: int) -> bytes:
    return header(body=body, **fields) + body


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def receiving(sockets: tuple[socket.socket, socket.socket]) -> Iterator[tuple[FramedConnection, socket.socket]]:
    """A channel, and the raw socket of its peer."""
    channel = FramedConnection(sockets[0])
    yield channel, sockets[1]
    channel.close()


@pytest.fixture
def talking(sockets: tuple[socket.socket, socket.socket]) -> Iterator[tuple[FramedConnection, FramedConnection]]:
    one, other = FramedConnection(sockets[0]), FramedConnection(sockets[1])
    yield one, other
    one.close()
    other.close()


def test_many_frames_arrive_in_order_with_their_routes(talking: tuple[FramedConnection, FramedConnection]) -> None:
    one, other = talking
    for number in range(200):
        one.send(messages.Lost(number, "x" * number), route=number)
    got: list[Frame] = []
    while len(got) < 200:
        got += other.wait(5)
        one.flush()
    assert [(frame.message, frame.route) for frame in got] == [
        (messages.Lost(number, "x" * number), number) for number in range(200)
    ]


def test_a_frame_that_comes_byte_by_byte_arrives_when_it_is_complete(
    receiving: tuple[FramedConnection, socket.socket],
) -> None:
    channel, raw = receiving
    body = messages.encode(DONE)
    data = framed(body, route=9)
    for byte in data[:-1]:
        raw.send(bytes([byte]))
        assert channel.receive() == []
    raw.send(data[-1:])
    [frame] = channel.receive()
    assert (frame.message, frame.route) == (DONE, 9)
    assert channel.bytes_received == len(data)


def test_every_message_survives_the_wire(talking: tuple[FramedConnection, FramedConnection]) -> None:
    every = [
        messages.Challenge(1, b"n" * 32), messages.Hello(1, b"n", b"m", "c", 1, 2), messages.Welcome(b"m", "h", 4),
        messages.Refused("no"), messages.Dial("tcp://h:1", b"s", "c"), messages.Down("gone", True),
        messages.Open(1, "m:f", {"a": [1, None, {"b": b"x"}]}, "", "", True, "train", "p"),
        messages.Opened(1, 10, True, {"torch": "2"}), messages.OpenFailed(1, ERROR), messages.Close(1),
        messages.SlabOffer(1, 10), messages.SlabDrop(1), REQUEST, DONE,
        messages.Unstackable(1), messages.Failed(1, ERROR), messages.Lost(1, "r"), messages.Cancel([1, 2]),
        messages.Cancelled(1), messages.Ping(), messages.Pong(), Fork(0, 2), Forked(0, 99),
        Exited(99, -9), messages.StatusRequest(), messages.Status(
            "h", "1", 2.0, [messages.ExecutorStatus(0, 99, True, 3, 1)], [messages.ClientStatus("c", 0, 1, False)],
            4, 5, 6, 7, 8, 9.0, 1.5, 2.5, {"numpy": "2"},
        ),
    ]  # fmt: skip
    one, other = talking
    got: list[messages.Message] = []
    for message in every:
        one.send(message)
        got += [frame.message for frame in other.wait(5)]
    assert got == every
    assert {type(message) for message in every} == set(messages.Message.__args__)


def test_descriptors_arrive_with_their_frame_and_close_on_exec(
    talking: tuple[FramedConnection, FramedConnection],
) -> None:
    one, other = talking
    slabs = [Slab.create(100), Slab.create(100)]
    for number, slab in enumerate(slabs):
        slab.view()[:3] = number + 1
        one.send(messages.Pong())
        one.send(messages.SlabOffer(number, slab.size), descriptors=[slab.descriptor])
        slab.close()
    frames: list[Frame] = []
    while len(frames) < 4:
        frames += other.wait(5)
    for number, frame in enumerate(frames[1::2]):
        descriptor = frame.take_descriptor()
        assert not os.get_inheritable(descriptor)
        with_slab = Slab(descriptor, slabs[number].size)
        assert with_slab.view()[:3].tolist() == [number + 1] * 3
        with_slab.close()


def test_a_payload_is_received_into_the_places_that_the_sink_names(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    target = np.zeros(3_000_000, np.uint8)
    source = np.random.default_rng(0).integers(0, 256, 2_000_000, np.uint8)
    places = [(5, 1_000_000), (0, 0), (1_500_000, 999_999), (2_900_000, 1)]  # of the sender's sizes, or more
    seen: list[tuple[messages.Message, int]] = []

    def sink(frame: Frame, length: int) -> Sequence[memoryview]:
        seen.append((frame.message, length))
        return [memoryview(target)[offset : offset + size] for offset, size in places]

    one, other = FramedConnection(sockets[0]), FramedConnection(sockets[1], sink=sink)
    left: list[bool] = []
    parts = [memoryview(source)[i:j] for i, j in ((0, 7), (7, 7), (7, 1_000_000), (1_000_000, 1_999_999), (-1, None))]
    one.send(DONE, payload=Payload(parts), sent=lambda: left.append(True))
    one.send(messages.Pong())
    assert one.wants_write
    assert not left
    frames: list[Frame] = []
    while len(frames) < 2:
        frames += other.receive()
        one.flush()
    assert left == [True]
    assert [frame.message for frame in frames] == [DONE, messages.Pong()]
    assert seen == [(DONE, 2_000_000)]
    assert b"".join(target[offset : offset + size].tobytes() for offset, size in places) == source.tobytes()
    one.close()
    other.close()


def test_a_payload_of_many_pieces_is_sent_whole(sockets: tuple[socket.socket, socket.socket]) -> None:
    source = np.arange(3000, dtype=np.uint16).view(np.uint8)
    target = np.zeros_like(source)
    one, other = (
        FramedConnection(sockets[0]),
        FramedConnection(sockets[1], sink=lambda _, length: [memoryview(target)[:length]]),
    )
    one.send(DONE, payload=Payload([memoryview(source)[i : i + 2] for i in range(0, len(source), 2)]))
    while not other.receive():
        one.flush()
    assert np.array_equal(source, target)
    one.close()
    other.close()


@pytest.mark.parametrize("places", [[10], [100], [50, 51], []])
def test_a_sink_that_names_too_little_or_too_much_memory_ends_the_connection(places: list[int]) -> None:
    ours, theirs = socket.socketpair()
    one = FramedConnection(ours)
    other = FramedConnection(theirs, sink=lambda *_: [memoryview(bytearray(size)) for size in places])
    one.send(DONE, payload=Payload([memoryview(b"x" * 99)]))
    with pytest.raises(ProtocolError, match="a payload of 99 bytes does not fit"):
        other.receive()
    one.close()
    other.close()


def chunked(data: bytes, total: int | None = None) -> bytes:
    return CHUNK_HEADER.pack(len(data), DATA, checksum(memoryview(data)) if total is None else total) + data


@pytest.fixture
def landing(
    sockets: tuple[socket.socket, socket.socket],
) -> Iterator[tuple[FramedConnection, socket.socket, bytearray]]:
    """A channel that receives payloads of any size, the raw socket of its peer, and the memory."""
    memory = bytearray(4 * CHUNK)
    channel = FramedConnection(sockets[0], sink=lambda _, length: [memoryview(memory)[:length]])
    yield channel, sockets[1], memory
    channel.close()


@pytest.mark.parametrize("where", [0, 7, 8, 16, 17, 18])
def test_a_damaged_byte_of_a_payload_is_noticed(
    where: int, landing: tuple[FramedConnection, socket.socket, bytearray]
) -> None:
    channel, raw, _ = landing
    data = bytearray(chunked(b"0123456789abcdef012"))
    data[CHUNK_HEADER.size + where] ^= 0x40
    raw.sendall(framed(PONG, payload=19) + data)
    with pytest.raises(ProtocolError, match="a damaged chunk of 19 bytes"):
        channel.receive()


@pytest.mark.parametrize("where", [0, HOT - 1, HOT, 3 * HOT + 77, CHUNK - 1, CHUNK, CHUNK + HOT, CHUNK + HOT + 4])
def test_a_damaged_byte_is_noticed_wherever_it_lies_and_in_whatever_parts_it_comes(
    where: int, landing: tuple[FramedConnection, socket.socket, bytearray]
) -> None:
    channel, raw, memory = landing
    data = np.random.default_rng(1).bytes(CHUNK + HOT + 5)
    for damaged in (False, True):
        body = bytearray(framed(PONG, payload=len(data)) + chunked(data[:CHUNK]) + chunked(data[CHUNK:]))
        if damaged:
            behind = len(data) - where if where >= CHUNK else len(data) + CHUNK_HEADER.size - where
            body[-behind] ^= 1
        sending = threading.Thread(target=send_in_parts, args=(raw, body))
        sending.start()
        if damaged:
            with pytest.raises(ProtocolError, match=f"a damaged chunk of {CHUNK if where < CHUNK else HOT + 5} bytes"):
                channel.wait(10)
            channel.close()
        else:
            assert len(channel.wait(10)) == 1
            assert memory[: len(data)] == data
        sending.join()


def send_in_parts(raw: socket.socket, data: bytearray) -> None:
    draw = np.random.default_rng(2)
    with contextlib.suppress(OSError):  # who found the damage has closed
        while data:
            size = int(draw.integers(1, 100_000))
            raw.sendall(data[:size])
            del data[:size]


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        (CHUNK_HEADER.pack(20, DATA, 0), "a chunk of 20 bytes for a place of 19"),
        (CHUNK_HEADER.pack(0, DATA, 0), "kind 1 with 0 bytes is not allowed"),
        (CHUNK_HEADER.pack(CHUNK + 1, DATA, 0), "is not allowed"),
        (CHUNK_HEADER.pack(1, ABORT, 0), "kind 2 with 1 bytes is not allowed"),
        (CHUNK_HEADER.pack(1, 3, 0), "kind 3 with 1 bytes is not allowed"),
    ],
)
def test_a_chunk_that_is_not_sound_ends_the_connection(
    chunk: bytes, words: str, landing: tuple[FramedConnection, socket.socket, bytearray]
) -> None:
    channel, raw, _ = landing
    raw.sendall(framed(PONG, payload=19) + chunk)
    with pytest.raises(ProtocolError, match=words):
        channel.receive()


def test_a_payload_that_is_stopped_ends_its_frame_and_what_follows_arrives(
    landing: tuple[FramedConnection, socket.socket, bytearray], sockets: tuple[socket.socket, socket.socket]
) -> None:
    channel, _, _ = landing
    sender = FramedConnection(sockets[1])
    left: list[str] = []
    sizes = {"stopped": 4 * CHUNK, "dropped": 1000}
    for name, size in sizes.items():
        payload = [memoryview(bytes(size))]
        sender.send(
            messages.Lost(size, name), payload=Payload(payload), key=name, sent=lambda name=name: left.append(name)
        )
    sender.send(messages.Pong())
    assert not sender.abort("stopped")  # its message has left, so the peer must hear of its end
    assert sender.abort("dropped")
    assert left == ["dropped"]
    assert not sender.abort("unknown")
    frames: list[Frame] = []
    while len(frames) < 2:
        frames += channel.receive()
        sender.flush()
    assert [(frame.message, frame.aborted) for frame in frames] == [
        (messages.Lost(4 * CHUNK, "stopped"), True), (messages.Pong(), False),
    ]  # fmt: skip
    assert left == ["dropped", "stopped"]
    assert not sender.wants_write
    sender.close()


GARBAGE = {
    "text": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not a headrace peer: the frame begins with b'GE'"),
    "wrong magic": (header(magic=b"RH"), "begins with b'RH'"),
    "wrong version": (header(version=1), "a peer speaks wire version 1, this is 5: install the same headrace"),
    "oversize message": (header(size=MAX_MESSAGE + 1), "at most 67108864 are allowed"),
    "payload without a sink": (header(size=1, payload=1), "a payload of 1 bytes is not allowed"),
    "oversize payload": (header(size=1, payload=MAX_PAYLOAD + 1), "not allowed"),
    "descriptors that did not come": (header(fds=1, size=1), "claims 1 descriptors, 0 came"),
    "too many descriptors": (header(fds=200, size=1), "claims 200 descriptors"),
    "an empty message": (header() + header(), "cannot be decoded"),
    "no message": (framed(b"abc"), "cannot be decoded"),
    "an unknown message": (framed(msgspec.msgpack.encode(["Unknown"])), "cannot be decoded"),
    "deep nesting": (framed(b"\x91" * 5000), "cannot be decoded"),
    "deep nesting in a field": (
        framed(b"\x9d\xa3Ask" + b"\x01" * 8 + b"\x91" * 3994),
        "cannot be decoded",
    ),
    "a list of four billion": (framed(b"\x92\xa6Cancel\xdd\xff\xff\xff\xff\x01"), "cannot be decoded"),
    "not a text": (framed(b"\x92\xa1\xff" + b"\xa2\xff\xfe"), "cannot be decoded"),
    "a damaged message": (framed(PONG)[:-1] + b"?", "a damaged frame"),
    "a damaged header": (framed(PONG)[:6] + b"\x01" + framed(PONG)[7:], "a damaged frame"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_a_protocol_error_that_says_what_came(
    what: str, receiving: tuple[FramedConnection, socket.socket]
) -> None:
    channel, raw = receiving
    data, words = GARBAGE[what]
    raw.sendall(data)
    with pytest.raises(ProtocolError, match=words):
        channel.receive()
    with pytest.raises(ProtocolError):
        channel.receive()


def test_what_came_before_the_garbage_is_still_delivered(receiving: tuple[FramedConnection, socket.socket]) -> None:
    channel, raw = receiving
    raw.sendall(framed(PONG) + b"garbage" * 10)
    assert [frame.message for frame in channel.receive()] == [messages.Pong()]
    with pytest.raises(ProtocolError):
        channel.receive()


@pytest.mark.parametrize("cut", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 5])
def test_a_connection_that_ends_is_closed_wherever_it_ends(
    cut: int, receiving: tuple[FramedConnection, socket.socket]
) -> None:
    channel, raw = receiving
    body = messages.encode(DONE)
    raw.sendall(framed(PONG) + framed(body)[:cut])
    raw.close()
    assert [frame.message for frame in channel.receive()] == [messages.Pong()]
    with pytest.raises(ConnectionClosed, match="closed by the peer" if cut == 0 else "in the middle of a frame"):
        channel.receive()


def test_a_reset_connection_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        raw = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
        configure_tcp(connection)
        channel = FramedConnection(connection)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
        with pytest.raises(ConnectionClosed):
            channel.wait(5)
        with pytest.raises(ConnectionClosed):
            channel.send(messages.Pong())
        channel.close()


def test_the_connection_of_a_frozen_peer_stays_and_that_of_a_vanished_host_does_not() -> None:
    """A process that does not read is as good as frozen; what vanished hosts look like was recorded (Linux 6.18)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        frozen = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
        configure_tcp(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0, "it would close it after all"
        channel = FramedConnection(connection)
        with contextlib.suppress(BlockingIOError):
            while connection.send(bytes(1 << 20)):
                pass
        full = channel.tcp_info(TCP_INFO_BYTES)
        assert len(full) == TCP_INFO_BYTES
        assert not has_vanished(full)
        channel.close()
        frozen.close()
        assert not has_vanished(channel.tcp_info(TCP_INFO_BYTES))

    for retransmits, probes, silence, expected in (
        (4, 0, 5540, True),  # data without an acknowledgement
        (0, 3, 5236, True),  # no answer to the question for room
        (3, 0, 4540, False),
        (0, 1, 90_000, False),  # a frozen one: it is asked ever more rarely, and one answer may be left out
        (0, 0, 6672, False),
        (0, 0, 0, False),
    ):
        info = bytearray(60)
        info[2:4] = retransmits, probes
        info[56:60] = struct.pack("=I", silence)
        assert has_vanished(bytes(info)) is expected


def test_a_stranger_may_say_little_and_nothing_but_the_words_of_the_handshake() -> None:
    def refused(data: bytes, decode: Callable[..., messages.Message]) -> str:
        ours, theirs = socket.socketpair()
        channel = FramedConnection(ours, handshake=decode)
        with theirs:
            theirs.sendall(data)
            with pytest.raises(ProtocolError) as error:
                channel.receive()
        channel.close()
        return str(error.value)

    ask = messages.encode(messages.Cancel([1]))
    for decode in (messages.decode_hello, messages.decode_greeting):
        assert "cannot be decoded" in refused(framed(ask), decode)
        assert "at most 4096" in refused(header(size=MAX_HANDSHAKE + 1), decode)


def test_a_peer_that_has_proved_itself_may_say_everything(sockets: tuple[socket.socket, socket.socket]) -> None:
    one, other = FramedConnection(sockets[0]), FramedConnection(sockets[1], handshake=messages.decode_hello)
    hello = messages.Hello(1, b"", b"", "c")
    one.send(hello)
    assert [frame.message for frame in other.receive()] == [hello]
    other.trust()
    long = messages.Lost(1, "x" * 2 * MAX_HANDSHAKE)
    one.send(long)
    assert [frame.message for frame in other.receive()] == [long]
    one.close()
    other.close()


def send_with_descriptors(raw: socket.socket, data: bytes, descriptors: list[int]) -> None:
    raw.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


@pytest.mark.parametrize(
    ("claimed", "passed"), [(0, 1), (1, 0), (1, 2), (4, 5), (MAX_DESCRIPTORS, MAX_DESCRIPTORS + 60)]
)
def test_descriptors_that_do_not_match_the_frame_are_refused_and_closed(
    claimed: int, passed: int, receiving: tuple[FramedConnection, socket.socket]
) -> None:
    channel, raw = receiving
    before = open_descriptors()
    send_with_descriptors(raw, framed(PONG, fds=claimed), [raw.fileno()] * passed)
    with pytest.raises(ProtocolError, match="descriptors"):
        channel.receive()
    channel.close()
    assert open_descriptors() == before - 1


def test_descriptors_dribbled_over_a_header_are_refused(receiving: tuple[FramedConnection, socket.socket]) -> None:
    channel, raw = receiving
    before = open_descriptors()
    first, second = header(size=1)[:2]
    send_with_descriptors(raw, bytes([first]), [raw.fileno()] * 3)
    assert channel.receive() == []
    send_with_descriptors(raw, bytes([second]), [raw.fileno()] * 3)
    with pytest.raises(ProtocolError, match="more descriptors than allowed"):
        channel.receive()
    channel.close()
    assert open_descriptors() == before - 1


def test_closing_closes_what_was_not_sent_and_what_was_not_taken(sockets: tuple[socket.socket, socket.socket]) -> None:
    before = open_descriptors()
    one, other = FramedConnection(sockets[0]), FramedConnection(sockets[1])
    released: list[int] = []
    for number in range(500):
        one.send(
            messages.Lost(number, "x" * 5000), descriptors=[0, 1], sent=lambda number=number: released.append(number)
        )
    assert one.wants_write
    for frame in other.receive(limit=3):
        frame.discard()
    one.close()
    other.close()
    assert released == list(range(500))
    assert open_descriptors() == before - 2


def test_a_frame_that_waits_for_its_payload_does_not_keep_descriptors_when_it_is_closed() -> None:
    before = open_descriptors()
    ours, theirs = socket.socketpair()
    channel = FramedConnection(ours, sink=lambda _, length: [memoryview(bytearray(length))])
    send_with_descriptors(theirs, framed(PONG, fds=1, payload=10) + b"part", [theirs.fileno()])
    assert channel.receive() == []
    channel.close()
    theirs.close()
    assert open_descriptors() == before


def test_a_message_with_another_number_of_descriptors_than_one_is_not_taken() -> None:
    with pytest.raises(ProtocolError, match="a Pong with 0 descriptors"):
        Frame(messages.Pong()).take_descriptor()


def test_waiting_ends_in_time(talking: tuple[FramedConnection, FramedConnection]) -> None:
    one, _ = talking
    with pytest.raises(TimeoutError):
        one.wait(0.05)
    while not one.wants_write:
        one.send(messages.Lost(0, "x" * 100_000))
    with pytest.raises(TimeoutError):
        one.drain(0.05)


def test_a_queue_that_does_not_fit_the_socket_is_drained_to_a_peer_that_reads(
    talking: tuple[FramedConnection, FramedConnection],
) -> None:
    one, other = talking
    got: list[Frame] = []

    def read() -> None:
        while len(got) < 50:
            got.extend(other.wait(5))

    reader = threading.Thread(target=read)
    for number in range(50):
        one.send(messages.Lost(number, "x" * 100_000))
    reader.start()
    one.drain(5)
    reader.join()
    assert [frame.message.request for frame in got] == list(range(50))


def test_thousands_of_random_and_mutated_frames_raise_nothing_but_the_two_errors() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    bodies = [messages.encode(message) for message in (REQUEST, DONE, messages.Hello(1, b"n" * 32, b"m" * 32, "c"))]
    before = open_descriptors()
    for _ in range(3000):
        body = bytearray(chance.choice(bodies))
        data = bytearray(framed(bytes(body), route=chance.randrange(4))) * chance.randrange(1, 3)
        for _ in range(chance.randrange(4)):
            where = chance.randrange(len(data))
            data[where : where + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
        if chance.random() < 0.1:
            data = bytearray(chance.randbytes(chance.randrange(200)))
        ours, theirs = socket.socketpair()
        channel = FramedConnection(
            ours, sink=lambda _, length: [memoryview(bytearray(length))] if length < 1 << 20 else []
        )
        with theirs:
            if chance.random() < 0.2:
                send_with_descriptors(theirs, bytes(data) or b"H", [0] * chance.randrange(1, 6))
            else:
                theirs.sendall(data)
        try:
            while True:
                for frame in channel.receive():
                    frame.discard()
        except (ProtocolError, ConnectionClosed):
            pass
        finally:
            channel.close()
    assert open_descriptors() == before


def test_a_trickle_is_no_sign_of_life_a_frame_or_much_of_a_long_one_is(
    receiving: tuple[FramedConnection, socket.socket],
) -> None:
    channel, raw = receiving
    signs = [channel.signs_of_life]
    body = messages.encode(messages.Lost(1, "x" * 60_000))
    data = framed(body)
    for byte in data[:1000]:
        raw.send(bytes([byte]))
        channel.receive()
    signs.append(channel.signs_of_life)
    raw.sendall(data[1000:40_000])
    channel.receive()
    signs.append(channel.signs_of_life)
    raw.sendall(data[40_000:] + framed(PONG))
    assert len(channel.receive()) == 2
    signs.append(channel.signs_of_life)
    assert signs[0] == signs[1] < signs[2]
    assert signs[3] >= signs[2] + 2


def test_a_slab_is_offered_on_a_link_once_and_dropped_once(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    link, other, slab = Link(FramedConnection(ours)), FramedConnection(theirs), Slab.create(1)
    first, second = SlabNumber(1), SlabNumber(2)
    for _ in range(2):
        link.offer(first, slab)
    link.drop(second)
    for _ in range(2):
        link.drop(first)
    link.offer(first, slab)
    frames = other.receive()
    offer = messages.SlabOffer(first, slab.size)
    assert [frame.message for frame in frames] == [offer, messages.SlabDrop(first), offer]
    assert [len(frame.descriptors) for frame in frames] == [1, 0, 1]
    for frame in frames:
        frame.discard()
    slab.close()


def test_what_is_posted_on_a_link_whose_peer_is_gone_is_reported_by_the_next_receive(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = sockets
    link = Link(FramedConnection(ours))
    theirs.close()
    link.post(messages.Ping())
    with pytest.raises(ConnectionClosed):
        link.channel.receive()
