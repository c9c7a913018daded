"""A PostgreSQL server of the tests' own, on loopback: the installed one, with its data in a folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

USER = "nobody"
"""PostgreSQL does not run as root."""
PASSWORD = "a:b@c/d"


@dataclass(frozen=True)
class Server:
    """Where it is."""

    data: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://campaigns:${{CAMPAIGNS_PASSWORD}}@127.0.0.1:{self.port}/postgres"

    def kill(self) -> None:
        """Ends the server and its sessions at once: a session ends when the server is no more."""
        for process in self._processes():
            with suppress(ProcessLookupError):  # a session ends by itself when the server is no more
                os.kill(process, signal.SIGKILL)

    def _processes(self) -> list[int]:
        server = int((self.data / "postmaster.pid").read_text().split()[0])
        return [server, *map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())]


def programs() -> Path | None:
    """Returns the folder of PostgreSQL's programs; None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


@contextmanager
def postgresql(folder: Path) -> Iterator[Server]:
    """Starts a server, and ends it."""
    found = programs()
    assert found is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    as_user = {"user": USER, "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    if as_user:
        shutil.chown(folder, USER)
        for parent in folder.parents[:3]:
            parent.chmod(parent.stat().st_mode | 0o011)
    word, data = folder / "password", folder / "data"
    word.write_text(PASSWORD)

    def call(*command: str | Path, check: bool = True) -> None:
        subprocess.run(command, check=check, stdout=subprocess.DEVNULL, cwd=folder, **as_user)  # type: ignore[call-overload]

    call(found / "initdb", "-D", data, "-U", "campaigns", "-A", "scram-sha-256", f"--pwfile={word}", "--no-sync")
    options = f"-p {port} -k '' -c listen_addresses=127.0.0.1 -c fsync=off"
    call(found / "pg_ctl", "start", "-w", "-D", data, "-l", folder / "log", "-o", options)
    try:
        yield Server(data, port)
    finally:
        call(found / "pg_ctl", "stop", "-w", "-m", "immediate", "-D", data, check=False)
