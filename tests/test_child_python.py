"""What lies in the current folder is never taken for a module of headrace, or of pip."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.child_python import _NO_FOLDER, module_command

PACKAGE = Path(__file__).parent.parent / "src" / "headrace"
OTHERS = {
    "agent/launchers/mpi_host.py",  # the job's own launcher of ranks
    "agent/program_specs.py",  # servers that run with the job's Python, which may be of any version
    "engines/host_start.py",  # in a container
    "hosting/inputs/requirements.py",  # pip of the job's Python
    "instance/entry_command.py",  # the job's own module
    "instance/frameworks.py",
}
"""Modules with ``-m`` in a command of another kind."""
MARK = "open({!r}, 'a').close()\n"
JOB = """
job_name: here
source_dir: code
entry_point: train.py
instance_groups: [{name: dnn, type: ml.c5.xlarge, count: 1}]
"""


def test_modules_are_started_in_one_way() -> None:
    others: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        words = [node.value for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Constant)]
        if "-m" in words and path.name != "child_python.py":
            others.add(str(path.relative_to(PACKAGE)))
    assert others == OTHERS, "use headrace.child_python.module_command"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with modules of the names that headrace and Python use, which leave a file when they run."""
    folder, taken = tmp_path / "somewhere", tmp_path / "taken"
    for name in ("headrace", "pip", "numpy"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(MARK.format(str(taken)))
    for name in ("runpy", "random", "msgspec", "socket", "asyncio"):
        (folder / f"{name}.py").write_text(MARK.format(str(taken)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return taken


def test_both_ways_leave_the_folder_out(trap: Path) -> None:
    said = "from headrace.child_python import module_command; import sys; print(module_command('x')[0])"
    for command in (
        module_command("json.tool", "--help"),
        [sys.executable, "-c", _NO_FOLDER.format("json.tool"), "-h"],
    ):
        assert "json.tool" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not trap.exists()
    subprocess.run([sys.executable, "-c", said], capture_output=True, check=False)
    assert trap.exists(), "the trap works"


@pytest.mark.promise("security", "a package `headrace` in the folder where a job starts is not imported")
def test_a_job_that_is_started_in_a_folder_of_others_runs_nothing_of_it(trap: Path) -> None:
    Path("code").mkdir()
    Path("code/train.py").write_text("print('trained')")
    Path("job.yaml").write_text(JOB)
    headrace = Path(sys.executable).with_name("headrace")
    done = subprocess.run([headrace, "run", "job.yaml"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "trained" in done.stdout) == (0, True), done.stdout + done.stderr
    assert not trap.exists()
