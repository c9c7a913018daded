"""The control port, with real gRPC: agents get through, strangers change nothing."""

import asyncio
import contextlib
import dataclasses
import itertools
import os
import socket
import threading

import grpc
import grpc.aio
import pytest

from headrace.agent.control import grpc_transport
from headrace.agent.control.control_messages import Heartbeat, Hello, Orders, Report, encode
from headrace.agent.control.grpc_transport import (
    ATTEMPT,
    COMMAND_METHOD,
    METHOD,
    PROCESS,
    ControlServer,
    channel_security,
    connect,
    send_command,
)
from headrace.engines.planning.host_certificates import make_certificates
from headrace.errors import HeadraceError
from headrace.instance.lifeline import StopJob

HOSTS = ("algo-1", "algo-2")
OURS, OTHERS = make_certificates("this-run", HOSTS), make_certificates("another-run", HOSTS)
LEADER, AGENT = OURS["algo-1"], OURS["algo-2"]
ME = b"p" * 16
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


def agent(at, tls=AGENT, leader="algo-1", process=ME, attempt=1):
    """A connection of an agent."""
    return connect(at, leader, tls, process, attempt)


def play(scene):
    """Runs a scene with a server."""

    async def run():
        desk, at = Desk(), address()
        server = ControlServer(desk, LEADER)
        await server.start(at)
        try:
            await asyncio.wait_for(scene(server, desk, at), 30)
        finally:
            await server.stop()

    asyncio.run(run())


async def raw(at, *frames, metadata=((ATTEMPT, "1"), (PROCESS, ME))):
    """Sends bytes as they are. Returns the status of the call."""
    async with grpc.aio.secure_channel(at, *channel_security("algo-1", AGENT, ())) as channel:
        call = channel.stream_stream(METHOD)(metadata=metadata)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # refused before all was written
            for frame in frames:
                await call.write(frame)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_an_agent_reports_and_gets_orders_at_once():
    async def scene(server, desk, at):
        async with agent(at) as connection:
            await connection.send(Report(1, Hello("dnn")))
            orders = await connection.receive()
            assert isinstance(orders, Orders)
            assert ("algo-2", Report(1, Hello("dnn"))) in desk.log
            desk.log.append("news")
            server.wake("algo-2")
            while (await connection.receive()).ack != len(desk.log):
                pass
        await until(lambda: ("disconnected", "algo-2") in desk.log)

    play(scene)


def test_an_agent_that_comes_back_takes_over_from_its_old_stream():
    async def scene(server, desk, at):
        async with agent(at) as old:
            await old.send(Report(1, Hello("dnn")))
            await old.receive()
            async with agent(at) as new:
                await new.send(Report(0, Heartbeat()))
                await new.receive()
                desk.log.append("news")
                server.wake("algo-2")
                while (await new.receive()).ack != len(desk.log):
                    pass
            assert ("disconnected", "algo-2") not in desk.log[:-1]

    play(scene)


@pytest.mark.promise("engines", "agents of an earlier attempt are refused, and a stop without a certificate of the run")
def test_noise_another_process_and_another_attempt_change_nothing(logged):
    async def scene(server, desk, at):
        hello = encode(Report(1, Hello("dnn")))
        assert await raw(at, hello) == grpc.StatusCode.OK
        await until(lambda: ("disconnected", "algo-2") in desk.log)
        before = [entry for entry in desk.log if entry[0] == "algo-2"]
        for metadata in (
            ((ATTEMPT, "1"), (PROCESS, b"q" * 16)),
            ((ATTEMPT, "3"), (PROCESS, ME)),
            ((PROCESS, ME),),
            ((ATTEMPT, "1"),),
            (),
        ):
            assert await raw(at, hello, metadata=metadata) == grpc.StatusCode.PERMISSION_DENIED
        for frame in (b"", b"noise" * 100, encode(Orders()), b"x" * (2 << 20)):
            await raw(at, frame)
        assert [entry for entry in desk.log if entry[0] == "algo-2"] == before
        assert server.refused == 8

    play(scene)
    words = " ".join(logged())
    assert "another process than the agent of algo-2" in words
    assert "algo-2 is of attempt 3, and this is attempt 1" in words
    assert "not a report" in words


@contextlib.asynccontextmanager
async def stranger(at, how):
    """A channel of somebody who does not have everything that a host of the run has."""
    override = [("grpc.ssl_target_name_override", "algo-1")]
    if how == "in clear":
        channel = grpc.aio.insecure_channel(at)
    elif how == "without a certificate":
        channel = grpc.aio.secure_channel(at, grpc.ssl_channel_credentials(LEADER.ca), override)
    else:
        other = dataclasses.replace(OTHERS["algo-2"], ca=LEADER.ca)
        channel = grpc.aio.secure_channel(at, *channel_security("algo-1", other, ()))
    async with channel:
        yield channel


@pytest.mark.promise("engines", "agents of an earlier attempt are refused, and a stop without a certificate of the run")
@pytest.mark.parametrize("how", ["in clear", "without a certificate", "with a certificate of another run"])
def test_who_has_no_certificate_of_the_run_is_refused_at_the_handshake(how):
    async def scene(server, desk, at):
        async with stranger(at, how) as channel:
            metadata = ((ATTEMPT, "1"), (PROCESS, ME))
            talk = channel.stream_stream(METHOD)(metadata=metadata)
            with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await talk.write(encode(Report(1, Hello("dnn"))))
            assert await talk.code() == grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(COMMAND_METHOD)(b"", metadata=metadata)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert (desk.log, server.refused) == ([], 0)  # nothing came as far as a message

    play(scene)


def test_a_stranger_who_never_begins_a_handshake_is_closed(monkeypatch):
    options = [("grpc.so_reuseport", 0), ("grpc.server_handshake_timeout_ms", 100)]
    assert [name for name, _ in options] == [name for name, _ in grpc_transport.SERVER_OPTIONS]
    monkeypatch.setattr(grpc_transport, "SERVER_OPTIONS", options)

    async def scene(server, desk, at):
        ip, _, port = at.partition(":")
        reader, writer = await asyncio.open_connection(ip, int(port))
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(1024):
                pass
        writer.close()
        assert desk.log == []

    play(scene)


def test_a_stranger_on_a_raw_socket_does_not_disturb_an_agent():
    async def scene(server, desk, at):
        ip, _, port = at.partition(":")
        async with agent(at) as connection:
            await connection.send(Report(1, Hello("dnn")))
            await connection.receive()
            for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
                with socket.create_connection((ip, int(port))) as stranger:
                    stranger.sendall(noise)
            await connection.send(Report(2, Heartbeat()))
            await until(lambda: ("algo-2", Report(2, Heartbeat())) in desk.log)
            assert ("disconnected", "algo-2") not in desk.log

    play(scene)


@pytest.mark.parametrize("tls", [OTHERS["algo-1"], AGENT], ids=["of another run", "of another host of the run"])
def test_an_agent_says_nothing_to_who_is_not_the_leader_of_its_run(tls):
    async def scene():
        desk, at = Desk(), address()
        false = ControlServer(desk, dataclasses.replace(tls, ca=LEADER.ca))
        await false.start(at)
        try:
            async with agent(at) as connection:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(connection.send(Report(1, Hello("dnn"))), 0.5)
            assert (desk.log, false.refused) == ([], 0)
        finally:
            await false.stop()

    asyncio.run(scene())


def capture(coming, going, kept):
    """Copies what comes to where it goes, and keeps it."""
    with contextlib.suppress(OSError):  # the test has shut it
        while data := coming.recv(1 << 16):
            kept += data
            going.sendall(data)


@pytest.mark.promise("runs", "control traffic is under TLS with the run's certificates; strangers can do nothing")
def test_who_stands_between_agent_and_coordinator_reads_nothing_of_what_they_say():
    words = b"learning-rate 0.0625"
    hello = Report(1, Hello(words.decode()))
    kept, pair = bytearray(), []

    async def scene(server, desk, at):
        ip, _, port = at.partition(":")
        with socket.create_server((address().partition(":")[0], 0)) as relay, contextlib.ExitStack() as sockets:

            def serve():
                ours = sockets.enter_context(relay.accept()[0])
                theirs = sockets.enter_context(socket.create_connection((ip, int(port))))
                pair.extend((ours, theirs))
                back = threading.Thread(target=capture, args=(theirs, ours, kept))
                back.start()
                capture(ours, theirs, kept)
                back.join()

            relaying = asyncio.get_running_loop().run_in_executor(None, serve)
            async with agent("{}:{}".format(*relay.getsockname())) as connection:
                await connection.send(hello)
                await connection.receive()
            for ends in pair:
                with contextlib.suppress(OSError):
                    ends.shutdown(socket.SHUT_RDWR)
            await relaying
        assert ("algo-2", hello) in desk.log

    play(scene)
    assert len(kept) > 1000
    assert words not in kept
    assert words in encode(hello)


STOP = StopJob("stopped", "stopped by the user", failed=False)


def test_an_engine_sends_a_command_from_any_host_and_knows_that_it_was_taken():
    async def scene(server, desk, at):
        await send_command(at, "algo-1", AGENT, STOP)
        assert desk.log == [STOP]

    play(scene)


def test_a_command_of_another_attempt_or_that_is_none_is_refused(logged):
    async def scene(server, desk, at):
        with pytest.raises(ConnectionError, match="permission_denied"):
            await send_command(at, "algo-1", AGENT, STOP, attempt=2)
        async with grpc.aio.secure_channel(at, *channel_security("algo-1", AGENT, ())) as channel:
            for body in (b"", b"{}\n", encode(Report(1, Hello("dnn")))):
                with pytest.raises(grpc.aio.AioRpcError, match="refused"):
                    await channel.unary_unary(COMMAND_METHOD)(body, metadata=((ATTEMPT, "1"),))
        assert desk.log == []

    play(scene)
    assert any("a command is of attempt 2, and this is attempt 1" in line for line in logged())


def test_a_port_that_is_taken_is_an_error():
    async def scene(server, desk, at):
        other = ControlServer(Desk(), LEADER)
        with pytest.raises(HeadraceError, match="cannot listen"):
            await other.start(at)
        await other.stop()

    play(scene)
