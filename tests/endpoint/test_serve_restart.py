"""A `headrace serve` that ends, or is killed, while jobs run and wait: the next one with its store knows them all."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import botocore.exceptions
import pytest
from effort import SOAK

from patience import allowed
from serve_process import GROUP, ServeProcess, serving, wait_for

LONG = """
import time
for number in range(3000):
    print(f"line {number}", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def endpoint() -> Iterator[ServeProcess]:
    with serving("--max-running", "1") as process:
        yield process


def read(endpoint: ServeProcess, name: str, token: str = "") -> tuple[list[str], str]:
    """Returns the lines of a job's one host from a token on, and the next token."""
    logs = endpoint.client("logs")
    streams = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]
    if not streams:
        return [], ""
    given = {"nextToken": token} if token else {}
    where = {"logGroupName": GROUP, "logStreamName": streams[0]["logStreamName"]}
    answer = logs.get_log_events(**where, startFromHead=True, **given)
    return [event["message"] for event in answer["events"]], answer["nextForwardToken"]


@pytest.mark.promise("serve", "jobs go on without the endpoint, whatever ends it, and the next one knows them all")
def test_jobs_go_on_without_it_and_the_next_one_has_them_with_their_logs_and_starts_what_waited(
    endpoint: ServeProcess,
) -> None:
    client = endpoint.client()
    client.create_training_job(**endpoint.one_host("goes-on", LONG), Tags=[{"Key": "k", "Value": "v"}])
    client.create_training_job(**endpoint.one_host("waits", "print(1)"))
    wait_for(lambda: "line 3" in read(endpoint, "goes-on")[0])
    before, token = read(endpoint, "goes-on")
    port = endpoint.port
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        seen = len(read(endpoint, "goes-on", token)[0])
        assert endpoint.end(number) == code
        endpoint.start(port)
        client = endpoint.client()
        described = client.describe_training_job(TrainingJobName="goes-on")
        assert described["TrainingJobStatus"] == "InProgress"
        assert client.list_tags(ResourceArn=described["TrainingJobArn"])["Tags"] == [{"Key": "k", "Value": "v"}]
        assert client.describe_training_job(TrainingJobName="waits")["SecondaryStatus"] == "Pending"
        wait_for(lambda seen=seen: len(read(endpoint, "goes-on", token)[0]) > seen + 3)
    client.stop_training_job(TrainingJobName="goes-on")
    assert endpoint.ended(client, "goes-on")["TrainingJobStatus"] == "Stopped"
    lines = before[1:] + read(endpoint, "goes-on", token)[0]
    assert lines == [f"line {index}" for index in range(len(lines))], "from the old token on nothing is lost or doubled"
    assert read(endpoint, "goes-on")[0][1:] == lines
    assert endpoint.ended(client, "waits")["TrainingJobStatus"] == "Completed"
    assert len(endpoint.runs()) == 2, "each ran once"


@pytest.mark.promise("serve", "jobs go on without the endpoint, whatever ends it, and the next one knows them all")
def test_what_is_killed_while_it_starts_a_job_has_started_it_once_when_it_is_back(endpoint: ServeProcess) -> None:
    """Killed at several moments after a client sent the request; a client that got no answer sends it again."""
    for index, delay in enumerate((0.001, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5) if SOAK else (0.03, 0.2)):
        name = f"killed-{index}"
        request = endpoint.one_host(name, "print('ran')")
        client = endpoint.client()
        answered = threading.Event()

        def create(client: Any = client, request: Any = request, answered: Any = answered) -> None:
            with contextlib.suppress(botocore.exceptions.HTTPClientError, botocore.exceptions.ConnectionError):
                client.create_training_job(**request)
                answered.set()

        thread = threading.Thread(target=create)
        thread.start()
        thread.join(delay)
        endpoint.process.send_signal(signal.SIGKILL)
        thread.join(allowed(30))
        endpoint.end(signal.SIGKILL)
        endpoint.start()
        client = endpoint.client()
        if not answered.is_set():
            with contextlib.suppress(client.exceptions.ResourceInUse):  # it had come so far
                client.create_training_job(**request)
        assert endpoint.ended(client, name)["TrainingJobStatus"] == "Completed"
        ran = [run for run in endpoint.runs() if run.parent.name.startswith(name) and _ran(run.parent)]
        assert len(ran) == 1, "exactly once"
        endpoint.close_clients()


def _ran(run: Any) -> bool:
    return any("ran" in log.read_text() for log in run.glob("logs/*/*/0.log"))


def test_with_stop_jobs_it_stops_what_runs_before_it_ends_and_leaves_what_waits() -> None:
    with serving("--max-running", "1", "--stop-jobs") as endpoint:
        client = endpoint.client()
        client.create_training_job(**endpoint.one_host("stopped", LONG))
        client.create_training_job(**endpoint.one_host("waits", "print(1)"))
        wait_for(lambda: "line 1" in read(endpoint, "stopped")[0])
        assert endpoint.end() == 0
        endpoint.start()
        client = endpoint.client()
        assert client.describe_training_job(TrainingJobName="stopped")["TrainingJobStatus"] == "Stopped"
        assert endpoint.ended(client, "waits")["TrainingJobStatus"] == "Completed"
