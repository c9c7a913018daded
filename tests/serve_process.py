"""A real `headrace serve` in a process of its own, clients of it, and requests for small jobs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.config
import botocore.session

from headrace.instance.s3 import share_models
from patience import allowed

BUCKET = "headrace-local"
GROUP = "/aws/sagemaker/TrainingJobs"
ROLE = "arn:aws:iam::000000000000:role/headrace"
REGION = "us-east-1"
ENDED = ("Completed", "Failed", "Stopped")


class ServeProcess:
    """An endpoint.

    Args:
        arguments: of `headrace serve`, beside those for port and store.
        home: HEADRACE_HOME; None makes one, which is removed at the end.

    Attributes:
        home: HEADRACE_HOME.
        url: where it answers.
        output: what it printed when it was ready.
    """

    def __init__(self, *arguments: str, home: Path | None = None) -> None:
        self.home = home or Path(tempfile.mkdtemp(prefix="hs-"))
        self._own_home = home is None
        self._arguments = arguments
        self._clients: list[Any] = []
        self.start()

    def start(self, port: int = 0) -> None:
        """Starts it, on a free port by default."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environ |= {"HEADRACE_HOME": str(self.home), "AWS_ACCESS_KEY_ID": "the-users-own", "AWS_SECRET_ACCESS_KEY": "x"}
        environ["AWS_SESSION_TOKEN"] = "the-users-own"
        command = [sys.executable, "-m", "headrace", "serve", "--port", str(port), *self._arguments]
        self._errors = (self.home / "serve.err").open("ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, env=environ, text=True)
        assert self.process.stdout is not None
        self.output = []
        for line in self.process.stdout:
            self.output.append(line.rstrip("\n"))
            if line.startswith("export SAGEMAKER"):
                break
        assert self.output, self.log
        assert self.output[-1].startswith("export"), self.log
        self.url = self.output[0].split()[2]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def store(self) -> Path:
        return self.home / "serve"

    @property
    def bucket(self) -> Path:
        folder = self.home / "buckets" / BUCKET
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def log(self) -> str:
        return (self.home / "serve.err").read_text()

    def keys(self, holder: str = "user") -> tuple[str, str]:
        """Returns the id and the secret of a key."""
        found = next(key for key in json.loads((self.store / "keys.json").read_text()) if key["holder"] == holder)
        return found["key_id"], found["secret"]

    def client(self, service: str = "sagemaker", holder: str = "user", attempts: int = 1, **others: Any) -> Any:
        """Returns a client of botocore, which is closed at the end of the test."""
        key_id, secret = self.keys(holder)
        given: dict[str, Any] = {"aws_access_key_id": key_id, "aws_secret_access_key": secret, "region_name": REGION}
        config = botocore.config.Config(retries={"total_max_attempts": attempts}, max_pool_connections=1)
        session = botocore.session.Session()
        share_models(session)
        client = session.create_client(service, **{**given, "endpoint_url": self.url, "config": config, **others})
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends it. Returns its exit code."""
        self.close_clients()
        self.process.send_signal(number)
        code = self.process.wait(allowed(60))
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()
        return code

    def remove(self) -> None:
        if self.process.poll() is None:
            self.end()
        print(self.log)  # pytest shows it when something failed
        for run in (self.home / "runs").glob("*/run.json"):
            wait_for(lambda run=run: not _alive(json.loads(run.read_text())["supervisor_pid"]))
        if self._own_home:
            shutil.rmtree(self.home, ignore_errors=True)

    def runs(self) -> list[Path]:
        """Returns the directories of all runs."""
        return sorted((self.home / "runs").glob("*/run.json"))

    def put_code(self, name: str, **files: str) -> str:
        """Puts an archive of code into the bucket. Returns its address."""
        path = self.bucket / "code" / name / "sourcedir.tar.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w:gz") as archive:
            for file, text in files.items():
                info = tarfile.TarInfo(file if "." in file else f"{file}.py")
                data = text.encode()
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return f"s3://{BUCKET}/code/{name}/sourcedir.tar.gz"

    def request(self, name: str, script: str, **others: Any) -> dict[str, Any]:
        """Returns a CreateTrainingJob request for a script on two hosts of two groups; the code is in the bucket."""
        parameters = {"sagemaker_program": "train.py", "sagemaker_submit_directory": self.put_code(name, train=script)}
        return {
            "TrainingJobName": name,
            "RoleArn": ROLE,
            "HyperParameters": {key: json.dumps(value) for key, value in parameters.items()},
            "AlgorithmSpecification": {
                "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1-cpu",
                "TrainingInputMode": "File",
            },
            "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/out"},
            "ResourceConfig": {
                "InstanceGroups": [
                    {"InstanceGroupName": "data", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
                    {"InstanceGroupName": "dnn", "InstanceType": "ml.m5.xlarge", "InstanceCount": 1},
                ],
                "VolumeSizeInGB": 10,
            },
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
            **others,
        }

    def one_host(self, name: str, script: str, **others: Any) -> dict[str, Any]:
        """Returns a request for a script on one host."""
        resources = {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 10}
        return self.request(name, script, ResourceConfig=resources, **others)

    def ended(self, client: Any, name: str) -> dict[str, Any]:
        """Returns the description of a job when it has ended."""
        return wait_for(lambda: _if_ended(client.describe_training_job(TrainingJobName=name)))


def _if_ended(description: dict[str, Any]) -> dict[str, Any] | None:
    return description if description["TrainingJobStatus"] in ENDED else None


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Returns what a condition returns, when that is something."""
    deadline = time.monotonic() + allowed(seconds)
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def serving(*arguments: str, home: Path | None = None) -> Iterator[ServeProcess]:
    """Runs an endpoint while the block runs."""
    process = ServeProcess(*arguments, home=home)
    try:
        yield process
    finally:
        process.remove()
