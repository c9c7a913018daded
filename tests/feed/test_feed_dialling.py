"""A receiver and the hosts that it dials: a name with several addresses, a host that breaks the protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from feed_servers import Pair, free_port

from headrace.feed.client import receiver as receiver_module
from headrace.feed.client.receiver import Receiver
from headrace.feed.wire import messages
from headrace.feed.wire.endpoints import challenge, session_keys, welcome
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection

SECRET = bytes.fromhex("5e" * 32)


@contextmanager
def receiving() -> Iterator[FramedConnection]:
    """Runs a receiver. Gives the rank's end of its socket."""
    ours, theirs = socket.socketpair()

    def receive() -> None:
        receiver = Receiver(FramedConnection(theirs))
        with pytest.raises(ConnectionClosed):
            receiver.run()
        for host in receiver._hosts.values():  # a receiver's process would end here
            host.channel.close()
        receiver._selector.close()
        theirs.close()

    thread = threading.Thread(target=receive)
    thread.start()
    rank = FramedConnection(ours)
    try:
        yield rank
    finally:
        rank.close()
        thread.join()


def test_the_next_address_of_a_name_is_tried_when_the_first_does_not_serve(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, alive = ("127.0.0.1", free_port()), ("127.0.0.1", pair.a.port)
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (dead, alive)]

    def resolve(name: str, *_: Any, **__: Any) -> list[Any]:
        assert name == "two.example"
        return answers

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with receiving() as rank:
        told = []
        for _ in range(2):
            rank.send(messages.Dial(f"tcp://two.example:{pair.a.port}", SECRET, "test"), route=1)
            told += [frame.message for frame in rank.wait(10)]
        assert told[0] == messages.Down("connection refused")
        assert isinstance(told[1], messages.Welcome)
        assert told[1].host == "host-a"


def test_a_host_whose_answer_was_not_requested_is_left_and_the_reason_names_the_request() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, receiving() as rank:
        rank.send(messages.Dial(f"tcp://127.0.0.1:{listener.getsockname()[1]}", SECRET, "test"), route=1)
        connection, _ = listener.accept()
        with closing(FramedConnection(connection)) as host:
            offered = challenge()
            host.send(offered)
            [hello] = [frame.message for frame in host.wait(10)]
            assert isinstance(hello, messages.Hello)
            host.send(welcome(SECRET, offered, hello, "far", 1))
            keys = session_keys(SECRET, offered, hello)
            host.trust(keys.server, keys.client)
            assert isinstance(rank.wait(10)[0].message, messages.Welcome)
            host.send(messages.Cancelled(77))
            [down] = [frame.message for frame in rank.wait(10)]
            assert down == messages.Down("it answered request 77, which was not asked")


def test_a_name_whose_lookup_takes_long_holds_up_no_other_host(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), []
    real = socket.getaddrinfo

    def resolve(name: str, *arguments: Any, **options: Any) -> list[Any]:
        asked.append(name)
        if name.startswith("slow"):
            release.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer from any resolver")
        return real("127.0.0.1" if name == "quick.example" else name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(receiver_module, "CONNECT_SECONDS", 1.0)
    try:
        with receiving() as rank:
            for route, name in enumerate(["slow.example", "slower.example", "quick.example", "127.0.0.1"], 1):
                rank.send(messages.Dial(f"tcp://{name}:{pair.a.port}", SECRET, "test"), route=route)
            told: dict[int, messages.Message] = {}
            while len(told) < 4:
                told |= {frame.route: frame.message for frame in rank.wait(10)}
                if len(told) == 2:
                    assert set(told) == {3, 4}, "those that could be looked up are not held up"
            for route, name in ((1, "slow.example"), (2, "slower.example")):
                assert told[route] == messages.Down(f"cannot resolve tcp://{name}:{pair.a.port}: no answer within 1 s")
            rank.send(messages.Dial(f"tcp://slow.example:{pair.a.port}", SECRET, "test"), route=1)
            assert isinstance(rank.wait(10)[0].message, messages.Down)
            assert asked.count("slow.example") == 1, "one thread for a name at most"
            rank.send(messages.Dial(f"tcp://slow.example:{pair.a.port}", SECRET, "test"), route=1)
            release.set()
            [down] = [frame.message for frame in rank.wait(10)]
            assert "no answer from any resolver" in down.reason
    finally:
        release.set()


def test_a_host_for_which_no_socket_can_be_made_is_told_and_holds_up_no_other(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def resolve(name: str, *arguments: Any, **options: Any) -> list[Any]:
        if name == "odd.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_UDP, "", ("127.0.0.1", 1))]
        return real(name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with receiving() as rank:
        rank.send(messages.Dial("tcp://odd.example:1", SECRET, "test"), route=1)
        [down] = [frame.message for frame in rank.wait(10)]
        assert isinstance(down, messages.Down)
        assert "not supported" in down.reason
        rank.send(messages.Dial(pair.a.tcp, SECRET, "test"), route=1)
        assert isinstance(rank.wait(10)[0].message, messages.Welcome)
