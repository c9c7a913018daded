"""The pipelines that a feed server's clients have opened. Those that say the same share one."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.feed.identifiers import PipelineNumber
from headrace.feed.wire import messages
from headrace.feed.worker.client_connection import ClientConnection


@dataclass
class KnownPipeline:
    """A pipeline that some client has opened.

    Attributes:
        message: how executors open it, with its number on this server.
        opened: what the first executor that opened it told; None before.
        deaths: executors that ended while they opened it.
    """

    message: messages.Open
    opened: messages.Opened | None = None
    deaths: int = 0


class OpenPipelines:
    """See the module.

    Attributes:
        waiting: those that are being opened: the clients that wait for it, and their numbers for it.
    """

    def __init__(self) -> None:
        self._numbered: dict[bytes, PipelineNumber] = {}
        self._known: dict[PipelineNumber, KnownPipeline] = {}
        self._clients: dict[tuple[ClientConnection, PipelineNumber], PipelineNumber] = {}
        self.waiting: dict[PipelineNumber, list[tuple[ClientConnection, PipelineNumber]]] = {}

    def __getitem__(self, number: PipelineNumber) -> KnownPipeline:
        return self._known[number]

    def enter(self, client: ClientConnection, message: messages.Open) -> PipelineNumber:
        """A client opens a pipeline. Returns its number on this server."""
        anonymous = msgspec.structs.replace(message, pipeline=0, loader="", plan="", job="")
        key = msgspec.msgpack.encode(anonymous, order="deterministic")
        number = self._numbered.setdefault(key, PipelineNumber(len(self._numbered) + 1))
        if number not in self._known:
            self._known[number] = KnownPipeline(msgspec.structs.replace(anonymous, pipeline=number))
        self._clients[client, message.pipeline] = number
        return number

    def number(self, client: ClientConnection, pipeline: PipelineNumber) -> PipelineNumber | None:
        """Returns the number on this server of what a client has opened; None if it has not."""
        return self._clients.get((client, pipeline))

    def opened(self, message: messages.Opened) -> None:
        """An executor has opened a pipeline: those that wait are told, if it is the first one."""
        known = self._known[message.pipeline]
        if known.opened is None:
            known.opened = message
            known.message = msgspec.structs.replace(known.message, shards=message.shards)
            for client, number in self.waiting.pop(message.pipeline, []):
                client.send(msgspec.structs.replace(message, pipeline=number))

    def failed(self, message: messages.OpenFailed) -> None:
        """A pipeline cannot be opened: those that wait are told."""
        for client, number in self.waiting.pop(message.pipeline, []):
            client.send(messages.OpenFailed(number, message.error))

    def waiting_clients(self) -> list[ClientConnection]:
        """Returns the clients that wait, one of every job."""
        waiting = (client for each in self.waiting.values() for client, _ in each if not client.closed)
        return list({client.job: client for client in waiting}.values())

    def forget(self, client: ClientConnection) -> None:
        """A client is gone."""
        self._clients = {key: number for key, number in self._clients.items() if key[0] is not client}
