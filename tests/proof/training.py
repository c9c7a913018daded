"""Starts a trainer process and judges what it was given, from outside: by its audit file and the plain loop's."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import audit
import psutil
import torch
from feed_servers import Server, wait_until

from observer import processes_of

HERE = Path(__file__).parent
START_SECONDS = 60.0
PLAIN: dict[str, tuple[int, list[str]]] = {}  # what the plain loop said: configuration to epochs and lines


class Training:
    """One trainer process.

    Args:
        directory: for its files.
        loader: arguments of its DataLoader: batch_size, seed and where the workers are.
        pipeline: function of `proof_pipelines`; the audit can be compared for ``samples``, ``tars``, ``lanes``,
            ``packed``, ``mixture`` and ``mixed_lanes``.
        dataset: its arguments.
        n: samples.
        epochs: passes over the data, at least.
        endless: go on until `finish`.
        pace: seconds that a step takes.
        prefix: command that it is started with: in a namespace, with a full disk.
        environment: more variables.
    """

    def __init__(
        self,
        directory: Path,
        *,
        loader: dict[str, Any],
        pipeline: str = "samples",
        dataset: dict[str, Any] | None = None,
        n: int = 240,
        epochs: int = 1,
        endless: bool = False,
        pace: float = 0.0,
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.mark = f"proof-{uuid.uuid4().hex}"
        self._files = directory / self.mark
        self._files.mkdir()
        self.audit, self.log = self._files / "audit", self._files / "log"
        self._enough, self._stats = self._files / "enough", self._files / "stats"
        self._dataset, self._n, self._pipeline = dataset or {}, n, pipeline
        self._loader = {"batch_size": 8, "shuffle": "num_shards" not in loader, "seed": 7} | loader
        self._prefix = prefix
        config = {
            "pipeline": pipeline, "arguments": {"n": n} | self._dataset, "loader": self._loader, "epochs": epochs,
            "endless": endless, "pace": pace, "audit": str(self.audit), "enough": str(self._enough),
            "stats": str(self._stats),
        }  # fmt: skip
        (self._files / "config").write_text(json.dumps(config))
        variables = dict(os.environ) | {"HEADRACE_RUN_ID": self.mark, "PYTHONFAULTHANDLER": "1"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, str(HERE / "trainer.py"), str(self._files / "config")],
                env=variables | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    # What it does

    @property
    def steps(self) -> int:
        """Batches that it was given so far."""
        return len(audit.lines(self.audit))

    def wait_steps(self, more: int, seconds: float = START_SECONDS) -> None:
        """Waits until it was given more batches. Fails when it ends before that."""
        wanted = self.steps + more
        wait_until(
            lambda: self.steps >= wanted or self.process.poll() is not None,
            f"{more} more steps after {wanted - more}; log: {self.told()}",
            seconds,
        )
        assert self.steps >= wanted, self.told()

    def told(self) -> str:
        """Returns its log."""
        return self.log.read_text(errors="replace")[-4000:]

    def local_executors(self) -> list[psutil.Process]:
        """Returns its own executors: forks of it, with its command line."""
        return [child for child, command in self._children() if "headrace.feed.client.receiver" not in command]

    def receivers(self) -> list[psutil.Process]:
        """Returns its receiver process, none while it has none."""
        return [child for child, command in self._children() if "headrace.feed.client.receiver" in command]

    def _children(self) -> list[tuple[psutil.Process, str]]:
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    found.append((child, " ".join(child.cmdline())))
        return found

    # Its end

    def finish(self, seconds: float = 120.0) -> dict[str, Any]:
        """Lets it end with the epoch that it is at, and judges it. Returns the loader's counters."""
        self._enough.touch()
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end; {self.steps} steps; log: {self.told()}") from None
        assert code == 0, self.told()
        self.compare()
        counters: dict[str, Any] = json.loads(self._stats.read_text())
        return counters

    def compare(self, *, unfinished: bool = False) -> None:
        """Fails unless the audit holds exactly the plain loop's batches, in its order.

        Args:
            unfinished: the last epoch may be incomplete: the trainer has ended in its middle.
        """
        got = audit.lines(self.audit)
        expected = self.expected(1 + int(got[-1].split()[0]))
        if unfinished:
            expected = expected[: len(got)]
        assert got == expected, _first_difference(got, expected)

    def expected(self, epochs: int) -> list[str]:
        """Runs the plain loop, or remembers what it said. Returns its audit of the first epochs."""
        world = int(self._loader.get("world_size", 1))
        batch = int(self._loader.get("global_batch_size", self._loader["batch_size"] * world)) // world
        config = {
            "n": self._n, "batch": batch, "seed": self._loader["seed"], "rank": int(self._loader.get("rank", 0)),
            "world": world, "dataset": self._dataset | {"delay": 0.0}, "pipeline": self._pipeline,
            "window": self._loader.get("window"), "lanes": self._loader.get("num_shards", 0),
        }  # fmt: skip
        name = json.dumps(config, sort_keys=True)
        if PLAIN.get(name, (0, []))[0] < epochs:
            audited, told = self._files / "expected", self._files / "plain"
            more = epochs + 4  # the next trainer may get somewhat further
            told.write_text(json.dumps(config | {"audit": str(audited), "epochs": more}))
            _run_plain_loop(told)
            PLAIN[name] = more, audit.lines(audited)
        return [line for line in PLAIN[name][1] if int(line.split()[0]) < epochs]

    def nothing_left(self, seconds: float = 10.0) -> None:
        """Fails unless every process that it started is gone."""
        wait_until(
            lambda: not processes_of(self.mark, Path("/nonexistent")),
            f"gone: {processes_of(self.mark, Path('/nonexistent'))}",
            seconds,
        )

    def stop(self) -> None:
        """Ends it, however it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.nothing_left()


def _run_plain_loop(config: Path) -> None:
    """Runs the plain loop in a fork of this process, which has imported torch, and nothing of headrace there."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # a fork has none of the threads that this process may have
            for name in [name for name in sys.modules if name.partition(".")[0] == "headrace"]:
                del sys.modules[name]
            sys.argv = ["plain_loop.py", str(config)]
            runpy.run_path(str(HERE / "plain_loop.py"), run_name="__main__")
        except BaseException:  # noqa: BLE001  (the boundary of a process: it is reported)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    status = None
    try:
        _, status = os.waitpid(child, 0)
    finally:
        if status is None:  # the test's time is over
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert status == 0, f"the plain loop has failed: {os.waitstatus_to_exitcode(status)}"


def _first_difference(got: list[str], expected: list[str]) -> str:
    for place, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one != other:
            where = expected.index(one) if one in expected else None
            return f"line {place}: got {one}, expected {other}; what came belongs to line {where}"
    return f"{len(got)} batches, expected {len(expected)}"


@contextlib.contextmanager
def training(directory: Path, **options: Any) -> Iterator[Training]:
    """A trainer that is gone, with all its processes, at the end of the block."""
    trainer = Training(directory, **options)
    try:
        yield trainer
    finally:
        trainer.stop()


@contextlib.contextmanager
def feed_hosts(directory: Path, count: int = 2, **options: Any) -> Iterator[list[Server]]:
    """Feed servers on addresses of their own, that are gone at the end of the block."""
    with contextlib.ExitStack() as stack:
        hosts = []
        for number in range(1, count + 1):
            given = {"address": f"127.0.0.{10 + number}", "code": HERE} | options
            hosts.append(Server(directory, f"host-{number}", **given))
            stack.callback(hosts[-1].stop)
        for host in hosts:
            host.wait_ready()
        yield hosts


def remote(hosts: Sequence[Server], *instead: str) -> dict[str, Any]:
    """Returns the loader's arguments for workers on these hosts.

    Args:
        hosts: the feed servers.
        instead: addresses by which the first ones are reached.
    """
    addresses = [*instead, *(host.tcp for host in hosts[len(instead) :])]
    return {"workers": ",".join(addresses), "secret_file": str(hosts[0].secret)}
