"""`headrace serve --engine slurm` on a real cluster: boto3 on the login node creates a job that runs on two nodes."""

from __future__ import annotations

import json
import shlex
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import HEAD, SlurmCluster
from slurm_stage import needs_slurm, started_cluster

from patience import allowed

pytestmark = [pytest.mark.timeout(600), needs_slurm]
PROGRAM = """
import os
import botocore.session
s3 = botocore.session.get_session().create_client("s3")
group, host = os.environ["SM_CURRENT_INSTANCE_GROUP"], os.environ["SLURMD_NODENAME"]
s3.put_object(Bucket="headrace-local", Key=f"told/{group}", Body=host.encode())
print("loss=0.5;", os.listdir(os.environ["SM_CHANNEL_TRAIN"]), flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], group), "w").write(host)
"""
# Runs on the login node, with the profile that the endpoint wrote. Argument: file of the request.
CLIENT = """
import boto3, json, sys, time
request = json.load(open(sys.argv[1]))
client = boto3.client("sagemaker")
client.create_training_job(**request)
name = {"TrainingJobName": request["TrainingJobName"]}
seen = []
while True:
    found = client.describe_training_job(**name)
    if found["SecondaryStatus"] not in seen:
        seen.append(found["SecondaryStatus"])
    if found["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"):
        break
    time.sleep(0.2)
logs = boto3.client("logs")
where = {"logGroupName": "/aws/sagemaker/TrainingJobs", "logStreamNamePrefix": request["TrainingJobName"] + "/"}
lines = [event["message"] for event in logs.filter_log_events(**where)["events"]]
print(json.dumps({"status": found["TrainingJobStatus"], "reason": found.get("FailureReason"), "seen": seen,
                  "lines": lines, "metrics": [each["MetricName"] for each in found.get("FinalMetricDataList", [])]}))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with started_cluster() as started:
        yield started


def archive_of(folder: Path, program: str) -> Path:
    script = folder / "train.py"
    script.write_text(program)
    path = folder / "sourcedir.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(script, "train.py")
    return path


@pytest.mark.promise("serve-cluster", "the endpoint's jobs run by the engine that is named, with its options")
def test_a_job_that_boto3_creates_runs_on_the_nodes_of_the_partitions_and_reaches_the_endpoints_s3(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    bucket = cluster.folder / "headrace" / "buckets" / "headrace-local"
    (bucket / "train").mkdir(parents=True)
    (bucket / "train" / "x.txt").write_text("data")
    (bucket / "sourcedir.tar.gz").write_bytes(archive_of(tmp_path, PROGRAM).read_bytes())
    parameters = {"sagemaker_program": "train.py", "sagemaker_submit_directory": "s3://headrace-local/sourcedir.tar.gz"}
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://headrace-local/train/", "InstanceGroupNames": ["data", "dnn"]}
    request = {
        "TrainingJobName": "on-slurm",
        "RoleArn": "arn:aws:iam::000000000000:role/headrace",
        "HyperParameters": {key: json.dumps(value) for key, value in parameters.items()},
        "AlgorithmSpecification": {
            "TrainingImage": "pytorch-training:2.1",
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+);"}],
        },
        "InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": source}}],
        "OutputDataConfig": {"S3OutputPath": "s3://headrace-local/out"},
        "Environment": {"TOLD": "s3://headrace-local/told"},  # so it may write there
        "ResourceConfig": {
            "InstanceGroups": [
                {"InstanceGroupName": "data", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
                {"InstanceGroupName": "dnn", "InstanceType": "ml.g5.xlarge", "InstanceCount": 1},
            ],
            "VolumeSizeInGB": 10,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }
    request_file, pid_file = cluster.folder / "request.json", cluster.folder / "serve.pid"
    request_file.write_text(json.dumps(request))
    options = ("groups.data.partition=data", "groups.dnn.partition=dnn", "groups.absent.partition=none")
    settings = [word for option in options for word in ("--set", f"engines.slurm.{option}")]
    serve = [sys.executable, "-m", "headrace", "serve", "--host", "0.0.0.0", "--engine", "slurm", *settings]
    server = cluster.start(HEAD, "sh", "-c", 'echo $$ > "$0"; exec "$@"', str(pid_file), *serve)
    try:
        assert server.stdout is not None
        exported = {}
        for line in server.stdout:
            if line.startswith("export "):
                name, _, value = line.removeprefix("export ").strip().partition("=")
                exported[name] = shlex.split(value)[0]
            if line.startswith("export SAGEMAKER"):
                break
        variables = [f"{name}={value}" for name, value in exported.items()]
        done = cluster.on(
            HEAD, "env", *variables, sys.executable, "-c", CLIENT, str(request_file), timeout=allowed(120), check=False
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["status"], found["metrics"]) == ("Completed", ["loss"]), found
        assert found["lines"].count("loss=0.5; ['x.txt']") == 2
        assert {path.name: path.read_text() for path in (bucket / "told").iterdir()} == {"data": "data1", "dnn": "dnn1"}
        with tarfile.open(bucket / "out/on-slurm/output/model.tar.gz") as archive:
            assert {each.name for each in archive if each.isfile()} == {"data", "dnn"}
    finally:
        cluster.on(HEAD, "kill", pid_file.read_text().strip())
        server.communicate(timeout=allowed(30))
