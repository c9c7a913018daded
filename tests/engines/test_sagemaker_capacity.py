"""What is submitted next when SageMaker has no instances, and when."""

from __future__ import annotations

import pytest
from sagemaker_jobs import planned

from headrace.engines.sagemaker.submit_training_job import pause_before_next

REGION = "us-east-1"


@pytest.mark.promise("engines", "another attempt, on sagemaker")
@pytest.mark.promise("sagemaker-runs", "on SageMaker a run is one training job at a time, whatever it answers")
def test_the_same_is_submitted_again_after_a_growing_pause() -> None:
    job = planned({"retry": {"attempts": 8, "delay": 10}}).asked
    pauses = [pause_before_next(job, attempt, "CapacityError") for attempt in range(1, 10)]
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, None]


def test_only_the_failures_that_are_named_are_followed_by_another_attempt() -> None:
    usual, own = (planned({"retry": {"attempts": 1, **on}}).asked for on in ({}, {"on": ["InternalServerError"]}))
    words = ("CapacityError", "ResourceLimitExceeded", "InternalServerError", "AlgorithmError", "")
    followed = {word: tuple(pause_before_next(job, 1, word) is not None for job in (usual, own)) for word in words}
    assert followed == {
        "CapacityError": (True, False),
        "ResourceLimitExceeded": (True, False),
        "InternalServerError": (False, True),
        "AlgorithmError": (False, False),
        "": (False, False),
    }
    assert pause_before_next(planned({}).asked, 1, "CapacityError") is None


def test_an_attempt_has_its_own_name_and_all_else_of_the_first() -> None:
    job = planned({"region": REGION, "retry": {"attempts": 3}}, budget={"max_cost": 5})
    assert (job.region, job.attempt, job.plan.budget.region) == (REGION, 1, REGION)  # type: ignore[union-attr]
    second = job.at(2)
    assert second.name == f"{job.name}-try2"
    assert second.channel_uri == job.channel_uri
    assert second.plan == job.plan
    name, first = "TrainingJobName", job.request()
    other = {name, "OutputDataConfig", "Environment"}  # where its record and its outputs are
    assert {key: value for key, value in second.request().items() if key not in other} == {
        key: value for key, value in first.items() if key not in other
    }
    record = "HEADRACE_RECORD"
    assert {**second.request()["Environment"], record: ""} == {**first["Environment"], record: ""}
    assert second.request()["Environment"][record] != first["Environment"][record]
    assert second.at(1) == job
