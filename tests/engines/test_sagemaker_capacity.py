"""What is submitted next when SageMaker has no instances: which types, in which region, and when."""

from __future__ import annotations

import pytest
from sagemaker_jobs import planned

from headrace.engines.sagemaker.capacity_retry import NextAttempt, next_attempt
from headrace.errors import JobInvalid
from headrace.job.model.sagemaker_options import CapacityRetry

REGION = "us-east-1"
WEST = {
    "output_path": "s3://other/out",
    "inputs": {"training": "s3://other/data"},
    "subnets": ["s-2"],
    "security_group_ids": ["sg-2"],
}
WAY_OUT = {
    "attempts": 7,
    "delay": 10,
    "instance_types": {"dnn_group": ["ml.g5.xlarge", "ml.g4dn.xlarge"], "data_group": ["ml.c5.2xlarge"]},
    "regions": {"us-west-2": WEST},
}


def test_other_types_come_first_then_other_regions_at_once_and_the_same_again_after_a_growing_delay() -> None:
    retry = CapacityRetry.model_validate(WAY_OUT)
    found = [next_attempt(retry, attempt, "CapacityError", REGION) for attempt in range(1, 9)]
    assert found == [*(NextAttempt(n, 0.0) for n in range(2, 7)), NextAttempt(7, 10.0), NextAttempt(8, 0.0), None]
    alone = CapacityRetry(attempts=100, delay=10)
    delays = [next_attempt(alone, attempt, "CapacityError", REGION).delay for attempt in range(1, 9)]  # type: ignore[union-attr]
    assert delays == [10, 20, 40, 80, 160, 320, 600, 600]


def test_only_the_failures_that_are_named_are_followed_by_another_attempt() -> None:
    usual, own = CapacityRetry(attempts=1), CapacityRetry(attempts=1, on=("InternalServerError",))
    followed = {
        word: (bool(next_attempt(usual, 1, word, REGION)), bool(next_attempt(own, 1, word, REGION)))
        for word in ("CapacityError", "ResourceLimitExceeded", "InternalServerError", "AlgorithmError", "")
    }
    assert followed == {
        "CapacityError": (True, False),
        "ResourceLimitExceeded": (True, False),
        "InternalServerError": (False, True),
        "AlgorithmError": (False, False),
        "": (False, False),
    }
    assert next_attempt(None, 1, "CapacityError", REGION) is None
    assert next_attempt(usual, 2, "CapacityError", REGION) is None


def test_an_attempt_has_its_own_name_types_region_image_and_places() -> None:
    job = planned({"region": REGION, "retry": WAY_OUT}, budget={"max_cost": 5})
    assert (job.region, job.attempt, job.plan.budget.region) == (REGION, 1, REGION)  # type: ignore[union-attr]
    second, third, fourth = (job.at(attempt) for attempt in (2, 3, 4))
    types = [[group.instance_type for group in each.plan.groups] for each in (job, second, third, fourth)]
    assert types == [
        ["ml.c5.xlarge", "ml.p3.2xlarge"],
        ["ml.c5.2xlarge", "ml.g5.xlarge"],
        ["ml.c5.2xlarge", "ml.g4dn.xlarge"],
        ["ml.c5.xlarge", "ml.p3.2xlarge"],
    ]
    assert second.name == f"{job.name}-try2"
    assert second.channel_uri == job.channel_uri
    assert second.plan.run_id == job.plan.run_id
    request = fourth.request()
    assert fourth.region == "us-west-2"
    assert ".us-west-2." in fourth.image
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://other/out"}
    assert request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] == "s3://other/data"  # type: ignore[index]
    assert request["VpcConfig"] == {"SecurityGroupIds": ["sg-2"], "Subnets": ["s-2"]}
    assert fourth.channel_uri.startswith("s3://other/out/headrace/")
    assert fourth.plan.budget.region == "us-west-2"  # type: ignore[union-attr]
    assert fourth.at(1) == job
    assert [each for each in job.limits if each.startswith("attempt ")] == [
        "attempt 2, without capacity before: us-east-1; data_group: ml.c5.2xlarge, dnn_group: ml.g5.xlarge",
        "attempt 3, without capacity before: us-east-1; data_group: ml.c5.2xlarge, dnn_group: ml.g4dn.xlarge",
        "attempt 4, without capacity before: us-west-2; data_group: ml.c5.xlarge, dnn_group: ml.p3.2xlarge",
        "attempt 5, without capacity before: us-west-2; data_group: ml.c5.2xlarge, dnn_group: ml.g5.xlarge",
        "attempt 6, without capacity before: us-west-2; data_group: ml.c5.2xlarge, dnn_group: ml.g4dn.xlarge",
    ]


def test_a_job_without_groups_has_a_list_of_other_types() -> None:
    alone = {"instance_groups": None, "inputs": None, "distribution": None, "data_service": None}
    retry = {"retry": {"attempts": 1, "instance_types": ["ml.g5.xlarge"]}}
    job = planned(retry, **alone, instance_type="ml.p3.2xlarge", instance_count=1)
    resources = [each.request()["ResourceConfig"] for each in (job, job.at(2))]
    assert [each["InstanceType"] for each in resources] == ["ml.p3.2xlarge", "ml.g5.xlarge"]  # type: ignore[index]


def test_a_type_that_could_not_be_submitted_is_refused_before_the_first_attempt() -> None:
    with pytest.raises(JobInvalid) as caught:
        planned({"retry": {"attempts": 1, "instance_types": {"dnn_group": ["ml.trn1.32xlarge"]}}})
    assert "ml.trn1.32xlarge" in str(caught.value)
    unreached = {"attempts": 1, "instance_types": {"dnn_group": ["ml.g5.xlarge", "ml.trn1.32xlarge"]}}
    assert planned({"retry": unreached}).attempt == 1
