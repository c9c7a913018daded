"""`headrace advise`: the tables, the JSON, and a verification that really runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from effort import SOAK

from objectstore import free_port

SAMPLES = """
import time
import numpy as np
from headrace import feed

class Rows:
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.005)
        return np.full(100, index % 256, np.uint8)

@feed.pipeline
def rows():
    return Rows()

def stacked(samples):
    return np.stack(samples)
"""
TRAIN = """
import json, os, time
from headrace import feed
from samples import rows, stacked

deadline = time.monotonic() + 60  # all data workers must be ready, or the step would be that of fewer
while any(host["state"] != "ready" for host in json.load(open(os.environ["HEADRACE_FEED"]))["hosts"]):
    assert time.monotonic() < deadline
    time.sleep(0.05)
with feed.DataLoader(rows(), batch_size=8, collate_fn=stacked) as loader:
    end = 0.0
    for batch in loader:
        end = end or time.monotonic() + 4.4
        time.sleep(0.01)
        if time.monotonic() > end:
            break
"""
FOREIGN = """
import time
import numpy as np
import headrace

def batches():
    end = time.monotonic() + 4.4
    while time.monotonic() < end:
        sum(range(500_000))
        yield np.zeros((8, 100), np.uint8)

for batch in headrace.track(batches()):
    time.sleep(0.01)
"""


needs_two_cpus = pytest.mark.needs("2 cores")  # the data host needs one of its own


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A command line with two runs: `waiting`, whose loader is headrace's, and `foreign`, whose loader is not."""
    root = tmp_path_factory.mktemp("advised")
    cli = Cli(root)
    cpu = min(os.sched_getaffinity(0))
    for name, files in {"waiting": {"samples": SAMPLES, "train": TRAIN}, "foreign": {"train": FOREIGN}}.items():
        code = root / f"{name}-code"
        code.mkdir()
        for module, text in files.items():
            (code / f"{module}.py").write_text(text)
        service = "data_service: {feed: {enabled: true}}\n" if name == "waiting" else ""
        (root / f"{name}.yaml").write_text(
            f"source_dir: {code.name}\n"
            "entry_point: train.py\n"
            "instance_groups: [{name: train, type: ml.g5.xlarge, count: 1}]\n"
            f"{service}"
            "engines:\n"
            "  local:\n"
            f"    cpu_sets: {{train: '{cpu}'}}\n"
            f"    ports: {{control: {free_port()}, feed: {free_port()}, master: {free_port()}}}\n"
        )
        done = cli("run", f"{name}.yaml", "--quiet", timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    for file in cli.runs.glob("*/metrics/*/*/host.jsonl"):  # other tests beside it are no programs of this story
        seconds = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({**second, "busy": None}) + "\n" for second in seconds))
    return cli


@pytest.mark.promise("advise", "advice keeps measured and predicted apart, or is withheld where its model does not fit")
def test_the_table_keeps_measured_and_predicted_apart_and_ends_with_advice(advised: Cli) -> None:
    done = advised("advise", "waiting")
    assert done.returncode == 0, done.stderr
    measured, predicted = done.stdout.split("predicted, data hosts")
    assert "measured, this run" in measured
    assert "1 x ml.g5.xlarge" in measured
    assert " x ml.c5." in predicted
    assert "data hosts of ml.c5" in predicted or "data host of ml.c5" in predicted
    assert "a predicted step of" in predicted
    assert "1 core of this run stood for the 4 vCPUs of ml.g5.xlarge" in predicted
    assert "price of ml.g5.xlarge in us-east-1: 1.4084 USD/hour, on-demand, as of " in predicted
    assert "more candidates: --all" in predicted
    assert len(advised("advise", "waiting", "--all").stdout.splitlines()) > len(done.stdout.splitlines()) + 20


if SOAK:  # seconds are compared, which a busy machine has none of to spare

    @needs_two_cpus
    def test_verify_runs_the_best_candidate_that_fits_and_reports_the_error(advised: Cli) -> None:
        done = advised("advise", "waiting", "--types", "ml.c5.xlarge", "--verify", "--output", "json", timeout=180)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        proof = found["verified"]
        assert proof["cluster"] == "1 x ml.c5.xlarge"
        predicted, measured = proof["predicted"]["value"], proof["measured"]["value"]
        assert proof["error"] == pytest.approx(measured / predicted - 1)
        one = next(c for c in found["candidates"] if c["data_hosts"] == 1)
        assert predicted == one["step"]["value"]
        # 40 ms of waiting a batch in each of two workers: half the step, if it is really made on two hosts
        assert measured < 0.9 * found["now"]["step"]["value"]
        assert proof["inside"] == (proof["predicted"]["low"] <= measured <= proof["predicted"]["high"])
        plan = json.loads((advised.runs / proof["run_id"] / "plan.json").read_text())
        assert [group["name"] for group in plan["groups"]] == ["data_group", "train"]
        assert advised("report", "waiting-verify").returncode == 0


def test_a_candidate_that_this_machine_has_no_cpus_for_is_refused_and_nothing_is_started(advised: Cli) -> None:
    before = sorted(path.name for path in advised.runs.iterdir())
    done = advised("advise", "waiting", "--types", "ml.c5.18xlarge", "--verify")
    assert done.returncode == 2
    assert "error: --verify cannot run" in done.stderr
    assert "hint: give the training groups fewer CPUs" in done.stderr
    assert sorted(path.name for path in advised.runs.iterdir()) == before


def test_a_loader_that_other_hosts_cannot_serve_is_advised_and_not_verified(advised: Cli) -> None:
    done = advised("advise", "foreign")
    assert done.returncode == 0, done.stderr
    assert "the script changes to headrace.feed.DataLoader" in done.stdout
    done = advised("advise", "foreign", "--verify")
    assert done.returncode == 2
    assert (
        "error: --verify cannot run this job on data hosts: no data worker of headrace made its batches" in done.stderr
    )


def test_an_unknown_type_is_a_mistake(advised: Cli) -> None:
    done = advised("advise", "waiting", "--types", "ml.c5.nonsense")
    assert done.returncode == 2
    assert "error: the shape of ml.c5.nonsense is not known" in done.stderr


def test_a_run_that_tells_nothing_is_a_mistake(advised: Cli, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('hello')\n")
    job = tmp_path / "silent.yaml"
    job.write_text(
        f"source_dir: {code}\nentry_point: train.py\ninstance_type: ml.m5.large\ninstance_count: 1\n"
        f"engines: {{local: {{ports: {{control: {free_port()}, feed: {free_port()}, master: {free_port()}}}}}}}\n"
    )
    assert advised("run", str(job), "--quiet").returncode == 0
    done = advised("advise", "silent")
    assert done.returncode == 2
    assert "error: the run cannot be advised: no loader wrote metrics" in done.stderr
    assert "hint: train for at least 5 seconds" in done.stderr
