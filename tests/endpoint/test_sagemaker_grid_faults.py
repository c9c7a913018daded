"""A grid whose service is busy, full, forgetful, answers late or twice: a line is one training job, and completes."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK
from sagemaker_loop import BUCKET, IMAGE, Loop, open_loop
from service_relay import FORGETS, FULL, LATE, LOST, QUOTA, THROTTLED, TWICE, Relay

from headrace.cli.main import invoke
from headrace.engines.sagemaker import boto_service
from headrace.runs import Run
from serve_process import ROLE, ServeProcess

pytestmark = pytest.mark.namespaces

LINES = 3 if SOAK else 2
SCRIPT = """
import os
print("once:", os.environ["SM_HP_LR"], flush=True)
"""
PASSES = ""
Deeds = dict[str, list[str]]


def row(name: str, again: int, create: list[str], describe: list[str] | None = None, parallel: int = LINES) -> Any:
    """A row: what happens to requests in their order, and how many attempts the grid tells of beside the first ones."""
    deeds = {"CreateTrainingJob": create, "DescribeTrainingJob": describe or []}
    return pytest.param(deeds, again, parallel, id=name)


ROWS = [row("all", 1, [THROTTLED, LATE, QUOTA, TWICE], [*[PASSES] * 4, FORGETS, THROTTLED, FORGETS])]
if SOAK:
    ROWS += [
        row("throttled", 0, [THROTTLED, PASSES, THROTTLED, THROTTLED]),
        row("busy", 1, [THROTTLED] * boto_service.CREATE_TRIES, parallel=1),
        row("quota", 1, [QUOTA]),
        row("every line over the quota", LINES, [QUOTA] * LINES),
        row("full", 1, [PASSES, FULL]),
        row("lost", 0, [LOST, PASSES, LOST]),
        row("late", 0, [LATE] * LINES),
        row("twice", 0, [TWICE] * LINES),
        row("lost and forgotten", 0, [LOST], [FORGETS]),
        row("late and forgotten", 0, [LATE], [FORGETS]),
        row("lost, over the quota", 0, [LOST, QUOTA], [FORGETS, FORGETS], parallel=1),
        row("described throttled", 0, [], [THROTTLED, PASSES] * 4),
        row("forgotten at once", 0, [], [FORGETS] * LINES),
        row("forgotten again and again", 0, [], [PASSES, FORGETS] * 4),
    ]


@pytest.fixture
def loop(service: ServeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(boto_service, "READ_SECONDS", 3.0)  # so long a client waits for what comes late
    monkeypatch.setattr(boto_service, "FIRST_PAUSE", 0.05)
    yield open_loop(service, tmp_path, monkeypatch)
    service.close_clients()


def written(loop: Loop, relay: Relay, name: str, parallel: int) -> Path:
    """Writes a grid of lines that go through a relay."""
    folder = loop.folder
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(SCRIPT)
    job = {
        "source_dir": "code",
        "entry_point": "train.py",
        "instance_type": "ml.m5.xlarge",
        "instance_count": 1,
        "role": ROLE,
        "image_uri": IMAGE,
        "output_path": f"s3://{BUCKET}/out",
        "engines": {"sagemaker": loop.options(endpoint_urls={"sagemaker": relay.url})},
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    grid = {
        "name": name,
        "job": "job.yaml",
        "engine": "sagemaker",
        "lines": {"product": {"hyperparameters.lr": list(range(LINES))}},
        "retry": {"attempts": 2, "delay": 0.1},
        "limits": {"starts_per_second": 100, "parallel": parallel},
    }
    (folder / "array.yaml").write_text(json.dumps(grid))
    return folder / "array.yaml"


@pytest.mark.promise("grid-reference", "a line on SageMaker is one training job, whatever the service answers")
@pytest.mark.parametrize(("deeds", "again", "parallel"), ROWS)
def test_every_line_is_one_training_job_that_completes_whatever_the_service_answers(
    loop: Loop, request: pytest.FixtureRequest, deeds: Deeds, again: int, parallel: int
) -> None:
    name = f"faults-{request.node.callspec.id.replace(',', '').replace(' ', '-')}"
    told, wrong = io.StringIO(), io.StringIO()
    with Relay(loop.service.port, **{each: list(row) for each, row in deeds.items()}) as relay:
        file = written(loop, relay, name, parallel)
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(wrong):
            code = invoke(["grid", "run", str(file), "--output", "json"])
        assert [*relay.deeds.values()] == [[], []], "all of it was played"
    lines = json.loads(told.getvalue())["lines"]
    assert (code, [line["state"] for line in lines]) == (0, ["completed"] * LINES), (wrong.getvalue(), loop.service.log)
    assert sum(len(line["attempts"]) for line in lines) == LINES + again, wrong.getvalue()
    said = Counter[str]()
    for line in lines:
        run = Run.open(line["attempts"][-1]["run_id"])
        said.update(each.text for each in run.logs() if each.text.startswith("once"))
    assert said == {f"once: {number}": 1 for number in range(LINES)}
    found = loop.service.client().list_training_jobs(NameContains=name, MaxResults=100)["TrainingJobSummaries"]
    ran = [line["attempts"][-1]["job_name"] for line in lines]
    assert sorted(each["TrainingJobName"] for each in found) == sorted(ran), "one a line, and none of a refused attempt"
    assert {each["TrainingJobStatus"] for each in found} == {"Completed"}
