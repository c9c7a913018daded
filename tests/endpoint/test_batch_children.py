"""Children of AWS Batch: real processes with the array index run the exported wrapper against `headrace serve`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK
from sagemaker_loop import BUCKET, IMAGE, Loop, open_loop

from batch_grids import WHEEL, write_grid
from headrace.cli.options import write_files
from headrace.grid.batch.grid_bundle import GRID, read_frozen_grid
from headrace.grid.batch.submit_array import BatchExport, export_batch
from headrace.grid.load_grid import load_grid
from headrace.grid.plan_grid import plan_grid
from patience import allowed
from serve_process import REGION, ROLE, ServeProcess, wait_for

pytestmark = pytest.mark.namespaces

SCRIPT = """
import os, pathlib, signal, sys, time
line = int(sys.argv[sys.argv.index("--line") + 1])
here = pathlib.Path(sys.argv[sys.argv.index("--here") + 1])
def saved(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, saved)
print(f"line {line} trains", flush=True)
(here / f"begun-{line}").touch()
if line == 1:
    sys.exit("line 1 is wrong")
while not (here / f"gate-{line}").exists():
    time.sleep(0.02)
print(f"line {line} is done", flush=True)
"""


class Children:
    """A grid of three lines in a bucket of the service, and processes that Batch would start.

    Args:
        loop: the service.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop, self.here = loop, loop.folder
        self.started: list[subprocess.Popen[str]] = []
        options = {**loop.options(), "wheels": "none"}
        job = {
            "role": ROLE, "image_uri": IMAGE, "output_path": f"s3://{BUCKET}/out", "instance_groups": None,
            "instance_type": "ml.m5.xlarge", "instance_count": 1, "inputs": None, "engines": {"sagemaker": options},
            "hyperparameters": {"here": str(self.here)},  # hosts have a /tmp of their own, and see what a job names
        }  # fmt: skip
        lines = {"product": {"hyperparameters.line": [0, 1, 2], "region": [REGION]}}
        batch = {"queue": "training", "region": REGION, "bundle": f"s3://{BUCKET}/grids"}
        file = write_grid(self.here / "grid", lines, job=job, batch=batch)
        (self.here / "grid" / "code" / "train.py").write_text(textwrap.dedent(SCRIPT))
        grid = load_grid(file)
        self.export: BatchExport = export_batch(grid, grid.file.batch, plan_grid(grid), WHEEL, REGION)
        stored = loop.service.home / "buckets" / self.export.names.bundle.removeprefix("s3://")
        write_files(stored, self.export.bundle, update=False)
        self.stored = stored
        self.wrapper = self.here / "sage_wrapper.sh"
        self.wrapper.write_bytes(self.export.image["sage_wrapper.sh"])
        self.names = [line.job_name for line in read_frozen_grid(self.export.bundle[GRID], GRID).lines]

    def start(self, index: int, attempt: int = 1, **other: str) -> subprocess.Popen[str]:
        """Starts an attempt of a child, on a machine of its own: nothing of an earlier attempt is there."""
        given = {each["name"]: each["value"] for each in self.export.submission["containerOverrides"]["environment"]}
        environment = {
            **os.environ,
            **given,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HEADRACE_HOME": str(self.here / f"machine-{index}-{attempt}"),
            "AWS_ENDPOINT_URL": self.loop.service.url,
            "AWS_REGION": REGION,
            "AWS_BATCH_JOB_ARRAY_INDEX": str(index),
            "AWS_BATCH_JOB_ATTEMPT": str(attempt),
            **other,
        }
        child = subprocess.Popen(
            ["bash", self.wrapper], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(child)
        return child

    def close(self) -> None:
        """Ends what a test that failed has left."""
        for child in self.started:
            if child.poll() is None:
                child.kill()
            if child.stdout is not None and not child.stdout.closed:
                print(*child.communicate(), sep="\n")  # pytest shows it when something failed
        for index in range(len(self.names)):
            (self.here / f"gate-{index}").touch()

    def begun(self, index: int) -> bool:
        return (self.here / f"begun-{index}").exists()

    def described(self, index: int) -> dict[str, Any]:
        """What the service says of the line's training job."""
        return self.loop.service.client().describe_training_job(TrainingJobName=self.names[index])


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Returns exit code, standard output and standard error of a child."""
    out, errors = child.communicate(timeout=allowed(60))
    return child.returncode, out, errors


@pytest.fixture
def children(service: ServeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    made = Children(open_loop(service, tmp_path, monkeypatch))
    yield made
    made.close()
    service.close_clients()


@pytest.mark.promise("grid-batch", "a child exits as its line; retries by AWS Batch never submit a line twice")
def test_children_end_as_their_lines_and_a_killed_one_is_followed_by_one_that_adopts(children: Children) -> None:
    wrong = children.start(1)
    code, out, errors = ended(wrong)
    assert (code, "line 1 is wrong" in out) == (1, True), (out, errors)
    assert children.described(1)["TrainingJobStatus"] == "Failed"
    (children.here / "begun-1").unlink()
    if SOAK:
        once_more = children.start(1, attempt=2, GRID_RUNS="2")  # as in a grid that is submitted --again

    first = children.start(0)
    wait_for(lambda: children.begun(0) or first.poll() is not None)
    first.kill()
    assert ended(first)[0] == -signal.SIGKILL
    again = children.start(0, attempt=2)
    (children.here / "gate-0").touch()
    code, out, errors = ended(again)
    assert code == 0, (out, errors)
    assert "adopts" in errors
    assert [words in out for words in ("line 0 trains", "line 0 is done")] == [True, True], out

    stopped = children.start(2)
    wait_for(lambda: children.begun(2) or stopped.poll() is not None)
    stopped.send_signal(signal.SIGTERM)
    code, out, errors = ended(stopped)
    assert (code, "saved" in out) == (130, True), (out, errors)
    assert children.described(2)["TrainingJobStatus"] == "Stopped"

    if SOAK:
        assert (ended(once_more)[0], children.begun(1)) == (1, True)
        assert ended(children.start(1, attempt=2))[0] == 1, "an attempt after the end says how it ended"
    summaries = children.loop.service.client().list_training_jobs(MaxResults=100)["TrainingJobSummaries"]
    made = (*children.names, *([f"{children.names[1]}-a2"] if SOAK else []))
    assert sorted(each["TrainingJobName"] for each in summaries) == sorted(made), "each line once"


def test_what_says_nothing_about_the_line_is_tried_again_and_what_is_wrong_is_not(children: Children) -> None:
    nobody = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    tries = {
        "unreachable": (children.start(0, **nobody), 75),
        "no such line": (children.start(3), 2),
    }
    if SOAK:
        tries["no such bundle"] = (children.start(0, S3_ARRAY_FILE=f"s3://{BUCKET}/grids/other/array.jsonl"), 2)
    for name, (child, code) in tries.items():
        found = ended(child)
        assert found[0] == code, (name, found)
    array = children.stored / "array.jsonl"
    array.write_bytes(array.read_bytes().replace(b'"hyperparameters.line": 0', b'"hyperparameters.line": 7'))
    code, _, errors = ended(children.start(0))
    assert (code, "was changed after it was exported" in errors) == (2, True), errors
    assert not children.begun(0)
