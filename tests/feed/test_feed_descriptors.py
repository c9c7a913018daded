"""Descriptors: none is left open by what fails, and the limit of open files is raised before it is reached."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import array_data
import psutil
import pytest
from effort import SOAK
from feed_servers import HERE, Pair, Server, ask, open_descriptors, wait_until

from headrace.errors import HeadraceError
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.batch import slab
from headrace.feed.descriptors import STEP, Descriptors
from headrace.feed.worker.executor_pool import ExecutorPool

CALLS = {
    "dup": (os, "dup"), "memfd_create": (os, "memfd_create"), "ftruncate": (os, "ftruncate"),
    "mmap": (slab, "_Mapping"), "socketpair": (socket, "socketpair"), "Popen": (subprocess, "Popen"),
}  # fmt: skip


def descriptors() -> set[tuple[str, str]]:
    """Returns the descriptors that are open in this process, with what each is."""
    opened = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            opened.add((entry.name, str(entry.readlink())))
    return opened


@contextlib.contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> Iterator[list[int]]:
    """Has the call of a number fail in this process, from 0 on. Gives the calls until now."""
    where, name = CALLS[call]
    real, owner, calls = getattr(where, name), os.getpid(), [0]

    def fail(*arguments: Any, **options: Any) -> Any:
        if os.getpid() == owner:
            calls[0] += 1
            if calls[0] == number + 1:
                raise OSError(24, "Too many open files")
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, fail)
        yield calls


PLACES = ["local", "unix and tcp"]  # the second one has the Unix socket too
FAILING = [("local", "dup"), ("local", "memfd_create"), *(("unix and tcp", call) for call in CALLS)]


@pytest.mark.promise(
    "feed-errors", "with hundreds of workers the limit of open files is raised; an error leaves none open"
)
@pytest.mark.parametrize(("place", "call"), list(itertools.product(PLACES, CALLS)) if SOAK else FAILING)
def test_whatever_call_fails_no_descriptor_stays_open(
    place: str, call: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
    if place != "local":
        where = {"workers": pair.endpoints()[place], "secret_file": pair.secret}
    for number in (0, 1, 2, 5):
        before = descriptors()
        with (
            failing(monkeypatch, call, number) as calls,
            contextlib.suppress(HeadraceError),  # the batches that come are right, or there is an error of ours
            DataLoader(array_data.pictures(64), 4, collate_fn=stack_arrays, **where) as loader,
        ):
            assert [row for batch in loader for row in batch[1].tolist()] == list(range(64))
        gc.collect()
        # none is new; what other tests left to the collector may be gone
        wait_until(lambda before=before: descriptors() <= before, f"all closed after call {number} of {call}")
        if calls[0] <= number:
            break  # it was not called as often


@pytest.mark.parametrize("call", ["dup", "socketpair", "Popen"])
def test_executors_that_cannot_be_started_leave_no_descriptor_and_no_process(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        gc.collect()  # what other tests left to the collector is not this one's
        opened, children = descriptors(), set(psutil.Process().children())
        with failing(monkeypatch, call, number) as calls, contextlib.suppress(OSError):
            ExecutorPool(2, [HERE], 0).close()
        gc.collect()
        wait_until(lambda opened=opened: descriptors() <= opened, f"all closed after call {number} of {call}")
        wait_until(
            lambda children=children: set(psutil.Process().children()) <= children, "a process that was begun is gone"
        )
        if calls[0] <= number:
            break


def test_descriptors_are_closed_with_their_list() -> None:
    before = open_descriptors()
    held = Descriptors([os.dup(0), os.dup(0)])
    released = Descriptors([os.dup(0)]).release()
    assert open_descriptors() == before + 3
    del held
    assert open_descriptors() == before + 1
    os.close(*released)


# The limit


LIMITED = """
import resource, sys
import array_data
from headrace import errors, feed

soft, hard, workers = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
if __name__ == "__main__":
    try:
        options = {"collate_fn": feed.stack_arrays, "seed": 1, "multiprocessing_context": "fork"}
        with feed.DataLoader(array_data.Pictures(64), 4, num_workers=workers, **options) as loader:
            rows = [row for batch in loader for row in batch[1].tolist()]
        print(rows == list(range(64)), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    except errors.FeedError as error:
        print(error)
"""


def limited(soft: int, hard: int, workers: int) -> str:
    command = [sys.executable, "-W", "ignore", "-c", LIMITED, str(soft), str(hard), str(workers)]
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(HERE), *filter(None, sys.path)])
    }
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=True, env=environment).stdout


@pytest.mark.promise(
    "feed-errors", "with hundreds of workers the limit of open files is raised; an error leaves none open"
)
@pytest.mark.usefixtures("without_torch")
def test_the_limit_is_raised_for_many_workers_and_no_further_than_is_needed() -> None:
    assert limited(64, 4096, 24) == f"True {64 + STEP}\n"
    assert limited(1024, 4096, 2) == "True 1024\n", "nothing is raised that need not be"


@pytest.mark.usefixtures("without_torch")
def test_a_hard_limit_that_is_not_enough_is_told() -> None:
    told = limited(64, 64, 24)
    assert told.startswith("too many open files: this process may have 64 files open at a time, at most 64 (RLIMIT")
    assert "ulimit -Hn" in told


@pytest.mark.usefixtures("without_torch")
def test_a_server_with_many_executors_raises_its_limit_and_its_executors_have_theirs(
    own_server: Callable[..., Server],
) -> None:
    server = own_server("many", executors=40, prefix=["sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh"])
    rows = array_data.pictures(64)
    for address in (server.unix_address, server.tcp):
        with DataLoader(rows, 4, collate_fn=stack_arrays, workers=address, secret_file=str(server.secret)) as loader:
            assert [row for batch in loader for row in batch[1].tolist()] == list(range(64))
    assert psutil.Process(server.process.pid).rlimit(resource.RLIMIT_NOFILE)[0] > 64
    assert {executor.rlimit(resource.RLIMIT_NOFILE)[0] for executor in server.executors()} == {64}


@pytest.mark.usefixtures("without_torch")
def test_a_server_without_a_descriptor_turns_connections_away_and_goes_on(own_server: Callable[..., Server]) -> None:
    server = own_server("full", executors=1, prefix=["sh", "-c", 'ulimit -n 40; exec "$@"', "sh"])
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection((server.address, server.port), 10))
        wait_until(lambda: "a connection is closed: too many open files" in server.log(), "the server tells")
        process = psutil.Process(server.process.pid)
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1, "a second")
        assert sum(process.cpu_times()[:2]) - before < 0.5, "it does not run in circles"
    wait_until(lambda: ask(server).executors, "it answers again")
