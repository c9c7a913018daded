"""Workers of pytest-xdist (`pytest -n 2`) run tests beside each other that use the same ports and the same places for
temporary files: each worker gets a network of its own, with nothing but the loopback device, and a temporary directory
of its own. Networks need root: without it tests run one after the other.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile

from headrace.engines.local.isolation.netlink import Netlink
from headrace.engines.local.isolation.syscalls import CLONE_NEWNET, unshare


def stand_apart() -> str:
    """Moves this process into a network of its own; returns its new directory for temporary files."""
    unshare(CLONE_NEWNET)  # of this thread and those that it starts; execnet's own only reads a pipe
    with Netlink() as network:
        network.turn(socket.if_nametoindex("lo"), on=True)
    # Short: paths of Unix sockets have 107 bytes.
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="hr-tests-")
    return tempfile.tempdir


def come_back(directory: str) -> None:
    """Removes what tests have left there."""
    shutil.rmtree(directory, ignore_errors=True)
