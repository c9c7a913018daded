"""The pipelines that a feed server's clients have open. Those that say the same share one.

One that nobody has open any more is kept for the loader that had it last, which may only have lost its connection. It
is let go of after a minute, and when another loader opens one, which so finds the data as they are then.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import msgspec

from headrace.feed.identifiers import PipelineNumber
from headrace.feed.wire import messages
from headrace.feed.worker.client_connection import ClientConnection

KEPT_SECONDS = 60.0


@dataclass(frozen=True)
class _Holding:
    number: PipelineNumber
    opener: str


@dataclass
class KnownPipeline:
    """A pipeline that some client has opened.

    Attributes:
        message: how executors open it, with its number on this server.
        opened: what the first executor that opened it told; None before.
        deaths: executors that ended while they opened it.
        last: who had it open last, see `messages.Open.opener`.
        left: when the last client that had it open was gone (monotonic seconds); None while one has it open.
    """

    message: messages.Open
    opened: messages.Opened | None = None
    deaths: int = 0
    last: str = ""
    left: float | None = None


class OpenPipelines:
    """See the module.

    Attributes:
        waiting: those that are being opened: the clients that wait for it, and their numbers for it.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._numbered: dict[bytes, PipelineNumber] = {}
        self._known: dict[PipelineNumber, KnownPipeline] = {}
        self._clients: dict[tuple[ClientConnection, PipelineNumber], _Holding] = {}
        self.waiting: dict[PipelineNumber, list[tuple[ClientConnection, PipelineNumber]]] = {}

    def __getitem__(self, number: PipelineNumber) -> KnownPipeline:
        return self._known[number]

    def enter(self, client: ClientConnection, message: messages.Open) -> PipelineNumber:
        """A client opens a pipeline. Returns its number on this server."""
        anonymous = msgspec.structs.replace(message, pipeline=0, loader="", plan="", job="", opener="")
        key = msgspec.msgpack.encode(anonymous, order="deterministic")
        if key not in self._numbered:
            number = self._numbered[key] = PipelineNumber(next(self._numbers))
            self._known[number] = KnownPipeline(msgspec.structs.replace(anonymous, pipeline=number))
        number = self._numbered[key]
        self._known[number].left = None
        self._clients[client, message.pipeline] = _Holding(number, message.opener)
        return number

    def number(self, client: ClientConnection, pipeline: PipelineNumber) -> PipelineNumber | None:
        """Returns the number on this server of what a client has opened; None if it has not."""
        holding = self._clients.get((client, pipeline))
        return None if holding is None else holding.number

    def opened(self, message: messages.Opened) -> None:
        """An executor has opened a pipeline: those that wait are told, if it is the first one."""
        known = self._known.get(message.pipeline)
        if known is not None and known.opened is None:
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

    def forget(self, client: ClientConnection, now: float) -> None:
        """A client is gone, at `now` (monotonic seconds)."""
        gone = {holding for (holder, _), holding in self._clients.items() if holder is client}
        self._clients = {key: holding for key, holding in self._clients.items() if key[0] is not client}
        held = {holding.number for holding in self._clients.values()}
        for holding in gone:
            if holding.number not in held:
                known = self._known[holding.number]
                known.last, known.left = holding.opener, now

    def let_go(self, now: float, opener: str | None = None) -> list[PipelineNumber]:
        """Forgets pipelines that nobody has open any more.

        Args:
            now: monotonic seconds.
            opener: who opens one now; those that others had open are forgotten at once.

        Returns:
            Their numbers, for the executors.
        """
        unused = [
            number for number, known in self._known.items()
            if known.left is not None
            and (now - known.left > KEPT_SECONDS or (opener is not None and known.last != opener))
        ]  # fmt: skip
        for number in unused:
            del self._known[number]
            self.waiting.pop(number, None)
        self._numbered = {key: number for key, number in self._numbered.items() if number in self._known}
        return unused
