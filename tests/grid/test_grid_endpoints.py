"""The seed's array file over regions that are endpoints of this machine: one client a region, one line that fails."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import SOAK

from headrace.cli.main import invoke
from headrace.runs import Run
from serve_process import ROLE, ServeProcess, serving

pytestmark = pytest.mark.namespaces

REGIONS = ("us-east-1", "us-west-2", "eu-west-1", "eu-central-1") if SOAK else ("us-east-1", "us-west-2")
HOSTS = dict.fromkeys(REGIONS, 10) if SOAK else {"us-east-1": 2, "us-west-2": 1}
NOWHERE = "ap-southeast-2"
BUCKET = "mill-bucket"
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1-cpu"
HELLO = """
import os
with open(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "where")) as file:
    where = file.read()
rank, size = (os.environ["OMPI_COMM_WORLD_" + name] for name in ("RANK", "SIZE"))
print(f"hello from {rank} of {size} in {where}", flush=True)
"""


@pytest.fixture
def endpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ServeProcess]]:
    """An endpoint for each region, with keys of its own in a profile of its own."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.ExitStack() as stack:
        found = {
            region: stack.enter_context(
                serving(
                    "--region",
                    region,
                    "--set",
                    f"engines.local.address_prefix=127.83.{number}",
                    home=None if number else tmp_path / "home",  # the first one has the home of whoever runs the grid
                )
            )
            for number, region in enumerate(REGIONS)
        }
        profiles = []
        for region, process in found.items():
            data = process.home / "buckets" / BUCKET / "data"
            data.mkdir(parents=True)
            (data / "where").write_text(region)
            key_id, secret = process.keys()
            profiles.append(f"[{region}]\naws_access_key_id={key_id}\naws_secret_access_key={secret}\n")
        (tmp_path / "credentials").write_text("".join(profiles))
        yield found


@pytest.mark.needs("mpirun")
def test_lines_run_at_the_endpoints_of_their_regions_and_the_one_without_fails_alone_and_is_named(
    endpoints: dict[str, ServeProcess], tmp_path: Path
) -> None:
    (tmp_path / "array.txt").write_text("".join(f"{region},s3://{BUCKET}/data\n" for region in (*REGIONS, NOWHERE)))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hello.py").write_text(HELLO)
    job = {
        "source_dir": "code",
        "entry_point": "hello.py",
        "instance_groups": [{"name": "workers", "type": "ml.c5.xlarge", "count": 1}],
        "distribution": {"mpi": {"enabled": True, "processes_per_host": 1}, "instance_groups": ["workers"]},
        "inputs": {"train": "s3://elsewhere/data"},
        "role": ROLE,
        "image_uri": IMAGE,
        "output_path": f"s3://{BUCKET}/out",
        "engines": {"sagemaker": {"python": sys.executable, "wheels": "none"}},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    grid = {
        "name": "hello",
        "job": "job.yaml",
        "engine": "sagemaker",
        "lines": {"file": "array.txt"},
        "in_regions": {
            region: {
                "engines.sagemaker.endpoint_url": process.url,
                "engines.sagemaker.profile": region,
                "instance_groups.0.count": HOSTS[region],
            }
            for region, process in endpoints.items()
        },
        "retry": {"attempts": 1, "delay": 0},
    }
    (tmp_path / "array.yaml").write_text(json.dumps(grid))
    told, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(wrong):
        code = invoke(["grid", "run", str(tmp_path / "array.yaml"), "--output", "json"])
    lines = json.loads(told.getvalue())["lines"]
    states = {line["region"]: line["state"] for line in lines}
    assert (code, states) == (1, {**dict.fromkeys(REGIONS, "completed"), NOWHERE: "failed"}), wrong.getvalue()
    assert [len(line["attempts"]) for line in lines] == [1] * len(lines), wrong.getvalue()
    for line in lines[: len(REGIONS)]:
        (attempt,) = line["attempts"]
        said = sorted(each.text for each in Run.open(attempt["run_id"]).logs() if each.text.startswith("hello"))
        hosts = HOSTS[line["region"]]
        assert said == sorted(f"hello from {rank} of {hosts} in {line['region']}" for rank in range(hosts))
        (name,) = [
            each["TrainingJobName"]
            for each in endpoints[line["region"]]
            .client(region_name=line["region"])
            .list_training_jobs()["TrainingJobSummaries"]
        ]
        assert name == line["job_name"]
    assert f"array.txt:{len(lines)}: failed" in wrong.getvalue()
    for process in endpoints.values():
        process.close_clients()
