"""What the service bills for a job, read from answers of DescribeTrainingJob as it gives them."""

from __future__ import annotations

from datetime import datetime, timezone

from headrace.engines.sagemaker.refresh_training_job import bill_of

START, END = datetime(2026, 11, 20, 10, tzinfo=timezone.utc), datetime(2026, 11, 20, 11, tzinfo=timezone.utc)
SPOT = {
    "TrainingJobName": "digits-try2",
    "TrainingStartTime": START,
    "TrainingEndTime": END,
    "TrainingTimeInSeconds": 3600,
    "BillableTimeInSeconds": 1080,
    "EnableManagedSpotTraining": True,
    "ResourceConfig": {
        "InstanceCount": 0,
        "InstanceGroups": [
            {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "InstanceGroupName": "data"},
            {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "InstanceGroupName": "dnn"},
        ],
    },
}


def test_spare_capacity_is_billed_for_a_part_of_its_time_with_the_instances_of_the_answer() -> None:
    bill = bill_of(SPOT, 2, "eu-west-1")
    assert bill is not None
    assert (bill.name, bill.number, bill.region) == ("digits-try2", 2, "eu-west-1")
    assert (bill.training_seconds, bill.billable_seconds) == (3600, 1080)
    assert bill.groups == {"data": ("ml.c5.xlarge", 2), "dnn": ("ml.g5.xlarge", 1)}
    assert (bill.started, bill.ended) == (START.timestamp(), END.timestamp())


def test_a_job_without_groups_has_one_and_a_list_of_preferences_what_was_taken_of_it() -> None:
    plain = {**SPOT, "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 4}}
    taken = {"InstancePreferences": [], "SelectedInstanceType": "ml.p3.2xlarge", "SelectedInstanceCount": 2}
    for resources, group in ((plain["ResourceConfig"], ("ml.g5.xlarge", 4)), (taken, ("ml.p3.2xlarge", 2))):
        bill = bill_of({**SPOT, "ResourceConfig": resources}, 1, "eu-west-1")
        assert bill is not None
        assert bill.groups == {"homogeneousCluster": group}


def test_a_job_that_got_no_instance_costs_nothing_and_one_whose_seconds_are_not_told_is_not_guessed() -> None:
    told = ("TrainingStartTime", "TrainingEndTime", "TrainingTimeInSeconds", "BillableTimeInSeconds")
    no_capacity = {name: value for name, value in SPOT.items() if name not in told}
    bill = bill_of(no_capacity, 1, "eu-west-1")
    assert bill is not None
    assert (bill.training_seconds, bill.billable_seconds, bill.started) == (0, 0, None)
    untold = {name: value for name, value in SPOT.items() if name != "BillableTimeInSeconds"}
    assert bill_of(untold, 1, "eu-west-1") is None
