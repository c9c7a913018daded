"""``--set``: what it can reach, what it replaces, what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from snippets import ONE, TWO

from headrace.errors import Problem
from headrace.job import Job

FILE = (
    TWO
    + """\
hyperparameters:
  epochs: 1
  layers: [1, 2]
inputs:
  training: data
  my.data: {path: data}
data_service:
  feed: {enabled: true, workers_per_host: 1}
  instance_groups: [data]
"""
)


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        ("hyperparameters.epochs=3", lambda job: job.hyperparameters["epochs"], 3),
        ("hyperparameters.epochs=1e-3", lambda job: job.hyperparameters["epochs"], 0.001),
        ("hyperparameters.epochs=a=b", lambda job: job.hyperparameters["epochs"], "a=b"),
        ("hyperparameters.epochs='3'", lambda job: job.hyperparameters["epochs"], "3"),
        ("hyperparameters.epochs=", lambda job: job.hyperparameters["epochs"], None),
        ("hyperparameters.new={a: [1]}", lambda job: job.hyperparameters["new"], {"a": [1]}),
        ("hyperparameters.layers[1]=9", lambda job: job.hyperparameters["layers"], [1, 9]),
        ("hyperparameters.layers.0=9", lambda job: job.hyperparameters["layers"], [9, 2]),
        ("hyperparameters={}", lambda job: job.hyperparameters, {}),
        ("environment.A=1", lambda job: job.environment, {"A": "1"}),
        ("environment.A=true", lambda job: job.environment, {"A": "true"}),
        ("environment.A=", lambda job: job.environment, {"A": ""}),
        ("environment.A=a #1", lambda job: job.environment, {"A": "a #1"}),
        ("environment.A=[1, 2]", lambda job: job.environment, {"A": "[1, 2]"}),
        ("environment.A='q'", lambda job: job.environment, {"A": "'q'"}),
        ("hyperparameters.a=a #1", lambda job: job.hyperparameters["a"], "a #1"),
        ("hyperparameters.a=&x y", lambda job: job.hyperparameters["a"], "&x y"),
        ("hyperparameters.a=|", lambda job: job.hyperparameters["a"], "|"),
        ("hyperparameters.a=3 # three", lambda job: job.hyperparameters["a"], "3 # three"),
        ("hyperparameters.a=# a", lambda job: job.hyperparameters["a"], "# a"),
        ("hyperparameters.a='q'", lambda job: job.hyperparameters["a"], "q"),
        ("instance_groups[0].count=7", lambda job: job.groups[0].instance_count, 7),
        ("instance_groups.0.count=7", lambda job: job.groups[0].instance_count, 7),
        ("instance_groups[0].instance_count=7", lambda job: job.groups[0].instance_count, 7),
        ("inputs.training=more", lambda job: job.inputs["training"].s3_data, "more"),
        ("inputs.training.content_type=text/csv", lambda job: job.inputs["training"].s3_data, "data"),
        ("inputs.training.path=more", lambda job: job.inputs["training"].s3_data, "more"),
        ('inputs."my.data".s3_data=more', lambda job: job.inputs["my.data"].s3_data, "more"),
        ("stopping_condition.max_run=5", lambda job: job.max_run, 5),
        ("data_service=null", lambda job: job.feed_groups, ()),
        ("data_service=", lambda job: job.feed_groups, ()),
        ("data_service.instance_groups[0]=dnn", lambda job: job.feed_groups, ("dnn",)),
        ("data_service.feed.workers_per_host=auto", lambda job: job.feed_workers, "auto"),
        ("engines.local.ports.feed=9", lambda job: job.local.ports.feed, 9),
    ],
)
def test_an_override_replaces_one_value(
    load: Callable[..., Job], override: str, read: Callable[[Job], object], expected: object
) -> None:
    assert read(load(FILE, override)) == expected


def test_the_last_override_wins_and_sees_those_before_it(load: Callable[..., Job]) -> None:
    job = load(FILE, "hyperparameters={}", "hyperparameters.a=1", "hyperparameters.b=2", "hyperparameters.a=3")
    assert job.hyperparameters == {"a": 3, "b": 2}


def test_an_override_can_mend_what_the_file_has_wrong(load: Callable[..., Job]) -> None:
    assert load(ONE.replace("train.py", "test.py"), "entry_point=train.py").entry_point == "train.py"


@pytest.mark.parametrize(
    ("override", "field", "words"),
    [
        ("hyperparams.epochs=3", "hyperparams", "did you mean 'hyperparameters'?"),
        ("stopping_condition.maxrun=3", "stopping_condition.maxrun", "did you mean 'max_run'?"),
        ("instance_groups[0].counts=3", "instance_groups[0].counts", "did you mean 'count'?"),
        ("engines.local.ports.fed=9", "engines.local.ports.fed", "did you mean 'feed'?"),
        ("distribution.mpi.enabled=true", "distribution.instance_groups", "required in a job with several groups"),
        ("distribution.mpi={enabled: false, host: 1}", "distribution.mpi.host", "unknown key"),
        ("instance_groups[2].count=3", "instance_groups[2].count", "no item 2; there are 2"),
        ("instance_groups.data.count=3", "instance_groups.data.count", "a list has indices, not the key 'data'"),
        ("job_name.x=3", "job_name.x", "it is one value"),
        ("instance_groups[0].count=0", "instance_groups[0].count", "at least 1"),
        ("inputs={training: nodata}", "inputs.training", "does not exist"),
        ("hyperparameters.a=[", "hyperparameters.a", "not YAML"),
        ("hyperparameters.a={b: 1, b: 2}", "hyperparameters.a", "given twice"),
        ("hyperparameters.a", "--set", "must be a path and a value"),
        ("=3", "--set", "must be a path and a value"),
        (".a=3", "--set", "must be a path and a value"),
        ("a..b=3", "--set", "must be a path and a value"),
        ("[0]=3", "--set", "must be a path and a value"),
    ],
)
def test_an_override_that_is_wrong_is_named_itself(
    problems: Callable[..., tuple[Problem, ...]], override: str, field: str, words: str
) -> None:
    (problem,) = problems(FILE, override)
    assert (problem.file, problem.line, problem.field) == (f"--set {override}", 0, field)
    assert words in problem.message


def test_problems_of_overrides_come_after_those_of_the_file(
    problems: Callable[..., tuple[Problem, ...]],
) -> None:
    found = problems(FILE + "zzz: 1\n", "source_dir=nowhere", "instance_groups[0].type=x")
    assert [problem.file for problem in found] == [
        "job.yaml",
        "--set source_dir=nowhere",
        "--set instance_groups[0].type=x",
    ]
