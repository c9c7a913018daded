"""The programs of one host: each is started, logged, recorded and reported in the same way."""

from __future__ import annotations

import functools
import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.agent.control.control_messages import SHOWN_LINES, Exited, clip_lines
from headrace.agent.host.host_context import HostContext
from headrace.agent.host.process import Reaper, Running
from headrace.agent.program_specs import ProgramSpec, is_service
from headrace.instance import write_failure
from headrace.runs import CauseKind, LogWriter
from headrace.runs.events import FailureWritten, ProgramExited, ProgramStarted

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
        self._context.events.write(
            ProgramExited(
                t=time.time(),
                group=self._context.me.group,
                host=self._context.me.name,
                stream=running.stream,
                exit_code=running.exit_code,
                signal=running.signal,
                stopped=running.told_to_stop,
                reason="" if running.cause.kind is CauseKind.PROGRAM_EXITED else running.cause.reason,
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
