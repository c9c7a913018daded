"""The control port, with real gRPC: agents get through, strangers change nothing."""

import asyncio
import contextlib
import itertools
import os
import socket

import grpc
import grpc.aio
import pytest

from headrace.agent.control.control_messages import Direction, Heartbeat, Hello, Link, Orders, Refused, Report, encode
from headrace.agent.control.grpc_transport import COMMAND_METHOD, METHOD, ControlServer, connect, send_command
from headrace.errors import HeadraceError
from headrace.instance.lifeline import StopJob
from headrace.instance.lifeline import encode as encode_command

SECRET = b"s" * 32
_numbers = itertools.count(1)


class Desk:
    """Keeps what came in."""

    def __init__(self):
        self.log = []

    def connected(self, host):
        self.log.append(("connected", host))

    def disconnected(self, host):
        self.log.append(("disconnected", host))

    def receive(self, host, report):
        self.log.append((host, report))

    def orders(self, host):
        return Orders(ack=len(self.log))

    def command(self, command):
        self.log.append(command)


def address():
    return f"127.{178 + os.getpid() % 50}.7.{next(_numbers)}:7071"


def link(secret=SECRET, host="algo-1"):
    return Link(secret, Direction.TO_COORDINATOR, host, os.urandom(16))


def play(scene):
    """Runs a scene with a server."""

    async def run():
        desk, at = Desk(), address()
        server = ControlServer(SECRET, frozenset({"algo-1", "algo-2"}), desk)
        await server.start(at)
        try:
            await asyncio.wait_for(scene(server, desk, at), 30)
        finally:
            await server.stop()

    asyncio.run(run())


async def raw(at, *frames):
    """Sends bytes as they are. Returns the status of the call."""
    async with grpc.aio.insecure_channel(at) as channel:
        call = channel.stream_stream(METHOD)()
        for frame in frames:
            await call.write(frame)
        await call.done_writing()
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_an_agent_reports_and_gets_orders_at_once():
    async def scene(server, desk, at):
        async with connect(at, link()) as connection:
            await connection.send(Report(1, Hello("dnn")))
            orders = await connection.receive()
            assert isinstance(orders, Orders)
            assert ("algo-1", Report(1, Hello("dnn"))) in desk.log
            desk.log.append("news")
            server.wake("algo-1")
            while (await connection.receive()).ack != len(desk.log):
                pass
        await until(lambda: ("disconnected", "algo-1") in desk.log)

    play(scene)


def test_an_agent_that_comes_back_takes_over_from_its_old_stream():
    async def scene(server, desk, at):
        me = link()
        async with connect(at, me) as old:
            await old.send(Report(1, Hello("dnn")))
            await old.receive()
            async with connect(at, me) as new:
                await new.send(Report(0, Heartbeat()))
                await new.receive()
                desk.log.append("news")
                server.wake("algo-1")
                while (await new.receive()).ack != len(desk.log):
                    pass
            assert ("disconnected", "algo-1") not in desk.log[:-1]

    play(scene)


def test_a_wrong_key_a_replay_and_noise_change_nothing(logged):
    async def scene(server, desk, at):
        me = link()
        genuine = me.seal(encode(Report(1, Hello("dnn"))))
        assert await raw(at, genuine) == grpc.StatusCode.OK
        await until(lambda: ("disconnected", "algo-1") in desk.log)
        before = list(desk.log)
        foreign = link(b"wrong" * 8).seal(encode(Report(2, Hello("dnn"))))
        second_incarnation = link().seal(encode(Report(2, Hello("dnn"))))
        unknown_host = link(host="algo-9").seal(encode(Report(1, Hello("dnn"))))
        for frame in (genuine, foreign, second_incarnation, unknown_host, b"", b"noise" * 100):
            assert await raw(at, frame) == grpc.StatusCode.UNAUTHENTICATED
        assert await raw(at) == grpc.StatusCode.UNAUTHENTICATED
        assert await raw(at, b"x" * (2 << 20)) != grpc.StatusCode.OK
        assert desk.log == before
        assert server.refused >= 7

    play(scene)
    assert any("seen before" in line for line in logged())
    assert any("wrong seal" in line for line in logged())


def test_a_stream_without_a_first_frame_is_closed(monkeypatch, logged):
    monkeypatch.setattr("headrace.agent.control.grpc_transport.FIRST_FRAME_SECONDS", 0.1)

    async def scene(server, desk, at):
        async with grpc.aio.insecure_channel(at) as channel:
            call = channel.stream_stream(METHOD)()
            assert await call.code() == grpc.StatusCode.UNAUTHENTICATED
        assert desk.log == []

    play(scene)
    assert [line.rpartition(": ")[2] for line in logged()] == ["no first frame"]


def test_a_stranger_on_a_raw_socket_does_not_disturb_an_agent():
    async def scene(server, desk, at):
        ip, _, port = at.partition(":")
        async with connect(at, link()) as connection:
            await connection.send(Report(1, Hello("dnn")))
            await connection.receive()
            for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
                with socket.create_connection((ip, int(port))) as stranger:
                    stranger.sendall(noise)
            await connection.send(Report(2, Heartbeat()))
            await until(lambda: ("algo-1", Report(2, Heartbeat())) in desk.log)
            assert ("disconnected", "algo-1") not in desk.log

    play(scene)


def test_an_agent_refuses_a_coordinator_that_does_not_know_the_secret():
    async def scene(server, desk, at):
        false = ControlServer(b"f" * 32, frozenset({"algo-1"}), Desk())
        false_address = address()
        await false.start(false_address)
        me = link()
        try:
            async with connect(false_address, me) as connection:
                await connection.send(Report(1, Hello("dnn")))
                with pytest.raises((ConnectionError, Refused)):
                    await connection.receive()
        finally:
            await false.stop()

    play(scene)


STOP = StopJob("stopped", "stopped by the user", failed=False)


def test_an_engine_sends_a_command_and_knows_that_it_was_taken():
    async def scene(server, desk, at):
        await send_command(at, SECRET, STOP, attempt=1)
        assert desk.log == [STOP]

    play(scene)


def test_a_command_without_the_secret_of_another_attempt_or_seen_before_is_refused(logged):
    async def scene(server, desk, at):
        for secret, attempt in ((b"f" * 32, 1), (SECRET, 2)):
            with pytest.raises(ConnectionError, match="unauthenticated"):
                await send_command(at, secret, STOP, attempt)
        frame = Link(SECRET, Direction.FROM_ENGINE, "engine", os.urandom(16)).seal(encode_command(STOP))
        noise = Link(SECRET, Direction.FROM_ENGINE, "engine", os.urandom(16)).seal(b"{}\n")
        agent = link().seal(encode_command(STOP))
        async with grpc.aio.insecure_channel(at) as channel:
            call = channel.unary_unary(COMMAND_METHOD)
            await call(frame)
            for refused in (frame, noise, agent, b""):
                with pytest.raises(grpc.aio.AioRpcError, match="refused"):
                    await call(refused)
        assert desk.log == [STOP]

    play(scene)
    assert any("seen before" in line for line in logged())


def test_an_agent_of_an_earlier_attempt_is_refused(logged):
    async def scene(server, desk, at):
        earlier = Link(SECRET, Direction.TO_COORDINATOR, "algo-1", os.urandom(16), attempt=3)
        assert await raw(at, earlier.seal(encode(Report(1, Hello("dnn"))))) == grpc.StatusCode.UNAUTHENTICATED
        assert desk.log == []

    play(scene)
    assert any("algo-1 is of attempt 3, and this is attempt 1" in line for line in logged())


def test_a_port_that_is_taken_is_an_error():
    async def scene(server, desk, at):
        other = ControlServer(SECRET, frozenset(), Desk())
        with pytest.raises(HeadraceError, match="cannot listen"):
            await other.start(at)
        await other.stop()

    play(scene)
