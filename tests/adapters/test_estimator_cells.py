"""Every InstanceGroup, TrainingInput, estimator and fit cell of AWS's notebooks and guide builds a job here.

The cells under cells/ are run with headrace's classes under the names of the SageMaker SDK. What `headrace plan` says
of each is compared with cells/<name>.json; `UPDATE_GOLDEN=1` writes these files anew.
"""

from __future__ import annotations

import json
import os
import sys
import types
import warnings
from pathlib import Path

import msgspec
import pytest

from headrace import estimator as ours
from headrace.cli.views.plan_document import view
from headrace.engines.local.host_limits import Machine
from headrace.engines.local.plan_hosts import make_plan
from headrace.errors import JobInvalid
from headrace.job import Job
from headrace.runs import RunPaths

CELLS = Path(__file__).parent / "cells"
SCRIPTS = ["code/launcher.py", "code/train.py", "mnist_hvd.py", "my-training-script.py"]

ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"
V1 = {
    "sagemaker_iam_role": ROLE,
    "s3_train_path": "s3://bucket/mnist/train.npz",
    "s3_test_path": "s3://bucket/mnist/test.npz",
    "security_groups": ["sg-0123456789abcdef0"],
    "subnets": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
}
GUIDE = {"others": {"role": ROLE}}

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "tf_homogeneous": ("tf_homogeneous", {}),
    "tf_heterogeneous": ("tf_heterogeneous", {}),
    "pt_homogeneous": ("pt_grpc", {"IS_HETERO": False, "IS_CLOUD_JOB": True, "IS_DNN_DISTRIBUTION": False}),
    "pt_local": ("pt_grpc", {"IS_HETERO": False, "IS_CLOUD_JOB": False, "IS_DNN_DISTRIBUTION": False}),
    "pt_heterogeneous": ("pt_grpc", {"IS_HETERO": True, "IS_CLOUD_JOB": True, "IS_DNN_DISTRIBUTION": False}),
    "pt_distributed": ("pt_grpc", {"IS_HETERO": True, "IS_CLOUD_JOB": True, "IS_DNN_DISTRIBUTION": True}),
    **{f"horovod_{which}": ("horovod_v1", {**V1, "which": which}) for which in ("local", "options", "multi", "vpc")},
    "guide_pytorch": ("guide", {**GUIDE, "Framework": ours.PyTorch}),
    "guide_tensorflow": ("guide", {**GUIDE, "Framework": ours.TensorFlow}),
    **{
        f"guide_{strategy}_{framework.__name__.lower()}": (
            "guide_distribution",
            {**GUIDE, "strategy": strategy, "Framework": framework},
        )
        for strategy in ("mpi", "dataparallel", "modelparallel")
        for framework in (ours.PyTorch, ours.TensorFlow)
    },
}


class SdkSession:
    """What the notebooks ask of `sagemaker.Session()`."""

    boto_region_name = "us-east-1"

    def default_bucket(self) -> str:
        return "sagemaker-us-east-1-123456789012"

    def upload_data(self, path: str, bucket: str, key_prefix: str) -> str:
        assert path
        return f"s3://{bucket}/{key_prefix}"


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the SageMaker SDK lead to headrace's classes."""
    for name, exported in {
        "sagemaker": {},
        "sagemaker.instance_group": {"InstanceGroup": ours.InstanceGroup},
        "sagemaker.inputs": {"TrainingInput": ours.TrainingInput},
        "sagemaker.pytorch": {"PyTorch": ours.PyTorch},
        "sagemaker.tensorflow": {"TensorFlow": ours.TensorFlow},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(exported)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for script in SCRIPTS:
        path = tmp_path / script
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    monkeypatch.chdir(tmp_path)


def job_of(cell: str, names: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> Job:
    """Runs a cell and returns the job that its `fit` would start."""
    jobs: list[Job] = []

    def fit(self: ours.Estimator, inputs: object = None, job_name: str | None = None) -> None:
        jobs.append(self.job(inputs, job_name))

    monkeypatch.setattr(ours.Estimator, "fit", fit)

    def fit_with_retries(retries: int, estimator: ours.Estimator, **arguments: object) -> None:
        assert retries == 5
        estimator.fit(**arguments)  # type: ignore[arg-type]

    known = {"role": ROLE, "sess": SdkSession(), "fit_with_retries": fit_with_retries, **names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the notebooks' own datetime.utcnow()
        exec(compile((CELLS / f"{cell}.cell").read_text(), f"{cell}.cell", "exec"), known)
    (job,) = jobs
    return job


def told(job: Job, folder: Path) -> object:
    """What `headrace plan` says, with nothing of this machine in it; or why the local engine refuses the job."""
    try:
        job.check_engine("local")
        plan = make_plan(job, RunPaths(Path("/runs/run")), Machine((0, 1, 2, 3)), "python")
    except JobInvalid as error:
        return {"refused": str(error).splitlines()}
    seen = json.loads(
        msgspec.json.encode(view(job, plan, without_effect=job.without_effect())).replace(
            str(folder).encode(), b"/work"
        )
    )
    del seen["cost"]  # what it costs changes with the price list
    return seen | {"job_name": seen["job_name"].rstrip("0123456789TZ-")}


@pytest.mark.promise("sagemaker", "scripts of SageMaker run unchanged")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("sdk", "code")
@pytest.mark.promise("sagemaker-differences", "absent here: AWS's guide writes arguments that the SDK refuses")
def test_a_cell_builds_its_job(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cell, names = CASES[name]
    job = job_of(cell, names, monkeypatch)
    seen = told(job, tmp_path)
    golden = CELLS / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n")
    assert seen == json.loads(golden.read_text())
