"""Ranks that a launcher asks for: what MPI and an elastic torchrun have in common on one host.

Where the launcher would start ranks it starts proxies (see `launcher_proxy`). A proxy asks at the host's Unix socket,
and the agent starts the rank as a program of its own: tied to it, watched, with its own log.

The socket is abstract, so that nothing of it is left in the file system, whatever is killed. A caller must be of the
agent's own user and know the job's secret; any other is refused before its request is looked at. Time and bytes of the
first line are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence

from headrace.agent.host import launcher_proxy
from headrace.agent.host.launcher_proxy import NOT_REACHED, uid_of_peer
from headrace.agent.host.process import Running
from headrace.agent.host.programs import HostContext, HostPrograms
from headrace.agent.program_specs import agent_socket
from headrace.instance.launch_plan import SECRET_NAME, channel_dir

_log = logging.getLogger(__name__)

FIRST_LINE_SECONDS = 5.0
LINE_LIMIT = 16 << 20  # Linux gives a process 2 MiB of arguments and variables; JSON may need six bytes for one


class Caller:
    """A proxy that waits for the end of its program.

    Attributes:
        on_signal: called with the number of a signal that the proxy got.
        on_gone: called when the proxy ended before it was answered.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.on_signal: Callable[[int], None] = lambda _: None
        self.on_gone: Callable[[], None] = lambda: None
        self._writer = writer
        self.answered = False

    def answer(self, exit_code: int | None = None, number: int | None = None, says: str = "") -> None:
        """Tells the proxy how its program ended; it ends the same way.

        Args:
            exit_code, number: exit code or signal, one of them.
            says: what it prints to its standard error.
        """
        if not self.answered and not self._writer.is_closing():
            answer = {"exit_code": exit_code, "signal": number, "says": says}
            self._writer.write(json.dumps(answer).encode() + b"\n")
        self.answered = True

    def refuse(self, reason: str) -> None:
        """The program cannot be run."""
        self.answer(NOT_REACHED, says=f"error: {reason}")


class LauncherSocket:
    """The socket.

    Args:
        name: of the abstract socket, ``@`` first.
        secret: the job's secret.
        serve: called with each request and its caller; ValueError refuses it.

    Attributes:
        refused: how many callers were refused.
    """

    def __init__(
        self,
        name: str,
        secret: bytes,
        serve: Callable[[Mapping[str, object], Caller], None],
    ) -> None:
        self.refused = 0
        self._name = name
        self._secret = secret.hex()
        self._serve = serve
        self._server: asyncio.AbstractServer | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listens. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind("\0" + self._name.removeprefix("@"))
        except OSError:
            listener.close()
            raise
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=LINE_LIMIT)

    async def close(self) -> None:
        """Closes the socket and all connections."""
        if self._server is not None:
            self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            await self._talk(reader, writer)
        finally:
            self._talks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = Caller(writer)
        try:
            request = await asyncio.wait_for(self._first_line(reader, writer), FIRST_LINE_SECONDS)
        except (PermissionError, asyncio.TimeoutError) as error:
            self.refused += 1
            if self.refused <= 20:  # a stranger must not fill the disk
                _log.warning("agent's socket: refused a caller: %s", str(error) or "it sent nothing in time")
            return
        try:
            self._serve(request, caller)
        except ValueError as error:
            caller.refuse(str(error))
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                with contextlib.suppress(ValueError):
                    caller.on_signal(int(line))
        if not caller.answered:
            caller.answered = True
            caller.on_gone()

    async def _first_line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, object]:
        uid = uid_of_peer(writer.get_extra_info("socket"))
        if uid != os.getuid():
            raise PermissionError(f"it belongs to user {uid}")
        try:
            request = json.loads(await reader.readline())
        except (ValueError, ConnectionError, RecursionError):
            raise PermissionError("it sent no valid request") from None
        secret = request.pop("secret", None) if isinstance(request, dict) else None
        if not isinstance(secret, str) or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            raise PermissionError("it does not know the job's secret")
        return dict(request)


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
