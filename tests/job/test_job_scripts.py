"""A job without `source_dir`: its entry points are scripts of this machine, which alone are its code."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engines.planning.prepare_run import requirements_file
from headrace.errors import JobInvalid
from headrace.job import Job
from headrace.job.with_data_hosts import with_data_hosts

GROUP = {"type": "ml.c5.xlarge", "count": 1}


def job(base: Path = Path("/base"), **fields: object) -> Job:
    one = {} if "instance_groups" in fields else {"instance_type": "ml.c5.xlarge", "instance_count": 1}
    return Job("j", base_path=base, **{"entry_point": "code/train.py", **one, **fields})  # type: ignore[arg-type]


def groups(*entry_points: str) -> list[dict[str, object]]:
    return [{"name": f"g{number}", "entry_point": text, **GROUP} for number, text in enumerate(entry_points)]


def test_scripts_of_the_job_and_of_its_groups_lie_in_the_code_by_their_names() -> None:
    made = job(entry_point="../a/train.py", instance_groups=groups("/b/prepare.sh", "bin/serve", "../a/train.py"))
    assert made.scripts == ("../a/train.py", "/b/prepare.sh", "bin/serve")
    assert [made.in_code(name) for name in made.scripts] == ["train.py", "prepare.sh", "serve"]
    assert job(source_dir="code", entry_point="a/train.py").scripts == ()
    assert job(source_dir="code", entry_point="a/train.py").in_code("a/train.py") == "a/train.py"


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        (
            {"instance_groups": groups("b/train.py")},
            "instance_groups[0].entry_point",
            "other name than 'code/train.py'",
        ),
        ({"dependencies": ["lib/train.py"]}, "dependencies[0]", "another name than the entry point"),
        ({"entry_point": "trainer"}, "source_dir", "'trainer' is a module or a package in it"),
        ({"entry_point": "-m trainer.task"}, "source_dir", "'-m trainer.task' is a module or a package in it"),
        ({"source_dir": "code", "entry_point": "../train.py"}, "entry_point", "must lie inside source_dir"),
    ],
)
def test_what_cannot_lie_side_by_side_or_be_run_alone_is_refused(
    fields: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(JobInvalid) as refused:
        job(**fields)
    (problem,) = refused.value.problems
    assert problem.field == field
    assert words in problem.message


def test_only_files_that_are_there_can_be_shipped(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "gpu.txt").touch()
    for requirements, wrong in (("common/gpu.txt", []), ("gpu.txt", ["requirements"])):
        made = job(tmp_path, dependencies=["common"], requirements=requirements)
        with pytest.raises(JobInvalid) as refused:
            made.check_files()
        assert [problem.field for problem in refused.value.problems] == ["entry_point", *wrong]
    with pytest.raises(JobInvalid, match=r"entry_point: must be a file; .*/code/train.py does not exist"):
        job(tmp_path, image_uri="image").check_files()  # no image brings it here


def test_only_dependencies_bring_requirements(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    assert requirements_file(job(tmp_path), "homogeneousCluster") == ""
    assert requirements_file(job(tmp_path, dependencies=["requirements.txt"]), "homogeneousCluster") == (
        "requirements.txt"
    )


def test_a_run_s_code_serves_the_next_job_and_the_request(tmp_path: Path) -> None:
    made = job(instance_groups=groups("a/own.py"), dependencies=["common"])
    again = with_data_hosts(made, "ml.c5.xlarge", 1, job_name="again", source_dir=tmp_path)
    assert (again.entry_point, again.dependencies) == ("train.py", ())
    assert [group.entry_point for group in again.groups] == [None, "own.py"]
    alone = job(role="arn:aws:iam::123456789012:role/R", image_uri="i", output_path="s3://b/o")
    texts = alone.to_request("s3://b/code.tar.gz")["HyperParameters"]
    assert isinstance(texts, dict)
    assert texts["sagemaker_program"] == '"train.py"'
