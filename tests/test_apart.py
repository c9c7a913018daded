"""The boxes in which tests run side by side."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import apart
from headrace.home import home_dir
from headrace.runs import create_run

ASK = """
import socket
for name in ("no-such-host", "no.such.name.example"):
    try:
        print(name, socket.getaddrinfo(name, 80))
    except socket.gaierror as error:
        print(error.errno)
print(socket.getnameinfo(("192.0.2.2", 80), socket.NI_NUMERICSERV)[0])
"""


def test_what_tests_make_without_a_home_of_their_own_is_in_that_of_their_process(tmp_path: Path) -> None:
    assert home_dir().is_relative_to(tempfile.gettempdir())
    entries = home_dir() / f"started-{os.geteuid()}"
    before = set(entries.iterdir()) if entries.is_dir() else set()
    create_run("run", runs=tmp_path)
    assert len(set(entries.iterdir()) - before) == 1


@pytest.mark.namespaces
@pytest.mark.needs("boxes")
def test_a_box_has_a_name_server_that_knows_no_name_and_says_so(tmp_path: Path) -> None:
    asked = subprocess.run(
        apart.box_command(tmp_path, [sys.executable, "-c", ASK]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert asked.stdout.split() == [str(int(socket.EAI_NONAME))] * 2 + ["192.0.2.2"], asked.stderr
