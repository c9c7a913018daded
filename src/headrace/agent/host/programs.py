"""The programs of one host: each is started, logged, recorded and reported the same way, whoever asked for it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.agent.control.control_messages import Exited, Message, clip_lines
from headrace.agent.host.oom_kills import MemoryKills
from headrace.agent.host.process import Reaper, Running
from headrace.agent.host.program_environment import HostVariables
from headrace.agent.program_specs import ProgramSpec, is_service
from headrace.instance import write_failure
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.outcome import OWN_WORDS
from headrace.processes.process_table import name_of_exit
from headrace.runs import EventWriter, LogWriter, RunPaths, Stream
from headrace.runs.events import ProgramExited, ProgramStarted


class HostPrograms:
    """Starts programs, and says how they ended.

    Args:
        plan: the launch plan.
        host: name of the host.
        paths: where logs and metrics go.
        events: the host's event file.
        variables: what programs get to know.
        reaper: takes in their ends.
        tell: takes reports for the coordinator.
        note: writes a line into the agent's log.
        memory: knows whom the kernel killed for memory.
        on_lines: called with a program's stream and the lines that it wrote.

    Attributes:
        running: the last program of each stream, also when it has ended.
        on_end: called after each program but those of the data service was reported.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        host: str,
        paths: RunPaths,
        events: EventWriter,
        variables: HostVariables,
        reaper: Reaper,
        tell: Callable[[Message], None],
        note: Callable[[str], None],
        memory: MemoryKills,
        on_lines: Callable[[str, list[bytes]], None] = lambda *_: None,
    ) -> None:
        self.running: dict[str, Running] = {}
        self.on_end: Callable[[], None] = lambda: None
        self._me = plan.host(host)
        self._paths = paths
        self._events = events
        self._variables = variables
        self._reaper = reaper
        self._tell = tell
        self._note = note
        self._memory = memory
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
            reason = f"cannot start {stream}: {error.strerror or error}"
            self._note(reason)
            self._tell(Exited(stream, time.time(), exit_code=127, last_lines=(reason,)))

    def argv_of(self, spec: ProgramSpec) -> list[str]:
        """Command line of a program."""
        return self._variables.argv(spec)

    def variables_of(self, spec: ProgramSpec) -> dict[str, str]:
        """Variables of a program."""
        return self._variables.of_program(spec, self._metrics(spec.stream))

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
        argv = [self._variables.python, *argv]
        env = self._variables.of_service(stream, self._metrics(stream))
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
            write_failure(self._me.base_dir, OWN_WORDS + text)
        except OSError as error:
            self._note(f"cannot write output/failure: {error}")

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
        log = self._logs.setdefault(stream, LogWriter(self._paths.log(self._stream(stream))))
        cwd = f"{self._me.base_dir}/code"
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
        where = {"group": self._me.group, "host": self._me.name, "stream": stream}
        self._events.write(ProgramStarted(t=time.time(), pid=running.pid, argv=running.argv, **where))
        return running

    def _record_exit(self, running: Running) -> None:
        if not running.told:
            running.reason = self._memory.of_program(running.exit_code, running.signal)
        self._events.write(
            ProgramExited(
                t=time.time(),
                group=self._me.group,
                host=self._me.name,
                stream=running.stream,
                exit_code=running.exit_code,
                signal=running.signal,
                stopped=running.told,
                reason=running.reason,
            )
        )

    def report_exit(self, running: Running) -> None:
        """Tells the coordinator how a program ended, and writes output/failure when it was a failure."""
        end = exit_of(running)
        if running.exit_code != 0 and not running.told:
            how = running.reason or name_of_exit(running.exit_code, running.signal)
            self.write_failure("\n".join([f"{self._stream(running.stream)}: {how}", *end.last_lines]))
        self._tell(end)

    def _metrics(self, name: str) -> Path:
        """Returns the metric file of a program, in a directory that is there."""
        path = self._paths.metrics(self._stream(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _stream(self, name: str) -> Stream:
        return Stream(self._me.group, self._me.name, name)


def exit_of(running: Running) -> Exited:
    """Returns what the coordinator is to know of a program that has just ended."""
    return Exited(
        running.stream,
        time.time(),
        exit_code=running.exit_code,
        signal=running.signal,
        stopped=running.told,
        reason=running.reason,
        last_lines=clip_lines(list(running.tail)),
    )
