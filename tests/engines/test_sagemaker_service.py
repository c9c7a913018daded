"""The calls of the SageMaker service: errors by their type, throttling, lost answers, jobs that are found again.

botocore's Stubber holds each request and answer against the service's model. What a Stubber cannot do, losing an
answer, a server of this test does.
"""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest
from botocore.stub import Stubber
from sagemaker_jobs import planned

from headrace.engines.sagemaker.boto_service import (
    BotoService,
    LogEvent,
    NameTaken,
    ServiceAccess,
    ServiceRefused,
    ServiceUnreachable,
    differences,
)
from headrace.engines.sagemaker.failure_reasons import LEADER_FIRST, cost_of, end_of_job, over_budget
from headrace.errors import EngineRefused
from headrace.runs import Cause, CauseKind, Status

REQUEST = planned().request()
NAME = str(REQUEST["TrainingJobName"])
ARN = f"arn:aws:sagemaker:eu-west-1:123456789012:training-job/{NAME}"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


class Waits(list[float]):
    """The waits that were asked for, in seconds; none is made."""


@functools.cache
def patient_service() -> tuple[BotoService, Waits]:
    """One for all tests with a Stubber: a client of boto3 costs a quarter of a second."""
    waits = Waits()
    return BotoService(ServiceAccess("eu-west-1"), waits.append, lambda: 1.0), waits


@contextmanager
def stubbed(*answers: tuple[str, object]) -> Iterator[tuple[BotoService, Waits]]:
    """A service that gives these answers: an operation with what it returns, or with (code, message, HTTP status)."""
    service, waits = patient_service()
    waits.clear()
    with Stubber(service.sagemaker) as jobs, Stubber(service.cloudwatch_logs) as logs:
        for operation, answer in answers:
            stub = logs if "log" in operation else jobs
            if isinstance(answer, tuple):
                code, message, status = answer
                stub.add_client_error(operation, code, message, http_status_code=status)
            else:
                stub.add_response(operation, answer)
        yield service, waits
        jobs.assert_no_pending_responses()
        logs.assert_no_pending_responses()


def described(**others: object) -> dict[str, object]:
    filled = {key: value for key, value in REQUEST.items() if key != "Tags"}
    return {
        **filled,
        "TrainingJobArn": ARN,
        "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/m"},
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Starting",
        "CreationTime": 1,
        "EnableNetworkIsolation": False,
        **others,
    }


BUSY = ("ThrottlingException", "Rate exceeded", 400)
TAKEN = ("ResourceInUse", "Training job names must be unique", 400)
UNKNOWN = ("ValidationException", "Requested resource not found.", 400)
BROKEN = ("InternalFailure", "", 500)


def test_a_throttled_request_waits_longer_each_time_and_is_sent_again() -> None:
    answers: list[tuple[str, object]] = [("create_training_job", BUSY)] * 7
    with stubbed(*answers, ("create_training_job", {"TrainingJobArn": ARN})) as (service, waits):
        assert service.create(REQUEST) == ARN
    assert waits == [0.5, 1, 2, 4, 8, 16, 20]
    with stubbed(*[("create_training_job", BUSY)] * 8) as (service, _), pytest.raises(ServiceUnreachable) as caught:
        service.create(REQUEST)
    assert "Rate exceeded" in caught.value.message


def test_a_job_of_that_name_with_an_equal_request_is_adopted_and_another_one_is_not() -> None:
    with stubbed(("create_training_job", TAKEN), ("describe_training_job", described())) as (service, waits):
        assert service.create(REQUEST) == ARN
    assert waits == []
    other = described(RoleArn="arn:aws:iam::123456789012:role/another", HyperParameters={})
    with (
        stubbed(("create_training_job", TAKEN), ("describe_training_job", other)) as (service, _),
        pytest.raises(NameTaken) as caught,
    ):
        service.create(REQUEST)
    assert "HyperParameters" in caught.value.message
    assert "RoleArn" in caught.value.message


def test_what_the_service_adds_to_a_request_is_no_difference_and_what_it_lacks_is_one() -> None:
    assert differences({**REQUEST, "Tags": [{"Key": "a", "Value": "b"}]}, described()) == []
    channels = [dict(channel) for channel in REQUEST["InputDataConfig"]]  # type: ignore[attr-defined]
    filled = [{**channel, "CompressionType": "None", "RecordWrapperType": "None"} for channel in channels]
    resources = {**REQUEST["ResourceConfig"], "InstanceCount": 0, "VolumeSizeInGB": 30}  # type: ignore[dict-item]
    assert differences(REQUEST, described(InputDataConfig=filled, ResourceConfig=resources)) == []
    assert differences(REQUEST, described(InputDataConfig=filled[:1])) == ["InputDataConfig"]


def test_a_job_that_was_created_although_the_service_failed_is_found_again() -> None:
    with stubbed(("create_training_job", BROKEN), ("describe_training_job", described())) as (service, _):
        assert service.create(REQUEST) == ARN
    with stubbed(
        ("create_training_job", BROKEN),
        ("describe_training_job", UNKNOWN),
        ("create_training_job", {"TrainingJobArn": ARN}),
    ) as (service, waits):
        assert service.create(REQUEST) == ARN
    assert waits == [0.5]
    tries: list[tuple[str, object]] = [("create_training_job", BROKEN), ("describe_training_job", UNKNOWN)]
    last = [("create_training_job", BROKEN), ("describe_training_job", described())]
    with stubbed(*tries * 7, *last) as (service, _):  # type: ignore[arg-type]
        assert service.create(REQUEST) == ARN, "it is looked for after the last try, too"


def test_a_request_that_may_have_been_sent_before_is_looked_for_when_it_is_refused_and_the_service_forgets_it() -> None:
    """A job of an answer that was lost uses up the quota itself: taken for refused, it would run a second time."""
    full = ("ResourceLimitExceeded", "The limit is 1", 400)
    refused: list[tuple[str, object]] = [("create_training_job", full), ("describe_training_job", UNKNOWN)]
    there = ("describe_training_job", described())
    lost: list[tuple[str, object]] = [("create_training_job", BROKEN), ("describe_training_job", UNKNOWN)]
    with stubbed(*lost, *refused, there) as (service, waits):
        assert service.create(REQUEST) == ARN
    assert waits == [0.5, 0.5]
    with stubbed(*refused, there) as (service, _):
        assert service.create(REQUEST, 30.0) == ARN
    with stubbed(("create_training_job", TAKEN), ("describe_training_job", UNKNOWN), there) as (service, _):
        assert service.create(REQUEST) == ARN
    with stubbed(*refused) as (service, waits), pytest.raises(ServiceRefused, match="ResourceLimitExceeded"):
        service.create(REQUEST, 0.0)
    assert waits == []
    never = [("describe_training_job", UNKNOWN)] * 6
    with stubbed(*lost, *refused, *never) as (service, waits), pytest.raises(ServiceRefused, match="The limit is 1"):
        service.create(REQUEST)
    assert sum(waits[1:]) >= 30


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("ResourceLimitExceeded", "quota"),
        ("AccessDeniedException", "the actions that you and the role need"),
        ("UnrecognizedClientException", "AWS_PROFILE"),
        ("ValidationException", ""),
    ],
)
def test_a_refused_job_is_an_error_with_the_services_code_and_words_and_is_not_sent_again(code: str, hint: str) -> None:
    with (
        stubbed(("create_training_job", (code, "the service says why", 400))) as (service, waits),
        pytest.raises(ServiceRefused) as caught,
    ):
        service.create(REQUEST)
    assert (caught.value.code, waits) == (code, [])
    assert "the service says why" in caught.value.message
    assert hint in caught.value.hint


def test_a_job_that_is_not_there_is_no_error_when_it_is_asked_for_or_stopped() -> None:
    with stubbed(("describe_training_job", UNKNOWN)) as (service, _):
        assert service.describe(NAME) is None
    with stubbed(("stop_training_job", UNKNOWN), ("describe_training_job", UNKNOWN)) as (service, _):
        assert service.stop(NAME) is False
    with stubbed(("stop_training_job", {})) as (service, _):
        assert service.stop(NAME) is True
    late = ("ValidationException", "The request was rejected because the training job is in status Completed.", 400)
    over = described(TrainingJobStatus="Completed", SecondaryStatus="Completed")
    with stubbed(("stop_training_job", late), ("describe_training_job", over)) as (service, _):
        assert service.stop(NAME) is False
    with (
        stubbed(("stop_training_job", late), ("describe_training_job", described())) as (service, _),
        pytest.raises(ServiceRefused),
    ):
        service.stop(NAME)


def test_all_pages_of_a_list_are_read() -> None:
    def page(*names: str, **token: str) -> dict[str, object]:
        rows = [
            {"TrainingJobName": name, "TrainingJobArn": ARN, "CreationTime": 1, "TrainingJobStatus": "Completed"}
            for name in names
        ]
        return {"TrainingJobSummaries": rows, **token}

    with stubbed(("list_training_jobs", page("a", "b", NextToken="t")), ("list_training_jobs", page("c"))) as (
        service,
        _,
    ):
        assert list(service.names("digits")) == ["a", "b", "c"]


def test_logs_are_read_to_their_end_in_the_order_of_time_and_none_yet_is_no_error() -> None:
    streams = {"logStreams": [{"logStreamName": f"{NAME}/algo-{n}-1"} for n in (1, 2)]}

    def page(token: str, *events: tuple[int, str]) -> dict[str, object]:
        found = [{"timestamp": when, "message": text, "ingestionTime": 1} for when, text in events]
        return {"events": found, "nextForwardToken": token, "nextBackwardToken": "b"}

    missing = ("ResourceNotFoundException", "The specified log group does not exist.", 400)
    with stubbed(("describe_log_streams", missing)) as (service, _):
        assert service.logs(NAME) == []
    first = [("describe_log_streams", streams)] + [
        ("get_log_events", each)
        for each in (
            page("f/1", (5, "late")),
            page("f/1"),
            page("f/2", (1, "early")),
            page("f/3", (9, "last")),
            page("f/3"),
        )
    ]
    with stubbed(*first) as (service, _):  # type: ignore[arg-type]
        assert service.logs(NAME) == [
            LogEvent("algo-2-1", 1, "early"),
            LogEvent("algo-1-1", 5, "late"),
            LogEvent("algo-2-1", 9, "last"),
        ]


class Server(http.server.ThreadingHTTPServer):
    """Gives answers in their order; None hangs up after it has read the request, as a connection that breaks does."""

    daemon_threads = True

    def __init__(self, *answers: dict[str, object] | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def __enter__(self) -> Server:
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.headers["X-Amz-Target"].partition(".")[2])
        answer = self.server.answers.pop(0)
        self.close_connection = True
        if answer is None:
            return
        body = json.dumps(answer).encode()
        self.send_response(400 if "__type" in answer else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is written."""


@pytest.mark.promise("engines", "the submitting process is killed, on sagemaker")
@pytest.mark.promise("sagemaker-runs", "on SageMaker a run is one training job at a time, whatever it answers")
def test_a_job_whose_answer_was_lost_is_found_by_its_name_and_never_made_twice() -> None:
    with Server(None, described()) as server:
        endpoints = {"sagemaker": f"http://127.0.0.1:{server.server_port}"}
        service = BotoService(ServiceAccess("eu-west-1", "", endpoints), lambda _: None)
        assert service.create(REQUEST) == ARN
    assert server.asked == ["CreateTrainingJob", "DescribeTrainingJob"]
    unknown: dict[str, object] = {"__type": "ValidationException", "message": "Requested resource not found."}
    taken: dict[str, object] = {"__type": "ResourceInUse", "message": "exists"}
    with Server(None, unknown, taken, described()) as server:  # the service saw its own job late
        endpoints = {"sagemaker": f"http://127.0.0.1:{server.server_port}"}
        service = BotoService(ServiceAccess("eu-west-1", "", endpoints), lambda _: None)
        assert service.create(REQUEST) == ARN
    assert server.asked == ["CreateTrainingJob", "DescribeTrainingJob", "CreateTrainingJob", "DescribeTrainingJob"]


def test_a_service_that_does_not_answer_says_nothing_about_a_job_and_no_key_is_a_mistake_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Server() as server:
        closed = server.server_port
    waits = Waits()
    service = BotoService(ServiceAccess("eu-west-1", "", {"sagemaker": f"http://127.0.0.1:{closed}"}), waits.append)
    with pytest.raises(ServiceUnreachable) as caught:
        service.describe(NAME)
    assert caught.value.exit_code == 1, "it is no mistake of the user's"
    assert len(waits) == 2
    assert all(0 < wait <= 1 for wait in waits)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    service = BotoService(ServiceAccess("eu-west-1", "", {"sagemaker": f"http://127.0.0.1:{closed}"}))
    with pytest.raises(EngineRefused) as caught:
        service.describe(NAME)
    assert "AWS_PROFILE" in caught.value.hint
    with pytest.raises(EngineRefused) as caught:
        BotoService(ServiceAccess("eu-west-1", "nobody"))
    assert "nobody" in caught.value.message


def ended(status: str, secondary: str = "", reason: str = "", **others: object) -> tuple[Status, Cause | None] | None:
    return end_of_job(described(TrainingJobStatus=status, SecondaryStatus=secondary, FailureReason=reason, **others))


def test_how_a_job_ended_is_told_by_the_words_of_the_service_that_are_types() -> None:
    assert ended("InProgress", "Training") is None
    assert ended("Stopping", "Stopping") is None
    assert ended("Completed", "Completed") == (Status.COMPLETED, None)

    def kind(*arguments: str, **others: object) -> tuple[Status, CauseKind, bool, int | None, int | None]:
        found = ended(*arguments, **others)
        assert found is not None
        status, cause = found
        assert cause is not None
        return status, cause.kind, cause.infrastructure, cause.exit_code, cause.signal

    full = "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different type."
    failed, stopped = Status.FAILED, Status.STOPPED
    assert kind("Failed", "Failed", full) == (failed, CauseKind.INSTANCE_NOT_STARTED, True, None, None)
    assert kind("Failed", "Failed", "InternalServerError: We encountered an internal error. Please try again.") == (
        failed, CauseKind.ENGINE_FAILED, True, None, None,
    )  # fmt: skip
    program = 'AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage "x", exit code: {}'
    assert kind("Failed", "Failed", program.format(3)) == (failed, CauseKind.PROGRAM_EXITED, False, 3, None)
    assert kind("Failed", "Failed", program.format(137)) == (failed, CauseKind.PROGRAM_EXITED, False, None, 9)
    assert kind("Failed", "Failed", "AlgorithmError: ") == (failed, CauseKind.UNKNOWN, False, None, None)
    assert kind("Failed", "Failed", "ClientError: Data download failed") == (
        failed, CauseKind.HELPER_FAILED, False, None, None,
    )  # fmt: skip
    assert kind("Failed", "Failed", "the CapacityError is not my type") == (
        failed, CauseKind.ENGINE_FAILED, False, None, None,
    )  # fmt: skip
    assert kind("Stopped", "MaxRuntimeExceeded") == (stopped, CauseKind.MAX_RUN, False, None, None)
    assert kind("Stopped", "MaxWaitTimeExceeded") == (stopped, CauseKind.INSTANCE_NOT_STARTED, True, None, None)
    assert kind("Stopped", "MaxWaitTimeExceeded", TrainingStartTime=1) == (
        stopped, CauseKind.PREEMPTED, True, None, None,
    )  # fmt: skip
    assert kind("Stopped", "Stopped") == (stopped, CauseKind.STOPPED, False, None, None)
    asked = Cause(CauseKind.BUDGET, "too dear")
    stop = described(TrainingJobStatus="Stopped", SecondaryStatus="Stopped")
    assert end_of_job(stop, asked) == (stopped, asked)
    assert "not by headrace" in str(end_of_job(stop)[1])  # type: ignore[index]
    late = described(TrainingJobStatus="Stopped", SecondaryStatus="MaxRuntimeExceeded")
    assert end_of_job(late, asked)[1].kind is CauseKind.MAX_RUN  # type: ignore[index, union-attr]


def test_who_looks_stops_a_job_some_seconds_after_its_leader_should_have() -> None:
    plan = planned(budget={"max_cost": 5}).after(1.5).plan
    assert plan.budget is not None
    per_second = 2 * plan.budget.per_second["data_group"] + plan.budget.per_second["dnn_group"]
    used = 1000 + 3.5 / per_second
    began = described(TrainingStartTime=datetime.fromtimestamp(1000, timezone.utc))
    assert over_budget(plan, began, used + LEADER_FIRST - 0.1) is None
    cause = over_budget(plan, began, used + LEADER_FIRST + 0.1)
    assert cause is not None
    assert cause.kind is CauseKind.BUDGET
    assert over_budget(plan, described(), 1e10) is None, "no instance has started"
    assert over_budget(planned().plan, began, 1e10) is None
    assert cost_of(plan, described(BillableTimeInSeconds=100)) == pytest.approx(100 * per_second)
