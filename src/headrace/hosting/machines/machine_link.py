"""What the supervisors of a run on several machines tell each other, and both ends of their talk.

The supervisor of another host asks again and again, in a thread (`MachineClient`, `HostReport`), and the leader's, the
authority, answers with what is wanted now (`OtherHosts`, `LeaderOrder`). Both are states and no steps, so one that is
sent twice, or is lost, changes nothing. What grows of the host's record travels with the reports, as pieces with
offsets; what the host made, when the programs are over.

An attempt goes through these phases, for every host:

    PREPARE n    install requirements, fill channels, bring checkpoints; later ones: clear what the last one made
    RUN n        start the agents
    END n        the programs are over: the last checkpoints are brought to safety
    DELIVER      the job is over: send the end of the record, and what the host made

A report counts if it is newer than the last one of its host: a call that was given up may come late, and a supervisor
whose machine was replaced may still run. It is taken as a whole before it is answered: its pieces are in the leader's
directory then. The answer waits for a moment when nothing else is wanted, so that orders reach a host at once and an
idle one asks twice a second. A connection that breaks costs nothing: the next report says the same once more, and how
much of the record has come is asked for. Of the record something travels once a second, or one batch after the other
while it is behind. A caller is the host whose certificate it shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.agent.control.control_messages import SUPERVISOR_LIMIT, Refused, Supervising, encode, reader_of
from headrace.agent.control.control_transport import open_stream
from headrace.errors import HeadraceError
from headrace.hosting.machines.host_record import RecordSender, end_lines, sizes_of, take
from headrace.hosting.machines.host_tree import TreePiece, all_has_come, forget_made, put
from headrace.instance.launch_plan import Certificates, LaunchPlan
from headrace.runs import Cause, RunPaths
from headrace.runs.record_pieces import PieceMissing
from headrace.runs.segments import Piece

HOLD_SECONDS = 0.5  # the leader answers a report at the latest then, at once when it wants something else
SILENCE_SECONDS = 10.0  # a supervisor that was heard and is silent for so long is lost
DOUBT_SECONDS = 3.0  # the same, when agents have lost each other there


class Phase(str, enum.Enum):
    """What a host has to do; see the module."""

    PREPARE = "prepare"
    RUN = "run"
    END = "end"
    DELIVER = "deliver"


class AgentEnd(msgspec.Struct, frozen=True, array_like=True):
    """How the agent of a host ended. `code` is as `subprocess.Popen` has it."""

    code: int
    how: str


class HostReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a host is.

    Attributes:
        process: 16 random bytes of this supervisor.
        number: of this report, counted by it from 1.
        leader: those of the leader's that it has heard last; of another one nothing counts but that it is here.
        prepared: attempt for which it is prepared.
        begun: the last attempt whose agent it has started.
        ended: the last attempt that is over on it.
        agent: how its agent ended in the last attempt, None while it runs.
        trouble: why it could not do what was wanted; None if nothing was wrong.
        trouble_in: in which attempt.
        leaving: its platform ends it: why, in words.
        pieces: of its record, under the names that they have in the leader's.
        tree: of what it made.
        delivered: with this report the leader has all.
        asks_sizes: it wants to know how much of its record the leader has.
        fresh: nothing of its directory was ever sent: it takes the place of a machine that was lost, or is the first.
        more: it has more to send, and waits for nothing else.
    """

    process: bytes
    number: int = 0
    leader: bytes = b""
    prepared: int = 0
    begun: int = 0
    ended: int = 0
    agent: AgentEnd | None = None
    trouble: Cause | None = None
    trouble_in: int = 0
    leaving: str = ""
    pieces: tuple[tuple[Piece, bytes], ...] = ()
    tree: tuple[TreePiece, ...] = ()
    delivered: bool = False
    asks_sizes: bool = False
    fresh: bool = False
    more: bool = False


class LeaderOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the leader's supervisor wants of a host.

    Attributes:
        leader: 16 random bytes of this supervisor.
        phase: what to do.
        attempt: in which attempt.
        now: a person wants the job to stop at once: nothing is brought to safety.
        sizes: how much of the host's record is here, by name; None when nobody asked.
        missing: bytes are missing before a piece that came: sizes are to be asked for.
        taken: everything is here; the host may go.
    """

    leader: bytes
    phase: Phase = Phase.PREPARE
    attempt: int = 1
    now: bool = False
    sizes: dict[str, int] | None = None
    missing: bool = False
    taken: bool = False


decode_report = reader_of(msgspec.msgpack.Decoder(HostReport), "a report of a supervisor")
decode_order = reader_of(msgspec.msgpack.Decoder(LeaderOrder), "an order of the leader's supervisor")


_log = logging.getLogger(__name__)


@dataclass
class OtherHost:
    """What the leader knows of another host.

    Attributes:
        name, group: of the host.
        heard: when its supervisor was heard last, on time.monotonic; before that when it could first be.
        report: the last one of the supervisor that is there now, without what it carried or asked for; None before the
            first.
        order: what it is told.
        taken: all that the supervisor that is there now made and wrote is here.
        made: something that it made has come.
        in_doubt: the coordinator has lost its agent.
        number: of its last report.
        replaced: the supervisors that were there before.
        waiting: what ends the wait of the answer to its last report.
    """

    name: str
    group: str
    heard: float
    report: HostReport | None = None
    order: LeaderOrder | None = None
    taken: bool = False
    made: bool = False
    in_doubt: bool = False
    told: LeaderOrder | None = None
    number: int = 0
    replaced: set[bytes] = field(default_factory=set)
    waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def silent(self) -> bool:
        """Whether its supervisor is lost, or has not come yet."""
        patience = DOUBT_SECONDS if self.in_doubt else SILENCE_SECONDS
        return self.report is None or time.monotonic() - self.heard > patience

    def trouble_in(self, attempt: int) -> Cause | None:
        """Returns why it could not do what was wanted in an attempt; None if nothing was wrong."""
        return self.report.trouble if self.report is not None and self.report.trouble_in == attempt else None

    def check_newer(self, report: HostReport) -> None:
        """Checks that a report is newer than those that were taken. Raises Refused."""
        before = self.report
        if report.process in self.replaced:
            raise Refused(f"a supervisor of {self.name} that was replaced")
        if before is not None and report.process != before.process:
            self.replaced.add(before.process)
        elif report.number <= self.number:
            raise Refused(f"report {report.number} of {self.name} came after report {self.number}")
        self.number = report.number


class OtherHosts:
    """The leader's end: what is known of every other host, and the answers to their reports.

    Args:
        plan: the launch plan.
        paths: the run's directory.
        wake: called in some thread when there is something new.

    Attributes:
        hosts: the other hosts by name. Their orders are set with `order`.
    """

    def __init__(self, plan: LaunchPlan, paths: RunPaths, wake: Callable[[], None]) -> None:
        self._process = os.urandom(16)
        self._paths = paths
        self._wake = wake
        others = [host for host in plan.hosts if host.name != plan.leader]
        self.hosts = {host.name: OtherHost(host.name, host.group, time.monotonic()) for host in others}

    def order(self, orders: Mapping[str, LeaderOrder]) -> None:
        """Says what hosts have to do from now on. For any thread."""
        for name, order in orders.items():
            host = self.hosts[name]
            host.order = msgspec.structs.replace(order, leader=self._process)
            if host.waiting is not None:
                loop, news = host.waiting
                with contextlib.suppress(RuntimeError):  # the port was closed
                    loop.call_soon_threadsafe(news.set)

    async def answer(self, host: str, report: bytes) -> bytes:
        """Takes what a host says, in another thread. Returns the answer. Raises Refused, ConnectionError."""
        loop = asyncio.get_running_loop()
        other, answer, is_idle = await loop.run_in_executor(None, self._taken, host, report)
        if is_idle:
            news = asyncio.Event()
            other.waiting = (loop, news)
            if other.order == other.told:  # asked when an order can no longer come unseen
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), HOLD_SECONDS)
        other.told = other.order
        order = other.order or LeaderOrder(self._process)
        return encode(msgspec.structs.replace(order, sizes=answer.sizes, missing=answer.missing, taken=answer.taken))

    # --- in threads --------------------------------------------------------------------------------------------------

    def _taken(self, name: str, data: bytes) -> tuple[OtherHost, LeaderOrder, bool]:
        """Takes what a host says. Returns it, the answer to that, and whether it has nothing more to say."""
        report = decode_report(data)
        if name not in self.hosts:
            raise Refused(f"{name!r} is no other host of this job")
        host = self.hosts[name]
        try:
            with host.lock:
                host.check_newer(report)
                before = (host.report, host.taken)
                answer = self._take(host, report)
                is_news = (host.report, host.taken) != before
        except OSError as error:
            _log.warning("what %s sent cannot be written: %s", name, error)
            raise ConnectionError("not written") from None
        if is_news:  # idle hosts report twice a second each
            self._wake()
        return host, answer, not report.more and answer.sizes is None and not answer.taken

    def _take(self, host: OtherHost, report: HostReport) -> LeaderOrder:
        """Takes what a report says and carries. Returns the answer to that."""
        known = host.report is not None and host.report.process == report.process
        if not known:
            host.taken = False  # that was another process
            if host.order is not None and host.order.phase is Phase.PREPARE:  # so it was of an earlier attempt
                forget_made(self._paths.host(host.name))
                host.made = False
        if report.fresh and not known and report.asks_sizes:
            end_lines(self._paths, host.name)
        missing = False
        if report.leader == self._process:
            missing = self._carried(host, report)
            if report.delivered and not missing and not host.taken:
                all_has_come(self._paths.host(host.name))
                host.taken = True
        host.heard = time.monotonic()
        if report.leader == self._process or not known:
            host.report = msgspec.structs.replace(
                report, number=0, pieces=(), tree=(), asks_sizes=False, fresh=False, more=False, delivered=False
            )
        sizes = sizes_of(self._paths, host.name) if report.asks_sizes else None
        return LeaderOrder(self._process, sizes=sizes, missing=missing, taken=host.taken and report.delivered)

    def _carried(self, host: OtherHost, report: HostReport) -> bool:
        """Writes what came with a report. Returns whether bytes are missing before it."""
        try:
            for piece, data in report.pieces:
                take(self._paths, host.name, piece, data)
            for made in report.tree:
                put(self._paths.host(host.name), made)
                host.made = True
        except PieceMissing as error:
            _log.info("%s: missing: %s", host.name, error)
            return True
        except ValueError as error:
            raise Refused(str(error)) from None
        return False


RECORD_SECONDS = 1.0
CALL_SECONDS = 10.0
BYTES_A_SECOND = 500_000  # of a message, at least
RETRY_SECONDS = 0.2


class MachineClient:
    """The end of another host: a thread that asks the leader's supervisor again and again.

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
                    await stream.send(encode(Supervising()))
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
