"""Jobs that the SageMaker engine submits to a `headrace serve` of another home, which plays the service."""

from __future__ import annotations

import contextlib
import os
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import engines
from headrace.engines.handle import RemoteHandle
from headrace.job import Job
from serve_process import REGION, ROLE, ServeProcess, serving

BUCKET = "mill-bucket"
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1-cpu"
GROUPS = [
    {"name": "data", "type": "ml.c5.xlarge", "count": 1},
    {"name": "dnn", "type": "ml.m5.xlarge", "count": 1},
]


class Loop:
    """A service, and whoever submits to it.

    Args:
        service: the endpoint.
        folder: of whoever submits.
    """

    def __init__(self, service: ServeProcess, folder: Path) -> None:
        self.service = service
        self.folder = folder

    @property
    def bucket(self) -> Path:
        return self.service.home / "buckets" / BUCKET

    def job(self, script: str, name: str = "hello", options: dict[str, object] | None = None, **fields: Any) -> Job:
        """Returns a job of a script, on a host of each of two groups."""
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text(textwrap.dedent(script))
        given = {
            "entry_point": "train.py",
            "source_dir": str(code),
            "instance_groups": GROUPS,
            "role": ROLE,
            "image_uri": IMAGE,
            "output_path": f"s3://{BUCKET}/out",
            "engines": {"sagemaker": self.options(**(options or {}))},
        }
        return Job(name, **{**given, **fields})

    def options(self, **others: object) -> dict[str, object]:
        """Returns `engines.sagemaker` of a job."""
        return {
            "region": REGION,
            "endpoint_url": self.service.url,
            "python": sys.executable,
            "wheels": "none",
            **others,
        }

    def start(self, job: Job) -> RemoteHandle:
        """Submits a job."""
        handle = engines.start(job, "sagemaker")
        assert isinstance(handle, RemoteHandle)
        return handle

    def described(self, handle: RemoteHandle) -> dict[str, Any]:
        """Returns what the service says of a run's job."""
        return self.service.client().describe_training_job(TrainingJobName=handle.id)

    def outer_run(self) -> Path:
        """Returns the directory of the newest run of the service."""
        return max(self.service.runs(), key=os.path.getmtime).parent


def lines(handle: RemoteHandle) -> list[str]:
    """Returns what programs have printed, as the record here has it."""
    return [str(line) for line in handle.logs()]


def agent_inside(host: str) -> psutil.Process:
    """Returns the agent that our containers run on a host."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "headrace.agent" in process.cmdline() and process.environ().get("SM_CURRENT_HOST") == host:
                return process
    raise AssertionError(f"{host} has no agent inside its container")


def container_host() -> psutil.Process:
    """Returns the first process of one of our containers."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "headrace.engines.sagemaker.container_host" in process.cmdline():
                return process
    raise AssertionError("there is no container")


def members(archive: Path) -> dict[str, bytes]:
    """Returns the files of an archive."""
    with tarfile.open(archive) as found:
        return {
            member.name.removeprefix("./"): found.extractfile(member).read()  # type: ignore[union-attr]
            for member in found
            if member.isfile()
        }


def open_service(*arguments: str, home: Path | None = None) -> Iterator[ServeProcess]:
    """Runs a service with a bucket."""
    with serving(*arguments, home=home) as process:
        (process.home / "buckets" / BUCKET).mkdir(parents=True)
        yield process


def open_loop(service: ServeProcess, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Loop:
    """Returns the loop, with the keys of the service in the environment."""
    key_id, secret = service.keys()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("HEADRACE_HOME", str(folder / "home"))
    return Loop(service, folder)
