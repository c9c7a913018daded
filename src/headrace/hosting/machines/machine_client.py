"""The other hosts' end of the talk between the supervisors of a run: a thread that asks the leader's again and again.

A connection that breaks costs nothing: the next report says the same once more, and how much of the record has come is
asked for. At rest that is two messages a second; of the record something travels once a second, or one batch after the
other while it is behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from headrace.agent.control.control_messages import SUPERVISOR_LIMIT, Refused, Supervising
from headrace.agent.control.control_messages import encode as encode_opening
from headrace.agent.control.control_transport import open_stream
from headrace.errors import HeadraceError
from headrace.hosting.machines.host_record import RecordSender
from headrace.hosting.machines.machine_messages import (
    HostReport,
    LeaderOrder,
    TreePiece,
    decode_order,
    encode,
)
from headrace.instance.launch_plan import Certificates

_log = logging.getLogger(__name__)

RECORD_SECONDS = 1.0
CALL_SECONDS = 10.0
BYTES_A_SECOND = 500_000  # of a message, at least
RETRY_SECONDS = 0.2


class MachineClient:
    """See the module.

    Args:
        leader: name of the host of the leader's supervisor.
        address: ``ip:port`` of the port there.
        tls: certificates of this host.
        record: what of the record is sent.
        made: yields what the host made.
        wake: called in the thread when there is something new.

    Attributes:
        order: the last one; None before the first answer.
        heard: when the leader has answered last, on time.monotonic; at first when this was made.
        taken: the leader has everything, as it said.
        failed: what the host made cannot be read, in words; then the rest is delivered without it.
    """

    def __init__(
        self,
        leader: str,
        address: str,
        tls: Certificates,
        record: RecordSender,
        made: Callable[[], Iterator[TreePiece]],
        wake: Callable[[], None],
    ) -> None:
        self.order: LeaderOrder | None = None
        self.heard = time.monotonic()
        self.taken = False
        self.failed = ""
        self._address = address
        self._leader_name = leader
        self._tls = tls
        self._record = record
        self._made = made
        self._wake = wake
        self._report = HostReport(os.urandom(16))
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._leader = b""
        self._number = 0
        self._delivering = False
        self._sends_made = True
        self._tree: Iterator[TreePiece] | None = None
        self._piece: TreePiece | None = None  # that has not come yet
        self._record_at = 0.0
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="headrace-leader", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._thread.join()

    def tell(self, **fields: object) -> None:
        """Changes what is reported: fields of `HostReport`."""
        with self._lock:
            self._report = msgspec.structs.replace(self._report, **fields)

    def deliver(self, *, made: bool) -> None:
        """From now on the end of the record is sent; nobody writes it any more.

        Args:
            made: what the host made is sent, too.
        """
        with self._lock:
            self._delivering = True
            self._sends_made = made

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._ask())
        self._wake()

    async def _ask(self) -> None:
        while not self._closed.is_set() and not self.taken:
            try:
                async with open_stream(self._address, self._leader_name, self._tls, limit=SUPERVISOR_LIMIT) as stream:
                    await stream.send(encode_opening(Supervising()))
                    while not self._closed.is_set() and not self.taken:
                        report = self._next()
                        data = encode(report)
                        await stream.send(data)
                        answer = await asyncio.wait_for(stream.receive(), CALL_SECONDS + len(data) / BYTES_A_SECOND)
                        self._take(report, decode_order(answer))
            except (Refused, OSError, asyncio.TimeoutError) as error:
                self._broken(error)

    def _broken(self, error: Exception) -> None:
        """Begins anew after a while: the leader does not answer, or the record cannot be read or remembered here."""
        self._record.forget()
        why = str(error) or "no answer in time"
        if why != self._told:
            self._told = why
            tell = _log.info if isinstance(error, (ConnectionError, asyncio.TimeoutError)) else _log.warning
            tell("the leader's supervisor at %s: %s", self._address, why)
        self._closed.wait(RETRY_SECONDS)

    def _next(self) -> HostReport:
        """Returns the next report, with what it carries."""
        with self._lock:
            report, delivering = self._report, self._delivering
        self._number += 1
        fresh = self._record.fresh
        report = msgspec.structs.replace(report, number=self._number, leader=self._leader, fresh=fresh)
        if self._record.asks_sizes:
            return msgspec.structs.replace(report, asks_sizes=True, more=True)
        if delivering:
            return self._delivery(report)
        if time.monotonic() - self._record_at < RECORD_SECONDS:
            return report
        pieces, more = self._record.next(last=False)
        if not more:
            self._record_at = time.monotonic()
        return msgspec.structs.replace(report, pieces=pieces, more=more)

    def _delivery(self, report: HostReport) -> HostReport:
        piece = self._next_made() if self._sends_made else None
        if piece is not None:
            return msgspec.structs.replace(report, tree=(piece,), more=True)
        pieces, more = self._record.next(last=True)
        return msgspec.structs.replace(report, pieces=pieces, more=True, delivered=not more)

    def _next_made(self) -> TreePiece | None:
        if self._piece is None:
            if self._tree is None:
                self._tree = self._made()
            try:
                self._piece = next(self._tree, None)
            except (OSError, HeadraceError) as error:
                self.failed = str(error)
                _log.warning("what the host made cannot be read: %s", error)
        return self._piece

    def _take(self, report: HostReport, answer: LeaderOrder) -> None:
        self.heard = time.monotonic()
        if answer.leader != self._leader:  # the first answer, or another process leads now
            self._leader = answer.leader
            self._tree = self._piece = None
            self._record.forget()
        elif answer.missing:
            self._record.forget()
        else:
            if report.tree:
                self._piece = None
            self.taken = self.taken or answer.taken
        if answer.sizes is not None and report.leader == answer.leader:
            self._record.learn(answer.sizes)
        answer = msgspec.structs.replace(answer, sizes=None, missing=False, taken=False)
        if answer != self.order:
            self.order = answer
            self._wake()
