"""Lets one process at a time bring the record of a run to this machine: any command may refresh any run."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from headrace.runs import RunPaths

LOCK = "fetch.lock"  # below the run's engine directory


@contextlib.contextmanager
def alone(paths: RunPaths, wait: bool = False, lock_file: str = LOCK) -> Iterator[bool]:
    """Lets one process at a time fetch the record of a run. Yields whether it is this one.

    Args:
        paths: the run.
        wait: until nobody else does.
        lock_file: below the run's engine directory; another one for what else one process at a time does.

    Raises:
        OSError: the run's directory cannot be written.
    """
    paths.engine.mkdir(exist_ok=True)
    lock = os.open(paths.engine / lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)
