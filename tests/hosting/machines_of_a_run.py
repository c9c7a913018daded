"""Several machines of one run, played by this one: a run directory, temporary files, an address and processes each."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import psutil

from headrace.engines.remote_job import plan_remote_job, prepare_remote_run
from headrace.instance.launch_plan import LaunchPlan, channel_dir, read_plan
from headrace.job import Job
from headrace.private_folders import write_atomically
from headrace.runs import Run, RunPaths, create_run, give_to_engine
from patience import allowed

_ONE_HOST = "headrace.hosting.supervision.one_host"


class Machine:
    """The machine of one host.

    Attributes:
        host: its name.
        paths: the run's directory on it.
        process: its supervisor, once it was started.
    """

    def __init__(self, folder: Path, host: str, prepared: RunPaths) -> None:
        self.host = host
        self.folder = folder
        self.paths = RunPaths(folder / prepared.id)
        self.process: subprocess.Popen[bytes] | None = None
        self._prepared = prepared

    def set_up(self) -> None:
        """Brings what was prepared, as onto a machine that has nothing yet."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "tmp").mkdir(parents=True)
        shutil.copytree(self._prepared.root, self.paths.root, symlinks=True, ignore=self._of_others)
        before, after = str(self._prepared.root).encode(), str(self.paths.root).encode()
        for path in [*self.paths.engine.glob("*.json"), *self.paths.host(self.host).rglob("*.json")]:
            path.write_bytes(path.read_bytes().replace(before, after))

    def _of_others(self, folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name != self.host] if folder == str(self._prepared.root / "hosts") else []

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Starts its supervisor."""
        env = {**os.environ, "TMPDIR": str(self.folder / "tmp"), **(environment or {})}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "utf8", "-m", _ONE_HOST, str(self.paths.root), self.host],
                env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        """What its supervisor said."""
        return (self.folder / "log").read_text()

    @property
    def tree(self) -> Path:
        """The host's /opt/ml."""
        return self.paths.host(self.host)

    def wait(self, seconds: float = 30.0) -> int:
        """Waits for the end of its supervisor, and returns its exit code. Nothing may be left of it."""
        assert self.process is not None
        children = self.processes()
        try:
            code = self.process.wait(allowed(seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.host} does not end:\n{self.log}") from None
        left = [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        assert not left, f"{self.host} has left {left}"
        assert not any((self.folder / "tmp").glob("headrace-*")), "temporary files"
        return code

    def processes(self) -> list[psutil.Process]:
        """Returns the descendants of its supervisor."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def power_off(self) -> None:
        """Kills all its processes."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(self.process.pid)
            supervisor.suspend()
            for each in [*supervisor.children(recursive=True), supervisor]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait(20)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Signals its supervisor, as its platform would."""
        assert self.process is not None
        self.process.send_signal(number)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs `python -m headrace.agent.ask` on it."""
        command = [sys.executable, "-m", "headrace.agent.ask", *words]
        env = {**os.environ, "SAGEMAKER_BASE_DIR": str(self.tree)}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


class Machines:
    """The machines of a run, by host.

    Args:
        folder: of the test; HEADRACE_HOME is in it.
        job: the job.
        prefix: the first three numbers of their addresses.
        change: changes the launch plan.
    """

    def __init__(
        self, folder: Path, job: Job, prefix: str, change: Callable[[LaunchPlan], LaunchPlan] = lambda plan: plan
    ) -> None:
        planned = plan_remote_job(job, lambda host: f"{prefix}.{host.rpartition('-')[2]}")
        prepared = create_run(job.job_name, "machines")
        give_to_engine(prepared)
        prepare_remote_run(planned, prepared)
        plan = change(msgspec.json.decode(prepared.plan.read_bytes(), type=LaunchPlan))
        self.all = {host.name: Machine(folder / host.name, host.name, prepared) for host in plan.hosts}
        hosts = tuple(
            msgspec.structs.replace(
                host, base_dir=str(self.all[host.name].tree), record_dir=str(self.all[host.name].paths.root)
            )
            for host in plan.hosts
        )
        self.plan = msgspec.structs.replace(plan, hosts=hosts)
        text = msgspec.json.encode(self.plan)
        for place in (prepared.plan, *(channel_dir(prepared.host(host)) / "plan.json" for host in self.all)):
            write_atomically(place, text)
        self.leader = self.all[plan.leader]
        for machine in self.all.values():
            machine.set_up()
        assert read_plan(self.leader.tree) == self.plan

    def __getitem__(self, host: str) -> Machine:
        return self.all[host]

    def start(self, environment: Mapping[str, str] | None = None) -> Machines:
        """Starts all supervisors."""
        for machine in self.all.values():
            machine.start(environment)
        return self

    def close(self) -> None:
        """Kills what a failed test has left."""
        for machine in self.all.values():
            if machine.process is not None and machine.process.poll() is None:
                machine.power_off()

    @property
    def run(self) -> Run:
        """The run, in the leader's record."""
        return Run(self.leader.paths)

    def said(self, words: str) -> Callable[[], bool]:
        """Returns whether a program has said something, as far as the leader's record has it."""
        return lambda: any(words in line.text for line in self.run.logs())

    def explain(self) -> str:
        """Returns all that may tell why a test failed."""
        events = "\n".join(map(str, self.run.events()))
        return f"{events}\n" + "\n".join(f"--- {name}\n{each.log}" for name, each in self.all.items())


def groups(**counts: int) -> list[dict[str, object]]:
    """Returns instance groups by name and count."""
    return [
        {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "instance_count": count}
        for name, count in counts.items()
    ]


def job(folder: Path, script: str, name: str = "job", **fields: object) -> Job:
    """Returns a job that runs a script on all its hosts."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(textwrap.dedent(script))
    return Job(name, source_dir=str(code), entry_point="train.py", **fields)
