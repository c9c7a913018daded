"""How a receiver dials: a name with several addresses is tried at one after the other."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from feed_servers import Pair, free_port

from headrace.feed.client.receiver import Receiver
from headrace.feed.wire import messages
from headrace.feed.wire.channel import Channel, ConnectionClosed

SECRET = bytes.fromhex("5e" * 32)


def test_the_next_address_of_a_name_is_tried_when_the_first_does_not_serve(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, alive = ("127.0.0.1", free_port()), ("127.0.0.1", pair.a.port)
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (dead, alive)]

    def resolve(name: str, *_: Any, **__: Any) -> list[Any]:
        assert name == "two.example"
        return answers

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    ours, theirs = socket.socketpair()

    def receive() -> None:
        receiver = Receiver(Channel(theirs))
        with pytest.raises(ConnectionClosed):
            receiver.run()
        for host in receiver._hosts.values():  # a receiver's process would end here
            host.channel.close()
        receiver._selector.close()
        theirs.close()

    thread = threading.Thread(target=receive)
    thread.start()
    rank = Channel(ours)
    try:
        told = []
        for _ in range(2):
            rank.send(messages.Dial(f"tcp://two.example:{pair.a.port}", SECRET, "test"), route=1)
            told += [frame.message for frame in rank.wait(10)]
        assert told[0] == messages.Down("connection refused")
        assert isinstance(told[1], messages.Welcome)
        assert told[1].host == "host-a"
    finally:
        rank.close()
        thread.join()
