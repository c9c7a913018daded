"""`headrace serve --engine kubernetes`: boto3 creates a job whose hosts are pods, which reach the endpoint's S3."""

from __future__ import annotations

import base64
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_pods import Kubelet
from kube_server import KubeServer

from needs import require
from serve_process import BUCKET, GROUP, ServeProcess

pytestmark = [pytest.mark.timeout(300), pytest.mark.namespaces, pytest.mark.slow]
HERE, THERE = "10.98.7.1", "10.98.7.2"
SECRET = "headrace-s3"
OPTIONS = {
    "namespace": "train", "python": sys.executable, "stop_grace": "5", "linger": "30",
    "environment_secrets": f"[{SECRET}]",
}  # fmt: skip
PROGRAM = """
import os
import botocore.session
s3 = botocore.session.get_session().create_client("s3")
group = os.environ["SM_CURRENT_INSTANCE_GROUP"]
s3.put_object(Bucket="headrace-local", Key=f"told/{group}", Body=os.uname().nodename.encode())
print("loss=0.5;", os.listdir(os.environ["SM_CHANNEL_TRAIN"]), flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], group), "w").write(group)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubelet]:
    require("root", "nsenter")
    pods = tmp_path / "pods"
    pods.mkdir()
    with KubeServer(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))
        with Kubelet(server, pods) as kubelet:
            kubelet.way_out(HERE, THERE)
            yield kubelet


@pytest.mark.promise(
    "serve", "`--engine kubernetes --set ...`: two groups in pods, S3 with the second key, logs, metrics"
)
def test_a_job_that_boto3_creates_runs_in_pods_and_reaches_the_endpoints_s3(cluster: Kubelet) -> None:
    settings = [f"--set=engines.kubernetes.{name}={value}" for name, value in OPTIONS.items()]
    endpoint = ServeProcess("--host", HERE, "--engine", "kubernetes", *settings)
    try:
        variables = dict(line.split("=", 1) for line in (endpoint.store / "programs.env").read_text().splitlines())
        cluster.server.put("secrets", {  # as `kubectl create secret generic headrace-s3 --from-env-file` makes it
            "metadata": {"name": SECRET},
            "data": {name: base64.b64encode(value.encode()).decode() for name, value in variables.items()},
        })  # fmt: skip
        (endpoint.bucket / "train").mkdir()
        (endpoint.bucket / "train" / "x.txt").write_text("data")
        source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/train/", "InstanceGroupNames": ["data", "dnn"]}
        client = endpoint.client()
        request = endpoint.request(
            "in-pods", PROGRAM, InputDataConfig=[{"ChannelName": "train", "DataSource": {"S3DataSource": source}}]
        )
        request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": "loss=([0-9.]+);"}]
        request["Environment"] = {"TOLD": f"s3://{BUCKET}/told"}  # so it may write there
        client.create_training_job(**request)
        found = endpoint.ended(client, "in-pods")
        assert found["TrainingJobStatus"] == "Completed", (
            found,
            [pod.log.read_text() for pod in cluster.pods.values()],
        )
        assert [(each["MetricName"], each["Value"]) for each in found["FinalMetricDataList"]] == [("loss", 0.5)]
        logs = endpoint.client("logs").filter_log_events(logGroupName=GROUP, logStreamNamePrefix="in-pods/")
        assert [each["message"] for each in logs["events"]].count("loss=0.5; ['x.txt']") == 2
        told = {path.name: path.read_text() for path in (endpoint.bucket / "told").iterdir()}
        assert told == {"data": "algo-1", "dnn": "algo-2"}
        bucket, _, key = found["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").partition("/")
        model = endpoint.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(model)) as archive:
            assert {each.name for each in archive if each.isfile()} == {"data", "dnn"}
        cluster.wait_all_ended()
        assert {name for _, _, name in cluster.server.objects} == {SECRET}, "nothing is left on the cluster"
    finally:
        endpoint.remove()
