"""Descriptors: an owner for those that travel, and room for more of them.

Descriptors that come or go with a message belong to a `Descriptors`, which closes them when nobody holds it any more,
so an error in between leaves none open.

A loader with hundreds of workers takes some descriptors for each: its connection, its process, the slabs on their way.
Most shells allow a process 1,024. A new descriptor gets the lowest number that is free, so its number tells how full
the table is: when it comes near to the soft limit, that is raised by a step, up to the hard limit. Where it never comes
near, nothing changes: programs that this one starts inherit the limit, and select() takes no number above 1,023.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterable, Iterator

from headrace.errors import FeedError

ROOM, STEP = 128, 512
FULL = (errno.EMFILE, errno.ENFILE)

_began: list[int] = []  # the soft limits that were raised


class Descriptors(list[int]):
    """Descriptors that are closed with their list."""

    def close(self) -> None:
        """Closes them."""
        while self:
            os.close(self.pop())

    def release(self) -> list[int]:
        """Returns them, to another owner."""
        released = list(self)
        self.clear()
        return released

    def __del__(self) -> None:
        self.close()


def duplicates(descriptors: Iterable[int]) -> Descriptors:
    """Returns duplicates. Raises OSError, and leaves none open then."""
    copies = Descriptors()
    try:
        for descriptor in descriptors:
            copies.append(keep_room(os.dup(descriptor)))
    except BaseException:
        copies.close()  # the traceback holds them
        raise
    return copies


def keep_room(descriptor: int) -> int:
    """Raises the soft limit of open files if a new descriptor is near to it. Returns the descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or descriptor < soft - min(ROOM, soft // 4) or soft == hard:
        return descriptor
    _began.append(soft)
    raised = soft + STEP if hard == resource.RLIM_INFINITY else min(soft + STEP, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return descriptor


def restore_limit() -> None:
    """Gives a forked child, which holds none of its parent's descriptors, the limit that its parent began with."""
    if _began:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_began[0], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def no_room(error: OSError) -> FeedError:
    """Returns what is raised when no descriptor is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = (error.strerror or str(error)).lower()
    return FeedError(
        f"{words}: this process may have {soft} files open at a time, at most {hard} (RLIMIT_NOFILE)",
        hint="raise the hard limit (ulimit -Hn, systemd's LimitNOFILE=, Docker's --ulimit nofile=), use fewer workers, "
        "or look whether the program opens files that it never closes",
    )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises FeedError, with the limit, instead of the OSError that no descriptor is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise no_room(error) from error
