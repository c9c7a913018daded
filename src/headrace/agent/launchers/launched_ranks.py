"""Ranks that a launcher asks for: what MPI and an elastic torchrun have in common on one host.

Where the launcher would start ranks it starts proxies (see `launcher_proxy`). A proxy asks at the host's socket, and
the agent starts the rank as a program of its own: tied to it, watched, with its own log.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence

from headrace.agent.host import launcher_proxy
from headrace.agent.host.host_context import HostContext
from headrace.agent.host.launcher_socket import Caller, LauncherSocket
from headrace.agent.host.process import Running
from headrace.agent.host.programs import HostPrograms
from headrace.agent.program_specs import agent_socket
from headrace.instance.launch_plan import SECRET_NAME, channel_dir

END_REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # by which a launcher asks a rank to end


class HostRanks:
    """See the module.

    Args:
        context: the host's.
        programs: starts programs.
        serve: takes a proxy's request; raises ValueError to refuse it.

    Attributes:
        me: this host in the plan.
        stopping: whether the host is being stopped; nothing is started then.
        running: the last program of each rank, also when it has ended.
    """

    def __init__(
        self,
        context: HostContext,
        programs: HostPrograms,
        serve: Callable[[Mapping[str, object], Caller], None],
    ) -> None:
        self.me = context.me
        self.stopping = False
        self.running: dict[str, Running] = {}
        self._programs = programs
        self._serve = serve
        self._name = agent_socket(context.plan, context.host, context.secret)
        self._socket = LauncherSocket(self._name, context.secret, self._served)
        self._checks: list[asyncio.TimerHandle] = []

    async def open(self) -> None:
        """Opens the socket for proxies. Raises OSError."""
        await self._socket.open()

    async def close(self) -> None:
        """Closes it, and cancels the checks."""
        for check in self._checks:
            check.cancel()
        await self._socket.close()

    def check_later(self, seconds: float, check: Callable[[Running], None], launcher: Running) -> None:
        """Calls `check` after some seconds if the launcher still runs and has not asked for a rank."""

        def look() -> None:
            if not self.running and not self.stopping and not launcher.ended.is_set():
                check(launcher)

        self._checks.append(asyncio.get_running_loop().call_later(seconds, look))

    def proxy_variables(self) -> dict[str, str]:
        """Variables by which a proxy finds this host's socket."""
        return {
            launcher_proxy.AGENT_VARIABLE: self._name,
            launcher_proxy.SECRET_VARIABLE: str(channel_dir(self.me.base_dir) / SECRET_NAME),
        }

    def check_free(self, stream: str) -> None:
        """Raises ValueError if this rank runs already."""
        before = self.running.get(stream)
        if before is not None and not before.ended.is_set():
            raise ValueError(f"rank {stream} runs already")

    def launch(
        self,
        stream: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_end: Callable[[Running], None],
        *,
        cpus: Sequence[int] = (),
        report: bool = True,
    ) -> Running:
        """Starts a rank. Raises ValueError if it cannot be started; the other arguments are those of `HostPrograms`."""
        try:
            running = self._programs.launch(stream, argv, env, cpus, on_end, report)
        except OSError as error:
            raise ValueError(f"rank {stream} cannot be started: {error.strerror or error}") from None
        self.running[stream] = running
        return running

    def _served(self, request: Mapping[str, object], caller: Caller) -> None:
        if self.stopping:
            raise ValueError(f"{self.me.name} is being stopped")
        self._serve(request, caller)
