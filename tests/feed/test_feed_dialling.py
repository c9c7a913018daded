"""A receiver and the hosts that it dials: a name with several addresses, a host that breaks the protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from feed_servers import Pair, free_port

from headrace.feed.client.receiver import Receiver
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import ConnectionClosed, FramedConnection
from headrace.feed.wire.handshake import challenge, welcome

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
            assert isinstance(rank.wait(10)[0].message, messages.Welcome)
            host.send(messages.Cancelled(77))
            [down] = [frame.message for frame in rank.wait(10)]
            assert down == messages.Down("it answered request 77, which was not asked")
