"""A job with other data hosts: the training stays, the data hosts are replaced, and all get the data that they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.job import Job
from headrace.job.with_data_hosts import data_group_name, data_groups, with_data_hosts

TRAIN = {"name": "train", "type": "ml.g5.xlarge", "count": 1}
DATA = {"name": "makers", "type": "ml.c5.xlarge", "count": 3}


def job(**more: object) -> Job:
    given = {"job_name": "j", "source_dir": "code", "entry_point": "train.py", "base_path": Path("/somewhere"), **more}
    return Job(**given)  # type: ignore[arg-type]


def beside(of: Job, hosts: int = 2, **more: object) -> Job:
    return with_data_hosts(of, "ml.c5.9xlarge", hosts, job_name="proof", source_dir="/run/code", **more)  # type: ignore[arg-type]


def test_a_job_of_one_group_gets_data_hosts_and_goes_on_making_batches_itself() -> None:
    found = beside(job(instance_groups=[TRAIN]))
    assert [(g.instance_group_name, g.instance_type, g.instance_count) for g in found.groups] == [
        ("data_group", "ml.c5.9xlarge", 2),
        ("train", "ml.g5.xlarge", 1),
    ]
    assert found.feed_groups == ("data_group", "train")
    assert found.entry_point_groups == found.completion_groups == ("train",)
    assert (found.job_name, found.source_dir, found.base_path) == ("proof", "/run/code", Path("/somewhere"))


def test_a_job_without_groups_gets_them() -> None:
    found = beside(job(instance_type="ml.g5.xlarge", instance_count=1))
    assert data_groups(found) == ("data_group",)
    assert found.entry_point_groups == ("homogeneousCluster",)


def test_the_data_hosts_that_a_job_has_are_replaced() -> None:
    old = job(
        instance_groups=[DATA, TRAIN],
        data_service={"feed": {"enabled": True, "workers_per_host": 5}, "instance_groups": ["makers"]},
        distribution={"torch_distributed": {"enabled": True}, "instance_groups": ["train"]},
    )
    assert data_group_name(old) == "makers"
    found = beside(old, 1, cpu_sets={"makers": "1", "train": "0"})
    assert found.group("makers").instance_type == "ml.c5.9xlarge"
    assert found.group("makers").instance_count == 1
    assert found.feed_groups == ("makers",)  # the trainer made none and makes none
    assert found.feed_workers == 5
    assert found.distribution_groups == ("train",)
    assert found.local.cpu_sets == {"makers": "1", "train": "0"}


def test_no_data_hosts_leave_the_trainer_alone() -> None:
    old = job(
        instance_groups=[DATA, TRAIN],
        data_service={"feed": {"enabled": True}, "instance_groups": ["makers", "train"]},
        completion={"instance_groups": ["train"]},
    )
    found = beside(old, 0)
    assert [group.instance_group_name for group in found.groups] == ["train"]
    assert found.feed_groups == ("train",)


def test_a_distribution_that_named_no_groups_names_those_that_train() -> None:
    found = beside(job(instance_groups=[TRAIN], distribution={"torch_distributed": {"enabled": True}}))
    assert found.distribution_groups == ("train",)
    assert found.entry_point_groups == ("train",)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [(None, None), (["makers", "train"], ("makers", "train")), (["train"], ("train",)), (["makers"], ("makers",))],
)
def test_new_data_hosts_read_what_the_old_ones_read(groups: list[str] | None, expected: tuple[str, ...] | None) -> None:
    channel: dict[str, object] = {"s3_data": "s3://bucket/data"}
    if groups is not None:
        channel["instance_groups"] = groups
    inputs: dict[str, object] = {"training": channel}
    if groups is not None:  # when one channel names groups, all must
        inputs["other"] = {**channel, "instance_groups": ["makers", "train"]}
    old = job(
        instance_groups=[DATA, TRAIN],
        inputs=inputs,
        data_service={"feed": {"enabled": True}, "instance_groups": ["makers"]},
    )
    assert beside(old).inputs["training"].instance_groups == expected


def test_data_hosts_of_a_job_that_had_none_read_what_the_trainer_reads() -> None:
    old = job(instance_groups=[TRAIN], inputs={"training": {"s3_data": "s3://b/d", "instance_groups": ["train"]}})
    assert beside(old).inputs["training"].instance_groups == ("data_group", "train")
