"""Dying with the parent, so that nothing outlives a killed process.

`die_with_parent` asks the kernel to send SIGKILL when the thread that made this process ends. It is exact, but bound
to that thread, so it is for children of single-threaded processes. `watch_parent` holds the parent's pidfd in a
thread, for children of the user's trainer, which may make a loader in a thread that ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent dies; kills it now if that has already happened.

    Args:
        parent: the parent's process id, as the parent knows it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def watch_parent(parent: int) -> None:
    """Starts a thread that kills this process when the process `parent` ends."""
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def wait() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="headrace-parent-watch", daemon=True).start()
