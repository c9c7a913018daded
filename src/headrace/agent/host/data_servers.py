"""The data services of one host: its feed server and its servers of tf.data.service, and what they use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from headrace.agent.control.control_messages import ExecutorLost, FeedDown, FeedUp, Orders, ServerDown, ServerUp
from headrace.agent.host.host_context import HostContext
from headrace.agent.host.process import Running
from headrace.agent.host.programs import HostPrograms
from headrace.agent.host.restarted_server import RestartedServer
from headrace.agent.program_specs import FEED, feed_socket, programs_of, service_argv
from headrace.exit_status import split_status
from headrace.instance.frameworks import DISPATCHER
from headrace.instance.launch_plan import FEED_NAME, SECRET_NAME, FeedHosts, LaunchPlan, channel_dir
from headrace.private_folders import write_atomically
from headrace.processes.process_table import TICKS, look
from headrace.record_files import decode_record
from headrace.runs import MetricWriter
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.metric_records import ServiceSecond

INTERVAL = 1.0
IMPORT_SECONDS = 180.0  # for TensorFlow to be imported: 4 s on an idle machine, a minute on a busy one with cold disks
SILENCE = 20.0  # seconds without a status line of a tf.data server, which writes one every second


class _FeedStatus(msgspec.Struct):
    """A status line of the feed server, see headrace.feed.serve."""

    event: str
    executors: int = 0
    pid: int = 0
    status: int = 0
    hung: bool = False
    reason: str = ""
    replaced: bool = False


class _TfStatus(msgspec.Struct):
    """A status line of a tf.data server, see headrace.agent.tf_data_server."""

    event: str
    version: str = ""
    reason: str = ""
    tasks: int | None = None
    workers: int | None = None
    sent: int | None = None


_feed_status = msgspec.json.Decoder(_FeedStatus)
_tf_status = msgspec.json.Decoder(_TfStatus)


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
        self._last_status: dict[str, _TfStatus] = {}
        self._metrics: dict[str, MetricWriter] = {}
        for spec in programs_of(context.plan, context.host):
            if spec.is_feed:
                self._servers[FEED] = self._feed_server()
            elif spec.is_service:
                self._metrics[spec.stream] = MetricWriter(context.paths.metrics(context.stream(spec.stream)))
                self._servers[spec.stream] = self._tf_server(spec.stream)

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
            server, status = self._servers[stream], self._last_status.get(stream)
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
                        tasks=status.tasks if status else None,
                        workers=status.workers if status else None,
                        sent=status.sent if status else None,
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

    def _feed_server(self) -> RestartedServer:
        start, limit = self._starter(FEED), self._context.plan.start_timeout
        return RestartedServer("feed server", start, self._take_feed, self._feed_down, limit)

    def _starter(self, stream: str) -> Callable[[int, Callable[[], None]], Running]:
        def start(status_fd: int, on_end: Callable[[], None]) -> Running:
            self._last_status.pop(stream, None)
            argv = service_argv(
                self._context.plan, self._context.host, stream, self._folder, self._context.secret, status_fd
            )
            return self._programs.launch_service(stream, argv, status_fd, on_end)

        return start

    def _take_feed(self, line: bytes) -> None:
        status = decode_record(_feed_status, line)
        if status.event == "ready":
            self._servers[FEED].ready()
            self._context.report(FeedUp(status.executors))
        elif status.event == "executor_lost":
            if status.hung:
                cause = Cause(CauseKind.SERVER_FAILED, status.reason)
            else:
                cause = self._context.memory.of_executor(*split_status(status.status))
            self._context.report(ExecutorLost(status.pid, cause, status.replaced))

    def _feed_down(self, cause: Cause, gone: bool) -> None:
        self._context.report(FeedDown(cause, gone))

    def _tf_server(self, stream: str) -> RestartedServer:
        def take(line: bytes) -> None:
            status = decode_record(_tf_status, line)
            if status.event == "ready":
                self._servers[stream].ready()
                self._context.report(ServerUp(stream, status.version))
            elif status.event == "failed":
                self._servers[stream].refuse(status.reason)
            if status.sent is not None:
                self._context.activity.sent(stream, status.sent)
            self._last_status[stream] = status

        def down(cause: Cause, gone: bool) -> None:
            self._context.report(ServerDown(stream, cause, gone, self._servers[stream].refused))

        limit = max(IMPORT_SECONDS, self._context.plan.start_timeout)
        return RestartedServer(stream, self._starter(stream), take, down, limit, SILENCE)


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
