"""The agent's part in an elastic world: torchrun on this host, and the ranks that it wants.

torchrun starts proxies (see `launcher_proxy`); each rank is a program of the agent, as all ranks are: tied to it, with
the variables of its host and those that torchrun gave it, with a log of its own under its global rank.

When a rank ends, torchrun decides what follows: it starts all ranks again, perhaps under other numbers. Only when
torchrun itself gives up are the ends of its last ranks reported, so that the first cause is the rank's and not
torchrun's. When torchrun is killed its ranks are ended.

A torchrun that has not come to the rendezvous within the plan's start_timeout, because it hangs or is stopped, is
killed with a line that says so; the other hosts go on without it when they are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from headrace.agent.control.control_messages import Exited
from headrace.agent.host.process import Running
from headrace.agent.host.programs import HostContext, HostPrograms, exit_of
from headrace.agent.launchers.launched_ranks import END_REQUESTS, Caller, HostRanks
from headrace.agent.launchers.mpi_command import rank_variables
from headrace.agent.program_specs import TORCHRUN, ProgramSpec
from headrace.processes.process_table import is_stopped

# What torchrun changes when it starts the ranks again, after a failure or with other hosts.
_GENERATION = ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "GROUP_RANK", "MASTER_PORT")


class ElasticHost:
    """See the module.

    Args:
        context: that of a host in an elastic world.
        programs: starts programs.

    Attributes:
        ranks: the ranks of this host.
    """

    def __init__(self, context: HostContext, programs: HostPrograms) -> None:
        self.ranks = HostRanks(context, programs, self._serve)
        self._plan = context.plan
        self._programs = programs
        self._report = context.report
        self._launcher: dict[str, str] = {}
        self._failed: list[Exited] = []
        self._generation: tuple[str, ...] = ()

    def start_torchrun(self) -> None:
        """Starts torchrun. Raises OSError."""
        spec = ProgramSpec(TORCHRUN)
        self._launcher = self._programs.variables_of(spec) | self.ranks.proxy_variables()
        running = self._programs.launch(
            TORCHRUN, self._programs.argv_of(spec), self._launcher, (), self._torchrun_ended, report=False
        )
        self.ranks.check_later(self._plan.start_timeout, self._check_presence, running)

    def _torchrun_ended(self, running: Running) -> None:
        for rank in self.ranks.running.values():
            if not rank.ended.is_set():  # torchrun would have ended it
                rank.kill()
        if not running.told_to_stop and running.exit_code != 0:
            for end in self._failed:
                self._report(end)
        self._programs.report_exit(running)

    # --- ranks ---------------------------------------------------------------------------------------------------

    def _serve(self, request: Mapping[str, object], caller: Caller) -> None:
        match request:
            case {"kind": "rank", "runner": [], "variables": dict(seen)}:
                self._start_rank(caller, cast("dict[str, str]", seen))
            case _:
                raise ValueError("not a request")

    def _start_rank(self, caller: Caller, seen: dict[str, str]) -> None:
        stream = seen.get("RANK", "")
        if not stream.isdecimal():
            raise ValueError("RANK is not set: this process was not started by torchrun")
        self.ranks.check_free(stream)
        self._note_generation(stream, seen)
        spec = ProgramSpec(stream)
        env = rank_variables(self._programs.variables_of(spec), self._launcher, seen)
        env |= {name: seen[name] for name in ("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE") if name in seen}
        running = self.ranks.launch(
            stream, self._programs.argv_of(spec), env, lambda it: self._rank_ended(it, caller), report=False
        )
        caller.on_signal = lambda number: self._signalled(running, number)
        caller.on_gone = lambda: None if self.ranks.stopping else running.kill()

    def _note_generation(self, stream: str, seen: Mapping[str, str]) -> None:
        """Forgets the ends of earlier ranks when torchrun starts them again.

        That all have ended is no proof of it: the first rank of a generation may fail before the next one is started.
        """
        generation = tuple(seen.get(name, "") for name in _GENERATION)
        if generation != self._generation or stream in self.ranks.running:
            self._generation, self._failed = generation, []
            running = self.ranks.running
            self.ranks.running = {name: rank for name, rank in running.items() if not rank.ended.is_set()}

    def _rank_ended(self, running: Running, caller: Caller) -> None:
        if running.exit_code != 0 and not running.told_to_stop:
            self._failed.append(exit_of(running))
        caller.answer(running.exit_code, running.signal)

    def _signalled(self, running: Running, number: int) -> None:
        if number not in END_REQUESTS:
            running.forward(number)
        elif not self.ranks.stopping:  # else the agent has sent it already
            running.terminate()

    # --- rendezvous ----------------------------------------------------------------------------------------------

    def _check_presence(self, torchrun: Running) -> None:
        """Kills a torchrun that has not come to the rendezvous in time."""
        why = self._absence(torchrun.pid)
        if why:
            seconds = f"{self._plan.start_timeout:g} s"
            torchrun.say(
                f"error: torchrun on {self.ranks.me.name} did not come to the rendezvous within {seconds}: {why}"
            )
            torchrun.kill_as_failure()

    def _absence(self, pid: int) -> str:
        """Why a torchrun is not in the rendezvous; empty if it is, and waits for others."""
        import psutil  # every agent would pay for it, and only one that is in trouble needs it

        world = self._plan.distribution_of(self.ranks.me.group)
        assert world is not None
        port = self._plan.master_port_of(world)
        if is_stopped(pid):
            return "it is stopped (SIGSTOP)"
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except psutil.Error as error:
            return str(error)
        ports = {end.port for connection in connections for end in (connection.laddr, connection.raddr) if end}
        return "" if port in ports else f"it has no connection to port {port}"
