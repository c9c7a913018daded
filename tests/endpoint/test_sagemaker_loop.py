"""`--engine sagemaker` against a real `headrace serve`: uploads, channel, containers, record, model, end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sagemaker_loop import Loop, lines, members, open_loop, open_service
from serve_process import ServeProcess

from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import Status, read_plan

pytestmark = pytest.mark.namespaces

HELLO = """
import os, sys
host, group = os.environ["SM_CURRENT_HOST"], os.environ["SM_CURRENT_INSTANCE_GROUP"]
print(f"{host} of {group} in {os.environ['TRAINING_JOB_NAME']}: {sys.argv[1:]}", flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"weights-{host}"), "w") as file:
    file.write(group)
"""


@pytest.fixture(scope="module")
def service() -> Iterator[ServeProcess]:
    yield from open_service()


@pytest.fixture
def loop(service: ServeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    yield open_loop(service, tmp_path, monkeypatch)
    service.close_clients()


def test_a_job_of_two_groups_runs_on_the_service_and_its_record_and_model_come_back(loop: Loop) -> None:
    handle = loop.start(loop.job(HELLO, hyperparameters={"epochs": 3}))
    assert handle.wait(60) is Status.COMPLETED, (handle.cause, loop.service.log)
    assert sorted(lines(handle)) == [
        f"data/algo-1[0] algo-1 of data in {handle.id}: ['--epochs', '3']",
        f"dnn/algo-2[0] algo-2 of dnn in {handle.id}: ['--epochs', '3']",
    ]
    assert {host.address for host in read_plan(handle.paths, LaunchPlan).hosts} == {"algo-1", "algo-2"}
    archive = loop.bucket / "out" / handle.id / "output" / "model.tar.gz"
    assert members(archive) == {"weights-algo-1": b"data", "weights-algo-2": b"dnn"}

    described = loop.described(handle)
    assert described["TrainingJobStatus"] == "Completed"
    assert [each["ChannelName"] for each in described["InputDataConfig"]] == ["headrace-job"]
    staged = loop.bucket / "out" / "headrace"
    assert not list((staged / "channels").rglob("*")), "the secret is gone with the channel"
    shared = {path: path.stat().st_mtime_ns for path in (staged / "shared").rglob("*") if path.is_file()}
    assert {path.name for path in shared} == {"headrace.zip", "code.tar.gz"}

    again = loop.start(loop.job(HELLO, hyperparameters={"epochs": 4}))
    assert {path: path.stat().st_mtime_ns for path in shared} == shared, "it is not sent again"
    assert again.wait(60) is Status.COMPLETED
    assert len([path for path in (staged / "shared").rglob("*") if path.is_file()]) == 2
