"""Runs in .venv-sagemaker: cells of AWS's notebooks and guide, with the SageMaker SDK itself. Prints what came of them.

The clock that the SDK waits by runs ten times as fast; nothing else of it is changed.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import types
from pathlib import Path

import sagemaker
import sagemaker.session
from sagemaker.estimator import EstimatorBase
from sagemaker.exceptions import UnexpectedStatusException
from sagemaker.pytorch import PyTorch

FASTER = 10
CELLS = Path(sys.argv[1])
ROLE = "arn:aws:iam::000000000000:role/headrace"
BUCKET = "headrace-local"
GUIDE_MENDED = {
    "instance_group_names=": "instance_groups=",  # the name of the argument in the SDK
    '    job_name="my-training-job-with-heterogeneous-cluster",\n': "",  # an argument of fit
    "x.y.z": "2.1",
    "pyxy": "py310",
    "s3://your-training-data-storage": f"s3://{BUCKET}/guide",
}


def hasten() -> None:
    begun = time.time()
    clock = types.SimpleNamespace(
        sleep=lambda seconds: time.sleep(seconds / FASTER),
        time=lambda: begun + (time.time() - begun) * FASTER,
    )
    sagemaker.session.time = clock


def run(cell: str, mended: dict[str, str] | None = None, **names: object) -> dict[str, object]:
    """Runs a cell. Returns its variables."""
    text = (CELLS / f"{cell}.cell").read_text()
    for old, new in (mended or {}).items():
        assert old in text
        text = text.replace(old, new)
    exec(compile(text, cell, "exec"), names)
    return names


def fit_with_retries(retries: int, estimator: EstimatorBase, **arguments: object) -> None:
    """The notebook's helper, without its retries: a failure here is one."""
    assert retries == 5
    estimator.fit(**arguments, wait=False)


def one_cell() -> dict[str, object]:
    """Runs the cell of one notebook as it is there, with its first line."""
    hasten()
    session = sagemaker.Session()
    role = sagemaker.get_execution_role()
    names = run("pt_grpc", role=role, sess=session, IS_HETERO=True, IS_CLOUD_JOB=True, IS_DNN_DISTRIBUTION=False)
    estimator = names["estimator"]
    found = {"role": role, "name": estimator.latest_training_job.name, "model": estimator.model_data}
    return {**found, "account": session.account_id()}


def main() -> dict[str, object]:
    hasten()
    session = sagemaker.Session()
    fits = {each: each.fit for each in (EstimatorBase, PyTorch)}
    role = sagemaker.get_execution_role() if "--role" in sys.argv else ROLE
    seeds: dict[str, str] = {}
    found: dict[str, object] = {"role": role, "bucket": session.default_bucket(), "seeds": seeds}
    renewed = {"2.9.1": "2.9.2"}  # SDK 2.257 knows the other one no more
    estimator = run("tf_heterogeneous", renewed, role=role, fit_with_retries=fit_with_retries)["estimator2"]
    seeds["000"] = estimator.latest_training_job.name

    train = session.upload_data("data", bucket=session.default_bucket(), key_prefix="mnist")
    paths = {"s3_train_path": f"{train}/train.npz", "s3_test_path": f"{train}/test.npz"}
    for each, fit in fits.items():
        each.fit = functools.partialmethod(fit, wait=False)  # the cells' own, with one argument more
    horovod = run("horovod_v1", sagemaker_iam_role=role, which="options", **paths)["estimator"]
    seeds["002"] = horovod.latest_training_job.name
    try:
        run("guide", others={"role": role}, Framework=PyTorch)
    except TypeError as error:
        found["guide as written"] = str(error)
    if "--all" in sys.argv:
        for folder in ("folder1", "folder2"):
            session.upload_data("data", bucket=session.default_bucket(), key_prefix=f"guide/{folder}")
        guide = run("guide", GUIDE_MENDED, others={"role": role}, Framework=PyTorch)["estimator"]
        seeds["003"] = guide.latest_training_job.name
    for each, fit in fits.items():
        each.fit = fit

    hetero = run("pt_grpc", role=role, sess=session, IS_HETERO=True, IS_CLOUD_JOB=True, IS_DNN_DISTRIBUTION=False)
    seeds["001"] = hetero["estimator"].latest_training_job.name
    found["model"] = hetero["estimator"].model_data
    attached = PyTorch.attach(seeds["001"])
    found["attached"] = [attached.latest_training_job.name, attached.model_data]

    one = {"role": role, "framework_version": "2.1", "py_version": "py310", "instance_count": 1}
    fails = PyTorch(entry_point="fails.py", source_dir="code", instance_type="ml.m5.large", **one)
    try:
        fails.fit()
    except UnexpectedStatusException as error:
        found["failure"] = str(error)
    horovod.latest_training_job.stop()  # it sleeps
    while session.describe_training_job(seeds["002"])["TrainingJobStatus"] == "Stopping":
        time.sleep(0.2)  # the SDK's wait fails while a job is Stopping, on the service as well
    horovod.latest_training_job.wait(logs=False)
    if "--all" in sys.argv:
        spot = PyTorch(
            entry_point="launcher.py", source_dir="code", instance_type="ml.m5.large", use_spot_instances=True,
            max_run=600, max_wait=900, checkpoint_s3_uri=f"s3://{session.default_bucket()}/checkpoints", **one,
        )  # fmt: skip
        spot.fit(logs=False)
        found["spot"] = spot.latest_training_job.name
    return found


if __name__ == "__main__":
    result = one_cell() if "--one" in sys.argv else main()
    print("RESULT " + json.dumps(result), flush=True)
