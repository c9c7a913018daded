"""The estimators beyond the cells of the notebooks: both generations of names, refusals, and a real `fit`."""

from __future__ import annotations

import copy
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.errors import JobInvalid, NotAvailable, RunFailed, UsageError
from headrace.estimator import Estimator, InstanceGroup, PyTorch, TensorFlow, TrainingInput
from headrace.runs import Run, Status

SCRIPT = """
import os, pathlib, sys
print("hello from", os.environ["SM_CURRENT_HOST"], sys.argv[1:], flush=True)
pathlib.Path(os.environ["SM_MODEL_DIR"], "model.txt").write_text("trained")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return "train.py"


def test_names_of_both_generations_give_one_job(script: str) -> None:
    new = PyTorch(script, instance_type="ml.c5.xlarge", instance_count=2, volume_size=10, max_run=60, max_wait=90)
    old = PyTorch(
        script,
        train_instance_type="ml.c5.xlarge",
        train_instance_count=2,
        train_volume_size=10,
        train_max_run=60,
        train_max_wait=90,
    )
    assert new.job(job_name="j") == old.job(job_name="j")
    assert new.job(job_name="j").max_run == 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"instance_typ": "ml.c5.xlarge"}, "did you mean 'instance_type'?"),
        ({"instance_type": "ml.c5.xlarge", "train_instance_type": "ml.c5.xlarge"}, "are the same argument"),
        ({"git_config": {"repo": "x"}}, "clone the repository"),
        ({"script_mode": False}, "script_mode=False is not possible"),
        ({"container_entry_point": "bash"}, "must be a list of strings"),
        ({"container_arguments": ["--lr", "1"]}, "container_arguments need a program"),
        ({"profiler_config": 3}, "must be a mapping or False"),
        ({"model_dir": "s3://b/m"}, "argument of the TensorFlow estimator"),
    ],
)
def test_what_cannot_be_honoured_is_refused(script: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        PyTorch(script, **arguments)  # type: ignore[arg-type]


def test_rules_of_the_job_are_told_by_job(script: str) -> None:
    group = InstanceGroup("data", "ml.c5.xlarge", 1)
    both = PyTorch(script, instance_groups=[group], instance_type="ml.c5.xlarge", instance_count=1)
    with pytest.raises(JobInvalid, match="InstanceType or InstanceCount cannot be specified with InstanceGroups"):
        both.job()


class SdkGroup:
    """An InstanceGroup of another library, e.g. the SageMaker SDK's, which has no equality."""

    def __init__(self, name: str) -> None:
        self.instance_group_name, self.instance_type, self.instance_count = name, "ml.c5.xlarge", 1


class SdkInput:
    """A TrainingInput of the SageMaker SDK: it keeps the channel as a request has it."""

    def __init__(self, **source: object) -> None:
        self.config = {
            "DataSource": {"S3DataSource": {"S3Uri": "s3://b/k", "S3DataType": "S3Prefix", **source}},
            "ContentType": "text/csv",
            "InputMode": "FastFile",
        }


@pytest.mark.promise("sagemaker-differences", "absent here: an equal but different `InstanceGroup` is refused")
def test_objects_of_the_sdk_are_understood(script: str) -> None:
    torch = {"torch_distributed": {"enabled": True}, "instance_groups": [SdkGroup("dnn")]}
    estimator = PyTorch(script, instance_groups=[SdkGroup("data"), SdkGroup("dnn")], distribution=torch)
    job = estimator.job({"training": SdkInput(InstanceGroupNames=["data"], S3DataDistributionType="ShardedByS3Key")})
    assert job.distribution_groups == ("dnn",)
    assert job.inputs["training"] == TrainingInput(
        "s3://b/k",
        distribution="ShardedByS3Key",
        content_type="text/csv",
        input_mode="FastFile",
        s3_data_type="S3Prefix",
        instance_groups=["data"],
    )


def test_one_location_is_the_channel_training(script: str) -> None:
    job = PyTorch(script, instance_type="local", instance_count=1).job("data")
    assert list(job.inputs) == ["training"]
    with pytest.raises(UsageError, match="is of type int"):
        PyTorch(script, instance_type="local", instance_count=1).job({"a": 3})


def test_tensorflow_tells_the_program_where_the_model_goes(script: str) -> None:
    def model_dir(**arguments: object) -> object:
        estimator = TensorFlow(entry_point=script, instance_type="local", instance_count=1, **arguments)  # type: ignore[arg-type]
        return estimator.hyperparameters().get("model_dir")

    assert model_dir() == "/opt/ml/model"
    assert model_dir(model_dir="/elsewhere") == "/elsewhere"
    assert model_dir(model_dir=False) is None


def test_a_generated_name_begins_as_asked_and_is_valid(script: str) -> None:
    long = Estimator(entry_point=script, instance_type="local", instance_count=1, base_job_name="x" * 80)
    assert len(long.job().job_name) == 63
    assert PyTorch(script, instance_type="local", instance_count=1).job().job_name.startswith("pytorch-training-2")


def test_fit_runs_and_the_latest_job_is_known(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    estimator = PyTorch(script, instance_type="local", instance_count=1, hyperparameters={"epochs": 1})
    with pytest.raises(UsageError, match="started no job yet"):
        estimator.logs()
    estimator.fit({"training": "data"}, logs=True)
    out = capfd.readouterr().out
    assert "hello from algo-1 ['--epochs', '1']" in out
    latest = estimator.latest_training_job
    assert latest is not None
    assert latest.describe()["TrainingJobStatus"] == "Completed"
    assert latest.name == latest.describe()["TrainingJobName"]
    assert latest.run_id.startswith(f"{latest.name}-")
    assert Run.open("pytorch-training").id == latest.run_id
    estimator.sagemaker_session.logs_for_job(latest.name)
    assert "hello from algo-1" in capfd.readouterr().out
    assert Path(estimator.model_data.removeprefix("file://")).is_file()


def test_the_log_level_and_the_wish_for_no_archive_reach_the_run(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib\nprint('level', os.environ['SM_LOG_LEVEL'])\n"
        "pathlib.Path(os.environ['SM_MODEL_DIR'], 'weights').write_text('x')\n"
    )
    estimator = PyTorch(
        script,
        instance_type="local",
        instance_count=1,
        container_log_level=logging.DEBUG,
        disable_output_compression=True,
    )
    estimator.fit(logs=False)
    assert Path(estimator.model_data, "weights").read_text() == "x"
    assert next(line.text for line in Run.open(estimator.latest_training_job.name).logs()) == "level 10"


@pytest.mark.promise("sagemaker-differences", "absent here: SDK 3, `wait=False`: inputs are deleted under the job")
def test_a_job_that_is_not_waited_for_lives_without_its_script(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(3); print('done', flush=True)")
    starter = (
        "from headrace.estimator import PyTorch\n"
        "PyTorch('train.py', instance_type='local', instance_count=1).fit(wait=False, job_name='alone')\n"
    )
    subprocess.run([sys.executable, "-c", starter], check=True, timeout=60)
    run = Run.open("alone")
    assert not run.finished
    deadline = time.monotonic() + 60
    while not run.finished:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert run.status is Status.COMPLETED


def test_a_failed_job_raises_with_the_first_cause(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('no loss', flush=True); raise SystemExit(3)")
    with pytest.raises(RunFailed, match="exited with code 3") as failed:
        PyTorch(script, instance_type="local", instance_count=1).fit(logs=False)
    assert failed.value.last_lines == ("no loss",)
    assert "\n  | no loss\nhint: headrace logs " in str(failed.value)


@pytest.mark.promise("sagemaker", "a stopped job is no failure of `fit` and `wait`, as in the SDK")
def test_a_stopped_job_is_no_failure_and_the_python_of_the_programs_is_told_once(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.adapters.estimator._pythons_shown", set())
    (tmp_path / "train.py").write_text("import time; print('training', flush=True); time.sleep(600)")
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1-cpu-py310"
    estimator = PyTorch(script, image_uri=image, instance_type="local", instance_count=1)
    for number in (1, 2):
        estimator.fit(wait=False, job_name=f"stopped-{number}")
        job = estimator.latest_training_job
        assert job is not None
        job.stop()
        job.wait(logs=False)
        assert job.describe()["TrainingJobStatus"] == "Stopped"
    with pytest.raises(RunFailed, match="has stored no model"):
        estimator.model_data  # noqa: B018
    errors = capfd.readouterr().err
    assert errors.count("see whether it has made what you need") == 2
    assert "stopped-1" in errors
    assert errors.count(f"headrace: image {image}: programs run in {sys.executable} (Python 3.") == 1


@pytest.mark.promise("sagemaker", "what only the SDK has is refused with what to do instead")
def test_what_only_the_sdk_has_is_refused_with_what_to_do_instead(script: str) -> None:
    estimator = PyTorch(script, instance_type="local", instance_count=1)
    asked: list[tuple[str, Callable[[], object], str]] = [
        ("attach", lambda: PyTorch.attach("my-job"), "headrace logs"),
        ("attach", lambda: estimator.attach("my-job"), "headrace logs"),
        ("deploy", lambda: estimator.deploy(1, "ml.m5.large"), "model_data"),
        ("training_job_analytics", lambda: estimator.training_job_analytics, "headrace report"),
        ("get_vpc_config", lambda: estimator.get_vpc_config(), "page sagemaker of the docs"),
        ("describe_endpoint", lambda: estimator.sagemaker_session.describe_endpoint("x"), "headrace serve"),
    ]
    for name, ask, instead in asked:
        with pytest.raises(NotAvailable, match=f"of headrace has no '{name}'") as refused:
            ask()
        assert instead in refused.value.hint
    assert not hasattr(estimator, "deploy")
    assert copy.copy(estimator).hyperparameters() == {}
    with pytest.raises(AttributeError):
        estimator._nothing  # noqa: B018


@pytest.mark.promise("entry-points", "without `source_dir` the script alone is copied; a missing module is named")
def test_without_source_dir_the_script_alone_is_shipped_and_a_module_that_it_misses_is_named(
    script: str, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    (code / "data").mkdir(parents=True)
    (code / ".env").write_text("PASSWORD=secret")
    (code / "utils.py").touch()
    (code / "train.py").write_text("import os; print(sorted(os.listdir())); import utils")
    (tmp_path / "requirements.txt").write_text("no-such-package")
    estimator = PyTorch("code/train.py", instance_type="local", instance_count=1)
    with pytest.raises(RunFailed) as failed:
        estimator.fit(logs=False)
    assert failed.value.last_lines[0] == "['train.py']"
    assert failed.value.last_lines[-1] == "ModuleNotFoundError: No module named 'utils'"
    assert failed.value.hint == (
        "utils.py lies beside train.py, but without source_dir the script alone is copied: "
        "give source_dir 'code' and entry_point 'train.py'"
    )


WAITING = """
from headrace.estimator import PyTorch
PyTorch("train.py", instance_type="local", instance_count=1).fit(job_name="waited")
print("not reached")
"""


@pytest.mark.promise("sagemaker", "Ctrl-C in a script that waits in `fit` stops the run; the script exits with 130")
def test_ctrl_c_in_a_script_that_waits_stops_the_run_and_ends_the_script_without_a_traceback(
    script: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import time; print('training', flush=True); time.sleep(600)")
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert child.stdout is not None
    shown = []
    for line in child.stdout:
        shown.append(line)
        if line.endswith("training\n"):
            break
    child.send_signal(signal.SIGINT)
    rest, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert shown[0] == "headrace: Preparing the instances for training\n"
    assert "not reached" not in rest
    said = errors.splitlines()
    assert "headrace: stopping (Ctrl-C again to kill)" in said
    assert "waited" in said[-1]
    assert ": Stopped: " in said[-1]
    assert "Traceback" not in errors
    assert Run.open("waited").status is Status.STOPPED


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"hyperparameters": 3}, "hyperparameters"),
        ({"hyperparameters": "x"}, "hyperparameters"),
        ({"hyperparameters": []}, "hyperparameters"),
        ({"hyperparameters": {1: 2}}, "hyperparameters"),
        ({"environment": 3}, "environment"),
        ({"role": ""}, "role"),
        ({"instance_type": None, "instance_count": None, "instance_groups": 3}, "instance_groups"),
        ({"distribution": "x"}, "distribution"),
    ],
)
def test_a_value_of_the_wrong_type_has_its_field_told(script: str, arguments: dict[str, object], field: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        PyTorch(script, **{"instance_type": "ml.c5.xlarge", "instance_count": 1, **arguments}).job(job_name="j")
    (problem,) = refused.value.problems
    assert problem.field.startswith(field)
    assert "must " in problem.message
    assert problem.value


def test_the_region_of_a_session_is_the_jobs(script: str) -> None:
    session = SimpleNamespace(boto_region_name="eu-west-3")
    job = PyTorch(script, instance_type="local", instance_count=1, sagemaker_session=session).job(job_name="j")
    assert job.reserved_texts == {"sagemaker_region": '"eu-west-3"'}
