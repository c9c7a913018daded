"""Runs on a real Slurm cluster, for tests: they are submitted on its login node, and their records are read here."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from slurm_cluster import HEAD, HOSTS, NETWORK, SlurmCluster
from stage import text

from headrace.engines.slurm.handover import SlurmTicket
from headrace.engines.ticket import read_ticket
from headrace.job import load_job
from headrace.runs import Run, RunPaths, Status
from headrace.runs.events import JobStarted, SecondaryStatus
from needs import require
from patience import until

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = {"name": "data_group", "type": "ml.c5.xlarge", "count": 1}
DNN = {"name": "dnn_group", "type": "ml.g5.xlarge", "count": 1}
PARTITIONS = {"data_group": {"partition": "data"}, "dnn_group": {"partition": "dnn", "gres": "gpu:1"}}
MARKED = """
import os, pathlib, signal, sys, time
mark = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints" / "mark"
def save(*_):
    print("saving", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
if mark.exists():
    sys.exit(0)
mark.touch()
print("marked", flush=True)
time.sleep(600)
"""
"""Says what it has done in its first attempt, and completes in its second one."""
WAIT = """
import os, pathlib, signal, sys, time
def save(*_):
    print("saving", flush=True)
    pathlib.Path(os.environ["SM_MODEL_DIR"], "saved").write_text("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("running", flush=True)
time.sleep(600)
"""


MAKE_BUCKET = (
    "import botocore.session as s; s.get_session().create_client('s3', 'us-east-1').create_bucket(Bucket='bucket')"
)
S3_USER = {
    "AWS_ENDPOINT_URL": f"http://{NETWORK}.{HOSTS[HEAD]}:5555",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Variables of a user of the S3 server of `s3_server`."""

needs_slurm = pytest.mark.needs(*slurm_cluster.NEEDS)


def on(*releases: str) -> pytest.MarkDecorator:
    """Has a test run on clusters of these releases, of a fixture `cluster`; an empty one is the installed one."""
    return pytest.mark.parametrize("cluster", releases, indirect=True, ids=[name or "installed" for name in releases])


@contextmanager
def started_cluster(release: str = "", wide: int = 0) -> Iterator[SlurmCluster]:
    """Starts a cluster with a folder of its own, which is removed with it.

    Args:
        release: of Slurm, unpacked by `scripts/slurm-release`; empty for the one that is installed.
        wide: nodes more than usual; see `SlurmCluster`.
    """
    if release:
        require(f"slurm-{release}")
    folder = Path(tempfile.mkdtemp(prefix="hs-"))
    try:
        place = slurm_cluster.unpacked(release) if release else None
        with slurm_cluster.slurm_cluster(folder / "shared", release=place, wide=wide) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def s3_server(cluster: SlurmCluster) -> Iterator[None]:
    """Starts an S3 server on the login node, which all nodes reach, with an empty bucket `bucket`."""
    require("moto")
    server = cluster.start(HEAD, sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5555")
    made = ("env", *(f"{name}={value}" for name, value in S3_USER.items()), sys.executable, "-c", MAKE_BUCKET)
    try:
        until(lambda: cluster.on(HEAD, *made, check=False).returncode == 0, 60, "an S3 server")
        yield
    finally:
        cluster.on(HEAD, "pkill", "-KILL", "-f", "moto.server", check=False)
        server.communicate()


def end_jobs(cluster: SlurmCluster, without: str = "") -> None:
    """Cancels all jobs: a test that fails does not leave its nodes to a job that the next one would wait for."""
    jobs = [line.split() for line in cluster.on(HEAD, "squeue", "-h", "-o", "%A %j").stdout.splitlines()]
    left = [job_id for job_id, name in jobs if name != without]
    if left:
        cluster.on(HEAD, "scancel", *left, check=False)


class Submitted:
    """A run that was submitted on the login node; its record is read here, from the shared file system."""

    def __init__(self, cluster: SlurmCluster, run_id: str) -> None:
        self.cluster = cluster
        self.id = run_id
        self.run = Run(RunPaths(cluster.folder / "headrace" / "runs" / run_id), alive=lambda _: True)

    @property
    def job_id(self) -> int:
        return read_ticket(self.run.paths, SlurmTicket).job_id

    def started(self) -> None:
        until(lambda: any(isinstance(event, JobStarted) for event in self.run.events()), 60, f"{self.id} starts")

    def said(self, words: str, seconds: float = 150) -> None:
        until(lambda: words in text(self) or self.run.finished, seconds, f"{self.id} says {words}")
        assert words in text(self), f"{self.run.cause}: {self._logs()}"

    def ended(self, seconds: float = 90) -> Status:
        until(lambda: self.run.finished, seconds, f"{self.id} ends: {self._logs()}")
        return self.run.status

    def completed(self, seconds: float = 90) -> None:
        assert self.ended(seconds) is Status.COMPLETED, f"{self.run.cause}\n{text(self)}\n{self._logs()}"

    def nodes(self) -> list[str]:
        """Names of the nodes that it has, in the order of the components."""
        return self._listed("%N")

    def _listed(self, field: str) -> list[str]:
        words = ["squeue", "-h", "--states=all", "-j", str(self.job_id), "-o", f"%i {field}"]
        return [line.split()[1] for line in sorted(self.cluster.on(HEAD, *words).stdout.splitlines())]

    def restarts(self) -> list[str]:
        """Why another attempt had to wait for nodes; {} in place of the job's id."""
        parts = self.run.state().transitions
        found = [part.message for part in parts if part.status is SecondaryStatus.RESTARTING]
        return [message.replace(f"job {self.job_id}", "job {}") for message in found]

    def headrace(self, command: str, *options: str, check: bool = True) -> str:
        return headrace(self.cluster, command, self.id, *options, check=check)

    def is_in(self, *states: str) -> None:
        """Waits until Slurm says this of the components of the job, in their order."""
        until(lambda: self._listed("%T") == list(states), 20, f"{self.id} is {states}")

    def _logs(self) -> str:
        logs = sorted(self.run.paths.engine.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs if log.stat().st_size)


def headrace(cluster: SlurmCluster, *command: str, check: bool = True) -> str:
    return cluster.on(HEAD, sys.executable, "-m", "headrace.cli.main", *command, check=check).stdout


def job_file(cluster: SlurmCluster, name: str, script: str = "", **fields: object) -> str:
    """Writes a job on the shared file system."""
    code = cluster.folder / name
    code.mkdir()
    (code / "train.py").write_text(script)
    given: dict[str, Any] = {
        "job_name": name,
        "source_dir": str(code),
        "entry_point": "train.py",
        "instance_groups": [DATA, DNN],
        **fields,
    }
    nodes = {group["name"]: PARTITIONS[group["name"]] for group in given["instance_groups"]}
    given.setdefault("engines", {"slurm": {"stop_grace": 5, "groups": nodes}})
    file = cluster.folder / f"{name}.yaml"
    file.write_text(json.dumps(given))
    return str(file)


def submit(cluster: SlurmCluster, file: str, *options: str) -> Submitted:
    return Submitted(cluster, headrace(cluster, "run", "--engine", "slurm", "--detach", file, *options).strip())


def start(cluster: SlurmCluster, name: str, script: str, **fields: object) -> Submitted:
    return submit(cluster, job_file(cluster, name, script, **fields))


def example(cluster: SlurmCluster, file: str, *options: str) -> Submitted:
    """Submits an example, with its options of the Slurm engine."""
    job = load_job(str(EXAMPLES / file), list(options))
    groups = {name: {"partition": "dnn" if "data" not in name else "data"} for name in job.hosts}
    given = json.loads(job.to_json())
    given["source_dir"] = str(job.base_path / given["source_dir"])
    for channel in given.get("inputs", {}).values():
        channel["s3_data"] = str((job.base_path / channel["s3_data"]).resolve())
    given["engines"] = {"slurm": {"groups": groups, "stop_grace": 5}}
    given["environment"] = {**given.get("environment", {}), "OMP_NUM_THREADS": "1"}
    written = cluster.folder / f"{job.job_name}.yaml"
    written.write_text(json.dumps(given))
    return submit(cluster, str(written))
