"""What the programs of a job of `headrace serve` find: an entrypoint of their own, channels, variables, its S3."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest

from needs import require
from serve_process import BUCKET, ServeProcess, serving

PROBE = """
import json, os, pathlib, socket, sys
import boto3, botocore.exceptions
channels = pathlib.Path("/opt/ml/input/data")
me = os.environ["SM_CURRENT_HOST"]
with socket.socket() as server:
    server.bind(("0.0.0.0", 7071))  # as an agent of its own does
    server.listen(1)
(channels / "code" / "written").write_text("here")
s3 = boto3.client("s3")
s3.put_object(Bucket="headrace-local", Key=f"told/{me}", Body=b"by the second key")
refused = ""
try:
    boto3.client("sagemaker").stop_training_job(TrainingJobName="entrypoint")
except botocore.exceptions.ClientError as error:
    refused = error.response["Error"]["Code"]
pathlib.Path("/opt/ml/model", me).write_text(json.dumps({
    "arguments": sys.argv[1:],
    "environment": [os.environ["MINE"], os.environ.get("AWS_SESSION_TOKEN")],
    "hyperparameters": json.loads(pathlib.Path("/opt/ml/input/config/hyperparameters.json").read_text()),
    "channels": {name: sorted(os.listdir(channels / name)) for name in json.loads(os.environ["SM_CHANNELS"])},
    "text": s3.get_object(Bucket="headrace-local", Key="in/part/0")["Body"].read().decode(),
    "refused": refused,
    "address": os.environ["AWS_ENDPOINT_URL"].rpartition(":")[0],
}))
"""


ARGUMENTS = ["/opt/ml/input/data/code/boot.py", "--a b", "", "$HOME"]


def channel(name: str, prefix: str, distribution: str = "FullyReplicated", **more: object) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/{prefix}", "S3DataDistributionType": distribution}
    return {"ChannelName": name, "InputMode": "File", "DataSource": {"S3DataSource": {**source, **more}}}


@pytest.mark.promise("serve", "a `ContainerEntrypoint` finds the paths, ports and keys of a container of the service")
@pytest.mark.namespaces
@pytest.mark.promise("sagemaker-differences", "several hosts in a group, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "channels limited to groups, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "writes to a `File` channel stay with the host, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "`FullyReplicated`, `ShardedByS3Key`, by headrace serve")
def test_an_entrypoint_runs_as_it_is_on_hosts_that_have_the_paths_ports_and_keys_of_the_service(
    endpoint: ServeProcess,
) -> None:
    require("way out")  # hosts reach this machine by it
    for place in range(4):
        for folder in ("all", "part"):
            (endpoint.bucket / "in" / folder).mkdir(parents=True, exist_ok=True)
            (endpoint.bucket / "in" / folder / str(place)).write_text(f"part {place}")
    (endpoint.bucket / "boot").mkdir()
    (endpoint.bucket / "boot" / "boot.py").write_text(PROBE)
    request = endpoint.request("entrypoint", "raise SystemExit('the toolkit is not asked')")
    request["AlgorithmSpecification"] |= {
        "ContainerEntrypoint": ["/bin/sh", "-c", 'exec python "$0" "$@"'],
        "ContainerArguments": ARGUMENTS,
    }
    request["Environment"] = {"MINE": "it is", "TOLD": f"s3://{BUCKET}/told"}  # so it may write there
    request["HyperParameters"]["depth"] = "3"
    both = {"InstanceGroupNames": ["data", "dnn"]}
    request["InputDataConfig"] = [
        channel("code", "boot/", **both),
        channel("all", "in/all/", **both),
        channel("part", "in/part/", "ShardedByS3Key", InstanceGroupNames=["dnn"]),
    ]
    request["ResourceConfig"]["InstanceGroups"][1]["InstanceCount"] = 2
    client = endpoint.client()
    client.create_training_job(**request)
    found = endpoint.ended(client, "entrypoint")
    logs = [path.read_text() for run in endpoint.runs() for path in run.parent.glob("logs/*/*/0.log")]
    assert found["TrainingJobStatus"] == "Completed", (found.get("FailureReason"), *logs)
    assert found["AlgorithmSpecification"]["ContainerArguments"] == ARGUMENTS

    with tarfile.open(endpoint.bucket / "out/entrypoint/output/model.tar.gz") as archive:
        told = {each.name: json.load(archive.extractfile(each) or io.BytesIO()) for each in archive if each.isfile()}
    assert set(told) == {"algo-1", "algo-2", "algo-3"}
    parts = {"algo-1": None, "algo-2": ["0", "2"], "algo-3": ["1", "3"]}
    every = [str(place) for place in range(4)]
    for host, said in told.items():
        part = {"part": parts[host]} if parts[host] else {}
        assert said == {
            "arguments": ARGUMENTS[1:],
            "environment": ["it is", None],
            "hyperparameters": request["HyperParameters"],
            "channels": {"code": ["boot.py", "written"], "all": every, **part},
            "text": "part 0",
            "refused": "AccessDeniedException",
            "address": "http://machine.headrace.internal",
        }
        assert (endpoint.bucket / "told" / host).read_bytes() == b"by the second key"
    assert sorted(path.name for path in (endpoint.bucket / "boot").iterdir()) == ["boot.py"], "channels are views"


def test_an_entrypoint_of_the_service_is_refused_where_hosts_have_no_paths_of_their_own() -> None:
    with serving("--set", "engines.local.isolation=none") as endpoint:
        request = endpoint.request("nowhere", "")
        request["AlgorithmSpecification"] |= {"ContainerEntrypoint": ["python", ARGUMENTS[0]]}
        client = endpoint.client()
        client.create_training_job(**request)
        found = endpoint.ended(client, "nowhere")
    assert found["TrainingJobStatus"] == "Failed"
    assert "boot.py: hosts have no /opt/ml of their own (engines.local.isolation says so)" in found["FailureReason"]
