"""The agent's end of the control connection: keeps it up, delivers every report once, hands on the orders.

A report stays in a queue until the coordinator has acknowledged it; a new connection begins with the whole
queue. A heartbeat is sent when there is nothing to report. When the coordinator is silent for too long, it is lost.
Only time in which this agent runs counts: a job that was stopped or suspended as a whole goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable

from headrace.agent.control.control_messages import (
    SILENCE_LIMIT,
    Heartbeat,
    HostEnded,
    Joining,
    Message,
    Orders,
    Refused,
    Report,
    decode_orders,
    encode,
)
from headrace.agent.control.control_transport import HANDSHAKE_SECONDS, Stream, open_stream
from headrace.instance.launch_plan import Certificates, HostPlan
from headrace.processes.process_table import RunningClock

_log = logging.getLogger(__name__)

HEARTBEAT = 1.0
RETRY, RETRY_LATER = 0.05, 0.5  # pauses between tries: the first, and the longest
LOOK = 0.25  # between two looks at the clock
COUNTED = 1.0  # a longer time between them is a pause of this process


class CoordinatorLost(Exception):
    """The coordinator was never reached, or is silent for too long."""


class Client:
    """Talks to the coordinator.

    Args:
        leader: host that the coordinator stands for, whose certificate it shows.
        address: ``ip:port`` of the coordinator.
        tls: certificates of this agent's host.
        start_timeout: seconds within which the coordinator must have answered for the first time.
        obey: called with all orders that come.
        heartbeat: makes what is sent when there is nothing to report.
        attempt: which attempt of the job this is, from 1.

    Attributes:
        answered: whether the coordinator has ever answered.
    """

    def __init__(
        self,
        *,
        leader: HostPlan,
        address: str,
        tls: Certificates,
        start_timeout: float,
        obey: Callable[[Orders], None],
        heartbeat: Callable[[], Heartbeat] = Heartbeat,
        attempt: int = 1,
    ) -> None:
        self._tls = tls
        self._heartbeat = heartbeat
        self._address = address
        self._leader = leader
        self._process = os.urandom(16)
        self._attempt = attempt
        self._start_timeout = start_timeout
        self._obey = obey
        self._queue: deque[Report] = deque()
        self._number = 0
        self._news = asyncio.Event()
        self.answered = False
        self._leaving = False
        self._clock = RunningClock(COUNTED)
        self._heard = self._clock()

    def report(self, message: Message) -> None:
        """Queues a report."""
        self._number += 1
        self._leaving = isinstance(message, HostEnded)
        self._queue.append(Report(self._number, message))
        self._news.set()

    @property
    def delivered(self) -> bool:
        """Whether the coordinator has taken in every report."""
        return not self._queue

    async def run(self) -> None:
        """Talks until cancelled. Raises CoordinatorLost."""
        self._heard = self._clock()
        pause = RETRY
        while True:
            try:
                seconds = max(RETRY, min(HANDSHAKE_SECONDS, self._patience()))
                async with open_stream(self._address, self._leader.name, self._tls, seconds) as stream:
                    await stream.send(encode(Joining(self._attempt, self._process)))
                    pause = RETRY
                    work = (self._receive(stream), self._look(), self._send(stream))
                    receiving, looking, _ = tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
                    try:
                        await asyncio.wait({receiving, looking}, return_when=asyncio.FIRST_COMPLETED)
                        (receiving if receiving.done() else looking).result()
                    finally:
                        for task in tasks:
                            task.cancel()
                        await asyncio.gather(*tasks, return_exceptions=True)
            except (ConnectionError, Refused) as error:
                if not (self._leaving and self.delivered):  # else the coordinator closed it in order
                    _log.info("control connection to %s: %s", self._address, error)
            if self._patience() <= 0:
                raise CoordinatorLost(self._complaint())
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_LATER)

    def _limit(self) -> float:
        return SILENCE_LIMIT if self.answered else self._start_timeout

    def _patience(self) -> float:
        return self._heard + self._limit() - self._clock()

    def _complaint(self) -> str:
        who = f"the coordinator on {self._leader.group}/{self._leader.name} ({self._address})"
        if self.answered:
            return f"{who} is silent for {SILENCE_LIMIT:g} s"
        return f"{who} did not answer within {self._start_timeout:g} s"

    async def _receive(self, stream: Stream) -> None:
        while True:
            orders = decode_orders(await stream.receive())
            if not self.answered:
                _log.debug("the coordinator on %s answers", self._leader.name)
            self.answered = True
            self._heard = self._clock()
            while self._queue and self._queue[0].number <= orders.ack:
                self._queue.popleft()
            self._obey(orders)

    async def _look(self) -> None:
        """Looks at the clock, which counts between looks. Raises CoordinatorLost.

        While the connection stands, a coordinator that has answered before is only stopped, and may go on.
        """
        while self._patience() > 0 or self.answered:
            await asyncio.sleep(LOOK)
        raise CoordinatorLost(self._complaint())

    async def _send(self, stream: Stream) -> None:
        sent = 0
        while True:
            self._news.clear()
            fresh = [report for report in self._queue if report.number > sent]
            for report in fresh or [Report(0, self._heartbeat())]:
                await stream.send(encode(report))
                sent = max(sent, report.number)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), HEARTBEAT)
