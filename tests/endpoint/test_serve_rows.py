"""What an engine does is there through `headrace serve` too: the rows of the table in docs/sagemaker-differences.md.

All jobs are created at once, on one endpoint; each test reads what came of them.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest

from headrace.cli.views.run_tables import status_document
from headrace.cli.views.table import show
from headrace.engines.local.cgroups import MEMORY, find_places
from headrace.instance.channels import mounts
from headrace.instance.launch_plan import certificate_files
from headrace.runs import Run, RunPaths
from headrace.runs.events import HostReleased, HostStarted
from needs import require
from observer import control_groups
from serve_process import BUCKET, GROUP, ServeProcess, serving, wait_for

pytestmark = pytest.mark.namespaces
GROUPS = "sagemaker_distribution_instance_groups"
TOUR = """
import json, os, pathlib, signal, sys, time
ml, me = pathlib.Path("/opt/ml"), os.environ["SM_CURRENT_HOST"]

def asked(*_):
    print("asked to stop", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, asked)
pathlib.Path(f"mine-{me}").touch()
(ml / "checkpoints" / f"saved-{me}").write_text(me)
(ml / "output" / "intermediate" / f"early-{me}").write_text(me)
inputs = ml / "input" / "data"
folders = [inputs / name for name in json.loads(os.environ["SM_CHANNELS"]) if not name.endswith("pipe")]
told = {
    "name": os.uname().nodename,
    "resources": json.loads((ml / "input/config/resourceconfig.json").read_text()),
    "channels": {each.name: {str(file.relative_to(each)): file.read_text() for file in each.rglob("*.txt")}
                 for each in folders},
    "pipe": (inputs / "pipe_0").read_text(),
    "records": (inputs / "recordpipe_0").read_bytes().hex(),
    "world": json.loads(os.environ.get("TF_CONFIG", "null")),
}
while not os.path.exists("go"):
    time.sleep(0.02)
told["code"] = sorted(name for name in os.listdir() if name.startswith("mine-"))
(ml / "model" / f"{me}.json").write_text(json.dumps(told))
(ml / "output" / "data" / me).touch()
print("done", flush=True)
if os.environ["SM_CURRENT_INSTANCE_GROUP"] == "data":
    signal.pause()
"""
RANK = """
import os, pathlib, time
names = "SM_CURRENT_HOST", "SM_CURRENT_INSTANCE_GROUP", "{prefix}RANK", "{prefix}LOCAL_RANK", "{size}"
told = [os.environ.get(name, "") for name in names]
pathlib.Path(os.environ["SM_MODEL_DIR"], f"{{told[0]}}-{{told[2]}}").write_text(" ".join(told))
time.sleep(2.0 if told[1] == "dnn" else 0.0)
"""
AGAIN = """
import pathlib, time
notes = pathlib.Path("/opt/ml/checkpoints/attempts")
first = not notes.exists()
notes.write_text("begun")
while first:
    time.sleep(0.1)
"""


VARIABLES = """
import json, os, pathlib, time
group = os.environ["SM_CURRENT_INSTANCE_GROUP"]
pathlib.Path(os.environ["SM_MODEL_DIR"], group).write_text(json.dumps(list(os.environ)))
time.sleep(2.0 if group == "dnn" else 0.0)
"""


@pytest.fixture(scope="module")
def module_endpoint() -> Iterator[ServeProcess]:
    with serving("--max-running", "10") as process:
        for name, text in (("train/a.txt", "A"), ("train/b.txt", "B"), ("listed/c.txt", "C"), ("image", "one")):
            path = process.bucket / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        listed = [{"prefix": f"s3://{BUCKET}/in/"}, "listed/c.txt", "train/b.txt"]
        (process.bucket / "manifest").write_text(json.dumps(listed))
        (process.bucket / "augmented").write_text(json.dumps({"source-ref": f"s3://{BUCKET}/in/image"}))
        client = process.client()
        for name, request in requests(process).items():
            client.create_training_job(**request, TrainingJobName=name)
        process.close_clients()
        yield process
        client = process.client()
        for name in client.list_training_jobs(StatusEquals="InProgress")["TrainingJobSummaries"]:
            client.stop_training_job(TrainingJobName=name["TrainingJobName"])  # no test has waited for its end


def requests(endpoint: ServeProcess) -> dict[str, dict[str, Any]]:
    """Returns the requests of all jobs, without their names."""
    channels = [channel("file", "in/train/"), channel("listed", "manifest", S3DataType="ManifestFile")]
    channels += [channel("pipe", "in/train/", "Pipe"), channel("recordpipe", "augmented", "Pipe", **AUGMENTED)]
    channels[-1]["RecordWrapperType"] = "RecordIO"
    if not mounts.why_not()[0]:
        channels.append(channel("fast", "in/train/", "FastFile"))
    kept = {"CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/kept"}}
    mirrored = {"sagemaker_multi_worker_mirrored_strategy_enabled": True, GROUPS: ["dnn"]}
    mpi = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2, GROUPS: ["dnn", "data"]}
    made = {
        "tour": job(endpoint, TOUR, {"data": 1, "dnn": 2}, mirrored, InputDataConfig=channels, **kept,
                    EnableInterContainerTrafficEncryption=True),
        "timed": job(endpoint, "import time; time.sleep(600)", {"one": 1},
                     StoppingCondition={"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 600}, **ACCEPTED),
        "again": job(endpoint, AGAIN, {"one": 1}, RetryStrategy={"MaximumRetryAttempts": 1}),
    }  # fmt: skip
    script = RANK.format(prefix="", size="WORLD_SIZE")
    made["apart"] = job(endpoint, script, {"data": 1, "dnn": 1}, {"sagemaker_torch_distributed_enabled": True})
    variables = {"sagemaker_torch_distributed_enabled": True, GROUPS: ["dnn"], "batch-size": 8}
    made["variables"] = job(endpoint, VARIABLES, {"data": 1, "dnn": 1}, variables, InputDataConfig=channels[:1])
    if shutil.which("mpirun"):
        script = RANK.format(prefix="OMPI_COMM_WORLD_", size="OMPI_COMM_WORLD_SIZE")
        made["ranks"] = job(endpoint, script, {"data": 1, "dnn": 1}, mpi)
    if importlib.util.find_spec("torch"):
        script = RANK.format(prefix="", size="WORLD_SIZE")
        torch = {"sagemaker_torch_distributed_enabled": True, GROUPS: ["dnn"]}
        made["torch"] = job(endpoint, script, {"data": 1, "dnn": 1}, torch)
    return made


ACCEPTED = {
    "EnableManagedSpotTraining": True,
    "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]},
    "Tags": [{"Key": "team", "Value": "mill"}],
}
AUGMENTED = {"S3DataType": "AugmentedManifestFile", "AttributeNames": ["source-ref"]}


def channel(name: str, key: str, mode: str = "File", **more: object) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/{key}", **more}
    return {"ChannelName": name, "InputMode": mode, "DataSource": {"S3DataSource": source}}


def job(
    endpoint: ServeProcess, script: str, groups: dict[str, int], world: dict[str, object] | None = None, **more: Any
) -> dict[str, Any]:
    """Returns a request without its name: groups and their numbers of hosts, and hyperparameters of its world."""
    request = endpoint.request(f"of-{abs(hash(script))}", script, **more)
    del request["TrainingJobName"]
    request["HyperParameters"] |= {name: json.dumps(value) for name, value in (world or {}).items()}
    request["ResourceConfig"]["InstanceGroups"] = [
        {"InstanceGroupName": name, "InstanceType": "ml.m5.large", "InstanceCount": count}
        for name, count in groups.items()
    ]
    return request


def run_of(endpoint: ServeProcess, name: str) -> Run:
    return wait_for(
        lambda: next(
            (Run(RunPaths(each.parent)) for each in endpoint.runs() if each.parent.name.startswith(name)), None
        )
    )


def completed(endpoint: ServeProcess, name: str) -> dict[str, str]:
    """Waits for a job's end. Returns the files of its model."""
    found = endpoint.ended(endpoint.client(), name)
    assert found["TrainingJobStatus"] == "Completed", (found.get("FailureReason"), run_of(endpoint, name).paths.root)
    with tarfile.open(endpoint.bucket / "out" / name / "output" / "model.tar.gz") as archive:
        files = [(each.name, archive.extractfile(each)) for each in archive if each.isfile()]
        return {name: file.read().decode() for name, file in files if file is not None}


@pytest.fixture(scope="module")
def tour(module_endpoint: ServeProcess) -> dict[str, dict[str, Any]]:
    """What each host of the tour has found. Its hosts go on when what they keep while they run has been brought up."""
    endpoint = module_endpoint
    run, hosts = run_of(endpoint, "tour"), ("algo-1", "algo-2", "algo-3")
    early = endpoint.bucket / "out/tour/output/intermediate"
    files = [endpoint.bucket / "kept" / f"saved-{host}" for host in hosts] + [early / f"early-{host}" for host in hosts]
    wait_for(lambda: all(path.is_file() for path in files))
    assert [path.read_text() for path in files] == [*hosts, *hosts]
    limits = find_places()
    if MEMORY in limits.found:
        name = "memory.limit_in_bytes" if limits.found[MEMORY].version == 1 else "memory.max"
        found = {path.name: path / name for path in control_groups(run.id) if (path / name).exists()}
        machine = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
        assert {host: int(found[host].read_text()) <= machine for host in hosts} == dict.fromkeys(hosts, True)
    for host in hosts:
        assert certificate_files(run.paths.host(host)).key.is_file()
        (run.paths.host(host) / "code" / "go").touch()
        # The data group, which is first, is asked to stop when the others have ended: whatever it has done by then.
        wait_for(lambda host=host: (host, "done") in [(str(line.stream.host), line.text) for line in run.logs()])
    found = completed(endpoint, "tour")
    endpoint.close_clients()
    return {name.removesuffix(".json"): json.loads(text) for name, text in found.items()}


@pytest.mark.promise("sagemaker-differences", "host names, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "`resourceconfig.json` with groups, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "`S3Prefix`, `ManifestFile`, `AugmentedManifestFile`, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "`File`, `FastFile`, `Pipe`, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "model and output of several hosts, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "CPU and memory limits of the type, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "traffic between hosts under TLS, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "code directory, by headrace serve")
def test_hosts_have_names_groups_channels_code_and_certificates_of_their_own(tour: dict[str, dict[str, Any]]) -> None:
    assert set(tour) == {"algo-1", "algo-2", "algo-3"}, "the model is that of all hosts"
    train = {"a.txt": "A", "b.txt": "B"}
    for host, told in tour.items():
        assert told["name"] == told["resources"]["current_host"] == host
        groups = {each["instance_group_name"]: each["hosts"] for each in told["resources"]["instance_groups"]}
        assert groups == {"data": ["algo-1"], "dnn": ["algo-2", "algo-3"]}
        fast = {"fast": train} if "fast" in told["channels"] else {}
        assert told["channels"] == {"file": train, "listed": {"train/b.txt": "B", "listed/c.txt": "C"}, **fast}
        assert told["pipe"] in ("AB", "BA")
        assert told["records"] == (b"\x0a\x23\xd7\xce\x03\0\0\0one\0").hex()
        assert told["code"] == [f"mine-{host}"], "no host sees what another writes beside its code"


@pytest.mark.promise("sagemaker-differences", "checkpoints synced while the job runs, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "intermediate output, by headrace serve")
def test_what_is_wanted_while_the_job_runs_is_in_the_bucket_before_it_ends(
    endpoint: ServeProcess, tour: dict[str, dict[str, Any]]
) -> None:
    assert tour, "its hosts waited until checkpoints and intermediate output were in the bucket"
    with tarfile.open(endpoint.bucket / "out/tour/output/output.tar.gz") as archive:
        assert set(tour) <= {Path(name).name for name in archive.getnames()}


@pytest.mark.promise("sagemaker-differences", "`multi_worker_mirrored_strategy` with groups, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "who ends the data group, by headrace serve")
def test_the_job_ends_with_its_distribution_and_stops_the_data_group(
    endpoint: ServeProcess, tour: dict[str, dict[str, Any]]
) -> None:
    assert tour["algo-1"]["world"] is None
    worlds = [tour[host]["world"] for host in ("algo-2", "algo-3")]
    assert [each["task"] for each in worlds] == [{"index": at, "type": "worker"} for at in (0, 1)]
    assert worlds[0]["cluster"] == worlds[1]["cluster"]
    assert len(set(worlds[0]["cluster"]["worker"])) == 2
    lines = [(str(line.stream.host), line.text) for line in run_of(endpoint, "tour").logs()]
    assert [host for host, text in lines if text == "asked to stop"] == ["algo-1"]


@pytest.mark.promise("sagemaker-differences", "one distribution over several groups, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "`mpi`, Horovod, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "true host and local rank under MPI, by headrace serve")
def test_a_world_over_several_groups_has_true_host_and_local_ranks(endpoint: ServeProcess) -> None:
    require("mpirun")
    told = [text.split() for _, text in sorted(completed(endpoint, "ranks").items())]
    assert told == [
        ["algo-1", "data", "2", "0", "4"], ["algo-1", "data", "3", "1", "4"],
        ["algo-2", "dnn", "0", "0", "4"], ["algo-2", "dnn", "1", "1", "4"],
    ]  # fmt: skip


@pytest.mark.promise("sagemaker-differences", "one distribution for one group, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "`torch_distributed` with groups, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "early end of a host, by headrace serve")
def test_a_world_of_one_group_leaves_the_other_alone_whose_host_is_released_when_it_is_done(
    endpoint: ServeProcess,
) -> None:
    require("torch")
    assert completed(endpoint, "torch") == {"algo-1-": "algo-1 data   ", "algo-2-0": "algo-2 dnn 0 0 1"}
    run = run_of(endpoint, "torch")
    assert [event.host for event in run.events() if isinstance(event, HostReleased)] == ["algo-1"]
    ended = {each.host: each.ended or 0.0 for each in run.state().hosts}
    assert ended["algo-1"] < ended["algo-2"], "its clock has stopped"


@pytest.mark.promise(
    "sagemaker-differences", "programs get the variables of SageMaker's toolkits, but for a table of exceptions"
)
def test_the_table_of_variables_is_what_programs_see(endpoint: ServeProcess) -> None:
    plain, rank = (set(json.loads(completed(endpoint, "variables")[group])) for group in ("data", "dnn"))
    page = (Path(__file__).parents[2] / "docs/sagemaker-differences.md").read_text()
    table = page.partition("## Variables")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    here = {name: state for names, state in rows for name in re.findall(r"`([A-Z]\w+)(?:<|`)", names)}
    prefixes = tuple(re.findall(r"`(\w+_)<", table))

    def stands(name: str, seen: set[str]) -> bool:
        return any(other.startswith(name) for other in seen) if name in prefixes else name in seen

    states = {"always": (True, True), "`torch_distributed`": (False, True)}
    for name, state in here.items():
        expected = states.get(state, (False, False) if state.startswith("no: ") else None)
        if expected is not None:
            assert (stands(name, plain), stands(name, rank)) == expected, (name, state)
    ours = [name for name in plain | rank if name.startswith(("SM_", "SAGEMAKER_", "TRAINING_JOB_", "MASTER_"))]
    assert [name for name in ours if name not in here and not name.startswith(prefixes)] == []
    assert len(here) > 90, "the table was read"


@pytest.mark.promise("sagemaker-differences", "absent here: `torch_distributed` is sent without its groups")
def test_a_distribution_without_groups_is_a_world_a_group_and_log_status_and_description_say_so(
    endpoint: ServeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(endpoint, "apart") == {"algo-1-0": "algo-1 data 0 0 1", "algo-2-0": "algo-2 dnn 0 0 1"}
    words = "2 worlds train, each by itself: torch_distributed on data, torch_distributed on dnn"
    show(status_document(run_of(endpoint, "apart"), time.time()))
    assert words in capsys.readouterr().out.replace("\n", " ")
    transitions = endpoint.client().describe_training_job(TrainingJobName="apart")["SecondaryStatusTransitions"]
    logs = endpoint.client("logs")
    streams = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix="apart/")["logStreams"]
    begin = {"logGroupName": GROUP, "startFromHead": True, "limit": 1}
    first = [logs.get_log_events(**begin, logStreamName=each["logStreamName"])["events"][0] for each in streams]
    for text in [each["message"] for each in first] + [each["StatusMessage"] for each in transitions[:2]][-1:]:
        assert words in text
        assert "sagemaker_distribution_instance_groups" in text


@pytest.mark.promise("sagemaker-differences", "max run time, retry, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "stalled job, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "spot, warm pools, VPC, KMS, tags, by headrace serve")
def test_a_job_ends_at_its_time_limit_whatever_it_asked_for_that_has_no_effect_here(endpoint: ServeProcess) -> None:
    found = endpoint.ended(endpoint.client(), "timed")
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert {name: found[name] for name in ("EnableManagedSpotTraining", "VpcConfig")} == {
        name: ACCEPTED[name] for name in ("EnableManagedSpotTraining", "VpcConfig")
    }
    assert endpoint.client().list_tags(ResourceArn=found["TrainingJobArn"])["Tags"] == ACCEPTED["Tags"]


def test_a_lost_host_is_retried_as_often_as_the_request_says(endpoint: ServeProcess) -> None:
    import os
    import signal

    run = run_of(endpoint, "again")
    wait_for((run.paths.host("algo-1") / "checkpoints" / "attempts").is_file)
    os.kill(next(each.pid for each in run.events() if isinstance(each, HostStarted)), signal.SIGKILL)
    found = endpoint.ended(endpoint.client(), "again")
    assert found["TrainingJobStatus"] == "Completed", found.get("FailureReason")
    assert "Restarting" in [each["Status"] for each in found["SecondaryStatusTransitions"]]


FILES = {"FileSystemId": "fs-12345678", "FileSystemType": "EFS", "FileSystemAccessMode": "ro", "DirectoryPath": "/"}
ENABLED = {"sagemaker_mpi_enabled": True, "sagemaker_torch_distributed_enabled": True}


@pytest.mark.parametrize(
    ("world", "more", "words"),
    [
        ({"sagemaker_distributed_dataparallel_enabled": True}, {}, "torch_distributed"),
        ({"sagemaker_parameter_server_enabled": True}, {}, "multi_worker_mirrored_strategy"),
        (ENABLED, {}, "one"),
        ({}, {"InputDataConfig": [{"ChannelName": "c", "DataSource": {"FileSystemDataSource": FILES}}]}, "folder"),
        ({}, {"InputDataConfig": [channel("c", "x", S3Uri="file:///data")]}, "pattern"),
        ({}, {"HyperParameters": {}}, "container_entry_point"),
    ],
    ids=["smdistributed", "parameter-server", "two-distributions", "efs", "file", "no-entrypoint"],
)
@pytest.mark.promise("sagemaker-differences", "several distributions in one job, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "`smdistributed.*`, `parameter_server`, by headrace serve")
@pytest.mark.promise("sagemaker-differences", "EFS, FSx channels, by headrace serve")
def test_what_is_not_there_is_refused_with_what_to_use_instead(
    endpoint: ServeProcess, world: dict[str, object], more: dict[str, Any], words: str
) -> None:
    request = job(endpoint, "pass", {"data": 1, "dnn": 1}, world, **more)
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        endpoint.client().create_training_job(**request, TrainingJobName="refused")
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert words in refused.value.response["Error"]["Message"]


@pytest.mark.promise(
    "sagemaker-differences", "own entry point, variables, hyperparameters, requirements a group, by headrace serve"
)
def test_a_group_has_no_program_of_its_own(endpoint: ServeProcess) -> None:
    client = endpoint.client()

    def add(request: Any, **_: Any) -> None:
        asked = json.loads(request.data)
        asked["ResourceConfig"]["InstanceGroups"][0]["EntryPoint"] = "other.py"
        request.data = json.dumps(asked).encode()

    client.meta.events.register("before-sign.sagemaker.CreateTrainingJob", add)
    with pytest.raises(botocore.exceptions.ClientError, match="EntryPoint"):
        client.create_training_job(**job(endpoint, "pass", {"data": 1, "dnn": 1}), TrainingJobName="own-program")
