"""A job made in Python: the same rules, the same words; and what `fit` asks of the engines."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from headrace.errors import EngineRefused, JobInvalid, RunFailed
from headrace.job import InstanceGroup, Job, TrainingInput, load_job
from headrace.job.find_engine import engine_names
from headrace.runs import Cause, CauseKind

BASE: dict[str, object] = {"job_name": "demo", "source_dir": "code", "entry_point": "train.py"}
ONE: dict[str, object] = {**BASE, "instance_type": "ml.c5.xlarge", "instance_count": 1}


def make(**fields: object) -> Job:
    return Job(**{**ONE, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"hyperparams": {}}, "hyperparams", "did you mean 'hyperparameters'?"),
        ({"job_name": None}, "job_name", "is required"),
        ({"instance_count": True}, "instance_count", "whole number"),
        ({"instance_groups": [InstanceGroup("a", "ml.c5.xlarge", 1)]}, "instance_type", "cannot be specified with"),
        ({"hyperparameters": {1: 2}}, "hyperparameters.1", "keys must be strings"),
        ({"hyperparameters": {"a": {1: 2}}}, "hyperparameters.a.1", "keys must be strings"),
        ({"hyperparameters": {"a": object()}}, "hyperparameters.a", "object is not allowed"),
        ({"hyperparameters": {"a": {1, 2}}}, "hyperparameters.a", "set is not allowed"),
        ({"hyperparameters": {"a": float("inf")}}, "hyperparameters.a", "finite"),
        ({"hyperparameters": {"a\nb": 1}}, "hyperparameters.a\nb", "one line"),
        ({"hyperparameters": {"a": "x\0"}}, "hyperparameters.a", "NUL"),
        ({"environment": {"A": "\0"}}, "environment.A", "NUL"),
        ({"hyperparameters": {"a": "x\ud800"}}, "hyperparameters.a", "half of a surrogate pair; character 2"),
        ({"hyperparameters": {"a": [{"\udc80": 1}]}}, "hyperparameters.a", "half of a surrogate pair"),
        ({"environment": {"A": "\ud800"}}, "environment.A", "half of a surrogate pair; character 1"),
        ({"inputs": {"a": {"path": "gs://b"}}}, "inputs.a.path", "s3:// URI"),
        ({"inputs": {"a": Path("x\0y")}}, "inputs.a", "path of a folder"),
        ({"distribution": 3}, "distribution", "must be a mapping"),
    ],
)
def test_a_broken_rule_raises_job_invalid_without_file_and_line(
    fields: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(JobInvalid) as caught:
        make(**fields)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.field) == ("", 0, field)
    assert words in problem.message


def test_all_problems_come_at_once() -> None:
    with pytest.raises(JobInvalid) as caught:
        Job("a_b", instance_groups=[{"name": "x", "type": "ml.c5.xlarge", "count": 0}], inputs={"headrace": "gs://b"})
    assert [problem.field for problem in caught.value.problems] == [
        "job_name",
        "instance_groups[0].count",
        "inputs.headrace",
        "inputs.headrace",
        "entry_point",
    ]


def test_a_group_or_channel_by_itself_obeys_the_rules_and_says_the_same() -> None:
    with pytest.raises(JobInvalid, match=r"instance_count: must be at least 1 \(got 0\)"):
        InstanceGroup("a", "ml.c5.xlarge", 0)
    with pytest.raises(JobInvalid, match=r"counts: unknown key; did you mean 'count'\?"):
        InstanceGroup("a", "ml.c5.xlarge", 1, counts=3)
    with pytest.raises(JobInvalid, match="must be a local path or a file:// URI, or an s3:// URI"):
        TrainingInput("gs://bucket/train")
    with pytest.raises(JobInvalid, match="s3_data: is required"):
        TrainingInput()


def test_both_spellings_of_sagemaker_and_the_short_one_mean_the_same() -> None:
    assert InstanceGroup("a", "ml.c5.xlarge", 2) == InstanceGroup(name="a", type="ml.c5.xlarge", count=2)
    assert TrainingInput("d", instance_groups=["a"]) == TrainingInput(path="d", instance_group_names=["a"])
    groups = [InstanceGroup("a", "ml.c5.xlarge", 1), InstanceGroup("b", "ml.c5.xlarge", 1)]
    strategy = {"enabled": True}
    by_object = Job(
        **BASE,  # type: ignore[arg-type]
        instance_groups=groups,
        distribution={"torch_distributed": strategy, "instance_groups": [groups[1]]},
        inputs={"x": TrainingInput("data", instance_groups=["a"])},
    )
    by_name = Job(
        **BASE,  # type: ignore[arg-type]
        instance_groups=[{"name": "a", "type": "ml.c5.xlarge", "count": 1}, groups[1]],
        distribution={"torch_distributed": strategy, "instance_groups": ["b"]},
        inputs={"x": {"path": "data", "instance_group_names": ("a",)}},
    )
    assert by_object == by_name


def test_a_job_does_not_change() -> None:
    job = make()
    with pytest.raises(ValidationError, match="frozen"):
        job.job_name = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        job.groups[0].instance_count = 3  # type: ignore[misc]


def test_relative_paths_belong_to_the_current_directory_or_to_the_one_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert make().base_path == tmp_path
    assert make(base_path="/srv").base_path == Path("/srv")
    assert make(source_dir=Path("code"), base_path="/srv") == make()


def test_files_are_looked_for_only_when_asked(tmp_path: Path) -> None:
    job = make(base_path=tmp_path, inputs={"a": "data"})
    with pytest.raises(JobInvalid) as caught:
        job.check_files()
    assert [problem.field for problem in caught.value.problems] == ["source_dir", "inputs.a.s3_data"]
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "data").mkdir()
    job.check_files()


def test_an_engine_can_name_the_line_of_what_only_it_knows(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    file = tmp_path / "job.yaml"
    file.write_text(
        "source_dir: .\nentry_point: train.py\ninstance_type: ml.c5.xlarge\ninstance_count: 1\n"
        "engines:\n  local:\n    ports:\n      feed: 80\n"
    )
    where = ("engines", "local", "ports", "feed")
    assert str(load_job(file).problem(where, "is in use", seen="80")) == (
        f"{file}:8: engines.local.ports.feed: is in use (got 80)"
    )
    assert load_job(file, ["engines.local.ports.feed=81"]).problem(where, "is in use").file == (
        "--set engines.local.ports.feed=81"
    )


def test_the_room_loads_without_torch_grpc_engines_and_the_instance_side() -> None:
    code = (
        "import sys, headrace.job;"
        "bad = {'torch', 'grpc', 'numpy', 'rich', 'headrace.engines', 'headrace.instance', 'headrace.runs'};"
        "assert not bad & set(sys.modules), bad & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Handle:
    """A run that has ended, as the engines hand it out."""

    id = "demo-1"
    isolation = "isolation: none (nothing else works here)"
    cause = Cause(CauseKind.PROGRAM_EXITED, group="dnn", host="algo-1", stream="0", exit_code=3)

    def __init__(self, status: str) -> None:
        self.status = types.SimpleNamespace(value=status)
        self.waited = 0

    def wait(self, timeout: float | None = None) -> types.SimpleNamespace:
        self.waited += 1
        return self.status

    def output(self) -> Iterator[str]:
        yield "dnn/algo-1[0] hello"


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """An engine that somebody else has installed, under the name ``other``: what `fit` asks of it is noted."""
    seen = types.SimpleNamespace(calls=[], handle=Handle("Completed"))
    module = types.ModuleType("engine_of_somebody_else")

    def start(job: Job, detach: bool) -> Handle:
        seen.calls.append((job, detach))
        return seen.handle

    module.start = start  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    installed = tmp_path / "engine_of_somebody_else-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-of-somebody-else\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(
        "[headrace.engines]\nother = engine_of_somebody_else\nbroken = no_such_module\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return seen


def test_fit_starts_the_job_prints_its_output_and_waits(
    engines: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make()
    assert job.fit(engine="other") is engines.handle
    assert engines.calls == [(job, False)]
    assert engines.handle.waited == 1
    assert capsys.readouterr() == ("dnn/algo-1[0] hello\n", f"{Handle.isolation}\n")


def test_fit_without_waiting_returns_at_once(
    engines: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make().fit(engine="other", wait=False) is engines.handle
    assert engines.handle.waited == 0
    assert capsys.readouterr() == ("", f"{Handle.isolation}\n")


def test_fit_never_returns_from_a_run_that_did_not_succeed(engines: types.SimpleNamespace) -> None:
    engines.handle = Handle("Failed")
    with pytest.raises(RunFailed, match=r"demo-1: Failed: dnn/algo-1\[0\]: exited with code 3"):
        make().fit(engine="other", logs=False)


def test_an_engine_is_found_by_its_entry_point(engines: types.SimpleNamespace) -> None:
    assert set(engine_names()) >= {"local", "other", "broken"}
    with pytest.raises(EngineRefused, match="no engine is called 'lokal'") as unknown:
        make().fit(engine="lokal")
    assert "local, other" in unknown.value.hint
    with pytest.raises(EngineRefused, match="the engine 'broken' \\(no_such_module\\) cannot be imported"):
        make().fit(engine="broken")
