"""The programs of one host: each is started, logged, recorded, watched for life and reported in the same way."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from headrace.agent.control.control_messages import SHOWN_LINES, Demand, Exited, Message, clip_lines
from headrace.agent.host.oom_kills import MemoryKills
from headrace.agent.host.process import Reaper, Running
from headrace.agent.host.program_environment import HostVariables
from headrace.agent.metrics.counters import Activity
from headrace.agent.program_specs import ProgramSpec, is_service
from headrace.instance import write_failure
from headrace.instance.launch_plan import HostPlan, LaunchPlan
from headrace.record_files import decode_record, open_record
from headrace.runs import CauseKind, EventWriter, LoaderSecond, LogWriter, RunPaths, Stream
from headrace.runs.events import FailureWritten, ProgramExited, ProgramStarted


@dataclass(frozen=True)
class HostContext:
    """What every part of one host's agent uses: the plan, the host's identity, its record, its reports.

    Attributes:
        plan: the launch plan.
        host: name of this host.
        secret: the job's secret.
        paths: the run's directory, as this host sees it.
        events: the host's event file.
        variables: the environment of the host's programs.
        report: takes reports for the coordinator.
        memory: knows which processes the kernel killed for memory.
        activity: when the host last worked.
    """

    plan: LaunchPlan
    host: str
    secret: bytes
    paths: RunPaths
    events: EventWriter
    variables: HostVariables
    report: Callable[[Message], None]
    memory: MemoryKills
    activity: Activity = field(default_factory=Activity)

    @cached_property
    def me(self) -> HostPlan:
        """This host in the plan."""
        return self.plan.host(self.host)

    def stream(self, name: str) -> Stream:
        """Returns the stream of one of the host's programs, or of what the agent itself writes."""
        return Stream(self.me.group, self.host, name)


_log = logging.getLogger(__name__)


class HostPrograms:
    """Starts programs, records them and reports their ends.

    Args:
        context: the host's.
        reaper: takes in their ends.
        on_lines: called with a program's stream and the lines that it wrote.

    Attributes:
        running: the last program of each stream, also when it has ended.
        on_end: called after each program but those of the data service was reported.
    """

    def __init__(
        self,
        context: HostContext,
        reaper: Reaper,
        on_lines: Callable[[str, list[bytes]], None] = lambda *_: None,
    ) -> None:
        self.running: dict[str, Running] = {}
        self.on_end: Callable[[], None] = lambda: None
        self._context = context
        self._reaper = reaper
        self._on_lines = on_lines
        self._logs: dict[str, LogWriter] = {}

    def start(self, spec: ProgramSpec) -> None:
        """Starts a script or rank; that it cannot be started is reported as its end."""
        self.start_by(spec.stream, lambda: self.launch(spec.stream, self.argv_of(spec), self.variables_of(spec)))

    def start_by(self, stream: str, start: Callable[[], object]) -> None:
        """Calls what starts a program; that it cannot be started is reported as its end."""
        try:
            start()
        except OSError as error:
            reason = f"error: cannot start {error.filename or stream}: {error.strerror or error}"
            _log.warning("%s", reason)
            self._context.report(Exited(stream, time.time(), exit_code=127, last_lines=(reason,)))

    def argv_of(self, spec: ProgramSpec) -> list[str]:
        """Command line of a program."""
        return self._context.variables.argv(spec)

    def variables_of(self, spec: ProgramSpec) -> dict[str, str]:
        """Variables of a program."""
        return self._context.variables.of_program(spec, self._metrics(spec.stream))

    def launch(
        self,
        stream: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cpus: Sequence[int] = (),
        on_end: Callable[[Running], None] = lambda _: None,
        report: bool = True,
    ) -> Running:
        """Starts a program; its end is recorded and reported, then `on_end` is called. Raises OSError.

        Args:
            stream, argv, env, cpus: see `Running`.
            on_end: called with the program when it has ended.
            report: whether the coordinator is told of the end.
        """
        running = self._launch(stream, argv, env, cpus=cpus)

        def ended() -> None:
            self._record_exit(running)
            if report:
                self.report_exit(running)
            on_end(running)
            self.on_end()

        self._reaper.watch(running, ended)
        return running

    def launch_service(self, stream: str, argv: Sequence[str], status_fd: int, on_end: Callable[[], None]) -> Running:
        """Starts a server of the data service in the group's Python; it reports itself. Raises OSError."""
        argv = [self._context.variables.python, *argv]
        env = self._context.variables.of_service(stream, self._metrics(stream))
        running = self._launch(stream, argv, env, fds=(status_fd,))

        def ended() -> None:
            self._record_exit(running)
            on_end()

        self._reaper.watch(running, ended)
        return running

    def entry_running(self) -> list[Running]:
        """Programs that run, without the data service."""
        return [each for each in self.running.values() if not is_service(each.stream) and not each.ended.is_set()]

    def write_failure(self, text: str) -> None:
        """Writes output/failure, unless the user's program has written one."""
        try:
            me = self._context.me
            if written := write_failure(me.base_dir, f"headrace: {text}"):
                self._context.events.write(FailureWritten(t=time.time(), group=me.group, host=me.name, text=written))
        except OSError as error:
            _log.warning("cannot write output/failure: %s", error)

    def close_pipes(self) -> None:
        """Closes the pipes of all programs; what their descendants write from here on is lost."""
        for running in self.running.values():
            running.close()

    def close_logs(self) -> None:
        """Closes the logs."""
        for log in self._logs.values():
            log.close()

    def _launch(
        self,
        stream: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cpus: Sequence[int] = (),
        fds: Sequence[int] = (),
    ) -> Running:
        log = self._logs.setdefault(stream, LogWriter(self._context.paths.log(self._context.stream(stream))))
        cwd = f"{self._context.me.base_dir}/code"
        running = Running(
            stream,
            argv=argv,
            env=env,
            cwd=cwd,
            log=log,
            pass_fds=fds,
            cpus=cpus,
            on_lines=functools.partial(self._on_lines, stream),
        )
        self.running[stream] = running
        _log.debug("%s: process %d: %s", stream, running.pid, shlex.join(argv))
        where = {"group": self._context.me.group, "host": self._context.me.name, "stream": stream}
        self._context.events.write(ProgramStarted(t=time.time(), pid=running.pid, argv=running.argv, **where))
        return running

    def _record_exit(self, running: Running) -> None:
        if not running.told_to_stop:
            running.cause = self._context.memory.of_program(running.exit_code, running.signal)
        _log.debug("%s %s", running.stream, running.cause)
        log, now = self._logs[running.stream], time.time()
        self._context.events.write_after(
            lambda: ProgramExited(
                t=now,
                group=self._context.me.group,
                host=self._context.me.name,
                stream=running.stream,
                exit_code=running.exit_code,
                signal=running.signal,
                stopped=running.told_to_stop,
                reason="" if running.cause.kind is CauseKind.PROGRAM_EXITED else running.cause.reason,
                lost_lines=log.lost,
            )
        )

    def report_exit(self, running: Running) -> None:
        """Tells the coordinator how a program ended, and writes output/failure when it was a failure."""
        end = exit_of(running)
        if running.exit_code != 0 and not running.told_to_stop:
            place = self._context.stream(running.stream)
            self.write_failure("\n".join([f"{place}: {running.cause}", *end.last_lines[-SHOWN_LINES:]]))
        self._context.report(end)

    def _metrics(self, name: str) -> Path:
        """Returns the metric file of a program, in a directory that is there."""
        path = self._context.paths.metrics(self._context.stream(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def exit_of(running: Running) -> Exited:
    """Returns what the coordinator is to know of a program that has just ended."""
    return Exited(
        running.stream,
        time.time(),
        exit_code=running.exit_code,
        signal=running.signal,
        stopped=running.told_to_stop,
        cause=running.cause,
        last_lines=clip_lines(list(running.tail)),
    )


POLL = 0.1
_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def listens(address: str, port: int, tables: Iterable[str] = _TABLES) -> bool:
    """Tells whether something listens on a TCP port of an address, or of all addresses.

    It looks into the kernel's tables and does not connect: a program may count its callers.

    Args:
        address: an IPv4 address of this host.
        port: the port.
        tables: files in the form of /proc/net/tcp.
    """
    own = "".join(f"{int(octet):02X}" for octet in reversed(address.split(".")))
    wanted = {own, "0" * 8, "0" * 32, f"{'0' * 16}FFFF0000{own}", f"{'0' * 16}FFFF0000{'0' * 8}"}
    for table in tables:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in lines:
            place, _, state = line.split()[1:4]
            host, _, number = place.partition(":")
            if state == _LISTEN and int(number, 16) == port and host in wanted:
                return True
    return False


async def until_listens(address: str, port: int) -> None:
    """Waits until `listens`, or until cancelled: the coordinator limits the time."""
    while not listens(address, port):
        await asyncio.sleep(POLL)


def quiet_times(running: Mapping[str, Running], files: Callable[[str], Iterable[Path]]) -> dict[str, float]:
    """Returns for how many seconds each program that runs has written nothing.

    Args:
        running: the programs of this host by stream.
        files: returns the files to which a program, or the agent for it, appends.
    """
    now, clock = time.monotonic(), time.time()
    quiet = {}
    for stream, program in running.items():
        if not program.ended.is_set():
            ages = [clock - at for path in files(stream) if (at := _modified(path)) is not None]
            quiet[stream] = max(0.0, min([now - program.heard, *ages]))
    return quiet


def _modified(path: Path) -> float | None:
    try:
        return os.stat(path).st_mtime  # noqa: PTH116  (it runs twice a second)
    except OSError:
        return None


TAIL = 4096  # bytes, several lines
FRESH_SECONDS = 10.0

_decoder = msgspec.json.Decoder(LoaderSecond)


def latest_demand(path: Path) -> Demand | None:
    """Returns what a rank's loaders told last; None when that is old, or they did not tell.

    Args:
        path: its metric file, which it appends to.
    """
    try:
        with os.fdopen(open_record(path), "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().split(b"\n")[1:-1]  # the first may be cut off, the last be under way
    except OSError:  # not there yet, or none that a loader has written
        return None
    for line in reversed(lines):
        try:
            second = decode_record(_decoder, line)
        except msgspec.DecodeError:
            continue  # another kind of record
        if second.needed is None or not second.steps:
            continue
        fresh = time.time() - second.t < FRESH_SECONDS
        stall = second.wait / second.step if second.step else 0.0
        return Demand(second.needed, stall, second.link or 0.0) if fresh else None
    return None
