"""The agent's part in an elastic world: torchrun on this host, and the ranks that it wants.

torchrun starts proxies (see `proxy`); each rank is a program of the agent, as all ranks are: tied to it, with the
variables of its host and those that torchrun gave it, with a log of its own under its global rank.

A rank that ends is torchrun's affair: it starts all ranks again, perhaps under other numbers. Only when torchrun
itself gives up are the ends of its last ranks reported, so that the first cause is the rank's and not torchrun's. When
torchrun is killed its ranks are ended.

A torchrun that has not come to the rendezvous within the plan's start_timeout, because it hangs or is stopped, is
killed with a line that says so; the other hosts go on without it when they are enough.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from typing import cast

from headrace.agent import proxy
from headrace.agent.hostprograms import HostPrograms
from headrace.agent.messages import Exited, Message, clip_lines
from headrace.agent.mpi.variables import rank_variables
from headrace.agent.port import Caller, Port, socket_name
from headrace.agent.programs import TORCHRUN, ProgramSpec
from headrace.agent.running import Running
from headrace.instance.launch import SECRET_NAME, LaunchPlan, channel_dir

END_REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# What torchrun changes when it starts the ranks again, after a failure or with other hosts.
_GENERATION = ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "GROUP_RANK", "MASTER_PORT")


class ElasticHost:
    """See the module.

    Args:
        plan: the launch plan.
        host: name of this host, which is in an elastic world.
        secret: the job's secret.
        programs: starts programs.
        report: tells the coordinator.
        note: writes a line into the agent's log.

    Attributes:
        stopping: whether the host is being stopped; nothing is started then.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        host: str,
        secret: bytes,
        programs: HostPrograms,
        report: Callable[[Message], None],
        note: Callable[[str], None],
    ) -> None:
        self.stopping = False
        self._plan = plan
        self._me = plan.host(host)
        self._programs = programs
        self._report = report
        self._name = socket_name(plan.run_id, host)
        self._port = Port(self._name, secret, self._serve, note)
        self._launcher: dict[str, str] = {}
        self._ranks: dict[str, Running] = {}
        self._failed: list[Exited] = []
        self._generation: tuple[str, ...] = ()
        self._watch: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Opens the socket for proxies. Raises OSError."""
        await self._port.open()

    async def close(self) -> None:
        """Closes it."""
        if self._watch is not None:
            self._watch.cancel()
        await self._port.close()

    def start_torchrun(self) -> None:
        """Starts torchrun. Raises OSError."""
        spec = ProgramSpec(TORCHRUN)
        self._launcher = self._programs.variables_of(spec) | {
            proxy.AGENT_VARIABLE: self._name,
            proxy.SECRET_VARIABLE: str(channel_dir(self._me.base_dir) / SECRET_NAME),
        }
        running = self._programs.launch(
            TORCHRUN, self._programs.argv_of(spec), self._launcher, (), self._torchrun_ended, report=False
        )
        loop = asyncio.get_running_loop()
        self._watch = loop.call_later(self._plan.start_timeout, self._check_presence, running)

    def _torchrun_ended(self, running: Running) -> None:
        for rank in self._ranks.values():
            if not rank.ended.is_set():  # nobody watches it any more
                rank.kill()
        if not running.told and running.exit_code != 0:
            for end in self._failed:
                self._report(end)
        self._programs.report_exit(running)

    # --- ranks ---------------------------------------------------------------------------------------------------

    def _serve(self, request: Mapping[str, object], caller: Caller) -> None:
        if self.stopping:
            raise ValueError(f"{self._me.name} is being stopped")
        match request:
            case {"kind": "rank", "runner": [], "variables": dict(seen)}:
                self._start_rank(caller, cast("dict[str, str]", seen))
            case _:
                raise ValueError("not a request")

    def _start_rank(self, caller: Caller, seen: dict[str, str]) -> None:
        stream = seen.get("RANK", "")
        if not stream.isdecimal():
            raise ValueError("RANK is not set: this process was not started by torchrun")
        before = self._ranks.get(stream)
        if before is not None and not before.ended.is_set():
            raise ValueError(f"rank {stream} runs already")
        self._note_generation(stream, seen)
        spec = ProgramSpec(stream)
        env = rank_variables(self._programs.variables_of(spec), self._launcher, seen)
        env |= {name: seen[name] for name in ("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE") if name in seen}
        try:
            running = self._programs.launch(
                stream, self._programs.argv_of(spec), env, (), lambda it: self._rank_ended(it, caller), report=False
            )
        except OSError as error:
            raise ValueError(f"rank {stream} cannot be started: {error.strerror or error}") from None
        self._ranks[stream] = running
        caller.on_signal = lambda number: self._signalled(running, number)
        caller.on_gone = lambda: None if self.stopping else running.kill()

    def _note_generation(self, stream: str, seen: Mapping[str, str]) -> None:
        """Forgets the ends of earlier ranks when torchrun starts them again.

        That all have ended does not say so: the first of a generation may have failed before the next one is there.
        """
        generation = tuple(seen.get(name, "") for name in _GENERATION)
        if generation != self._generation or stream in self._ranks:
            self._generation, self._failed = generation, []
            self._ranks = {name: rank for name, rank in self._ranks.items() if not rank.ended.is_set()}

    def _rank_ended(self, running: Running, caller: Caller) -> None:
        if running.exit_code != 0 and not running.told:
            self._failed.append(
                Exited(
                    running.stream,
                    time.time(),
                    exit_code=running.exit_code,
                    signal=running.signal,
                    last_lines=clip_lines(list(running.tail)),
                )
            )
        caller.answer(running.exit_code, running.signal)

    def _signalled(self, running: Running, number: int) -> None:
        if number not in END_REQUESTS:
            running.forward(number)
        elif not self.stopping:  # else the agent has sent it already
            running.terminate()

    # --- rendezvous ----------------------------------------------------------------------------------------------

    def _check_presence(self, torchrun: Running) -> None:
        """Kills a torchrun that has not come to the rendezvous in time."""
        if self._ranks or self.stopping or torchrun.ended.is_set():
            return
        why = self._absence(torchrun.pid)
        if why:
            seconds = f"{self._plan.start_timeout:g} s"
            torchrun.say(f"error: torchrun on {self._me.name} did not come to the rendezvous within {seconds}: {why}")
            torchrun.give_up()

    def _absence(self, pid: int) -> str:
        """Why a torchrun is not in the rendezvous; empty if it is, and waits for others."""
        import psutil  # every agent would pay for it, and only one that is in trouble needs it

        world = self._plan.distribution_of(self._me.group)
        assert world is not None
        port = self._plan.master_port_of(world)
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_STOPPED:
                return "it is stopped (SIGSTOP)"
            ends = [end for each in process.net_connections("tcp") for end in (each.laddr, each.raddr) if end]
        except psutil.Error as error:
            return str(error)
        return "" if any(end.port == port for end in ends) else f"it has no connection to port {port}"
