"""What follows from a job: which groups run what, on which hosts, with which channels."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.job import InstanceGroup, Job, TrainingInput

CPU, GPU = "ml.c5.xlarge", "ml.g5.12xlarge"


def job(groups: str, **fields: object) -> Job:
    """Makes a job of one-host groups that are named by letters; without any, a homogeneous job."""
    machines: dict[str, object] = (
        {"instance_groups": [InstanceGroup(name, CPU, 1) for name in groups]}
        if groups
        else {"instance_type": CPU, "instance_count": 2}
    )
    return Job("demo", source_dir="code", entry_point="train.py", **machines, **fields)  # type: ignore[arg-type]


def fields(dist: str | None, feed: str | None, completion: str) -> dict[str, object]:
    """None: there is no such section. Empty: it is enabled and names no groups."""
    result: dict[str, object] = {}
    if dist is not None:
        result["distribution"] = {"torch_distributed": {"enabled": True}, "instance_groups": list(dist) or None}
    if feed is not None:
        result["data_service"] = {"feed": {"enabled": True}, "instance_groups": list(feed) or None}
    if completion:
        result["completion"] = {"instance_groups": list(completion)}
    for section in ("distribution", "data_service"):
        if section in result and result[section]["instance_groups"] is None:  # type: ignore[index]
            del result[section]["instance_groups"]  # type: ignore[attr-defined]
    return result


ONLY = ("homogeneousCluster",)

# groups, distribution, data service, completion; who runs the entry point, who completes
TABLE = [
    # A homogeneous job is one group.
    ("", None, None, "", ONLY, ONLY),
    ("", "", None, "", ONLY, ONLY),
    ("", None, "", "", ONLY, ONLY),
    ("", "", "", "", ONLY, ONLY),
    # Without a data service every group runs the entry point.
    ("a", None, None, "", "a", "a"),
    ("ab", None, None, "", "ab", "ab"),
    ("ab", None, None, "a", "ab", "a"),
    ("ab", "b", None, "", "ab", "b"),
    ("ab", "ba", None, "", "ab", "ba"),
    ("ab", "b", None, "a", "ab", "a"),
    # A group of the data service alone runs no entry point.
    ("ab", None, "a", "", "b", "b"),
    ("ab", "b", "a", "", "b", "b"),
    ("abc", "b", "a", "", "bc", "b"),
    ("abc", None, "a", "", "bc", "bc"),
    ("abc", None, "ab", "", "c", "c"),
    # A group that the distribution names too does both.
    ("ab", "b", "ab", "", "b", "b"),
    ("ab", "ab", "a", "", "ab", "ab"),
    ("ab", "ab", "ab", "", "ab", "ab"),
    # So does a group that the completion names.
    ("ab", None, "ab", "b", "b", "b"),
    ("ab", None, "a", "a", "ab", "a"),
    ("ab", "b", "a", "a", "ab", "a"),
    ("ab", "b", "ab", "ab", "ab", "ab"),
    # When the data service has all groups and nobody names any, all do both.
    ("a", None, "a", "", "a", "a"),
    ("a", None, "", "", "a", "a"),
    ("ab", None, "ab", "", "ab", "ab"),
]


@pytest.mark.parametrize(("groups", "dist", "feed", "completion", "entry", "completes"), TABLE)
def test_the_entry_point_runs_on_every_group_that_is_not_only_a_data_service_group(
    groups: str, dist: str | None, feed: str | None, completion: str, entry: object, completes: object
) -> None:
    demo = job(groups, **fields(dist, feed, completion))
    names = tuple(group.instance_group_name for group in demo.groups)
    assert demo.entry_point_groups == tuple(entry)  # type: ignore[arg-type]
    assert demo.completion_groups == tuple(completes)  # type: ignore[arg-type]
    assert demo.distribution_groups == (() if dist is None else tuple(dist) or names)
    assert demo.feed_groups == (() if feed is None else tuple(feed) or names)
    assert set(demo.completion_groups) <= set(demo.entry_point_groups)
    assert set(demo.distribution_groups) <= set(demo.entry_point_groups)


@pytest.mark.parametrize(("groups", "dist", "named", "completion", "entry", "completes"), TABLE)
def test_the_groups_of_tf_data_service_run_the_entry_point_as_those_of_the_feed_do(
    groups: str, dist: str | None, named: str | None, completion: str, entry: object, completes: object
) -> None:
    given = fields(dist, named, completion)
    if named is not None:
        given["data_service"] = {"tf_data": {"enabled": True}, "instance_groups": list(named) or None}
    demo = job(groups, **given)
    names = tuple(group.instance_group_name for group in demo.groups)
    assert demo.entry_point_groups == tuple(entry)  # type: ignore[arg-type]
    assert demo.completion_groups == tuple(completes)  # type: ignore[arg-type]
    assert demo.tf_data_groups == (() if named is None else tuple(named) or names)
    assert demo.feed_groups == ()


def test_a_section_that_is_not_enabled_changes_nothing() -> None:
    off = job("", distribution={"torch_distributed": {"enabled": False}}, data_service={"feed": {"enabled": False}})
    assert off.distribution_groups == off.feed_groups == ()
    assert off.processes_per_host is None
    assert off.entry_point_groups == ONLY


def test_hosts_are_numbered_through_all_groups_in_the_order_of_the_file() -> None:
    groups = [InstanceGroup("z", CPU, 2), InstanceGroup("a", GPU, 1), InstanceGroup("m", CPU, 8)]
    demo = Job("demo", source_dir="code", entry_point="train.py", instance_groups=groups)
    assert demo.hosts == {
        "z": ("algo-1", "algo-2"),
        "a": ("algo-3",),
        "m": tuple(f"algo-{number}" for number in range(4, 12)),
    }


def test_a_job_without_groups_has_one_with_sagemakers_name() -> None:
    assert job("").groups == (InstanceGroup("homogeneousCluster", CPU, 2),)
    assert job("").hosts == {"homogeneousCluster": ("algo-1", "algo-2")}


@pytest.mark.parametrize(
    ("instance_type", "given", "expected"),
    [(CPU, None, 1), (GPU, None, 4), (GPU, 2, 2), (CPU, 3, 3), ("ml.p6e-gb200.36xlarge", None, 1)],
)
def test_a_host_has_as_many_ranks_as_gpus_unless_the_job_says_so(
    instance_type: str, given: int | None, expected: int
) -> None:
    strategy: dict[str, object] = {"enabled": True} | ({} if given is None else {"processes_per_host": given})
    groups = [InstanceGroup("data", CPU, 1), InstanceGroup("dnn", instance_type, 1)]
    demo = Job(
        "demo",
        source_dir="code",
        entry_point="train.py",
        instance_groups=groups,
        distribution={"torch_distributed": strategy, "instance_groups": ["dnn"]},
    )
    assert demo.processes_per_host == demo.processes_on("dnn") == expected
    assert demo.processes_on("data") == 0


def test_a_group_gets_the_channels_that_name_it_and_all_when_none_is_named() -> None:
    some = job(
        "ab",
        inputs={
            "both": {"path": "data", "instance_groups": ["a", "b"]},
            "one": {"path": "data", "instance_group_names": ["b"]},
        },
    )
    assert list(some.channels_of("a")) == ["both"]
    assert list(some.channels_of("b")) == ["both", "one"]
    everywhere = job("ab", inputs={"training": "data"})
    assert everywhere.channels_of("a") == everywhere.channels_of("b") == {"training": TrainingInput("data")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data/train", "/base/data/train"),
        ("/data/train", "/data/train"),
        ("file:///data/train", "/data/train"),
        ("file://data/train", "/base/data/train"),
        ("a folder/100%20", "/base/a folder/100%20"),
    ],
)
def test_a_channel_is_a_folder_relative_to_the_job(text: str, expected: str) -> None:
    assert TrainingInput(s3_data=text).local_path(Path("/base")) == Path(expected)
