"""The boxes in which tests run side by side."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import apart

ASK = """
import socket
for name in ("no-such-host", "no.such.name.example"):
    try:
        print(name, socket.getaddrinfo(name, 80))
    except socket.gaierror as error:
        print(error.errno)
print(socket.getnameinfo(("192.0.2.2", 80), socket.NI_NUMERICSERV)[0])
"""


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
