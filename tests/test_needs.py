"""Tests say what they need in one way, and the table of it is the truth: nothing in it is there in the bare box."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from effort import SOAK

import needs
from stranger import as_stranger

TESTS = Path(__file__).parent
ROOT = TESTS.parent
OTHER_WAYS = re.compile(r"pytest\.(importorskip|skip)\(|mark\.(skipif|skip)\b|allow_module_level")
BARE = [sys.executable, str(ROOT / "scripts" / "bare-box")]
LOOK = """
import json, os, sys
sys.path[:0] = ["tests", "src"]
import needs
look = {name: need.why_not() for name, need in needs.NEEDS.items() if need.brought_by.startswith("apt-get")}
from headrace.hosting.isolation import syscalls
uid = os.geteuid()
try:
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    refused = False
except PermissionError:
    refused = True
print(json.dumps([look, uid, refused]))
"""
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)
IN_A_BOX = """
import os, sys
sys.path[:0] = ["tests", "src"]
import apart, subprocess, tempfile
from pathlib import Path
assert not apart.why_not(), apart.why_not()
with tempfile.TemporaryDirectory() as folder:
    program = "import os, socket; socket.create_server(('127.0.0.1', 7070)); print(os.getuid(), os.getpid() < 50)"
    command = apart.box_command(Path(folder), [sys.executable, "-c", program])
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
"""


def test_a_test_says_what_it_needs_in_one_way() -> None:
    for path in sorted(TESTS.rglob("*.py")):
        if path.name not in ("needs.py", "test_needs.py"):
            found = OTHER_WAYS.search(path.read_text())
            assert found is None, f"{path}: {found and found[0]}: tests/needs.py has the one way"


def test_every_row_is_needed_by_a_test() -> None:
    texts = "".join(path.read_text() for path in TESTS.rglob("*.py") if path.name not in ("needs.py", "test_needs.py"))
    assert [name for name in needs.NEEDS if f'"{name}"' not in texts] == ["slurm-24.11"], "whose name is put together"


def test_a_run_lists_what_was_skipped_with_the_command_that_would_bring_it(tmp_path: Path) -> None:
    fuse = ("apt-get install fuse3",)
    assert needs.summary([fuse, ("apt-get install passt", "root"), fuse]) == [
        "  2 tests: apt-get install fuse3",
        "  1 test: apt-get install passt; root",
        "all of the packages: apt-get install fuse3 passt",
    ]
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom needs import require\n"
        "@pytest.mark.needs('kubernetes')\ndef test_marked(): raise AssertionError\n"
        "def test_within(): require('kubernetes', 'root')\ndef test_runs(): pass\n"
    )
    shutil.copy(TESTS / "conftest.py", tmp_path)
    kept = {
        name: value for name, value in os.environ.items() if name not in ("KUBERNETES_CLUSTER", "CI", "PYTEST_ADDOPTS")
    }
    pytest_here = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(tmp_path), str(ROOT / "src")])}
    for more, code in (({}, 0), ({"CI": "true"}, 1), ({"CI": "true", needs.BARE: "1"}, 0)):
        done = subprocess.run(
            [*pytest_here, f"--rootdir={tmp_path}", str(tmp_path)], cwd=tmp_path, env=kept | paths | more, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        if not code:
            assert "2 tests: make kubernetes" in done.stdout or "1 test: make kubernetes" in done.stdout


@pytest.mark.needs("root")
@pytest.mark.parametrize("user", [False, True])
def test_in_the_bare_box_nothing_is_there_that_a_package_brings(user: bool) -> None:
    options = ["--user", "--no-namespaces"] if user else []
    env = os.environ | {"TMPDIR": "/tmp"}  # where the home of another user is made: that of the tests is closed to him
    done = subprocess.run(
        [*BARE, *options, sys.executable, "-c", LOOK],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    rows, uid, refused = json.loads(done.stdout.splitlines()[-1])
    of_the_system = {"ip", "nsenter"}  # every Debian has them
    assert [name for name, why in rows.items() if not why and name not in of_the_system] == []
    assert (uid == 0, refused) == (not user, user)


@pytest.mark.namespaces
@pytest.mark.needs("boxes")
def test_an_ordinary_user_has_boxes_by_user_namespaces_and_keeps_his_id_there() -> None:
    done = subprocess.run(
        as_stranger("-c", IN_A_BOX), cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    uid = os.geteuid() or 65534
    assert done.stdout.split() == [str(uid), "True"]


@pytest.mark.parametrize(
    "workers", ["0", *([pytest.param("1", marks=[pytest.mark.namespaces, pytest.mark.needs("boxes")])] if SOAK else [])]
)
def test_the_programs_of_tests_have_the_signals_of_a_terminal_whatever_pytest_was_started_with(
    tmp_path: Path, workers: str
) -> None:
    def ignore() -> None:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    real = "tests/test_needs.py::test_what_a_program_of_tests_ignores_and_blocks_is_nothing_else_than_python"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers, real], cwd=ROOT, env=kept,
        capture_output=True, text=True, check=False, preexec_fn=ignore, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_program_of_tests_ignores_and_blocks_is_nothing_else_than_python() -> None:
    done = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True)
    rows = dict(line.split(":", 1) for line in done.stdout.splitlines())
    free = sum(1 << (number - 1) for number in signal.valid_signals())  # the others are the C library's own
    assert (int(rows["SigIgn"], 16) & free, int(rows["SigBlk"], 16) & free) == (0, 0)
