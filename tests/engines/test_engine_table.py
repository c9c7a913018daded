"""The table of engines: what a job is, what a fault does, and that nothing is left, is the same on every platform.

python -m pytest tests/engines/test_engine_table.py -k "slurm and cut"
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from effort import SOAK
from engine_table import FAULTS, JOBS, JobRow
from engine_table_cells import ABSENT, DEFECTS, ENGINES, PLATFORMS, QUICK
from engine_table_platform import Platform
from engine_table_play import Play, play_fault, play_job
from engine_table_shapes import HELLO
from engine_table_slurm import HEADRACE, SlurmPlatform
from slurm_cluster import HEAD
from slurm_stage import S3_USER, s3_server

from headrace.runs import Run, RunPaths, Status
from headrace.runs.segments import is_recorded
from needs import require
from patience import until

ROOT = Path(__file__).parents[2]
OTHER_PYTHON = {"horovod": ROOT / ".venv-horovod" / "bin" / "python"}  # where its Python has more than this one

pytestmark = pytest.mark.timeout(3600 if SOAK else 900)


def cells(rows: tuple[str, ...]) -> list[object]:
    """The cells that are played in this run, engine by engine: each has its platform for as long as it is needed."""
    chosen = [(row, engine) for engine in ENGINES for row in rows if (row, engine) not in ABSENT]
    return [
        pytest.param(
            engine,
            row,
            id=f"{engine}: {row}",
            marks=[pytest.mark.xfail(strict=True, reason=DEFECTS[row, engine])] if (row, engine) in DEFECTS else [],
        )
        for row, engine in chosen
        if SOAK or (row, engine) in QUICK
    ]


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """The platform of an engine."""
    require(*PLATFORMS[request.param].needs)
    folder = Path(tempfile.mkdtemp(prefix="ht-"))
    try:
        with PLATFORMS[request.param].open(folder) as platform:
            yield platform
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def platform(opened: Platform) -> Iterator[Platform]:
    """The same, as it was, whatever a test has done to it."""
    yield opened
    opened.mend()


@cache
def python_for(needs: tuple[str, ...]) -> str:
    """Returns the Python that has what a job needs, empty for this one. Skips the test where there is none."""
    if "mpi4py" in needs:
        require("mpirun", "libmpi", "mpi4py")
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    (name,) = missing
    require(f".venv-{name}" if name in OTHER_PYTHON else name)
    return str(OTHER_PYTHON[name])


def job_row(name: str) -> JobRow:
    return next(row for row in JOBS if row.name == name)


@cache
def local_losses(name: str) -> bytes:
    """What the job of a row writes about its losses in the local engine."""
    folder = Path(tempfile.mkdtemp(prefix="ht-"))
    try:
        with PLATFORMS["local"].open(folder) as platform:
            return play_job(job_row(name), platform, "alone")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(("opened", "name"), cells(tuple(row.name for row in JOBS)), indirect=["opened"])
def test_a_job_is_completed_with_the_losses_of_the_local_run(platform: Platform, name: str) -> None:
    row = job_row(name)
    python = python_for(row.needs)
    # in every run: test_slurm_runs.py::test_the_digits_are_learnt_with_the_same_losses_as_on_one_machine
    compared = SOAK and bool(row.losses) and platform.engine != "local"
    with ThreadPoolExecutor(1) as beside:
        alone = beside.submit(local_losses, name) if compared else None
        losses = play_job(row, platform, f"job-{JOBS.index(row)}", python)
        assert bool(losses) == bool(row.losses)
        assert alone is None or losses == alone.result()


@pytest.mark.parametrize(("opened", "name"), cells(tuple(row.name for row in FAULTS)), indirect=["opened"])
def test_a_fault_has_its_end_and_leaves_nothing(platform: Platform, name: str) -> None:
    (row,) = (row for row in FAULTS if row.name == name)
    play_fault(row, platform, f"fault-{FAULTS.index(row)}")


@pytest.mark.promise("engines", "what the platform has of a run, on slurm")
@pytest.mark.parametrize("opened", ["slurm"], indirect=True)
def test_what_slurm_says_of_a_run_is_shown_beside_its_record(platform: SlurmPlatform) -> None:
    play = Play(platform, "told")
    play.submit(HELLO.document("told", platform.folder))
    assert play.wait(20) == 0
    (play.run.paths.engine / "algo-1.log").write_text("a warning")

    def documents() -> dict[str, str]:
        shown = json.loads(play.headrace("logs", play.run_id, "--platform", "--output", "json").stdout)
        return {document["name"]: document["text"] for document in shown}

    # the run has ended before its job, whose components are COMPLETING until their nodes are free
    ended = lambda: documents()["scontrol-show-job.txt"].count("JobState=COMPLETED") == 2  # noqa: E731
    until(ended, 30, "both components completed")
    shown = documents()
    assert shown["engine/algo-1.log"] == "a warning"
    assert f"Comment=headrace:{play.run_id}" in shown["scontrol-show-job.txt"]


@pytest.mark.promise("engines", "the record in a bucket, on slurm")
@pytest.mark.s3
@pytest.mark.parametrize("opened", ["slurm"], indirect=True)
def test_the_record_of_a_run_on_slurm_is_whole_in_its_bucket(platform: SlurmPlatform) -> None:
    folder, on_head = platform.folder, platform.cluster.on
    job = platform.fitted(HELLO.document("kept", folder), "")
    (folder / "kept.yaml").write_text(json.dumps({**job, "record": {"uri": "s3://bucket/runs", "interval": 1}}))
    user = ("env", *(f"{name}={value}" for name, value in S3_USER.items()), *HEADRACE)
    with s3_server(platform.cluster):
        run_id = on_head(HEAD, *user, "run", str(folder / "kept.yaml"), "--engine", "slurm", "--detach").stdout.strip()
        assert platform.headrace("wait", run_id).returncode == 0  # without keys: the lead stores the end, nobody else
        fetched = on_head(HEAD, *user, "fetch", f"s3://bucket/runs/{run_id}", "--into", str(folder / "copy"), "-f")
        assert "complete" in fetched.stdout
    own, copied = platform.run(run_id), Run(RunPaths(folder / "copy" / run_id))
    assert recorded(copied.paths) == recorded(own.paths)
    assert copied.status is Status.COMPLETED
    assert {line.text.split()[1] for line in copied.logs() if line.text.startswith("hello")} == {"algo-1", "algo-2"}


def recorded(paths: RunPaths) -> dict[str, bytes]:
    """The files of a run's record that hold something."""
    found = {str(path.relative_to(paths.root)): path for path in paths.root.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if is_recorded(name, "/" not in name) and path.stat().st_size
    }
