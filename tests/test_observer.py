"""Beside a noisy neighbour, the observer finds what a run left, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from effort import SOAK

import apart
from needs import require
from observer import Observer, listening

ROOT = Path(__file__).parent.parent
Start = Callable[..., "subprocess.Popen[str]"]
PREFIX = "127.66.5"
RUN = "run-of-this-test"
ANOTHER_PROGRAM = {**os.environ, "HEADRACE_RUN_ID": "run-of-another-checkout"}
# Without end: processes, shared memory (closed, held and mapped), temporary files, TCP and Unix sockets.
NOISE = """
import itertools, mmap, os, pathlib, socket, subprocess, sys, tempfile
prefix, temporary = sys.argv[1:]
port = socket.create_server((prefix + ".9", 0))
print("noisy", flush=True)
for number in itertools.count():
    name = f"{os.getpid()}-{number}"
    paths = [pathlib.Path("/dev/shm", kind + name) for kind in ("psm_", "sem.mp-", "torch_")]
    paths += [pathlib.Path(temporary, kind + name) for kind in ("tmp", "pymp-", "torch")]
    with socket.create_server((prefix + ".9", 0)), socket.socket(socket.AF_UNIX) as unix, paths[0].open("wb+") as held:
        unix.bind(f"\\0noise-{name}")
        unix.listen()
        held.write(bytes(4096))
        held.flush()
        mapped = mmap.mmap(held.fileno(), 4096)
        for path in paths[1:]:
            path.touch()
        subprocess.run(["sleep", "0.05"], check=True)
        mapped.close()
    if number >= 3:
        for path in previous:
            path.unlink()
    previous = paths
"""
LEAVING = """
import socket, sys, time
port = socket.create_server((sys.argv[1] + ".8", 0))
shared = open("/dev/shm/" + sys.argv[2], "wb") if sys.argv[2] else None
print("here", flush=True)
time.sleep(600)
"""


@pytest.fixture
def started() -> Iterator[Start]:
    """Starts Python programs that say a word when they are ready; they are ended with the test."""
    with ExitStack() as stack:

        def start(code: str, *arguments: str, environment: dict[str, str]) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            stack.enter_context(process.stdout)
            assert process.stdout.readline().strip()
            return process

        yield start
        Path("/dev/shm/psm_left").unlink(missing_ok=True)


@pytest.fixture
def noise(tmp_path: Path, started: Start) -> Iterator[None]:
    """A neighbour that uses the run's addresses too: it began before the run, as another checkout's job."""
    before = set(Path("/dev/shm").iterdir())
    (tmp_path / "tmp").mkdir()
    started(NOISE, PREFIX, str(tmp_path / "tmp"), environment=ANOTHER_PROGRAM)
    yield
    for path in Path("/dev/shm").iterdir():
        if path not in before:
            path.unlink(missing_ok=True)


@pytest.fixture
def everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where nobody may mount: the neighbour's /dev/shm is that of the tests."""
    monkeypatch.setattr(apart, "has_own_shared_memory", lambda: False)


@pytest.mark.promise("running", "these tests tell what a run left from what other programs make")
def test_what_a_noisy_neighbour_makes_is_not_left_by_the_run(noise: None, everybodys: None, tmp_path: Path) -> None:
    watching = Observer(PREFIX)
    assert listening(PREFIX), "the noise is heard"
    for _ in range(10):
        assert watching.left(RUN, tmp_path / "run") == []


@pytest.mark.promise("running", "these tests tell what a run left from what other programs make")
def test_what_a_run_leaves_is_found_beside_a_noisy_neighbour(
    noise: None, everybodys: None, tmp_path: Path, started: Start
) -> None:
    watching = Observer(PREFIX)
    marked = started(LEAVING, PREFIX, "psm_left", environment={**os.environ, "HEADRACE_RUN_ID": RUN})
    started(LEAVING, PREFIX, "", environment={"PATH": os.environ["PATH"]})  # seen by its socket alone
    file = Path(tempfile.gettempdir(), "tmp_left")
    file.touch()
    found = watching.left(RUN, tmp_path / "run")
    file.unlink()
    assert [each.partition(":")[0].partition(f" {PREFIX}")[0] for each in found] == [
        f"process {marked.pid}",
        "listening socket",
        "listening socket",
        "file /dev/shm/psm_left",
        f"file {file}",
    ]


def test_in_a_dev_shm_of_ones_own_what_nobody_holds_is_found(tmp_path: Path) -> None:
    require("own shared memory")
    watching = Observer(PREFIX)
    file = Path("/dev/shm/psm_left")
    file.touch()
    found = watching.left(RUN, tmp_path / "run")
    file.unlink()
    assert found == [f"file {file}"]


@pytest.mark.promise("running", "these tests tell what a run left from what other programs make")
@pytest.mark.parametrize("workers", ["0", *([pytest.param("1", marks=pytest.mark.namespaces)] if SOAK else [])])
def test_a_whole_run_of_tests_passes_beside_a_noisy_neighbour(noise: None, workers: str) -> None:
    """A real job in another run of pytest, with a place of its own: what this test has is its neighbours'."""
    if workers != "0":
        require("boxes")
    real = "tests/engines/test_local_run.py::test_three_hosts_run_the_entry_point_and_leave_nothing"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers, real],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
