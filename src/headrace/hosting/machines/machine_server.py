"""The leader's end of the talk between the supervisors of a run: a port, and what is known of every other host.

A report is taken as a whole before it is answered: its pieces are in the leader's directory then. The answer waits for
a moment when nothing else is wanted, so that orders reach a host at once and an idle one asks twice a second. A caller
is the host whose certificate it shows.

The same port takes the commands of `headrace.agent.ask`, in every part of a run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from headrace.agent.control.control_messages import Asking, Refused
from headrace.agent.control.control_transport import Port, Stream, start_serving
from headrace.hosting.machines.host_record import end_lines, sizes_of, take
from headrace.hosting.machines.host_tree import all_has_come, forget_made, put
from headrace.hosting.machines.machine_messages import (
    DOUBT_SECONDS,
    HOLD_SECONDS,
    MESSAGE_LIMIT,
    SILENCE_SECONDS,
    HostReport,
    LeaderOrder,
    Phase,
    decode_report,
    encode,
)
from headrace.instance.certificates import Certificates
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import Command
from headrace.runs import RunPaths
from headrace.runs.record_pieces import PieceMissing

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 3.0  # for answers to what has come when the port is closed


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
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def silent(self) -> bool:
        """Whether its supervisor is lost, or has not come yet."""
        patience = DOUBT_SECONDS if self.in_doubt else SILENCE_SECONDS
        return self.report is None or time.monotonic() - self.heard > patience

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


class MachineServer:
    """See the module. It works in threads of its own.

    Args:
        plan: the launch plan.
        paths: the run's directory.
        tls: certificates of the leader.
        wake: called in those threads when there is something new.

    Attributes:
        hosts: the other hosts by name. Their orders are set with `order`.
    """

    def __init__(self, plan: LaunchPlan, paths: RunPaths, tls: Certificates, wake: Callable[[], None]) -> None:
        self._process = os.urandom(16)
        self._paths = paths
        self._tls = tls
        self._wake = wake
        self._news = threading.Condition()
        self._commands: list[Command] = []
        others = [host for host in plan.hosts if host.name != plan.leader]
        self.hosts = {host.name: OtherHost(host.name, host.group, time.monotonic()) for host in others}
        self._address = f"{plan.host(plan.leader).address}:{plan.ports.supervisor}"
        self._threads = ThreadPoolExecutor(2 * len(others) + 4, "headrace-machines")
        self._thread: threading.Thread | None = None
        self._answering: set[asyncio.Future[bytes]] = set()
        self._closing = False

    def start(self) -> None:
        """Opens the port. Raises HeadraceError."""
        self._thread = start_serving("headrace-port", self._run)

    async def _run(self, opened: Callable[[], None]) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        port = Port(self._tls, self._talk, MESSAGE_LIMIT)
        await port.open(self._address)
        opened()
        await self._over.wait()
        port.refuse_new()
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._answering and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await port.close()

    async def _talk(self, stream: Stream) -> None:
        while not self._closing:
            data = await stream.receive()
            answer = self._loop.run_in_executor(self._threads, self._answer, stream.peer, data)
            self._answering.add(answer)
            try:
                await stream.send(await answer)
            finally:
                self._answering.discard(answer)

    def close(self) -> None:
        """Closes the port. Who has reported by now is answered: it may be that all of it has come."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
        self._threads.shutdown()

    def order(self, orders: Mapping[str, LeaderOrder]) -> None:
        """Says what hosts have to do from now on."""
        with self._news:
            for name, order in orders.items():
                self.hosts[name].order = msgspec.structs.replace(order, leader=self._process)
            self._news.notify_all()

    def commands(self) -> list[Command]:
        """Returns the commands that have come since the last call."""
        with self._news:
            commands, self._commands = self._commands, []
        return commands

    # --- in the threads of the server --------------------------------------------------------------------------------

    def _answer(self, name: str, data: bytes) -> bytes:
        """Takes what a host says. Returns the answer. Raises Refused, ConnectionError."""
        report = decode_report(data)
        if isinstance(report, Asking):
            with self._news:
                self._commands.append(report.command)
            self._wake()
            return b""
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
        order = self._order(host, wait=not report.more and answer.sizes is None and not answer.taken)
        return encode(msgspec.structs.replace(order, sizes=answer.sizes, missing=answer.missing, taken=answer.taken))

    def _order(self, host: OtherHost, wait: bool) -> LeaderOrder:
        """Returns what a host has to do; waits for something new if there is nothing."""
        deadline = time.monotonic() + HOLD_SECONDS
        with self._news:
            while wait and not self._closing and host.order == host.told and (left := deadline - time.monotonic()) > 0:
                self._news.wait(left)
            host.told = host.order
            return host.order or LeaderOrder(self._process)

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
