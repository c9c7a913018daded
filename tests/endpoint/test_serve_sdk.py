"""The SageMaker SDK, version 2, and the AWS CLI themselves against `headrace serve`; see scripts/sagemaker-sdk."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from effort import SOAK

from patience import allowed
from serve_process import BUCKET, GROUP, ServeProcess, serving

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-sagemaker"
CELLS = ROOT / "tests" / "adapters" / "cells"
PRINTS = """
import os, sys
print("runs on", os.environ["SM_CURRENT_HOST"], os.environ["SM_CURRENT_INSTANCE_GROUP"], sys.argv[1:], flush=True)
"""
pytestmark = pytest.mark.needs(".venv-sagemaker")


SERVE_OPTIONS = ("--max-running", "4")


def folder_of_code(folder: Path) -> Path:
    """Makes what the cells expect beside them."""
    for name in ("code/launcher.py", "code/train.py", "my-training-script.py"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(PRINTS)
    (folder / "code" / "fails.py").write_text("raise RuntimeError('as it should')")
    (folder / "mnist_hvd.py").write_text("import time\nprint('sleeps', flush=True)\ntime.sleep(600)")
    (folder / "data").mkdir()
    for name in ("train.npz", "test.npz"):
        (folder / "data" / name).write_bytes(b"numbers")
    return folder


def variables(endpoint: ServeProcess) -> dict[str, str]:
    """Returns the variables of a shell that has evaluated what `headrace serve` printed."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    for line in endpoint.output:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            found[name] = shlex.split(value)[0]
    return {**found, "HOME": str(endpoint.home), "PATH": f"{VENV}/bin:{os.environ['PATH']}"}


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    found = re.search(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
    assert found, done.stdout[-3000:] + done.stderr[-3000:]
    value: dict[str, object] = json.loads(found[1])
    return value


def check(endpoint: ServeProcess, found: dict[str, object], output: str) -> None:
    """Checks what came of the cells, by what the SDK said and by what the endpoint describes."""
    client = endpoint.client()
    seeds = found["seeds"]
    assert isinstance(seeds, dict)
    described = {seed: endpoint.ended(client, name) for seed, name in seeds.items()}
    assert {seed: each["TrainingJobStatus"] for seed, each in described.items()} == {
        "000": "Completed", "001": "Completed", "002": "Stopped", **({"003": "Completed"} if SOAK else {}),
    }, [each.get("FailureReason") for each in described.values()]  # fmt: skip
    groups = [each["InstanceGroupName"] for each in described["000"]["ResourceConfig"]["InstanceGroups"]]
    assert groups == ["data_group", "dnn_group"]
    assert "instance_group_names" in str(found["guide as written"]), "AWS's guide names an argument that is not there"
    for place in ("algo-1 data_group ['--batch-size'", "algo-2 dnn_group ['--batch-size'"):
        assert output.count(f"runs on {place}") == 1, "the lines of seed 001, each once"
    assert "Training seconds:" in output
    assert found["model"] == f"s3://{found['bucket']}/{seeds['001']}/output/model.tar.gz"
    assert found["attached"] == [seeds["001"], found["model"]], "attach works for instance groups, too"
    assert "AlgorithmError" in str(found["failure"])
    assert "code 1" in str(found["failure"])
    if SOAK:
        spot = endpoint.ended(client, str(found["spot"]))
        assert (spot["TrainingJobStatus"], spot["EnableManagedSpotTraining"]) == ("Completed", True)


@pytest.mark.promise("serve", "SageMaker SDK 2.257: the cells of AWS's notebooks and guide")
def test_the_cells_of_awss_notebooks_run_with_the_sdk_itself(endpoint: ServeProcess, tmp_path: Path) -> None:
    command = [str(VENV / "bin" / "python"), str(Path(__file__).with_name("sdk_cells.py")), str(CELLS)]
    command += ["--all"] if SOAK else []
    folder, environ = folder_of_code(tmp_path), variables(endpoint)
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=allowed(150))
    found = result_of(done)
    assert found["bucket"] == BUCKET
    check(endpoint, found, done.stdout)


def aws(endpoint: ServeProcess, *arguments: str) -> str:
    """Runs the AWS CLI. Returns what it prints."""
    command = [str(VENV / "bin" / "aws"), *arguments]
    done = subprocess.run(command, env=variables(endpoint), capture_output=True, text=True, timeout=allowed(60))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.promise("serve", "AWS CLI 1.46: create, wait, list, logs, `s3 cp`")
def test_the_aws_cli_creates_a_job_waits_for_it_and_reads_its_logs_and_model(
    endpoint: ServeProcess, tmp_path: Path
) -> None:
    request = endpoint.request("by-cli", "print('by the CLI')")
    (tmp_path / "job.json").write_text(json.dumps(request))
    arn = json.loads(
        aws(endpoint, "sagemaker", "create-training-job", "--cli-input-json", f"file://{tmp_path}/job.json")
    )
    assert arn["TrainingJobArn"].endswith("training-job/by-cli")
    endpoint.ended(endpoint.client(), "by-cli")
    aws(endpoint, "sagemaker", "wait", "training-job-completed-or-stopped", "--training-job-name", "by-cli")
    listed = json.loads(aws(endpoint, "sagemaker", "list-training-jobs", "--name-contains", "by-cli"))
    assert [each["TrainingJobStatus"] for each in listed["TrainingJobSummaries"]] == ["Completed"]
    where = ("--log-group-name", GROUP, "--log-stream-name-prefix", "by-cli/")
    events = json.loads(aws(endpoint, "logs", "filter-log-events", *where))
    assert [each["message"] for each in events["events"]].count("by the CLI") == 2
    (endpoint.bucket / "note.txt").write_text("read by the CLI")
    aws(endpoint, "s3", "cp", f"s3://{BUCKET}/note.txt", f"{tmp_path}/note.txt")
    assert (tmp_path / "note.txt").read_text() == "read by the CLI"


def as_program(home: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs cells as they are with `headrace serve -- PROGRAM`, and no configuration."""
    script = str(Path(__file__).with_name("sdk_cells.py"))
    inner = [str(VENV / "bin" / "python"), script, str(CELLS), *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ |= {"HEADRACE_HOME": str(home), "HOME": str(home)}
    command = [str(ROOT / ".venv" / "bin" / "headrace"), "serve", "--", *inner]
    return subprocess.run(
        command, env=environ, cwd=folder_of_code(folder), capture_output=True, text=True, timeout=allowed(150)
    )


if SOAK:  # test_a_program_that_it_runs_reaches_it_under_the_names_of_aws and the cells above hold it

    def test_a_cell_runs_unmodified_with_get_execution_role_and_no_configuration(tmp_path: Path) -> None:
        (tmp_path / "home").mkdir()
        done = as_program(tmp_path / "home", tmp_path / "cells", "--one")
        found = result_of(done)
        assert (done.returncode, found["role"]) == (0, "arn:aws:iam::000000000000:role/headrace"), done.stderr[-3000:]
        assert found["account"] == "000000000000"
        assert f"{found['name']}/output/model.tar.gz" in str(found["model"])
        assert done.stdout.count("runs on algo-1 data_group") == 1
        assert done.stdout.count("runs on algo-2 dnn_group") == 1


if SOAK:

    def test_a_notebook_runs_unmodified_with_get_execution_role_and_no_configuration(tmp_path: Path) -> None:
        with serving() as endpoint:
            endpoint.end()
            done = as_program(endpoint.home, tmp_path, "--role", "--all")
            found = result_of(done)
            assert done.returncode == 0
            assert found["role"] == "arn:aws:iam::000000000000:role/headrace"
            endpoint.start()
            check(endpoint, found, done.stdout)

    def test_the_digits_and_the_horovod_job_train_by_the_sdk_itself(tmp_path: Path) -> None:
        python = ROOT / ".venv-horovod" / "bin" / "python"
        for name, example in (("digits", "digits"), ("horovod", "horovod-mnist")):
            folder = tmp_path / name
            shutil.copytree(ROOT / "examples" / example / "code", folder / "code")
            runpy.run_path(str(ROOT / "examples" / example / "prepare.py"))["main"](folder / "data")
        subprocess.run(
            [sys.executable, "-m", "headrace", "feed", "secret", str(tmp_path / "digits/code/feed.secret")], check=True
        )
        with serving("--image-map", f"tensorflow-training={python}") as endpoint:
            script = str(Path(__file__).with_name("sdk_examples.py"))
            done = subprocess.run(
                [str(VENV / "bin" / "python"), script, str(tmp_path)], env=variables(endpoint), capture_output=True,
                text=True, timeout=allowed(900),
            )  # fmt: skip
            found = result_of(done)
            for job, least in (("digits", 0.8), ("horovod", 0.7)):
                said = found[job]
                assert isinstance(said, dict)
                assert said["metrics"]["accuracy"] > least
                described = endpoint.ended(endpoint.client(), said["name"])
                assert described["TrainingJobStatus"] == "Completed"
                assert said["model"] == described["ModelArtifacts"]["S3ModelArtifacts"]
                with tarfile.open(endpoint.bucket / said["name"] / "output" / "model.tar.gz") as archive:
                    assert any(each.isfile() and each.size > 10_000 for each in archive), "the weights"
            assert len(re.findall("epoch 3/3: loss", done.stdout)) == 1, "each line comes once"
            assert len(re.findall("rank [0-3] of 4, local rank", done.stdout)) == 4
            dead = endpoint.client("logs").filter_log_events(
                logGroupName=GROUP, logStreamNamePrefix=f"{found['digits']['name']}/algo-1-"
            )
            assert any("serv" in each["message"] for each in dead["events"]), "the data host served"
