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

from headrace import engines
from headrace.job import Job
from headrace.runs import Status
from headrace.runs.events import HostStarted, ProgramStarted
from observer import Observer

_numbers = itertools.count(1)


def until(condition: Callable[[], object], seconds: float = 20.0, what: str = "") -> object:
    """Waits until a condition holds and returns its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not come within {seconds:g} s: {what or condition}"
        time.sleep(0.02)
    return value


class Stage:
    """Starts jobs of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = f"127.{77 + os.getpid() % 100}.{next(_numbers)}"
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
            engines={"local": {"address_prefix": self.prefix, "stop_grace": 3, **(local or {})}},
            **fields,
        )

    def start(self, script: str, **fields: object):
        handle = engines.start(self.job(script, **fields))
        self.handles.append(handle)
        return handle

    def assert_nothing_left(self, handle: object, within: float = 0.0) -> None:
        self.observer.assert_nothing_left(handle.id, handle.paths.root, within)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    stage = Stage(tmp_path)
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
    return "\n".join(line.text for line in handle.logs() if not stream or str(line.stream) == stream)


def said(handle: object, words: str) -> Callable[[], bool]:
    return lambda: words in text(handle)


def agent_pid(handle: object, host: str) -> int:
    return next(each.pid for each in handle.run.events() if isinstance(each, HostStarted) and each.host == host)


def program_pid(handle: object, host: str, stream: str = "0") -> int:
    return next(
        each.pid
        for each in handle.run.events()
        if isinstance(each, ProgramStarted) and (each.host, each.stream) == (host, stream)
    )


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def assert_failed(handle: object, began: float, within: float = 10.0) -> None:
    """Waits for the end of a run whose fault came at `began`; it must end soon, and not well."""
    status = handle.wait(within + 10)
    assert status is not Status.IN_PROGRESS
    assert time.monotonic() - began < within
    assert handle.exit_code == 1
