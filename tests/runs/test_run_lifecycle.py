"""What events say about the parts of a run, its attempts and what its hosts cost in time; and the description of it."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from headrace.runs import (
    Cause,
    CauseKind,
    EventWriter,
    MetricWriter,
    Run,
    Status,
    Stream,
    ValueNotFinite,
    ValueSecond,
    create_run,
    state_of,
)
from headrace.runs.describe import describe
from headrace.runs.events import (
    AttemptStarted,
    HostReleased,
    InstancesStarted,
    JobFinished,
    JobStarted,
    JobStopping,
    ProgramStarted,
    RunFinished,
    SecondaryStatus,
    StatusChanged,
)
from headrace.runs.run_paths import VALUES
from headrace.runs.state import billable_seconds, last_word, running_seconds

S = SecondaryStatus
BOOM = Cause(CauseKind.HELPER_FAILED, "boom")
HOSTS = {"dnn": ("algo-1", "algo-2"), "data": ("algo-3",)}
LIFE = [
    StatusChanged(t=1, status=S.STARTING, message="a"),
    StatusChanged(t=2, status=S.DOWNLOADING, message="b"),
    InstancesStarted(t=2, hosts=HOSTS),
    StatusChanged(t=3, status=S.DOWNLOADING, message="c"),
    StatusChanged(t=4, status=S.TRAINING, message="d"),
    JobStarted(t=5),
]


def parts(state):
    return [(each.status.value, each.start, each.end) for each in state.transitions]


def test_an_end_behind_which_another_attempt_begins_is_none():
    events = [*LIFE, RunFinished(t=9, status=Status.COMPLETED), AttemptStarted(t=12, number=2)]
    assert last_word(events[:-1]) == events[-2]
    assert last_word(events) is None
    state = state_of(events, True)
    assert (state.status, state.finished, state.attempt, state.ended) == (Status.IN_PROGRESS, False, 2, None)
    again = [*events, RunFinished(t=20, status=Status.FAILED, cause=BOOM)]
    assert state_of(again, True).status is Status.FAILED


def test_other_instances_of_another_attempt_have_clocks_of_their_own():
    pending = StatusChanged(t=10, status=S.PENDING, message="submitted again")
    begun = [AttemptStarted(t=20, number=2), InstancesStarted(t=21, hosts={"dnn": ("algo-1", "algo-3")})]
    hosts = {(host.group, host.host): host for host in state_of([*LIFE, pending, *begun], True).hosts}
    assert {key: (host.seconds(31), host.ended) for key, host in hosts.items()} == {
        ("dnn", "algo-1"): (8 + 11, None),  # from the start of the attempt, which had it before
        ("dnn", "algo-2"): (8, 10),
        ("data", "algo-3"): (8, 10),
        ("dnn", "algo-3"): (10, None),
    }


def test_parts_follow_each_other_without_a_gap_and_the_last_one_is_open():
    state = state_of(LIFE, True)
    assert parts(state) == [("Starting", 1, 2), ("Downloading", 2, 4), ("Training", 4, None)]
    assert [each.message for each in state.transitions] == ["a", "c", "d"]
    assert state.secondary_status is S.TRAINING
    assert state.status is Status.IN_PROGRESS
    assert state.exit_code is None


@pytest.mark.parametrize(
    ("status", "cause", "secondary", "code"),
    [
        (Status.COMPLETED, None, S.COMPLETED, 0),
        (Status.FAILED, BOOM, S.FAILED, 1),
        (Status.STOPPED, Cause(CauseKind.STOPPED, "stopped by the user"), S.STOPPED, 130),
        (Status.STOPPED, Cause(CauseKind.MAX_RUN, "too long"), S.MAX_RUNTIME_EXCEEDED, 1),
    ],
)
def test_the_end_is_the_last_part_and_gives_the_exit_code(status, cause, secondary, code):
    state = state_of([*LIFE, RunFinished(t=9, status=status, cause=cause)], False)
    assert parts(state)[-2:] == [("Training", 4, 9), (secondary.value, 9, 9)]
    assert (state.secondary_status, state.exit_code) == (secondary, code)


def test_a_job_that_is_complete_or_fails_is_not_stopping_and_one_that_is_stopped_is():
    for status in (Status.COMPLETED, Status.FAILED):
        state = state_of([*LIFE, JobStopping(t=6, reason="r", status=status)], True)
        assert (state.status, state.secondary_status) == (Status.IN_PROGRESS, S.TRAINING)
    stopped = [*LIFE, JobStopping(t=6, reason="r", status=Status.STOPPED)]
    state = state_of([*stopped, JobFinished(t=7, status=Status.STOPPED)], True)
    assert (state.status, state.secondary_status) == (Status.STOPPING, S.STOPPING)
    asked = state_of([*LIFE, StatusChanged(t=6, status=S.STOPPING)], True)
    assert (asked.status, asked.secondary_status) == (Status.STOPPING, S.STOPPING)


def test_the_verdict_of_an_attempt_that_was_followed_by_another_does_not_count():
    cause = Cause(CauseKind.HOST_LOST, "silent", "dnn", "algo-1", "agent", infrastructure=True)
    events = [
        *LIFE,
        ProgramStarted(t=5, group="dnn", host="algo-1", stream="0", pid=1),
        JobFinished(t=6, status=Status.FAILED, cause=cause),
        StatusChanged(t=7, status=S.RESTARTING),
        AttemptStarted(t=8, number=2),
        StatusChanged(t=8, status=S.TRAINING),
        ProgramStarted(t=9, group="dnn", host="algo-1", stream="0", pid=2),
    ]
    state = state_of(events, True)
    assert (state.attempt, state.cause, state.started) == (2, None, 5)
    assert [program.attempt for program in state.programs] == [1, 2]
    assert parts(state)[2:] == [("Training", 4, 7), ("Restarting", 7, 8), ("Training", 8, None)]
    killed = state_of(events, False)
    assert (killed.status, str(killed.cause)) == (Status.FAILED, "the engine was killed")


def test_a_released_host_has_a_clock_of_its_own():
    events = [*LIFE, HostReleased(t=6, group="data", host="algo-3")]
    running = state_of(events, True)
    assert billable_seconds(running.hosts, now=12) == {"dnn": 20, "data": 4}
    ended = state_of([*events, RunFinished(t=10, status=Status.COMPLETED)], False)
    assert billable_seconds(ended.hosts, now=99) == {"dnn": 16, "data": 4}
    assert [(host.host, host.seconds(99), host.released) for host in ended.hosts] == [
        ("algo-1", 8, False),
        ("algo-2", 8, False),
        ("algo-3", 4, True),
    ]


def test_the_failure_reason_is_the_engines_word_else_the_cause_and_never_too_long():
    word = RunFinished(t=9, status=Status.FAILED, cause=BOOM, failure_reason="bad label file")
    assert state_of([word], False).failure_reason == "bad label file"
    assert (
        state_of(
            [RunFinished(t=9, status=Status.FAILED, cause=Cause(CauseKind.HELPER_FAILED, "x" * 3000))], False
        ).failure_reason
        == "x" * 1024
    )
    assert state_of([RunFinished(t=9, status=Status.STOPPED, cause=BOOM)], False).failure_reason == ""
    assert state_of(LIFE, False).failure_reason == "the engine was killed"


@pytest.mark.promise("runs", "records of older and of newer versions are read, and what of them is not is told")
def test_records_of_earlier_versions_are_read():
    events = [JobStarted(t=1), JobStopping(t=2, reason="r"), RunFinished(t=3, status=Status.COMPLETED)]
    old = [msgspec.json.decode(msgspec.json.encode(event), type=type(event)) for event in events]
    state = state_of(old, False)
    assert (state.status, state.secondary_status, state.hosts) == (Status.COMPLETED, S.COMPLETED, ())


@pytest.mark.promise("runs", "records of older and of newer versions are read, and what of them is not is told")
def test_a_record_of_before_the_first_release_says_so(tmp_path: Path):
    run = Run(create_run("j", runs=tmp_path))
    line = {"event": "run_finished", "t": 1.0, "status": "Failed", "cause": {"reason": "stalled: no line for 5 s"}}
    run.paths.events("engine").parent.mkdir()
    run.paths.events("engine").write_bytes(msgspec.json.encode(line) + b"\n")
    run.paths.header.write_bytes(msgspec.json.encode(msgspec.structs.replace(run.header, version=1)))
    assert run.status is Status.FAILED
    assert [damage.reason for damage in run.damage] == [
        "a record of version 1, from before the first release: its causes are not read"
    ]


def test_a_cause_of_a_kind_that_only_a_newer_headrace_knows_is_read_with_its_detail(tmp_path: Path):
    run = Run(create_run("j", runs=tmp_path))
    line = {"event": "run_finished", "t": 1.0, "status": "Failed", "cause": {"kind": "eaten", "detail": "by a grue"}}
    run.paths.events("engine").parent.mkdir()
    run.paths.events("engine").write_bytes(msgspec.json.encode(line) + b"\n")
    assert run.cause == Cause(CauseKind.UNKNOWN, "by a grue")
    assert (str(run.cause), run.damage) == ("by a grue", [])


@pytest.mark.promise("runs", "statuses, secondary statuses and failure reasons are those of the service")
def test_a_run_is_described_as_the_service_describes_a_training_job(tmp_path: Path):
    paths = create_run("j", runs=tmp_path, created=0.5)
    request = {
        "TrainingJobName": "j",
        "ResourceConfig": {
            "InstanceGroups": [{"InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "InstanceGroupName": "dnn"}]
        },
        "HyperParameters": {"epochs": "3", "name": '"a"'},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "RetryStrategy": {"MaximumRetryAttempts": 2},
        "Tags": [{"Key": "team", "Value": "vision"}],
    }
    paths.request.write_text(json.dumps(request))
    with EventWriter(paths.events("engine")) as events:
        for event in [*LIFE, HostReleased(t=6, group="data", host="algo-3")]:
            events.write(event)
        events.write(RunFinished(t=9.25, status=Status.FAILED, cause=BOOM, failure_reason="bad label"))
    found = json.loads(msgspec.json.encode(describe(Run(paths))))
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Failed", "Failed")
    assert found["FailureReason"] == "bad label"
    assert found["TrainingJobArn"].endswith(":training-job/j")
    assert found["CreationTime"] == "1970-01-01T00:00:00.500000Z"
    assert found["TrainingStartTime"] == "1970-01-01T00:00:02Z"
    assert found["TrainingEndTime"] == found["LastModifiedTime"] == "1970-01-01T00:00:09.250000Z"
    assert (found["TrainingTimeInSeconds"], found["BillableTimeInSeconds"]) == (8, 8)
    assert found["ResourceConfig"] == {
        "InstanceGroups": [{"InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "InstanceGroupName": "dnn"}]
    }
    assert found["HyperParameters"] == {"epochs": "3", "name": '"a"'}
    assert "Tags" not in found
    assert found["StoppingCondition"] == {"MaxRuntimeInSeconds": 60}
    assert found["RetryStrategy"] == {"MaximumRetryAttempts": 2}
    assert found["SecondaryStatusTransitions"][1] == {
        "Status": "Downloading",
        "StartTime": "1970-01-01T00:00:02Z",
        "EndTime": "1970-01-01T00:00:04Z",
        "StatusMessage": "c",
    }
    assert found["headrace"]["billable_seconds"] == {
        "groups": {"dnn": 14.5, "data": 4.0},
        "hosts": {"algo-1": 7.25, "algo-2": 7.25, "algo-3": 4.0},
        "released": ["algo-3"],
    }


def test_a_run_that_has_only_begun_or_lost_its_job_is_described_too(tmp_path: Path):
    found = describe(Run(create_run("j", runs=tmp_path)))
    assert found["TrainingJobStatus"] == "InProgress"
    assert "TrainingStartTime" not in found
    assert "BillableTimeInSeconds" not in found


def test_the_last_value_of_each_metric_is_described_as_the_service_does(tmp_path: Path):
    paths = create_run("j", runs=tmp_path)
    for host, t, last in (("algo-1", 20.0, 0.5), ("algo-2", 19.0, 0.7)):
        with MetricWriter(paths.metrics(Stream("g", host, VALUES))) as writer:
            for when, value in ((t - 5, 9.0), (t, last)):
                record = {"count": 1, "last": value, "low": value, "high": value, "total": value}
                writer.write(ValueSecond(t=when, name="loss", stream="0", **record))
    found = describe(Run(paths))["FinalMetricDataList"]
    when = datetime.fromtimestamp(20, timezone.utc)
    assert found == [{"MetricName": "loss", "Value": 0.5, "Timestamp": when}]
    assert Run(paths).host_seconds() == {}


def test_values_are_read_once_however_often_they_are_asked_for_and_other_metrics_are_passed_over(tmp_path: Path):
    paths = create_run("j", runs=tmp_path)
    file = paths.metrics(Stream("g", "algo-1", "0"))
    value = {"name": "loss", "stream": "0", "count": 1, "low": 0.5, "high": 0.5, "total": 0.5}
    other = b'{"metric":"loader","t":"no time"}\n'  # damaged, which nobody sees who does not read it
    with MetricWriter(file) as writer:
        writer.write(ValueSecond(t=1, last=0.5, **value))
        file.write_bytes(file.read_bytes() + other)
        run = Run(paths)
        assert {name: second.t for name, second in run.values.seconds().items()} == {"loss": 1.0}
        file.write_bytes(b"x" * (file.stat().st_size - 1) + b"\n")  # what was read
        writer.write(ValueSecond(t=2, last=0.25, **value))
        assert run.values.last() == {"loss": 0.25}
        writer.write(ValueNotFinite(t=3, name="loss", stream="0", count=1, last="nan"))
    assert run.values.seconds()["loss"].t == 2.0
    assert math.isnan(run.values.last()["loss"])
    assert run.damage == []
    assert Run(paths).metrics()
    assert len(Run(paths).values.seconds()) == 1
    assert len(run.metrics()) == 1
    assert [damage.line for damage in run.damage] == [1]


def test_while_a_run_waits_for_other_instances_no_clock_runs_and_no_time_is_used_up():
    waiting = [
        *LIFE,
        HostReleased(t=8, group="data", host="algo-3"),
        StatusChanged(t=10, status=S.RESTARTING, message="after: a node"),
        StatusChanged(t=10, status=S.PENDING, message="after: a node"),
        StatusChanged(t=12, status=S.PENDING, message="waits: Resources"),
    ]
    state = state_of(waiting, True)
    assert billable_seconds(state.hosts, 1000) == {"dnn": 16, "data": 6}
    assert running_seconds(state.transitions, 1000) == 9
    again = [
        *waiting,
        AttemptStarted(t=100, number=2),
        StatusChanged(t=100, status=S.STARTING),
        StatusChanged(t=101, status=S.TRAINING),
        RunFinished(t=110, status=Status.COMPLETED),
    ]
    state = state_of(again, False)
    assert billable_seconds(state.hosts, 1000) == {"dnn": 36, "data": 16}
    assert running_seconds(state.transitions[:-1], 1000) == 19
    assert (state.attempt, state.instances_started) == (2, 2)
