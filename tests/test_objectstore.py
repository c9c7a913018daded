"""When the S3 server of a session ends, the test in which it ended says how, and so does every test that needs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import objectstore
from objectstore import Server, assert_serving, stays_serving


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], subprocess.Popen[bytes]]:
    """Starts a program in the place of the session's server."""

    def start(code: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=log, stderr=log)
        monkeypatch.setattr(objectstore, "SERVERS", [Server(process, tmp_path / "log")])
        return process

    return start


def test_a_server_that_ended_is_told_with_its_exit_code_and_last_lines(serve) -> None:
    with serve("print(*range(30), sep='\\n'); raise SystemExit(3)") as process:
        process.wait()
        with pytest.raises(AssertionError, match=r"before this test: .* has ended, exit code 3:\n  10\n(.*\n)*  29$"):
            assert_serving("before this test")


def test_the_test_in_which_it_ended_fails_and_those_after_it_that_do_not_need_it_pass(serve) -> None:
    with serve("input()") as process:
        with stays_serving():
            assert_serving("before this test")
        with pytest.raises(AssertionError, match=r"during this test: .* has ended, signal SIGKILL"), stays_serving():  # noqa: PT012
            process.kill()
            process.wait()
        with stays_serving():
            pass
