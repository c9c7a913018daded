"""Who looks at a held file takes nothing, and who ends holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.endpoint.endpoint_server import ServeOptions, written_setup
from headrace.grid.read_grid import grid_lease, has_controller
from headrace.held_file import hold, is_held

HOLDS = """
import sys
from pathlib import Path
from headrace.held_file import hold
hold(Path(sys.argv[1]))
print(flush=True)
input()
"""


def test_a_file_is_held_by_one_until_it_closes_it_or_ends(tmp_path: Path) -> None:
    path = tmp_path / "held"
    assert not is_held(path)
    descriptor = hold(path)
    assert descriptor is not None
    assert (hold(path), is_held(path)) == (None, True)
    os.close(descriptor)
    assert not is_held(path)
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert (hold(path), is_held(path)) == (None, True)
        holder.kill()
    assert not is_held(path)


def test_a_look_refuses_nobody(tmp_path: Path) -> None:
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            has_controller(tmp_path)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(300):
            with grid_lease(tmp_path):
                pass
    finally:
        over.set()
        looking.join()


@pytest.mark.parametrize("running", [True, False])
def test_the_lines_for_a_shell_leave_those_of_an_endpoint_that_runs(tmp_path: Path, running: bool) -> None:
    store = tmp_path / "store"
    first = written_setup(ServeOptions(store=store, port=7080))
    config = (store / "aws-config").read_text()
    held = hold(store / "lock") if running else None
    assert written_setup(ServeOptions(store=store, port=7081)).key == first.key
    assert ((store / "aws-config").read_text() == config) is running
    if held is not None:
        os.close(held)
