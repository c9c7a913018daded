"""The pipelines that a feed server's clients have open. Those that say the same share one.

One that nobody has open any more is kept for a minute: a loader that had it may only have lost its connection. Any
other loader that opens it opens it anew, and so finds the data as they are then.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

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
        left: who had it open within the last minute, see `messages.Open.opener`, and when (monotonic seconds).
        unused: since when nobody has it open (monotonic seconds); None while somebody has.
    """

    message: messages.Open
    opened: messages.Opened | None = None
    deaths: int = 0
    left: dict[str, float] = field(default_factory=dict)
    unused: float | None = None


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

    def enter(self, client: ClientConnection, message: messages.Open, now: float) -> PipelineNumber:
        """A client opens a pipeline, at `now` (monotonic seconds). Returns its number on this server."""
        anonymous = msgspec.structs.replace(message, pipeline=0, loader="", plan="", job="", opener="")
        key = msgspec.msgpack.encode(anonymous, order="deterministic")
        number = self._numbered.get(key)
        if number is None or self._is_of_the_past(number, message.opener):
            number = self._numbered[key] = PipelineNumber(next(self._numbers))
            self._known[number] = KnownPipeline(msgspec.structs.replace(anonymous, pipeline=number))
        before = self._clients.pop((client, message.pipeline), None)
        self._clients[client, message.pipeline] = _Holding(number, message.opener)
        self._known[number].unused = None
        if before is not None:
            self._left({before}, now)
        return number

    def _is_of_the_past(self, number: PipelineNumber, opener: str) -> bool:
        """Whether only others had it open, and nobody has. One that is being opened holds what there is now."""
        known = self._known[number]
        return known.unused is not None and number not in self.waiting and opener not in known.left

    def number(self, client: ClientConnection, pipeline: PipelineNumber) -> PipelineNumber | None:
        """Returns the number on this server of what a client has opened; None if it has not."""
        holding = self._clients.get((client, pipeline))
        return None if holding is None else holding.number

    def holders(self, number: PipelineNumber) -> list[ClientConnection]:
        """Returns the clients that have a pipeline open."""
        return [client for (client, _), holding in self._clients.items() if holding.number == number]

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

    def forget(self, client: ClientConnection, now: float) -> None:
        """A client is gone, at `now` (monotonic seconds)."""
        gone = {holding for (holder, _), holding in self._clients.items() if holder is client}
        self._clients = {key: holding for key, holding in self._clients.items() if key[0] is not client}
        self._left(gone, now)

    def _left(self, gone: set[_Holding], now: float) -> None:
        held = {holding.number for holding in self._clients.values()}
        for holding in gone:
            known = self._known[holding.number]
            known.left = {opener: since for opener, since in known.left.items() if now - since <= KEPT_SECONDS}
            known.left[holding.opener] = now
            if holding.number not in held:
                known.unused = now

    def let_go(self, now: float) -> list[PipelineNumber]:
        """Forgets the pipelines that nobody has open, and nobody may come back for.

        Args:
            now: monotonic seconds.

        Returns:
            Their numbers, for the executors.
        """
        unused = {number: known.unused for number, known in self._known.items() if known.unused is not None}
        if not unused:
            return []
        current = set(self._numbered.values())
        gone = [number for number, since in unused.items() if now - since > KEPT_SECONDS or number not in current]
        for number in gone:
            del self._known[number]
            self.waiting.pop(number, None)
        self._numbered = {key: number for key, number in self._numbered.items() if number in self._known}
        return gone
