"""The leader's end of the talk between the supervisors of a run: what is known of every other host, and its answers.

A report is taken as a whole before it is answered: its pieces are in the leader's directory then. The answer waits for
a moment when nothing else is wanted, so that orders reach a host at once and an idle one asks twice a second. A caller
is the host whose certificate it shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.agent.control.control_messages import Refused
from headrace.hosting.machines.host_record import end_lines, sizes_of, take
from headrace.hosting.machines.host_tree import all_has_come, forget_made, put
from headrace.hosting.machines.machine_messages import (
    DOUBT_SECONDS,
    HOLD_SECONDS,
    SILENCE_SECONDS,
    HostReport,
    LeaderOrder,
    Phase,
    decode_report,
    encode,
)
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import RunPaths
from headrace.runs.record_pieces import PieceMissing

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
    """See the module, and `headrace.agent.control.control_transport.Supervisors`.

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
