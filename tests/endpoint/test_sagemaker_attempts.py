"""`--engine sagemaker` while the service is full, busy, or its answers are lost: a run is one job at a time."""

from __future__ import annotations

import time

import pytest
from sagemaker_loop import Loop, lines, members
from service_relay import FORGETS, FULL, LOSES_MODEL, LOST, QUOTA, THROTTLED, Relay

from headrace import engines
from headrace.engines.sagemaker import refresh_training_job
from headrace.errors import EngineRefused
from headrace.runs import CauseKind, Run, Status, runs_dir
from serve_process import wait_for

pytestmark = pytest.mark.namespaces

HELLO = """
import os
print(os.environ["TRAINING_JOB_NAME"], os.environ["SM_CURRENT_INSTANCE_TYPE"], flush=True)
"""
ALONE = {"instance_groups": None, "instance_type": "ml.m5.xlarge", "instance_count": 1}


def through(relay: Relay, **retry: object) -> dict[str, object]:
    """Options of a job whose training jobs go through a relay."""
    return {"endpoint_urls": {"sagemaker": relay.url}, "retry": {"attempts": 3, "delay": 0, **retry}}


@pytest.mark.promise("sagemaker-runs", "on SageMaker a run is one training job at a time, whatever it answers")
def test_a_run_outlives_throttling_two_full_attempts_and_a_lost_answer_and_is_never_doubled(loop: Loop) -> None:
    with Relay(loop.service.port, CreateTrainingJob=[THROTTLED, FULL, FULL, LOST]) as relay:
        handle = loop.start(loop.job(HELLO, "full", through(relay), **ALONE))
        assert handle.wait(90) is Status.COMPLETED, (handle.cause, loop.service.log)
    names = [handle.id, handle.id, f"{handle.id}-try2", f"{handle.id}-try3"]
    assert relay.created() == names
    assert lines(handle) == [f"homogeneousCluster/algo-1[0] {names[-1]} ml.m5.xlarge"]
    summaries = loop.service.client().list_training_jobs(NameContains=handle.id)["TrainingJobSummaries"]
    assert [each["TrainingJobName"] for each in summaries] == names[-1:]
    told = [event.message for event in Run.open(handle.id).events() if getattr(event, "message", "")]
    assert any("CapacityError: submitted again (attempt 3)" in text for text in told)


def test_a_quota_that_is_used_up_is_followed_by_another_attempt_and_the_last_refusal_is_the_end(loop: Loop) -> None:
    with Relay(loop.service.port, CreateTrainingJob=[QUOTA, QUOTA]) as relay:
        handle = loop.start(loop.job(HELLO, "quota", through(relay, attempts=1), **ALONE))
        assert handle.run.state().status is Status.IN_PROGRESS, "whoever looks at it submits it again"
        assert handle.wait(30) is Status.FAILED
        assert handle.cause is not None
        assert handle.cause.kind is CauseKind.INSTANCE_NOT_STARTED
        assert "The limit is 0 Instances" in handle.cause.detail
        assert [name.rpartition("-")[2] == "try2" for name in relay.created()] == [False, True]
    with Relay(loop.service.port, CreateTrainingJob=[QUOTA]) as relay, pytest.raises(EngineRefused, match="limit is 0"):
        loop.start(loop.job(HELLO, "unwanted", {"endpoint_urls": {"sagemaker": relay.url}}, **ALONE))
    assert list(runs_dir().glob("unwanted*")) == []
    assert not list((loop.bucket / "out" / "headrace" / "channels").glob("quota*/*"))


def test_an_attempt_never_takes_the_end_of_an_earlier_one_for_its_own_and_the_record_shows_both(loop: Loop) -> None:
    script = """
    import os
    print(os.environ["TRAINING_JOB_NAME"], flush=True)
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w") as file:
        file.write(os.environ["TRAINING_JOB_NAME"])
    """
    with Relay(loop.service.port, CreateTrainingJob=[LOSES_MODEL]) as relay:
        options = through(relay, attempts=1, on=["InternalServerError"])
        handle = loop.start(loop.job(script, "lost", options, **ALONE))
        assert handle.wait(90) is Status.COMPLETED, (handle.cause, loop.service.log)
        names = [handle.id, f"{handle.id}-try2"]
        assert relay.created() == names
    assert [line.rpartition(" ")[2] for line in lines(handle)] == names
    state = handle.run.state()
    assert (state.attempt, [program.attempt for program in state.programs]) == (2, [1, 2])
    assert all(program.exit_code == 0 for program in state.programs)
    (host,) = state.hosts
    assert (len(host.pauses), host.released) == (1, False), "its clock stood still between the attempts"
    assert members(loop.bucket / "out" / names[1] / "output" / "model.tar.gz") == {"weights": names[1].encode()}
    told = [event.message for event in handle.run.events() if getattr(event, "message", "")]
    assert any("InternalServerError: submitted again (attempt 2)" in text for text in told)


def test_a_run_that_stays_without_capacity_fails_and_says_so(loop: Loop) -> None:
    with Relay(loop.service.port, CreateTrainingJob=[FULL, QUOTA, FULL]) as relay:
        handle = loop.start(loop.job(HELLO, "never", through(relay, attempts=2), **ALONE))
        assert handle.wait(60) is Status.FAILED
        assert handle.cause is not None
        assert handle.cause.kind is CauseKind.INSTANCE_NOT_STARTED
        assert len(relay.created()) == 3
    assert not list((loop.bucket / "out" / "headrace" / "channels").glob("never*/*"))


def test_a_run_that_pauses_between_two_attempts_is_stopped_without_the_service(loop: Loop) -> None:
    with Relay(loop.service.port, CreateTrainingJob=[FULL]) as relay:
        handle = loop.start(loop.job(HELLO, "paused", through(relay, attempts=1, delay=600), **ALONE))
        wait_for(lambda: "with a pause before it" in handle.run.state().transitions[-1].message)
    with pytest.raises(EngineRefused):
        engines.refresh(handle.run)
    assert engines.stop(handle.run), "nobody serves by now"
    state = Run.open(handle.id).state()
    assert state.cause is not None
    assert (state.status, state.cause.kind) == (Status.STOPPED, CauseKind.STOPPED)


def test_doctor_tells_whether_the_service_answers_and_where(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (found,) = engines.capabilities("sagemaker")
    assert (found.works, found.needed, "AWS_REGION" in found.hint) == (False, True, True)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", loop.service.url)
    (found,) = engines.capabilities("sagemaker")
    assert (found.works, found.detail) == (True, f"the service answers in us-east-1, at {loop.service.url}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    (found,) = engines.capabilities("sagemaker")
    assert (found.works, "AWS_PROFILE" in found.hint) == (False, True)


def test_a_run_that_waits_for_capacity_is_pending_and_can_be_stopped(loop: Loop) -> None:
    with Relay(loop.service.port, CreateTrainingJob=[FULL]) as relay:
        handle = loop.start(loop.job(HELLO, "waits", through(relay, delay=3600), **ALONE))
        engines.refresh(Run.open(handle.id))
        assert engines.alive(Run.open(handle.id))
        assert engines.stop(Run.open(handle.id)) is True
        assert handle.wait(30) is Status.STOPPED
        assert engines.stop(Run.open(handle.id)) is False
        assert relay.created() == [handle.id]
    with Relay(loop.service.port, CreateTrainingJob=[QUOTA]) as relay:  # refused at once: the same
        handle = loop.start(loop.job(HELLO, "refused", through(relay, delay=3600), **ALONE))
        assert engines.alive(Run.open(handle.id))
        assert engines.stop(Run.open(handle.id)) is True
        assert handle.wait(5) is Status.STOPPED
        assert relay.created() == [handle.id]


@pytest.mark.promise("grid-reference", "a line on SageMaker is one training job, whatever the service answers")
def test_a_job_that_the_service_does_not_know_for_long_is_over(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_training_job, "MISSING_SECONDS", 1.0)
    with Relay(loop.service.port, DescribeTrainingJob=[FORGETS] * 100) as relay:
        handle = loop.start(loop.job(HELLO, "gone", through(relay), **ALONE))
        began = time.monotonic()
        assert handle.wait(30) is Status.FAILED
        assert time.monotonic() - began > 1
        assert handle.cause is not None
        assert (handle.cause.kind, handle.cause.infrastructure) == (CauseKind.ENGINE_FAILED, True)
        assert relay.created() == [handle.id]
    # It had it all the time: its host could not store its record once the endpoint is gone, and would try for minutes.
    # How it ends is a matter of who is first: a host that finds its run ended gives up.
    client = loop.service.client()
    ends = {"Completed", "Stopped", "Failed"}
    wait_for(lambda: client.describe_training_job(TrainingJobName=handle.id)["TrainingJobStatus"] in ends, 60)
