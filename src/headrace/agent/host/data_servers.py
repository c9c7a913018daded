"""The data services of one host: its feed server and its servers of tf.data.service, and what they use.

A server that dies is started again `RESTARTS` times, after a short pause that grows. One that was ready for
`FORGIVEN_AFTER` seconds has its budget back. When the budget is used up the server is gone for good. A server that
does nothing before it is ready is killed, and so is one that reports every second and has fallen silent: both count as
a death. A start that goes on is waited for, however little of a busy machine it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from functools import partial

import msgspec

from headrace.agent.control.control_messages import ExecutorLost, Orders, ServerDown, ServerUp
from headrace.agent.host.process import Running
from headrace.agent.host.programs import HostContext, HostPrograms
from headrace.agent.program_specs import FEED, feed_socket, programs_of, service_argv
from headrace.exit_status import split_status
from headrace.instance.frameworks import DISPATCHER
from headrace.instance.launch_plan import FEED_NAME, SECRET_NAME, FeedHosts, LaunchPlan, channel_dir
from headrace.private_folders import write_atomically
from headrace.processes.process_table import TICKS, Idling, RunningClock, look
from headrace.record_files import decode_record
from headrace.runs import MetricWriter
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.metric_records import ServiceSecond

_log = logging.getLogger(__name__)

PAUSES = (0.1, 0.5, 1.0)  # seconds before the first, second and third new start
RESTARTS = len(PAUSES)
FORGIVEN_AFTER = 60.0
LOOK_SECONDS = 1.0  # between two looks at one that starts
COUNTED = 2.0  # a longer time between two looks is a pause of this process, which is nobody's silence
_LINE_LIMIT = 1 << 16


class RestartedServer:
    """One server of a host, which is started again when it dies.

    Args:
        name: what it is called in messages.
        start: starts it; gets the descriptor for its status lines and a function to call when it has ended.
        take: takes a status line of the server; raises ValueError for one that it does not understand.
        down: called when the server ended unasked, with the reason and whether it is gone for good.
        ready_within: seconds without CPU time, or of CPU time, after which a server that is not ready is killed.
        silent_after: seconds without a status line after which a server that was ready is killed; 0 means never.

    Attributes:
        running: its process; None when none could be started.
        starts: how often it was started.
        refused: the server reported that it cannot run here.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[int, Callable[[], None]], Running],
        take: Callable[[bytes], None],
        down: Callable[[Cause, bool], None],
        ready_within: float,
        silent_after: float = 0.0,
    ) -> None:
        self.running: Running | None = None
        self.starts = 0
        self._name = name
        self._start = start
        self._take = take
        self._down = down
        self._ready_within = ready_within
        self._silent_after = silent_after
        self._loop = asyncio.get_running_loop()
        self._restarts = 0
        self._ready_since: float | None = None
        self._clock = RunningClock(COUNTED)
        self._heard = 0.0
        self.refused = False
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._status = -1
        self._rest = b""
        self._why: Cause | None = None  # it was killed, or says itself that it cannot run

    def start(self) -> None:
        """Starts the server."""
        self.starts += 1
        self._ready_since = None
        self._rest = b""
        self._why = None
        end = -1
        try:
            self._status, end = os.pipe()
            os.set_blocking(self._status, False)
            self.running = self._start(end, self._ended)
        except OSError as error:
            self.running = None
            self._died(Cause(CauseKind.SERVER_FAILED, f"could not be started: {error.strerror or error}"))
            return
        finally:
            if end >= 0:
                os.close(end)
        self._loop.add_reader(self._status, self._read)
        self._await_ready(Idling(self.running.pid), time.monotonic())

    def _await_ready(self, idling: Idling, begun: float, told: bool = False) -> None:
        late = idling.overdue(self._ready_within)
        if late:
            self._kill(late)
            return
        waited = time.monotonic() - begun
        if waited > self._ready_within and not told:
            told = True
            text = (
                "%s has been starting for %.0f s, and has got %.1f s of CPU time: the machine is busy; it is waited for"
            )
            _log.warning(text, self._name, waited, idling.used)
        pause = min(LOOK_SECONDS, self._ready_within / 4)
        self._timer = self._loop.call_later(pause, self._await_ready, idling, begun, told)

    def ready(self) -> None:
        """Takes in that the server serves."""
        self._cancel_timer()
        self._ready_since = time.monotonic()
        if self._silent_after:
            self._listen(0)

    def refuse(self, reason: str) -> None:
        """Takes in that the server cannot run here, and why: it is not started again."""
        self.refused = True
        self._why = Cause(CauseKind.DATA_SERVICE_REFUSED, reason)

    def stop(self) -> None:
        """Marks it as stopping: its end is expected, and it is not started again."""
        self._stopping = True
        self._cancel_timer()

    def _read(self) -> None:
        self._heard = self._clock()
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._status, _LINE_LIMIT)
            if not data:
                self._close_status()
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_LINE_LIMIT:]
        for line in lines:
            try:
                self._take(line)
            except ValueError as error:
                _log.warning("%s: status line %r: %s", self._name, line[:200], error)

    def _listen(self, missed: int) -> None:
        """Kills a silent server. It takes two looks, because a late one may be this process's own fault."""
        missed = missed + 1 if self._clock() - self._heard > self._silent_after else 0
        if missed > 1:
            self._kill(f"was silent for {self._silent_after:g} s")
        else:
            self._timer = self._loop.call_later(1.0, self._listen, missed)

    def _kill(self, reason: str) -> None:
        self._timer = None
        if self.running is not None:
            self._why = Cause(CauseKind.SERVER_FAILED, reason)
            self.running.kill()

    def _ended(self) -> None:
        if self._status >= 0:
            self._read()
        assert self.running is not None
        self._died(self._why or self.running.cause)

    def _died(self, cause: Cause) -> None:
        self._cancel_timer()
        self._close_status()
        if self._stopping:
            return
        if self._ready_since is not None and time.monotonic() - self._ready_since > FORGIVEN_AFTER:
            self._restarts = 0
        gone = self.refused or self._restarts >= RESTARTS
        self._down(cause, gone)
        if self.refused:
            _log.warning("%s %s; it is given up", self._name, cause)
        elif gone:
            _log.warning("%s %s; it was started %d times and is given up", self._name, cause, RESTARTS + 1)
        else:
            _log.warning("%s %s; starting it again in %g s", self._name, cause, PAUSES[self._restarts])
            self._timer = self._loop.call_later(PAUSES[self._restarts], self._again)
            self._restarts += 1

    def _again(self) -> None:
        if not self._stopping:
            self.start()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_status(self) -> None:
        if self._status >= 0:
            self._loop.remove_reader(self._status)
            os.close(self._status)
            self._status = -1


INTERVAL = 1.0
IMPORT_SECONDS = 180.0  # for TensorFlow to be imported: 4 s on an idle machine, a minute on a busy one with cold disks
SILENCE = 20.0  # seconds without a status line of a tf.data server, which writes one every second


class _Status(msgspec.Struct):
    """A status line of a server, see headrace.feed.serve and headrace.agent.tf_data_server."""

    event: str = ""
    reason: str = ""
    executors: int = 0
    pid: int = 0
    status: int = 0
    hung: bool = False
    replaced: bool = False
    version: str = ""
    tasks: int | None = None
    workers: int | None = None
    sent: int | None = None


_decoder = msgspec.json.Decoder(_Status)


class HostServices:
    """Starts the data servers of a host and keeps them running.

    Args:
        context: the host's.
        programs: starts them.
    """

    def __init__(self, context: HostContext, programs: HostPrograms) -> None:
        self._context = context
        self._programs = programs
        self._folder = context.variables.scratch or context.me.base_dir  # where a dispatcher keeps its state
        self._servers: dict[str, RestartedServer] = {}
        self._last_status: dict[str, _Status] = {}
        self._metrics: dict[str, MetricWriter] = {}
        for spec in programs_of(context.plan, context.host):
            if spec.is_service:
                self._servers[spec.stream] = self._server(spec.stream)
            if spec.is_service and spec.stream != FEED:
                self._metrics[spec.stream] = MetricWriter(context.paths.metrics(context.stream(spec.stream)))

    def start(self) -> None:
        """Starts all of them."""
        for server in self._servers.values():
            server.start()

    def stop(self) -> None:
        """Marks them as stopping: their ends are expected, and they are not started again."""
        for server in self._servers.values():
            server.stop()

    def running(self) -> list[Running]:
        """Returns those that run."""
        each = (server.running for server in self._servers.values())
        return [running for running in each if running is not None and not running.ended.is_set()]

    def sample(self) -> None:
        """Writes what each tf.data server uses."""
        for stream, writer in self._metrics.items():
            server, status = self._servers[stream], self._last_status.get(stream, _Status())
            process = look(server.running.pid) if server.running and not server.running.ended.is_set() else None
            if process is not None:
                writer.write(
                    ServiceSecond(
                        t=time.time(),
                        stream=stream,
                        role="dispatcher" if stream == DISPATCHER else "worker",
                        cpu=process.ticks / TICKS,
                        rss=process.resident,
                        restarts=server.starts - 1,
                        tasks=status.tasks,
                        workers=status.workers,
                        sent=status.sent,
                    )
                )

    async def watch(self) -> None:
        """Samples until cancelled."""
        while self._metrics:
            self.sample()
            await asyncio.sleep(INTERVAL)

    def close(self) -> None:
        """Closes the metric files."""
        for writer in self._metrics.values():
            writer.close()

    def _server(self, stream: str) -> RestartedServer:
        name, limit, silence = "feed server", self._context.plan.start_timeout, 0.0
        if stream != FEED:
            name, limit, silence = stream, max(IMPORT_SECONDS, limit), SILENCE
        start, take, down = partial(self._start, stream), partial(self._take, stream), partial(self._down, stream)
        return RestartedServer(name, start, take, down, limit, silence)

    def _start(self, stream: str, status_fd: int, on_end: Callable[[], None]) -> Running:
        self._last_status.pop(stream, None)
        context = self._context
        argv = service_argv(context.plan, context.host, stream, self._folder, context.secret, status_fd)
        return self._programs.launch_service(stream, argv, status_fd, on_end)

    def _take(self, stream: str, line: bytes) -> None:
        status = self._last_status[stream] = decode_record(_decoder, line)
        if status.event == "ready":
            self._servers[stream].ready()
            self._context.report(ServerUp(stream, status.version, status.executors))
        elif status.event == "failed":
            self._servers[stream].refuse(status.reason)
        elif status.event == "executor_lost":
            if status.hung:
                cause = Cause(CauseKind.SERVER_FAILED, status.reason)
            else:
                cause = self._context.memory.of_executor(*split_status(status.status))
            self._context.report(ExecutorLost(status.pid, cause, status.replaced))
        if status.sent is not None:
            self._context.activity.sent(stream, status.sent)

    def _down(self, stream: str, cause: Cause, gone: bool) -> None:
        self._context.report(ServerDown(stream, cause, gone, self._servers[stream].refused))


def feed_hosts_for(plan: LaunchPlan, host: str, orders: Orders, secret: bytes) -> FeedHosts:
    """Returns the content of a host's feed.json: the coordinator's list, its own feed server by its Unix socket.

    Args:
        plan: the launch plan.
        host: the host whose programs will read it.
        orders: the coordinator's.
        secret: the job's secret.
    """
    own = f"unix:{feed_socket(plan, host, secret)}"
    return FeedHosts(
        generation=orders.feed_generation,
        secret_file=str(channel_dir(plan.host(host).base_dir) / SECRET_NAME),
        hosts=tuple(msgspec.structs.replace(each, address=own) if each.host == host else each for each in orders.feed),
    )


def write_feed_file(plan: LaunchPlan, host: str, orders: Orders, secret: bytes) -> None:
    """Rewrites a host's feed.json. Raises OSError."""
    path = channel_dir(plan.host(host).base_dir) / FEED_NAME
    write_atomically(path, msgspec.json.format(msgspec.json.encode(feed_hosts_for(plan, host, orders, secret))))
