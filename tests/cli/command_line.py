"""A command line in a process of its own, with a runs directory, addresses and ports of its own."""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = str(Path(__file__).parents[2] / "src")
COMMAND = [sys.executable, "-m", "headrace.cli"]
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "HEADRACE_LOG")
"""Beginnings of the names of variables that a process reads when it starts, and not again."""


def _environment() -> dict[str, str]:
    dropped = {"NO_COLOR", "TERM", "COLUMNS", "PYTHONUNBUFFERED"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": SOURCE, "TERM": "xterm"}


class Imported:
    """A process that has imported the commands and is forked for each call: most commands take less than imports."""

    def __init__(self) -> None:
        self._env = _environment()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, env=self._env, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )

    def close(self) -> None:
        self._requests.close()
        said, _ = self._process.communicate(timeout=60)
        assert (self._process.returncode, said) == (0, b"")

    def serves(self, env: dict[str, str]) -> bool:
        """Whether a process that is forked is as one that starts with these variables."""
        return not any(name.startswith(READ_AT_START) for name, _ in env.items() ^ self._env.items())

    def run(self, arguments: tuple[str, ...], cwd: Path, env: dict[str, str], timeout: float) -> tuple[int, str, str]:
        """Runs a command. Returns its exit code (negative: by which signal), standard output and standard error."""
        pipes = [os.pipe() for _ in range(3)]
        request = json.dumps({"arguments": arguments, "cwd": str(cwd), "env": env}).encode()
        socket.send_fds(self._requests, [request], [writing for _, writing in pipes])
        read = {reading: b"" for reading, _ in pipes}
        with selectors.DefaultSelector() as selector:
            for reading, writing in pipes:
                os.close(writing)
                selector.register(reading, selectors.EVENT_READ)
            deadline, status = time.monotonic() + timeout, pipes[2][0]
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    if read[status]:
                        os.kill(int(read[status].split()[0]), signal.SIGKILL)
                    raise subprocess.TimeoutExpired(["headrace", *arguments], timeout, *list(read.values())[:2])
                for key, _ in ready:
                    if piece := os.read(key.fd, 1 << 16):
                        read[key.fd] += piece
                    else:
                        selector.unregister(key.fd)
                        os.close(key.fd)
        out, err, told = (text.decode().replace("\r\n", "\n") for text in read.values())
        return int(told.split()[1]), out, err


def _serve(requests: socket.socket) -> None:
    """Forks a process for every request, and tells its id and its exit code. Returns in each that is forked."""
    told: dict[int, int] = {}  # process to where its exit code goes
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(reading, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == reading:
                    os.read(reading, 1 << 10)
                    continue
                data, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 3)
                if not data:
                    sys.exit()
                if (pid := os.fork()) == 0:
                    break
                for descriptor in descriptors[:2]:
                    os.close(descriptor)
                told[pid] = descriptors[2]
                os.write(told[pid], b"%d " % pid)
            else:
                for pid in list(told):
                    if (ended := os.waitpid(pid, os.WNOHANG))[0]:
                        os.write(told[pid], b"%d" % os.waitstatus_to_exitcode(ended[1]))
                        os.close(told.pop(pid))
                continue
            break
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in (reading, writing, descriptors[2], *told.values()):
        os.close(descriptor)
    requests.close()
    _become(json.loads(data), descriptors[:2])


def _become(request: dict[str, object], outputs: list[int]) -> None:
    """Gives this process what a new one would have."""
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in zip((null, *outputs), range(3), strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[1:] = request["arguments"]
    tempfile.tempdir = None


class Cli:
    """Runs `headrace` as a user does.

    Args:
        root: where it is called; its HEADRACE_HOME is below.
        imported: what may be forked in place of a process that imports everything.

    Attributes:
        env: its variables; HEADRACE_HOME is a directory of the test.
        runs: where its runs lie.
        cwd: its working directory.
    """

    def __init__(self, root: Path, imported: Imported | None = None) -> None:
        self.cwd = root
        self.runs = root / "home" / "runs"
        self._imported = imported
        self.env = {**_environment(), "HEADRACE_HOME": str(root / "home")}

    def __call__(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        if self._imported is not None and self._imported.serves(self.env):
            ended = self._imported.run(arguments, self.cwd, self.env, timeout)
            return subprocess.CompletedProcess([*COMMAND, *arguments], *ended)
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def run_python(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs a Python script in the same environment."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
            check=True,
        )  # fmt: skip

    def start(self, *arguments: str, out: int = subprocess.PIPE, err: int | None = None) -> subprocess.Popen[str]:
        """Starts a command, in a session of its own."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out if err is None else err,
            text=True,
            start_new_session=True,
        )


def _import_commands() -> None:
    for name in ("headrace.cli", "headrace.insight", "headrace.job", "headrace.engines.local"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in ("headrace.feed.serve", "headrace.feed.client.remote_pool"):
        importlib.import_module(name)
    if heavy := {"torch", "tensorflow", "grpc"} & sys.modules.keys():
        raise AssertionError(f"what is forked may have threads of {', '.join(heavy)}")
    gc.freeze()


if __name__ == "__main__":
    _import_commands()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    importlib.import_module("headrace.cli.main").main()
