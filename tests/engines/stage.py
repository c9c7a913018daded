"""Real runs in a home of their own, on addresses of their own, watched from outside."""

from __future__ import annotations

import itertools
import os
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from effort import SOAK
from run_places import pid_here

from headrace import engines
from headrace.instance.launch_plan import read_plan
from headrace.job import Job
from headrace.runs import Status
from headrace.runs.events import HostStarted, ProgramStarted
from needs import require
from observer import Observer
from patience import allowed

_numbers = itertools.count(1)


class Stage:
    """Starts jobs of one test."""

    def __init__(self, folder: Path, isolation: str = "none") -> None:
        self.folder = folder
        self.isolation = isolation
        number = next(_numbers)  # a run of all tests has more stages than an octet has values
        self.prefix = f"127.{77 + (os.getpid() + number // 250) % 100}.{number % 250}"
        self.observer = Observer(self.prefix)
        self.handles: list[object] = []

    def job(self, script: str, name: str = "job", local: dict[str, object] | None = None, **fields: object) -> Job:
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text(textwrap.dedent(script))
        if "instance_groups" not in fields:
            fields = {"instance_type": "ml.c5.xlarge", "instance_count": 1, **fields}
        return Job(
            name,
            source_dir=str(code),
            entry_point="train.py",
            engines={"local": {**self._local(), **(local or {})}},
            **fields,
        )

    def address(self, handle: object, host: str) -> str:
        return read_plan(handle.paths.host(host)).host(host).address

    def base(self, handle: object, host: str) -> str:
        return read_plan(handle.paths.host(host)).host(host).base_dir

    def _local(self) -> dict[str, object]:
        return {"address_prefix": self.prefix, "stop_grace": 3, "isolation": self.isolation}

    def start(self, script: str, **fields: object):
        handle = engines.start(self.job(script, **fields))
        waited = handle.wait
        handle.wait = lambda seconds=None: waited(None if seconds is None else allowed(seconds))
        self.handles.append(handle)
        return handle

    def assert_nothing_left(self, handle: object, within: float = 0.0) -> None:
        self.observer.assert_nothing_left(handle.id, handle.paths.root, within)


# Decorates a test that must hold in both: hosts as addresses of this machine, and hosts in namespaces.
both_isolations = pytest.mark.parametrize(
    "stage", ["none", pytest.param("namespace", marks=pytest.mark.namespaces)], indirect=True
)

# The same for what costs much or is a row of the fault table too: as addresses of this machine in the long run only.
both_isolations_at_length = pytest.mark.parametrize(
    "stage", [*(["none"] if SOAK else []), pytest.param("namespace", marks=pytest.mark.namespaces)], indirect=True
)

# The other way round, for what other tests have in namespaces.
isolated_at_length = pytest.mark.parametrize(
    "stage", ["none", *([pytest.param("namespace", marks=pytest.mark.namespaces)] if SOAK else [])], indirect=True
)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Stage]:
    isolation = getattr(request, "param", "none")
    if isolation == "namespace":
        require("namespaces")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    stage = Stage(tmp_path, isolation)
    yield stage
    for handle in stage.handles:
        if handle.exit_code is None:  # the test has failed already
            handle.stop(now=True)
            handle.wait(20)


def groups(**counts: int) -> list[dict[str, object]]:
    return [
        {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "instance_count": count}
        for name, count in counts.items()
    ]


def text(handle: object, stream: str = "") -> str:
    return "\n".join(line.text for line in handle.run.logs() if not stream or str(line.stream) == stream)


def said(handle: object, words: str) -> Callable[[], bool]:
    return lambda: words in text(handle)


def agent_pid(handle: object, host: str) -> int:
    return next(each.pid for each in handle.run.events() if isinstance(each, HostStarted) and each.host == host)


def program_pid(handle: object, host: str, stream: str = "0") -> int:
    """The program's pid on this machine; the events have the one that it has on its host."""
    pid = next(
        each.pid
        for each in handle.run.events()
        if isinstance(each, ProgramStarted) and (each.host, each.stream) == (host, stream)
    )
    return pid_here(agent_pid(handle, host), pid)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def assert_failed(handle: object, began: float, within: float = 10.0) -> None:
    """Waits for the end of a run whose fault came at `began`; it must end soon, and not well."""
    status = handle.wait(within + 10)
    assert status is not Status.IN_PROGRESS
    assert time.monotonic() - began < allowed(within)
    assert handle.exit_code == 1
