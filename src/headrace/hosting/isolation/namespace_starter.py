"""Starts agents in namespaces, on the machine's network: see `AgentStarter`.

An agent in namespaces is a child of this process too, so this process must be a child subreaper.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.child_python import ChildReport, module_command, read_report
from headrace.errors import HeadraceError
from headrace.exit_status import exit_text, split_status
from headrace.hosting.isolation.network_layout import HOSTS_SECONDS, Layout
from headrace.hosting.supervision.cleanup import scratch_dir
from headrace.hosting.supervision.instances import AgentStarter, Start
from headrace.instance.lifeline import SCRATCH

ENTER = "headrace.hosting.isolation.enter_namespaces"
END_SECONDS = 1.0  # between the last message of a process and its end
_HINT = "`isolation: none` among the options of the engine does without"


class NamespaceStarter(AgentStarter):
    """See the module.

    Args:
        file: where the layout lies; in the run's temporary files, if it is no absolute path.
        layout: the isolation of the hosts.
        key: by which the folder of the run's temporary files is known, see `scratch_dir`.
    """

    def __init__(self, file: Path, layout: Layout, key: str) -> None:
        self._key = key
        self._layout = layout
        self._file = file
        self._net = self._user = self._bridge = -1
        self._writing: dict[str, int] = {}  # ends of the reports, until their writers have been started

    def prepare(self, host: str, argv: Sequence[str]) -> Start:
        """See `AgentStarter.prepare`."""
        reading, writing = os.pipe()
        self._writing[host] = writing
        user = self._user if self._layout.user_namespace else -1
        scratch = str(scratch_dir(self._key))
        numbers = [str(number) for number in (writing, self._net, user, self._bridge)]
        words = module_command(ENTER, scratch, str(self._file), host, *numbers, "--", *argv, options=["-S"])
        passed = tuple(number for number in (writing, self._net, user) if number >= 0)
        return Start(host, tuple(words), {SCRATCH: "/tmp"}, passed, reading)

    def agent(self, start: Start, process: subprocess.Popen[bytes]) -> int:
        """See `AgentStarter.agent`."""
        os.close(self._writing.pop(start.host))
        deadline = time.monotonic() + HOSTS_SECONDS
        try:
            report = read_report(_read(start.report, deadline)) or ChildReport()
        finally:
            os.close(start.report)
        if not report.ready:
            silent = f"its first process did not report within {HOSTS_SECONDS:g} s"
            if time.monotonic() < deadline:
                silent = f"its first process {_how_it_ended(process)}"
            why = report.error or silent
            process.kill()
            process.wait()
            raise not_isolated(f"{start.host} could not be isolated: {why}", hint=_HINT)
        try:
            process.wait(HOSTS_SECONDS)
        except subprocess.TimeoutExpired:
            os.kill(report.pid, signal.SIGKILL)  # not reaped yet, so it is still this process
            process.kill()
            process.wait()
            os.waitpid(report.pid, 0)
            late = f"the process that made its namespaces did not end within {HOSTS_SECONDS:g} s"
            raise not_isolated(f"{start.host} could not be isolated: {late}", hint=_HINT) from None
        return report.pid


def not_isolated(message: str, hint: str = "") -> HeadraceError:
    """Returns the error of what has worked on this machine before, if it was tried: the next run tries it anew."""
    from headrace.hosting.isolation.probing import forget

    with contextlib.suppress(OSError):  # the error counts, and `headrace doctor` tries anew, too
        forget()
    return HeadraceError(message, hint=hint)


def _read(descriptor: int, deadline: float) -> str:
    """Returns all that comes through a pipe, as far as it comes in time."""
    told = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            data = os.read(descriptor, 4096)
            if not data:
                break
            told += data
    return told.decode(errors="replace")


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """Returns how a process ended that has closed its report, in words."""
    try:
        code = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return "ended"
    how = exit_text(*split_status(code))
    return f"was {how}" if code < 0 else how
