"""`--engine sagemaker` against a real `headrace serve`: uploads, channel, containers, record, model, end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from effort import SOAK
from sagemaker_loop import BUCKET, GROUPS, IMAGE, Loop, agent_inside, lines, members

from headrace import engines
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.ticket import read_ticket, write_ticket
from headrace.insight import cost_report
from headrace.insight.figures.figure import Window
from headrace.instance.launch_plan import LaunchPlan
from headrace.job import load_job
from headrace.runs import CauseKind, Status, read_plan
from headrace.runs.store import find_run
from serve_process import REGION, ROLE, wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.namespaces

HELLO = """
import os, sys
host, group = os.environ["SM_CURRENT_HOST"], os.environ["SM_CURRENT_INSTANCE_GROUP"]
print(f"{host} of {group} in {os.environ['TRAINING_JOB_NAME']}: {sys.argv[1:]}", flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"weights-{host}"), "w") as file:
    file.write(group)
"""


@pytest.mark.promise("engines", "instances, on sagemaker")
@pytest.mark.promise("engines", "the submitting process is killed, on sagemaker")
@pytest.mark.promise("engines", "the record in a bucket, on sagemaker")
def test_a_job_of_two_groups_runs_on_the_service_and_its_record_and_model_come_back(loop: Loop) -> None:
    groups = [GROUPS[0], {**GROUPS[1], "hyperparameters": {"epochs": 5, "rate": 0.5}}]
    handle = loop.start(loop.job(HELLO, hyperparameters={"epochs": 3}, instance_groups=groups))
    assert handle.wait(60) is Status.COMPLETED, (handle.cause, loop.service.log)
    assert sorted(lines(handle)) == [
        f"data/algo-1[0] algo-1 of data in {handle.id}: ['--epochs', '3']",
        f"dnn/algo-2[0] algo-2 of dnn in {handle.id}: ['--epochs', '5', '--rate', '0.5']",
    ]
    assert {host.address for host in read_plan(handle.paths, LaunchPlan).hosts} == {"algo-1", "algo-2"}
    archive = loop.bucket / "out" / handle.id / "output" / "model.tar.gz"
    assert members(archive) == {"weights-algo-1": b"data", "weights-algo-2": b"dnn"}

    described = loop.described(handle)
    assert described["TrainingJobStatus"] == "Completed"
    (billed,) = handle.run.state().billed
    assert (billed.name, billed.region) == (handle.id, REGION)
    assert billed.groups == {"data": ("ml.c5.xlarge", 1), "dnn": ("ml.m5.xlarge", 1)}
    assert billed.billable_seconds == described["BillableTimeInSeconds"] > 0
    costs = cost_report(handle.run)
    assert (costs.region, costs.total.window) == (REGION, Window(billed.started or 0.0, billed.ended or 0.0))
    per_hour = sum(group.price.price for group in costs.groups if group.price)
    assert costs.total.value == pytest.approx(per_hour * billed.billable_seconds / 3600)
    assert [each["ChannelName"] for each in described["InputDataConfig"]] == ["headrace-job"]
    staged = loop.bucket / "out" / "headrace"
    assert not list((staged / "channels").rglob("*")), "the secret is gone with the channel"
    shared = {path: path.stat().st_mtime_ns for path in (staged / "shared").rglob("*") if path.is_file()}
    assert {path.name for path in shared} == {"headrace.zip", "code.tar.gz"}

    again = loop.start(loop.job(HELLO, hyperparameters={"epochs": 4}, instance_groups=GROUPS[1:]))
    assert {path: path.stat().st_mtime_ns for path in shared} == shared, "it is not sent again"
    ticket = read_ticket(again.paths, ServiceTicket)
    write_ticket(again.paths, msgspec.structs.replace(ticket, submitted=False, start=-1.0))
    assert again.wait(60) is Status.COMPLETED, "as if its submitter had been killed before it had an answer"
    assert len([path for path in (staged / "shared").rglob("*") if path.is_file()]) == 2


@pytest.mark.promise("engines", "who answers for a run, on sagemaker")
@pytest.mark.promise("engines", "what the platform has of a run, on sagemaker")
def test_a_script_that_fails_is_the_cause_here_and_the_failure_reason_there(loop: Loop) -> None:
    script = """
    import os, sys, time
    if os.environ["SM_CURRENT_INSTANCE_GROUP"] == "data":
        time.sleep(600)
    sys.exit("the mill wheel is stuck")
    """
    handle = loop.start(loop.job(script, name="stuck", completion={"instance_groups": ["dnn"]}))
    assert handle.wait(60) is Status.FAILED
    cause = handle.cause
    assert cause is not None
    assert (cause.kind, cause.group, cause.host, cause.exit_code) == (CauseKind.PROGRAM_EXITED, "dnn", "algo-2", 1)
    assert "the mill wheel is stuck" in cause.last_lines
    described = loop.described(handle)
    assert described["TrainingJobStatus"] == "Failed"
    assert "the mill wheel is stuck" in described["FailureReason"]
    told = {document.name: document.text for document in engines.logs(handle.run)}
    assert '"TrainingJobStatus": "Failed"' in told["training_job.json"]
    assert any(name.startswith("algo-2") and "the mill wheel is stuck" in text for name, text in told.items())


@pytest.mark.promise("engines", "the programs save on a stop, on sagemaker")
def test_stop_gives_programs_time_to_save_and_the_record_is_live_until_then(loop: Loop) -> None:
    script = """
    import os, signal, sys, time
    def save(*_):
        time.sleep(1)
        with open(os.path.join(os.environ["SM_MODEL_DIR"], "saved-" + os.environ["SM_CURRENT_HOST"]), "w") as file:
            file.write("all of it")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("runs", flush=True)
    while True:
        time.sleep(0.1)
    """
    handle = loop.start(loop.job(script, name="stopped"))
    wait_for(lambda: len([line for line in lines(handle) if line.endswith("runs")]) == 2 or handle.run.finished)
    assert handle.status is Status.IN_PROGRESS
    assert engines.stop(handle.run)
    assert handle.wait(90) is Status.STOPPED, handle.cause
    assert handle.cause is not None
    assert (handle.cause.kind, handle.cause.detail) == (CauseKind.STOPPED, "stopped by the user")
    assert all(part.end is not None and part.end >= part.start for part in handle.run.state().transitions)
    assert handle.exit_code == 130
    assert not engines.stop(handle.run)
    found = members(loop.bucket / "out" / handle.id / "output" / "model.tar.gz")
    assert found == {"saved-algo-1": b"all of it", "saved-algo-2": b"all of it"}


if SOAK:

    def test_a_data_host_that_is_killed_does_not_fail_a_job_whose_data_another_one_serves(loop: Loop) -> None:
        script = """
        import os, signal, sys, time
        group, host = os.environ["SM_CURRENT_INSTANCE_GROUP"], os.environ["SM_CURRENT_HOST"]
        print("runs", flush=True)
        time.sleep(600 if group == "data" else 12)
        """
        groups = [{"name": "data", "type": "ml.c5.xlarge", "count": 2}, GROUPS[1]]
        fields = {"instance_groups": groups, "data_service": {"feed": {"enabled": True}, "instance_groups": ["data"]}}
        handle = loop.start(loop.job(script, name="killed", completion={"instance_groups": ["dnn"]}, **fields))
        wait_for(lambda: any(line.endswith("runs") for line in lines(handle)) or handle.run.finished)
        agent_inside("algo-1").kill()
        assert handle.wait(120) is Status.COMPLETED, handle.cause
        assert handle.run.state().degraded
        assert loop.described(handle)["TrainingJobStatus"] == "Completed"

    @pytest.mark.torch
    def test_the_digits_are_learnt_with_the_feed_and_the_losses_of_one_machine(loop: Loop, tmp_path: Path) -> None:
        digits = tmp_path / "digits"
        shutil.copytree(EXAMPLES / "digits", digits, ignore=shutil.ignore_patterns("data"))
        subprocess.run([sys.executable, str(digits / "prepare.py")], cwd=digits, check=True)
        shutil.copytree(digits / "data", loop.bucket / "digits")
        options = ["hyperparameters.epochs=1", "environment.OMP_NUM_THREADS=1"]
        here = load_job(str(digits / "homogeneous.yaml"), [*options, "engines.local.isolation=none"])
        local = here.fit(logs=False)
        alone = json.loads((find_run(local.id).host("algo-1") / "output" / "data" / "result.json").read_text())
        there = [f"inputs.training=s3://{BUCKET}/digits", f"role={ROLE}", f"image_uri={IMAGE}"]
        there += [f"output_path=s3://{BUCKET}/out"]
        there += [f"engines.sagemaker.{name}={value}" for name, value in loop.options().items()]
        handle = loop.start(load_job(str(digits / "heterogeneous.yaml"), [*options, *there]))
        assert handle.wait(200) is Status.COMPLETED, handle.cause
        made = loop.bucket / "out" / handle.id / "output"
        found = json.loads(members(made / "output.tar.gz")["result.json"])
        assert len(alone["losses"]) == 23
        assert found["losses"] == alone["losses"]
        assert found["accuracy"] == alone["accuracy"]
        assert set(members(made / "model.tar.gz")) == {"model.pt"}
        assert {each.stream.host for each in handle.run.programs if each.stream.name == "feed"} == {"algo-1", "algo-2"}
        assert not handle.run.degraded
