"""The server on real sockets: framing, waiting, limits, and its end."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from wire_client import Wire, serving, until

from headrace.endpoint.http.http_message import BodyProblem, FileSlice, HttpLimits, HttpProblem, HttpReply, HttpRequest
from headrace.endpoint.http.http_server import HttpServer, listen
from headrace.errors import UsageError
from patience import allowed

QUICK = HttpLimits(
    idle_seconds=0.3, head_seconds=0.4, stall_seconds=0.5, drain_seconds=0.3, drain_bytes=10_000, body_bytes=10_000_000
)


KNOWN = "GET / HTTP/1.1\nHost: h\nKey: k"


def echo(request: HttpRequest) -> HttpReply:
    """Says what came: method, target and body. Whoever names a key is known."""
    if request.headers.get("key"):
        request.prove()
    body = request.body.read_all(1 << 20)
    return HttpReply(200, (("X-Target", f"{request.raw_path}?{request.raw_query}"),), body or request.method.encode())


def no_body(request: HttpRequest) -> HttpReply:
    """Answers without reading the body."""
    return HttpReply(403, (), b"no")


@pytest.fixture
def echoing() -> Iterator[Wire]:
    with serving(echo, QUICK) as server, Wire(server.port) as wire:
        yield wire


def test_many_requests_on_one_connection_also_in_one_packet(echoing: Wire) -> None:
    echoing.send(b"".join(b"PUT /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n%03d" % (i, i) for i in range(50)))
    for i in range(50):
        status, headers, body = echoing.reply()
        assert (status, headers["x-target"], body) == (200, f"/{i}?", b"%03d" % i)
        assert "connection" not in headers


def test_a_head_and_a_body_that_come_byte_by_byte() -> None:
    with serving(echo) as server, Wire(server.port) as wire:
        for byte in b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello":
            wire.send(bytes([byte]))
        assert wire.reply()[2] == b"hello"


def test_chunked_bodies_with_extensions_and_trailers(echoing: Wire) -> None:
    head = "POST / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked"
    for _ in range(2):
        reply = echoing.ask(head, b"3;a=b\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n")
        assert (reply[0], reply[2]) == (200, b"abc0123456789")


@pytest.mark.parametrize(
    "chunks",
    [b"x\r\n", b"-1\r\n", b"\r\n", b"0x3\r\nabc\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"1" * 21 + b"\r\n",
     b"1" * 9000, b"0\r\n" + b"a: b\r\n" * 9000],
)  # fmt: skip
def test_chunks_that_are_none_end_the_connection(chunks: bytes, echoing: Wire) -> None:
    status, headers, _ = echoing.ask("POST / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked", chunks)
    assert status in (400, 413, 431)
    assert headers["connection"] == "close"
    assert echoing.rest() == b""


def test_a_chunked_body_is_as_large_as_the_limit_at_most() -> None:
    with serving(echo, HttpLimits(body_bytes=5)) as server, Wire(server.port) as wire:
        for size, status in ((5, 200), (6, 413)):
            body = b"4\r\nabcd\r\n%x\r\n%s\r\n0\r\n\r\n" % (size - 4, b"e" * (size - 4))
            assert wire.ask("PUT / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked", body)[0] == status


def test_a_connection_closes_when_the_client_says_so(echoing: Wire) -> None:
    status, headers, _ = echoing.ask("GET / HTTP/1.1\nHost: h\nConnection: foo, CLOSE")
    assert (status, headers["connection"], echoing.rest()) == (200, "close", b"")


def test_continue_comes_at_once_and_only_to_who_waits(echoing: Wire) -> None:
    head = b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    echoing.send(head)
    assert echoing.head() == (100, {})
    echoing.send(b"ok")
    assert echoing.reply()[2] == b"ok"
    echoing.send(head + b"ok")  # it did not wait
    assert echoing.reply()[2] == b"ok"


def test_three_hundred_uploads_that_wait_for_continue_take_no_second_each() -> None:
    with serving(echo) as server, Wire(server.port) as wire:
        began = time.monotonic()
        for _ in range(300):
            wire.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            assert wire.head()[0] == 100
            wire.send(b"ok")
            assert wire.reply()[0] == 200
        assert time.monotonic() - began < allowed(6.0)  # 44 ms each if head and body went in two sends


def test_a_refusal_costs_no_upload() -> None:
    with serving(no_body, QUICK) as server, Wire(server.port) as wire:
        wire.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000\r\nExpect: 100-continue\r\n\r\n")
        status, headers, body = wire.reply()
        assert (status, headers["connection"], body) == (403, "close", b"no")
        assert wire.rest() == b""


def test_a_small_body_that_nobody_read_is_not_taken_for_a_request() -> None:
    with serving(no_body, QUICK) as server, Wire(server.port) as wire:
        for _ in range(3):
            status, headers, _ = wire.ask("PUT / HTTP/1.1\nHost: h\nContent-Length: 20", b"GET / HTTP/1.1\r\n\r\nab")
            assert (status, "connection" in headers) == (403, False)


def test_a_client_that_sends_a_large_body_still_reads_the_refusal() -> None:
    with serving(no_body, HttpLimits(drain_seconds=10)) as server, Wire(server.port) as wire:
        sent = threading.Thread(target=send_quietly, args=(wire, 4_000_000))
        wire.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 4000000\r\n\r\n")
        sent.start()
        assert wire.reply()[0] == 403
        sent.join()


def send_quietly(wire: Wire, count: int) -> None:
    with contextlib.suppress(OSError):
        wire.send(bytes(count))
        wire.sock.shutdown(socket.SHUT_WR)


def test_head_and_status_without_body() -> None:
    def handle(request: HttpRequest) -> HttpReply:
        if request.raw_path == "/made":
            return HttpReply(200, (), iter([b"x"]))
        return HttpReply(204 if request.raw_path == "/204" else 404, (("Content-Length", "17"),), b"not sent")

    with serving(handle) as server, Wire(server.port) as wire:
        wire.send(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\nGET /204 HTTP/1.1\r\nHost: h\r\n\r\n")
        status, headers = wire.head()
        assert (status, headers["content-length"]) == (404, "17")
        status, headers = wire.head()
        assert (status, "content-length" in headers) == (204, False)
        wire.send(b"HEAD /made HTTP/1.1\r\nHost: h\r\n\r\nGET /204 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert [wire.head()[0], wire.head()[0]] == [200, 204]
        assert wire.buffer == b""


def test_pieces_are_sent_as_chunks_and_to_old_clients_until_the_connection_closes() -> None:
    with serving(lambda _: HttpReply(200, (), iter([b"abc", b"", b"0123456789"]))) as server:
        with Wire(server.port) as wire:
            wire.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert wire.head()[1]["transfer-encoding"] == "chunked"
            assert wire.body(28) == b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"
        with Wire(server.port) as wire:
            wire.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert wire.head()[1]["connection"] == "close"
            assert wire.rest() == b"abc0123456789"


def part_of(path: Path, begin: int, size: int) -> FileSlice:
    return FileSlice(os.open(path, os.O_RDONLY), begin, size)


def test_files_of_any_size_and_part_arrive_whole(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000)
    (tmp_path / "data").write_bytes(data)

    def handle(request: HttpRequest) -> HttpReply:
        begin, size = map(int, request.raw_query.split(","))
        return HttpReply(200, (), part_of(tmp_path / "data", begin, size))

    with serving(handle) as server, Wire(server.port) as wire:
        asked = [(0, 3_000_000), (0, 0), (5, 1), (1, 65_536), (7, 65_537), (2_999_999, 1)]
        for begin, size in asked:
            wire.send(f"GET /?{begin},{size} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            assert wire.reply()[2] == data[begin : begin + size]


def test_files_and_bodies_through_tls(tmp_path: Path) -> None:
    data = random.Random(2).randbytes(3_000_000)
    (tmp_path / "data").write_bytes(data)
    authority = trustme.CA()
    context, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(client)

    def handle(request: HttpRequest) -> HttpReply:
        assert request.secure
        if request.method == "PUT":
            return HttpReply(200, (), str(len(request.body.read_all(1 << 23))).encode())
        return HttpReply(200, (), part_of(tmp_path / "data", 7, 2_999_000))

    with serving(handle, QUICK, tls=context) as server:
        with Wire(server.port) as plain:  # no TLS: it is let go
            plain.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                plain.rest()
        with Wire(server.port) as silent:
            assert silent.rest() == b""
        with Wire(server.port) as outer, client.wrap_socket(outer.sock, server_hostname="localhost") as sock:
            wire = Wire(0, sock)
            for _ in range(2):
                assert wire.ask("PUT / HTTP/1.1\nHost: h\nContent-Length: 3000000", data)[2] == b"3000000"
                wire.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
                assert wire.reply()[2] == data[7:2_999_007]


# A reset at the very moment in which Python's ssl module takes the socket over: it drops the socket without closing it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_clients_that_vanish_are_no_errors_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    for tls in (context, None):
        with serving(echo, QUICK, tls=tls) as server:
            for begun in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n") * 20:
                with socket.create_connection(("127.0.0.1", server.port)) as sock:
                    sock.sendall(begun)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            until(lambda: server.connections == 0)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_it_listens_on_ipv6_too() -> None:
    with serving(echo, address="::1") as server, socket.create_connection(("::1", server.port), 20) as sock:
        assert Wire(0, sock).ask("GET / HTTP/1.1\nHost: [::1]")[0] == 200


def test_a_file_that_became_shorter_ends_the_connection(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    with (
        serving(lambda _: HttpReply(200, (), part_of(tmp_path / "data", 0, 200_000))) as server,
        Wire(server.port) as wire,
    ):
        wire.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert wire.head()[1]["content-length"] == "200000"
        assert len(wire.rest()) == 100_000


def test_what_a_handler_raises_is_answered_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def handle(request: HttpRequest) -> HttpReply:
        match request.raw_path:
            case "/problem":
                raise HttpProblem(418, "a teapot", hint="make tea")
            case "/error":
                raise RuntimeError("a defect")
            case "/header":
                return HttpReply(200, (("X", "a\r\nSet-Cookie: b"),))
            case "/pieces":
                return HttpReply(200, (), (1 // 0 for _ in "x"))  # type: ignore[misc]
        return HttpReply(200)

    with serving(handle) as server:
        with Wire(server.port) as wire:
            assert wire.ask("GET /problem HTTP/1.1\nHost: h")[::2] == (418, b"a teapot\nhint: make tea\n")
            assert wire.ask("GET / HTTP/1.1\nHost: h")[0] == 200
        for path in ("error", "header"):
            with Wire(server.port) as wire:
                status, headers, body = wire.ask(f"GET /{path} HTTP/1.1\nHost: h")
                assert (status, headers["connection"]) == (500, "close")
                assert b"defect" not in body
        with Wire(server.port) as wire:
            wire.send(b"GET /pieces HTTP/1.1\r\nHost: h\r\n\r\n")
            assert wire.rest() == b""  # not the end of a body
    assert "a defect" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_slow_clients_are_told_and_let_go() -> None:
    with serving(echo, QUICK) as server, contextlib.ExitStack() as stack:
        idle, head, body, drip = (stack.enter_context(Wire(server.port)) for _ in range(4))
        head.send(b"GET / HT")
        body.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc")
        until(lambda: server.connections == 4)
        stop = threading.Event()
        dripping = threading.Thread(target=drip_head, args=(drip, stop))
        dripping.start()
        assert idle.rest() == b""
        assert head.rest().startswith(b"HTTP/1.1 408 ")
        assert body.rest().startswith(b"HTTP/1.1 408 ")
        until(lambda: server.connections == 0)
        stop.set()
        dripping.join()


def drip_head(wire: Wire, stop: threading.Event) -> None:
    wire.send(b"GET / HTTP/1.1\r\nHost: h\r\nA: ")
    with contextlib.suppress(OSError):
        while not stop.wait(0.05):
            wire.send(b"a")


def test_a_body_that_drips_is_ended_by_its_pace() -> None:
    limits = HttpLimits(slowest=1000, pace_seconds=0.3, drain_seconds=0.2)
    with serving(echo, limits) as server, Wire(server.port) as wire:
        wire.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n")
        stop = threading.Event()
        dripping = threading.Thread(target=drip_head, args=(wire, stop))
        dripping.start()
        assert wire.head()[0] == 408
        until(lambda: server.connections == 0)
        stop.set()
        dripping.join()


def test_a_client_that_does_not_read_is_let_go(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(20_000_000))
    with (
        serving(lambda _: HttpReply(200, (), part_of(tmp_path / "data", 0, 20_000_000)), QUICK) as server,
        Wire(server.port) as wire,
    ):
        wire.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        until(lambda: server.connections == 1)
        until(lambda: server.connections == 0)


def test_a_client_that_goes_away_in_a_body_harms_nobody() -> None:
    ended: list[str] = []

    def handle(request: HttpRequest) -> HttpReply:
        try:
            return echo(request)
        except BodyProblem as problem:
            ended.append(problem.message)
            raise

    with serving(handle) as server:
        with Wire(server.port) as wire:
            wire.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc")
        until(lambda: ended == ["the client closed the connection"] and server.connections == 0)


def test_one_more_connection_takes_the_place_of_the_one_that_was_idle_the_longest() -> None:
    with serving(echo, HttpLimits(connections=3, kept_seconds=0.0)) as server, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.port)) for _ in range(3)]
        until(lambda: server.idle_connections == 3)
        for wire in (wires[1], wires[0], wires[2]):  # so wires[1] is the one
            assert wire.ask(KNOWN)[0] == 200
            until(lambda: server.idle_connections == 3)
        more = stack.enter_context(Wire(server.port))
        assert more.ask(KNOWN)[0] == 200
        assert wires[1].rest() == b""
        for wire in (wires[0], wires[2], more):
            assert wire.ask(KNOWN)[0] == 200
        assert server.connections == 3


HALF_HELLO = bytes.fromhex("16030100f8010000f40303")  # of a handshake
SLOW = {
    "silent": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: h\r\nKey: k",
    "half a body": b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc",
    "half a handshake": HALF_HELLO,
    "idle after a refusal": b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "replies that are not read": b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n" + bytes(60_000),
}


@pytest.mark.promise("serve-reference", "slow requests of strangers hold up no client of the endpoint")
@pytest.mark.parametrize("kind", SLOW)
@pytest.mark.promise("security", "slow connections of strangers to `headrace serve` hold up no client")
def test_whoever_has_shown_no_key_keeps_no_place_from_a_client_that_has_one(kind: str) -> None:
    limits = HttpLimits(connections=40, kept_seconds=0.2)
    authority = trustme.CA()
    with contextlib.ExitStack() as stack:
        port, client = _tls_or_plain(stack, authority, limits, secure=kind == "half a handshake")
        known = client()
        assert known.ask(KNOWN)[0] == 200
        for _ in range(60):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), allowed(20)))
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                for _ in range(200 if kind == "replies that are not read" else 1):
                    sock.send(SLOW[kind])
        began = time.monotonic()
        assert client().ask(KNOWN)[0] == 200
        assert time.monotonic() - began < allowed(4.0)  # 15 s to 75 s if each had to run into its own limit
        assert known.ask(KNOWN)[0] == 200  # it came before all of them, and is idle


def _tls_or_plain(
    stack: contextlib.ExitStack, authority: trustme.CA, limits: HttpLimits, *, secure: bool
) -> tuple[int, Callable[[], Wire]]:
    """Returns the port of a server, and what makes a connection to it that stays open until the end."""
    if not secure:
        server = stack.enter_context(serving(echo, limits))
        return server.port, lambda: stack.enter_context(Wire(server.port))
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    authority.configure_trust(theirs)
    server = stack.enter_context(serving(echo, limits, ours))

    def client() -> Wire:
        sock = socket.create_connection(("127.0.0.1", server.port), 20)
        return stack.enter_context(Wire(server.port, theirs.wrap_socket(sock, server_hostname="127.0.0.1")))

    return server.port, client


def test_connections_beyond_the_limit_wait_while_all_are_busy() -> None:
    go_on = threading.Event()

    def handle(request: HttpRequest) -> HttpReply:
        request.prove()
        go_on.wait(20)
        return HttpReply(200)

    with serving(handle, HttpLimits(connections=2, kept_seconds=0.5)) as server, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.port)) for _ in range(4)]
        for wire in wires:
            wire.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        until(lambda: server.connections == 2)
        go_on.set()
        assert [wire.reply()[0] for wire in wires] == [200] * 4


def test_the_end_lets_requests_finish_and_takes_no_new_ones() -> None:
    began, go_on = threading.Event(), threading.Event()

    def handle(request: HttpRequest) -> HttpReply:
        began.set()
        go_on.wait(20)
        return HttpReply(200, (), b"whole")

    server = HttpServer(handle, listen("127.0.0.1", 0))
    server.start()
    with Wire(server.port) as busy, Wire(server.port) as idle:
        busy.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert began.wait(20)
        until(lambda: server.connections == 2)
        port = server.port
        stopping = threading.Thread(target=server.stop, args=(20,))
        stopping.start()
        assert idle.rest() == b""
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), 1)
        go_on.set()
        assert busy.reply()[2] == b"whole"
        assert busy.rest() == b""
        stopping.join()


def test_the_end_cuts_off_what_takes_too_long() -> None:
    server = HttpServer(echo, listen("127.0.0.1", 0))
    server.start()
    with Wire(server.port) as wire:
        wire.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc")
        until(lambda: server.connections == 1)
        began = time.monotonic()
        server.stop(0.2)
        assert time.monotonic() - began < allowed(5)
        assert server.connections == 0


def test_a_port_in_use_is_a_users_mistake() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="cannot be listened on"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_malformed_requests_get_an_answer_or_an_end_and_never_500() -> None:
    chance = random.Random(20261122)
    parts = [b"GET / HTTP/1.1\r\n", b"PUT /a HTTP/1.1\r\n", b"CONNECT h:443 HTTP/1.1\r\n", b"Host: h\r\n", b"\r\n",
             b"Content-Length: 5\r\n", b"Content-Length: 99999999999\r\n", b"Transfer-Encoding: chunked\r\n",
             b"Expect: 100-continue\r\n", b"hello", b"5\r\nhello\r\n", b"0\r\n\r\n", b"\0\xff\x16\x03\x01", b": x\r\n",
             b" folded\r\n", b"\n", b"GET http://[::1 HTTP/1.1\r\n", b"A: " + b"b" * 3000 + b"\r\n"]  # fmt: skip
    statuses: set[int] = set()
    with serving(echo, QUICK) as server:
        for _ in range(1500):
            with Wire(server.port) as wire, contextlib.suppress(ConnectionError):
                begin = parts[chance.randrange(3)] + parts[3] if chance.random() < 0.7 else b""
                wire.send(begin + b"".join(chance.choices(parts, k=chance.randrange(1, 9))))
                with contextlib.suppress(OSError):  # it may have gone by now
                    wire.sock.shutdown(socket.SHUT_WR)
                answers = wire.rest()
                statuses |= {int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]}
        with Wire(server.port) as wire:
            assert wire.ask("GET / HTTP/1.1\nHost: h")[0] == 200
    assert 500 not in statuses
    assert {200, 400, 413} <= statuses
