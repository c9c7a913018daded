"""The agent's part in MPI: it runs mpirun, its daemons and the ranks of its host.

Each is a program of the agent: tied to it, watched, with a log of its own (``mpirun``, ``orted``, the rank's number).
mpirun and its daemons reach a rank only through its proxy, so a rank is ended by its agent, as every program is:

* When the job stops, ranks get SIGTERM and the job's grace. mpirun and its daemons usually end by themselves after the
  ranks, and are ended otherwise.
* A proxy of a rank that is gone without a SIGTERM before was killed by something other than mpirun, and is reported as
  the cause: mpirun would only complain of a network that does not work. The same holds for the proxy of a daemon,
  unless mpirun itself is ending.
* When mpirun ends a rank because another one failed, the rank gets a moment first: the one that called MPI_Abort is
  among them and still ends with its own exit code. After that it counts as told to stop, and is not the first cause.

An mpirun that has started no rank within the plan's start_timeout is killed with a line that says so. A daemon that is
stopped (SIGSTOP) is found before, by its own host's agent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import cast

from headrace.agent.control.control_messages import (
    DaemonEnded,
    DaemonOrder,
    DaemonWanted,
    Exited,
    Orders,
)
from headrace.agent.host.process import Running
from headrace.agent.host.programs import HostContext, HostPrograms
from headrace.agent.launchers.launched_ranks import END_REQUESTS, Caller, HostRanks
from headrace.agent.launchers.mpi_command import (
    check_daemon,
    daemon_name,
    expand,
    horovod_variables,
    launcher_variables,
    machine_variables,
    parse_daemon,
    rank_of,
    rank_variables,
)
from headrace.agent.program_specs import MPIRUN, ProgramSpec
from headrace.child_python import UTF8, module_command
from headrace.instance.frameworks import world_size
from headrace.instance.launch_plan import DistributionPlan
from headrace.processes.process_table import is_stopped
from headrace.runs import Cause, CauseKind

_log = logging.getLogger(__name__)

ABORT_PATIENCE = 0.3  # seconds for a rank that calls MPI_Abort to end with its own exit code
ENDING_SECONDS = 0.2  # an mpirun that has killed the proxies of its daemons is gone after that
CULPRIT_SECONDS = 2.0  # after start_timeout, for a daemon that is to blame to be found before mpirun is blamed


class MpiHost:
    """See the module.

    Args:
        context: the host's.
        world: its MPI world.
        programs: starts programs.

    Attributes:
        ranks: the ranks of this host.
    """

    def __init__(self, context: HostContext, world: DistributionPlan, programs: HostPrograms) -> None:
        self.ranks = HostRanks(context, programs, self._serve)
        self._plan = context.plan
        self._me = context.me
        self._world = world
        self._programs = programs
        self._report = context.report
        self._scratch = context.variables.scratch
        self._wanted: dict[int, Caller] = {}
        self._number = 0
        self._started: set[tuple[str, int]] = set()
        self._launcher: dict[str, str] = {}

    def start_mpirun(self) -> None:
        """Starts mpirun; the agent of the world's first host does."""
        argv = module_command("headrace.agent.launchers.mpi_command", self._me.name, options=UTF8)
        mpirun = self._programs.launch(MPIRUN, argv, self._launcher_variables())
        self._check_later(mpirun, CULPRIT_SECONDS)

    def obey(self, orders: Orders) -> None:
        """Starts the daemons that are ordered, and tells mpirun which of its own have ended."""
        for order in orders.daemons:
            if (order.asker, order.number) not in self._started:
                self._started.add((order.asker, order.number))
                self._start_daemon(order)
        for end in orders.daemon_ends:
            caller = self._wanted.pop(end.number, None)
            if caller is not None:
                self._answer(caller, end)

    # --- what proxies ask for ------------------------------------------------------------------------------------

    def _serve(self, request: Mapping[str, object], caller: Caller) -> None:
        match request:
            case {"kind": "rank", "runner": list(runner), "variables": dict(seen), "cpus": list(cpus)}:
                self._start_rank(caller, [str(word) for word in runner], cast("dict[str, str]", seen), cpus)
            case {"kind": "daemon", "host": str(host), "command": list(command)}:
                self._want_daemon(caller, host, [str(word) for word in command])
            case _:
                raise ValueError("not a request")

    def _start_rank(self, caller: Caller, runner: list[str], seen: dict[str, str], cpus: Sequence[int]) -> None:
        rank, _ = rank_of(seen)
        stream = str(rank)
        self.ranks.check_free(stream)
        env = rank_variables(self._programs.variables_of(ProgramSpec(stream)), self._launcher, seen)
        ranks = world_size(self._plan, self._me.name)
        crowded = bool(self._scratch) and ranks > (os.cpu_count() or 1)
        env = machine_variables(self._scratch, crowded) | env
        if self._world.horovod:
            hosts = self._plan.hosts_of(self._world)
            env |= horovod_variables(seen, self._me.name, hosts.index(self._me.name), len(hosts))
        argv = self._programs.argv_of(ProgramSpec(stream))
        if runner and Path(argv[0]).name.startswith("python"):
            argv = [argv[0], "-m", *runner, *argv[1:]]
        bound = sorted(set(cpus)) != sorted(os.sched_getaffinity(0))
        running = self.ranks.launch(
            stream, argv, env, lambda rank: caller.answer(rank.exit_code, rank.signal), cpus=cpus if bound else ()
        )
        asked: list[int] = []

        def signalled(number: int) -> None:
            asked.append(number)
            self._rank_signalled(running, number)

        caller.on_signal = signalled
        caller.on_gone = lambda: self._proxy_gone(running, bool(set(asked) & set(END_REQUESTS)))

    def _rank_signalled(self, running: Running, number: int) -> None:
        if number not in END_REQUESTS:
            running.forward(number)
        elif not self.ranks.stopping:
            asyncio.get_running_loop().call_later(ABORT_PATIENCE, self._terminate, running)

    def _terminate(self, running: Running) -> None:
        if not self.ranks.stopping and not running.told_to_stop:
            running.terminate()

    def _proxy_gone(self, running: Running, asked: bool) -> None:
        """The proxy has ended, so mpirun counts the rank as ended. `asked`: mpirun had wanted that."""
        if not (asked or running.told_to_stop or self.ranks.stopping):
            self._blame(running.stream, "the process that stands for it at mpirun", time.time())
        self._terminate(running)
        asyncio.get_running_loop().call_later(self._plan.stop_grace, running.kill)

    def _want_daemon(self, caller: Caller, host: str, command: list[str]) -> None:
        target = next((other.name for other in self._plan.hosts if host in (other.name, other.address)), host)
        argv, variables = parse_daemon(command)
        self._number += 1
        self._wanted[self._number] = caller
        caller.on_gone = lambda: self._daemon_proxy_gone(target, PurePath(argv[0]).name)
        self._report(DaemonWanted(self._number, target, tuple(argv), variables))

    def _daemon_proxy_gone(self, host: str, daemon: str) -> None:
        """What mpirun takes for a daemon has ended, and the daemon has not."""
        at = time.time()

        def tell() -> None:
            mpirun = self._programs.running.get(MPIRUN)
            if self.ranks.stopping or mpirun is None or mpirun.ended.is_set():
                return
            self._blame(daemon, f"the process that stands for {daemon} of {host} at mpirun", at)

        asyncio.get_running_loop().call_later(ENDING_SECONDS, tell)

    def _blame(self, stream: str, what: str, at: float) -> None:
        """Tells the coordinator of a proxy that nothing but SIGKILL can have ended."""
        cause = Cause(CauseKind.LAUNCHER_KILLED, what, signal=signal.SIGKILL)
        self._programs.write_failure(f"{stream}: {cause}")
        self._report(Exited(stream, at, signal=signal.SIGKILL, cause=cause))

    def _answer(self, caller: Caller, end: DaemonEnded) -> None:
        if end.reason:
            caller.refuse(end.reason)
        else:
            caller.answer(end.exit_code, end.signal)

    # --- what is started for mpirun --------------------------------------------------------------------------------

    def _start_daemon(self, order: DaemonOrder) -> None:
        def ended(running: Running) -> None:
            self._report(DaemonEnded(order.asker, order.number, running.exit_code, running.signal))

        try:
            check_daemon(order.argv)
            if self.ranks.stopping:
                raise ValueError(f"{self._me.name} is being stopped")
            env = self._launcher_variables()
            env |= expand(order.variables, env)
            stream = daemon_name(order.argv) + (f"-{order.number}" if len(self._started) > 1 else "")
            self._check_later(self._programs.launch(stream, order.argv, env, (), ended))
        except (ValueError, OSError) as error:
            reason = f"the daemon of mpirun cannot be started on {self._me.name}: {error}"
            _log.warning("%s", reason)
            self._report(DaemonEnded(order.asker, order.number, exit_code=255, reason=reason))

    def _check_later(self, launcher: Running, more: float = 0.0) -> None:
        self.ranks.check_later(self._plan.start_timeout + more, self._check, launcher)

    def _check(self, launcher: Running) -> None:
        """Ends mpirun or a daemon that keeps the ranks from starting."""
        limit = f"within {self._plan.start_timeout:g} s"
        if is_stopped(launcher.pid):
            launcher.say(
                f"error: no rank was started {limit}: {launcher.stream} on {self._me.name} is stopped (SIGSTOP)"
            )
        elif launcher.stream == MPIRUN:
            launcher.say(f"error: mpirun started no rank {limit}")
        else:
            return
        launcher.kill_as_failure()

    def _launcher_variables(self) -> dict[str, str]:
        beside = Path(self._plan.python_of(self._me.group) or sys.executable).parent
        variables = launcher_variables(
            self._programs.variables_of(ProgramSpec(MPIRUN)),
            scratch=self._scratch,
            programs=str(beside) if (beside / "mpirun").exists() else "",
        )
        self._launcher = variables | self.ranks.proxy_variables()
        return dict(self._launcher)
