"""The control port: agents get through, strangers change nothing."""

import asyncio
import contextlib
import dataclasses
import itertools
import os
import socket
import ssl
import threading

import pytest

from agent_connection import connect
from headrace.agent.control import control_transport
from headrace.agent.control.control_messages import (
    Asking,
    Heartbeat,
    Hello,
    Joining,
    Orders,
    Report,
    Supervising,
    encode,
)
from headrace.agent.control.control_transport import ControlServer, open_stream, send_command
from headrace.engines.planning.host_certificates import make_certificates
from headrace.errors import HeadraceError
from headrace.instance.launch_plan import FeedHost
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


def serve(at, desk, tls=LEADER, supervisors=None):
    """A server in its first attempt."""
    server = ControlServer(tls, desk.command, supervisors and supervisors.answer)
    server.start(at)
    server.begin(1, desk, asyncio.sleep(60))
    return server


def address():
    return f"127.{178 + os.getpid() % 50}.7.{next(_numbers)}:7071"


def agent(at, tls=AGENT, leader="algo-1", process=ME, attempt=1):
    """A connection of an agent."""
    return connect(at, leader, tls, process, attempt)


def play(scene):
    """Runs a scene with a server."""

    async def run():
        desk, at = Desk(), address()
        server = serve(at, desk)
        try:
            await asyncio.wait_for(scene(server, desk, at), 30)
        finally:
            server.close()

    asyncio.run(run())


async def raw(at, *frames, opening=None):
    """Sends frames as they are. Returns once the server has closed the connection."""
    async with open_stream(at, "algo-1", AGENT) as stream:
        with contextlib.suppress(ConnectionError):
            for frame in (encode(Joining(1, ME)) if opening is None else opening, *frames):
                await stream.send(frame)
            while True:
                await stream.receive()


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
            server.wake(["algo-2"])
            while (await connection.receive()).ack != len(desk.log):
                pass
        await until(lambda: ("disconnected", "algo-2") in desk.log)

    play(scene)


def test_the_list_of_feed_servers_travels_once_over_a_connection(monkeypatch):
    """It has a line for each data host, and every report of every host is answered."""
    feed = (FeedHost("algo-1", "data", "tcp://10.0.0.1:7070", 4, "ready"),)
    generations = iter([1, 1, 2, 2])
    monkeypatch.setattr(Desk, "orders", lambda self, host: Orders(feed_generation=next(generations), feed=feed))

    async def scene(server, desk, at):
        lists = []
        for answers in (3, 1):
            async with agent(at) as connection:
                for _ in range(answers):
                    await connection.send(Report(0, Heartbeat()))
                    lists.append((await connection.receive()).feed)
        assert lists == [feed, (), feed, feed]

    play(scene)


def test_an_agent_that_does_not_read_gets_no_heap_of_orders_and_the_newest_when_it_does(monkeypatch):
    monkeypatch.setattr(Desk, "orders", lambda self, host: Orders(ack=len(self.log), failure="x" * 100_000))

    async def scene(server, desk, at):
        async with agent(at) as connection:
            sent = 400
            for number in range(1, sent + 1):
                await connection.send(Report(number, Heartbeat()))
            await until(lambda: len(desk.log) == 1 + sent)
            await connection.send(Report(0, Heartbeat()))
            received = [await connection.receive()]
            while received[-1].ack < 1 + sent:
                await connection.send(Report(0, Heartbeat()))
                received.append(await connection.receive())
            assert len(received) < sent / 2, "40 MB were not kept for it"

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
                server.wake(["algo-2"])
                while (await new.receive()).ack != len(desk.log):
                    pass
            assert ("disconnected", "algo-2") not in desk.log[:-1]

    play(scene)


@pytest.mark.promise(
    "own-engine", "agents of an earlier attempt are refused, and a stop without a certificate of the run"
)
def test_noise_another_process_and_another_attempt_change_nothing(logged):
    async def scene(server, desk, at):
        hello = encode(Report(1, Hello("dnn")))
        async with agent(at) as connection:
            await connection.send(Report(1, Hello("dnn")))
            await connection.receive()
        await until(lambda: ("disconnected", "algo-2") in desk.log)
        before = [entry for entry in desk.log if entry[0] == "algo-2"]
        for opening in (encode(Joining(1, b"q" * 16)), encode(Joining(3, ME)), b"", b"noise" * 100, hello):
            await raw(at, hello, opening=opening)
        for frame in (b"", b"noise" * 100, encode(Orders()), b"x" * (2 << 20)):
            await raw(at, frame)
        assert [entry for entry in desk.log if entry[0] == "algo-2"] == before
        assert server.refused == 9

    play(scene)
    words = " ".join(logged())
    assert "another process than the agent of algo-2" in words
    assert "algo-2 is of attempt 3, and this is attempt 1" in words
    assert "not a report" in words
    assert "a message of 2097152 bytes" in words


def of_stranger(how):
    """The end of TLS of somebody who does not have everything that a host of the run has."""
    if how == "with a certificate of another run":
        return control_transport.tls_context(dataclasses.replace(OTHERS["algo-2"], ca=LEADER.ca))
    return ssl.create_default_context(cadata=LEADER.ca.decode()) if how == "without a certificate" else None


@pytest.mark.promise(
    "own-engine", "agents of an earlier attempt are refused, and a stop without a certificate of the run"
)
@pytest.mark.parametrize("how", ["in clear", "without a certificate", "with a certificate of another run"])
@pytest.mark.promise("security", "a handshake with coordinator or supervisor takes a certificate of the run")
def test_who_has_no_certificate_of_the_run_is_refused_at_the_handshake(how):
    async def scene(server, desk, at):
        ip, _, port = at.partition(":")
        tls = of_stranger(how)
        name = {} if tls is None else {"server_hostname": "algo-1"}
        for opening in (Joining(1, ME), Asking(STOP), Supervising()):
            reader, writer = await asyncio.open_connection(ip, int(port), ssl=tls, **name)
            body = encode(opening)
            writer.write(len(body).to_bytes(4, "big") + body)
            with contextlib.suppress(OSError):  # with TLS 1.3 a client hears of it when it reads
                assert await reader.read() == b""
            writer.close()
        assert (desk.log, server.refused) == ([], 0)  # nothing came as far as a message

    play(scene)


def test_a_stranger_who_never_begins_a_handshake_is_closed(monkeypatch):
    monkeypatch.setattr(control_transport, "HANDSHAKE_SECONDS", 0.1)

    async def scene(server, desk, at):
        ip, _, port = at.partition(":")
        reader, writer = await asyncio.open_connection(ip, int(port))
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(1024):
                pass
        writer.close()
        assert desk.log == []

    play(scene)


def test_a_connection_that_its_peer_never_ends_is_closed_with_the_port():
    """TLS waits for the other end to say that it closes, too; a port that stops does not."""

    def refused(at):
        ip, port = at.rsplit(":", 1)
        peer = control_transport.tls_context(AGENT).wrap_socket(
            socket.create_connection((ip, int(port)), 10), server_hostname="algo-1"
        )
        peer.sendall(len(b"noise").to_bytes(4, "big") + b"noise")
        assert peer.recv(100) == b""  # the server closes, and this end does not
        return peer

    def end_of(peer):
        with socket.socket(fileno=os.dup(peer.fileno())) as below, contextlib.suppress(ConnectionResetError):
            below.settimeout(10)
            while below.recv(1000):
                pass

    async def scene():
        at = address()
        server = serve(at, Desk())
        with await asyncio.to_thread(refused, at) as peer:
            server.close()
            await asyncio.to_thread(end_of, peer)

    asyncio.run(scene())


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
@pytest.mark.promise("security", "who stands between the hosts of a job reads and changes nothing")
def test_an_agent_says_nothing_to_who_is_not_the_leader_of_its_run(tls):
    async def scene():
        desk, at = Desk(), address()
        false = serve(at, desk, dataclasses.replace(tls, ca=LEADER.ca))
        try:
            with pytest.raises(ConnectionError, match=r"(?i)certificate verify failed"):
                async with agent(at):
                    pass
            assert (desk.log, false.refused) == ([], 0)
        finally:
            false.close()

    asyncio.run(scene())


def capture(coming, going, kept):
    """Copies what comes to where it goes, and keeps it."""
    with contextlib.suppress(OSError):  # the test has shut it
        while data := coming.recv(1 << 16):
            kept += data
            going.sendall(data)


@pytest.mark.promise("runs", "control traffic is under TLS with the run's certificates; strangers can do nothing")
@pytest.mark.promise("security", "who stands between the hosts of a job reads and changes nothing")
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


def test_a_command_that_is_none_and_a_supervisor_where_no_other_host_has_one_are_refused():
    async def scene(server, desk, at):
        for body in (b"", b"{}\n", encode(Report(1, Hello("dnn"))), encode(Supervising())):
            await raw(at, opening=body)
        assert desk.log == []
        assert server.refused == 4

    play(scene)


class Echo:
    """Answers supervisors."""

    async def answer(self, host, report):
        return host.encode() + report


def test_one_port_serves_agents_supervisors_and_commands_and_stays_open_between_attempts():
    async def scene():
        first, second, at = Desk(), Desk(), address()
        server = ControlServer(LEADER, first.command, Echo().answer)
        server.start(at)
        try:
            async with open_stream(at, "algo-1", AGENT, limit=3 << 20) as supervisor:
                await supervisor.send(encode(Supervising()))
                for number, desk in enumerate((first, second), 1):
                    with pytest.raises(ConnectionError):  # no attempt runs
                        async with agent(at, attempt=number) as early:
                            await early.receive()
                    over = asyncio.Event()
                    server.begin(number, desk, over.wait())
                    async with agent(at, process=bytes(16), attempt=number) as connection:
                        await connection.send(Report(1, Hello("dnn")))
                        await connection.receive()
                        big = bytes(2 << 20)  # more than an agent may send
                        await supervisor.send(big)
                        assert await supervisor.receive() == b"algo-2" + big
                        await send_command(at, "algo-1", AGENT, STOP)
                        server._loop.call_soon_threadsafe(over.set)
                        with contextlib.suppress(ConnectionError):  # agents of an attempt that is over are cut
                            while True:
                                await asyncio.wait_for(connection.receive(), 20)
                    assert ("algo-2", Report(1, Hello("dnn"))) in desk.log
                await supervisor.send(b"still here")
                assert await supervisor.receive() == b"algo-2still here"
            assert first.log.count(STOP) == 2
            assert STOP not in second.log, "commands are taken in one place, whatever attempt runs"
            assert server.refused == 0
        finally:
            server.close()

    asyncio.run(scene())


def test_a_port_that_is_taken_is_an_error():
    async def scene(server, desk, at):
        other = ControlServer(LEADER, desk.command)
        with pytest.raises(HeadraceError, match="cannot listen"):
            other.start(at)
        other.close()

    play(scene)


def test_what_the_thread_raises_before_the_port_is_open_is_raised_where_it_was_started(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no room")

    monkeypatch.setattr(control_transport, "tls_context", fail)
    with pytest.raises(RuntimeError, match="no room"):
        ControlServer(LEADER, print).start(address())


def test_a_host_that_is_asked_for_again_has_another_agent_and_the_one_before_never_comes_back():
    async def scene(server, desk, at):
        async with agent(at) as old:
            await old.send(Report(1, Hello("data")))
            await old.receive()
            server.forget({"algo-2"})
            with contextlib.suppress(ConnectionError):
                while True:
                    await old.receive()
        await raw(at, encode(Report(2, Hello("data"))))
        async with agent(at, process=b"q" * 16) as new:
            await new.send(Report(1, Hello("again")))
            await new.receive()
            await raw(at, encode(Report(3, Hello("data"))))
            assert server.refused == 2
            assert ("disconnected", "algo-2") not in desk.log
            reports = [entry[1].message.group for entry in desk.log if entry[0] == "algo-2"]
            assert reports == ["data", "again"]

    play(scene)
