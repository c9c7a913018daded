"""Executors yield to the ranks beside them, and their start does not."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

from headrace.feed.wire.framed_connection import FramedConnection
from headrace.feed.wire.messages import Fork, Forked
from patience import allowed


def test_beside_busy_ranks_torch_is_imported_at_their_priority_and_only_what_executors_do_yields_to_them(
    tmp_path: Path,
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    (tmp_path / "torch.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path(__file__).with_name('imported').write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))\n"
        "def set_num_threads(number): pass\n"
    )
    ours, theirs = socket.socketpair()
    words = ("--socket", str(theirs.fileno()), "--parent", str(os.getpid()), "--nice", "10", "--code", str(tmp_path))
    command = [sys.executable, "-m", "headrace.feed.worker.forkserver", *words]
    with theirs:
        forkserver = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
    mine, executors = socket.socketpair()
    connection = FramedConnection(ours)
    try:
        connection.send(Fork(0, 1), descriptors=[executors.fileno()])
        connection.drain()
        assert select.select([connection], [], [], allowed(60))[0]
        [frame] = connection.receive()
        assert isinstance(frame.message, Forked)
        assert os.getpriority(os.PRIO_PROCESS, frame.message.pid) == min(19, own + 10)
        assert int((tmp_path / "imported").read_text()) == own
    finally:
        mine.close()
        executors.close()
        connection.close()
        forkserver.wait(allowed(20))
