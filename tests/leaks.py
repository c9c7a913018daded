"""Looks for what a test has left behind in this process: threads, children, descriptors, shared memory, handlers.

`check()` is used around every test by an autouse fixture. What is still going away gets a few seconds; what stays is
named. Processes, sockets and mappings that a fixture of a wider scope made are there before the test and do not count.
"""

from __future__ import annotations

import gc
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from patience import allowed

GRACE_SECONDS = 5.0
STANDING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # one each, to the end of the process
WATCHED = re.compile(r"^(socket:|pipe:|/memfd:|anon_inode:\[pidfd\])")


def threads() -> dict[str, str]:
    """Returns the live threads that can be left behind: id to name."""
    return {str(thread.ident): f"thread {thread.name!r}" for thread in threading.enumerate() if thread.is_alive()}


def children(before: dict[str, str]) -> dict[str, str]:
    """Returns the child processes, and theirs: pid to command line.

    Args:
        before: processes that were there before; what those start is their business.
    """
    found: dict[str, str] = {}
    parents = ["self"]
    while parents:
        parent = parents.pop()
        for pid in _children_of(parent):
            command = _command_of(pid)
            if pid not in before and not any(name in command for name in STANDING):
                found[pid] = f"process {pid}: {command[:200]}"
                parents.append(pid)
    return found


def _children_of(pid: str) -> list[str]:
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += (task / "children").read_text().split()
    except OSError:
        pass  # it has ended by now
    return found


def _command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") or "(ended)"
    except OSError:
        return "(ended)"


def descriptors() -> dict[str, str]:
    """Returns the open sockets, pipes, memfds and pidfds: descriptor and target."""
    standing = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
    }
    found = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if WATCHED.match(target) and int(descriptor.name) not in standing:
            found[f"{descriptor.name} {target}"] = f"descriptor {descriptor.name}: {target}"
    return found


def mappings() -> dict[str, str]:
    """Returns the mapped shared memory: memfds and files of /dev/shm, by inode."""
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:" in line or "/dev/shm/" in line:
            parts = line.split(maxsplit=5)
            found[parts[4]] = f"mapping of {parts[5]} (inode {parts[4]})"
    return found


def handlers() -> dict[signal.Signals, Any]:
    """Returns what this process does at the signals that end programs."""
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def everything(before: dict[str, str]) -> dict[str, str]:
    """Returns all that is looked for: key to words."""
    return threads() | children(before) | descriptors() | mappings()


@contextmanager
def check(grace: float = GRACE_SECONDS) -> Iterator[None]:
    """Fails if there is more after the block than before it, `grace` seconds later still."""
    before, handled = everything({}), handlers()
    yield
    if changed := {number: handler for number, handler in handlers().items() if handler is not handled[number]}:
        for number in changed:
            signal.signal(number, handled[number])
        raise AssertionError(f"left behind by the test: handlers of {', '.join(map(str, changed))}")
    began = time.monotonic()
    while left := {key: words for key, words in everything(before).items() if key not in before}:
        gc.collect()
        if time.monotonic() - began > allowed(grace):
            raise AssertionError("left behind by the test:\n  " + "\n  ".join(sorted(left.values())))
        time.sleep(0.02)
