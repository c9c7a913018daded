"""The tree that `build_tree` writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.instance import Channel, TreePaths
from headrace.instance.launch_plan import TORCH_DISTRIBUTED, DistributionPlan, GroupPlan, channel_dir


@pytest.mark.promise("sagemaker", "`/opt/ml`, `SM_*` and `resourceconfig.json` are the service's, byte for byte")
@pytest.mark.promise("sagemaker-differences", "absent here: `resourceconfig.json` without groups, hosts `algo-1-x7f3q`")
def test_resourceconfig_is_byte_for_byte_what_the_service_writes(job) -> None:
    groups = (
        GroupPlan("data_group", "ml.c5.xlarge", ("algo-1",)),
        GroupPlan("dnn_group", "ml.m4.xlarge", ("algo-2",)),
    )
    base = job.tree("algo-1", groups=groups)
    assert TreePaths(base).resource_config.read_text() == (
        '{"current_group_name":"data_group","current_host":"algo-1","current_instance_type":"ml.c5.xlarge",'
        '"hosts":["algo-1","algo-2"],'
        '"instance_groups":[{"instance_group_name":"data_group","instance_type":"ml.c5.xlarge","hosts":["algo-1"]},'
        '{"instance_group_name":"dnn_group","instance_type":"ml.m4.xlarge","hosts":["algo-2"]}],'
        '"network_interface_name":"eth0"}'
    )


def test_a_homogeneous_job_has_one_group_named_homogeneous_cluster(job) -> None:
    groups = (GroupPlan("homogeneousCluster", "ml.c5.xlarge", ("algo-1", "algo-2")),)
    config = json.loads(TreePaths(job.tree("algo-2", groups=groups, distributions=())).resource_config.read_bytes())
    assert config["current_group_name"] == "homogeneousCluster"
    assert [group["instance_group_name"] for group in config["instance_groups"]] == ["homogeneousCluster"]


def test_hyperparameters_are_json_in_strings_beside_the_reserved_ones(job) -> None:
    base = job.tree(
        "algo-1", hyperparameters={"name": "a", "epochs": 10, "cased": True, "sizes": [1, 2]}, region="eu-west-1"
    )
    assert json.loads(TreePaths(base).hyperparameters.read_bytes()) == {
        "name": '"a"',
        "epochs": "10",
        "cased": "true",
        "sizes": "[1, 2]",
        "sagemaker_program": '"train.py"',
        "sagemaker_job_name": '"the-job"',
        "sagemaker_container_log_level": "20",
        "sagemaker_region": '"eu-west-1"',
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_distribution_instance_groups": '["dnn_group"]',
    }


def test_without_a_distribution_or_region_their_hyperparameters_are_missing(job) -> None:
    base = job.tree("algo-1", hyperparameters={}, distributions=())
    assert sorted(json.loads(TreePaths(base).hyperparameters.read_bytes())) == [
        "sagemaker_container_log_level",
        "sagemaker_job_name",
        "sagemaker_program",
    ]


def test_the_user_may_set_the_log_level_but_not_the_program(job) -> None:
    env = job.environment(
        "algo-1", hyperparameters={"sagemaker_container_log_level": 10, "sagemaker_program": "other.py"}
    )
    assert (env.log_level, env.user_entry_point) == (10, "train.py")


def test_every_directory_exists(job) -> None:
    (job.root / "code").mkdir()
    (job.root / "code" / "train.py").write_text("pass")
    base = job.tree("algo-1")
    for name in ("input/config", "input/data", "model", "checkpoints", "output/data", "output/intermediate"):
        assert (base / name).is_dir(), name
    assert not (base / "code").is_symlink()
    assert (base / "code" / "train.py").read_text() == "pass"
    assert not (base / "output" / "failure").exists()


def test_a_directory_is_linked_and_a_single_file_lies_in_a_directory(job, monkeypatch) -> None:
    file = job.root / "labels.csv"
    file.write_text("1,2")
    monkeypatch.chdir(job.root)
    channels = {"training": job.channel("training", content_type="text/csv"), "labels": Channel(Path("labels.csv"))}
    paths = TreePaths(job.tree("algo-3", channels=channels))
    assert paths.channel("training").is_symlink()
    assert [entry.read_text() for entry in paths.channel("training").iterdir()] == ["training"]
    assert not paths.channel("labels").is_symlink()
    assert (paths.channel("labels") / "labels.csv").is_symlink()
    monkeypatch.chdir("/")
    assert (paths.channel("labels") / "labels.csv").read_text() == "1,2"
    assert json.loads(paths.input_data_config.read_bytes()) == {
        "training": {
            "ContentType": "text/csv",
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        },
        "labels": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"},
    }


@pytest.mark.promise("sagemaker-differences", "absent here: SDK 3 has no variable for groups, and one master for all")
def test_hosts_are_ordered_by_number_and_groups_keep_their_order(job) -> None:
    groups = (
        GroupPlan("b", "ml.c5.xlarge", ("algo-12", "algo-2")),
        GroupPlan("a", "ml.c5.xlarge", ("algo-1", "algo-10")),
    )
    env = job.environment("algo-2", groups=groups, distributions=())
    assert env.hosts == ["algo-1", "algo-2", "algo-10", "algo-12"]
    assert env.instance_groups == ["b", "a"]
    assert env.current_instance_group_hosts == ["algo-12", "algo-2"]


def test_a_tree_may_be_built_twice_and_beside_headraces_own_channel(job) -> None:
    channels = {"training": job.channel("training")}
    own = channel_dir(job.root / "algo-1")
    own.mkdir(parents=True)
    (own / "plan.json").write_text("{}")
    job.tree("algo-1", channels=channels)
    job.tree("algo-1", channels=channels, hyperparameters={"epochs": 4})
    env = job.environment("algo-1", channels=channels, hyperparameters={"epochs": 4})
    assert env.hyperparameters == {"epochs": 4}
    assert list(env.channel_input_dirs) == ["training"]
    assert (own / "plan.json").exists()


def test_a_tree_of_other_code_is_not_overwritten(job) -> None:
    (job.root / "code").mkdir()
    (job.root / "code" / "train.py").write_text("first")
    paths = TreePaths(job.tree("algo-1"))
    job.tree("algo-1")  # of the same it is left
    (job.root / "other").mkdir()
    (job.root / "other" / "train.py").write_text("other")
    with pytest.raises(FileExistsError):
        job.tree("algo-1", code=job.root / "other")
    assert (paths.code / "train.py").read_text() == "first"


def test_code_is_copied_with_modes_times_and_links_and_what_is_written_beside_it_stays_there(job) -> None:
    code = job.root / "code"
    (code / "pkg" / "deep").mkdir(parents=True)
    (code / "pkg" / "deep" / "util.py").write_text("util")
    (code / "run").write_text("#!/bin/sh")
    (code / "run").chmod(0o750)
    os.utime(code / "run", (1, 2))
    (code / "pkg").chmod(0o711)
    (code / "link").symlink_to("pkg/deep/util.py")
    (code / "folder").symlink_to("pkg")
    (code / "nowhere").symlink_to("/no/such/place")
    first, second = (TreePaths(job.tree(host)).code for host in ("algo-1", "algo-2"))
    for copy in (first, second):
        assert (copy / "pkg" / "deep" / "util.py").read_text() == "util"
        assert (copy / "run").stat().st_mode & 0o777 == 0o750
        assert (copy / "run").stat().st_mtime == 2
        assert (copy / "pkg").stat().st_mode & 0o777 == 0o711
        assert (copy / "link").resolve() == copy / "pkg" / "deep" / "util.py"
        assert str((copy / "folder").readlink()) == "pkg"
        assert str((copy / "nowhere").readlink()) == "/no/such/place"
    (first / "link").write_text("changed")
    for untouched in (second, code):
        assert (untouched / "pkg" / "deep" / "util.py").read_text() == "util"


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a b", "headrace", "x" * 65])
def test_a_channel_name_cannot_leave_the_tree_or_take_ours(job, name: str) -> None:
    with pytest.raises(UsageError, match="channel"):
        job.tree("algo-1", channels={name: job.channel("training")})
    assert not (job.root / "algo-1").exists()


def test_a_channel_that_comes_later_is_told_and_not_made(job) -> None:
    pipe = Channel(
        None, input_mode="Pipe", distribution="ShardedByS3Key", record_wrapping="RecordIO", compression="Gzip"
    )
    paths = TreePaths(job.tree("algo-1", channels={"training": pipe}))
    assert json.loads(paths.input_data_config.read_bytes()) == {
        "training": {
            "TrainingInputMode": "Pipe",
            "S3DistributionType": "ShardedByS3Key",
            "RecordWrapperType": "RecordIO",
            "CompressionType": "Gzip",
        }
    }
    assert list(paths.input_data.iterdir()) == []


def test_missing_data_is_refused_before_anything_is_written(job) -> None:
    with pytest.raises(UsageError, match=r"'training'.*/nowhere does not exist"):
        job.tree("algo-1", channels={"training": Channel(Path("/nowhere"))})
    assert not (job.root / "algo-1").exists()


def test_a_host_or_group_that_the_job_does_not_have_is_an_error(job) -> None:
    with pytest.raises(ValueError, match="'algo-9'"):
        job.tree("algo-9")
    with pytest.raises(ValueError, match="'nobody'"):
        job.tree("algo-1", distributions=(DistributionPlan(TORCH_DISTRIBUTED, ("nobody",)),))


def test_paths_are_those_of_the_contract() -> None:
    paths = TreePaths("/opt/ml")
    assert {name: os.fspath(path) for name, path in vars(paths).items()} == {
        "base": "/opt/ml",
        "code": "/opt/ml/code",
        "model": "/opt/ml/model",
        "checkpoints": "/opt/ml/checkpoints",
        "input": "/opt/ml/input",
        "input_config": "/opt/ml/input/config",
        "input_data": "/opt/ml/input/data",
        "output": "/opt/ml/output",
        "output_data": "/opt/ml/output/data",
        "output_intermediate": "/opt/ml/output/intermediate",
        "failure": "/opt/ml/output/failure",
        "hyperparameters": "/opt/ml/input/config/hyperparameters.json",
        "input_data_config": "/opt/ml/input/config/inputdataconfig.json",
        "resource_config": "/opt/ml/input/config/resourceconfig.json",
    }


def test_hyperparameters_stand_as_a_request_wrote_them_with_its_reserved_ones(job) -> None:
    """A program that reads the file sees the request's texts, as on the service, and its Environment what they mean."""
    texts = {"optimizer": "sgd", "rate": "1e-3", "sagemaker_region": '"us-west-2"', "sagemaker_program": '"train.py"'}
    values = {"optimizer": "sgd", "rate": 0.001}
    env = job.environment("algo-1", entry_point="", hyperparameters=values, texts=texts)
    written = json.loads((job.root / "algo-1" / "input" / "config" / "hyperparameters.json").read_text())
    assert {name: written[name] for name in texts} == texts
    assert env.hyperparameters == values
    assert (env.region(), env.user_entry_point) == ("us-west-2", "train.py")


def test_the_texts_of_a_request_are_all_that_there_is(job) -> None:
    texts = {"epochs": "3", "sagemaker_program": "train.py"}
    base = job.tree("algo-3", hyperparameters={"epochs": 3}, texts=texts, verbatim=True)
    assert json.loads((base / "input" / "config" / "hyperparameters.json").read_text()) == texts


def test_a_command_without_code_has_an_empty_code_directory_and_no_program_is_made_up(job) -> None:
    base = job.tree("algo-1", entry_point="")
    assert not (base / "code").is_symlink()
    assert list((base / "code").iterdir()) == []
    assert "sagemaker_program" not in json.loads((base / "input" / "config" / "hyperparameters.json").read_text())
