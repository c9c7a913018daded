"""An example whose data are missing says which command makes them, and that command is there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import JobInvalid
from headrace.job import load_job

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
WITH_DATA = {
    "digits/homogeneous.yaml": "digits",
    "digits/heterogeneous.yaml": "digits",
    "grpc-feed/grpc-feed.yaml": "digits",
    "torchrun/torchrun.yaml": "digits",
    "torchrun/elastic.yaml": "digits",
    "cifar-tfrecord/homogeneous.yaml": "cifar-tfrecord",
    "cifar-tfrecord/heterogeneous.yaml": "cifar-tfrecord",
    "cifar-tfrecord/multi-worker.yaml": "cifar-tfrecord",
    "cifar-tfrecord/horovod.yaml": "cifar-tfrecord",
    "horovod-mnist/job.yaml": "horovod-mnist",
    "campaigns/job.yaml": "campaigns",
}
GRIDS = {"campaigns/array.yaml", "seed-grid/array.yaml"}
WITHOUT_DATA = {"hello/hello.yaml", "mpi-hello/mpi-hello.yaml", "seed-grid/job.yaml"}


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """The examples as a new clone has them: without data."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("data", "__pycache__")))


def test_every_example_is_known_to_this_test() -> None:
    found = {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.glob("*/*.yaml")}
    assert found == WITHOUT_DATA | set(WITH_DATA) | GRIDS


@pytest.mark.parametrize("example", WITH_DATA)
def test_the_hint_names_the_command_that_makes_the_data(
    example: str, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fresh.parent)
    with pytest.raises(JobInvalid) as raised:
        load_job(Path("examples") / example)
    for problem in raised.value.problems:
        assert problem.field.startswith("inputs.")
        assert "does not exist" in problem.message
        program, script = shlex.split(problem.hint)
        assert Path(program).name == "python" or program == sys.executable
        assert script == f"examples/{WITH_DATA[example]}/prepare.py"
        assert Path(script).is_file()


@pytest.mark.parametrize("example", sorted(WITHOUT_DATA))
def test_an_example_without_data_needs_no_command(example: str, fresh: Path) -> None:
    load_job(fresh / example)


def test_the_command_of_the_hint_makes_the_data(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fresh / "torchrun")
    with pytest.raises(JobInvalid) as raised:
        load_job("torchrun.yaml")
    subprocess.run(raised.value.problems[0].hint, shell=True, check=True)
    load_job("torchrun.yaml")


def test_no_script_no_command(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "digits" / "prepare.py").unlink()
    with pytest.raises(JobInvalid) as raised:
        load_job(fresh / "digits" / "homogeneous.yaml")
    assert [problem.hint for problem in raised.value.problems] == [""]
