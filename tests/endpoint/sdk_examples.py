"""Runs in .venv-sagemaker: two of the examples with the SageMaker SDK itself, `python sdk_examples.py FOLDER`.

What serves batches on the data group of digits, and what ends it, no request can say; the launcher below does, as in
AWS's own examples: a feed server on the hosts of the data group, which end when the training script, unchanged, has.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import sagemaker
from sagemaker.analytics import TrainingJobAnalytics
from sagemaker.inputs import TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow
from sdk_cells import ROLE, hasten

FOLDER = Path(sys.argv[1])
LAUNCHER = """
import json, os, pathlib, runpy, socket, subprocess, sys

code = pathlib.Path(__file__).parent
secret = code / "feed.secret"
secret.chmod(0o600)
groups = json.loads(os.environ["SM_INSTANCE_GROUPS_DICT"])
if os.environ["SM_CURRENT_INSTANCE_GROUP"] == "data_group":
    words = ["feed", "serve", "--bind", "0.0.0.0:7090", "--secret-file", str(secret), "--executors", "1"]
    server = subprocess.Popen([sys.executable, "-m", "headrace", *words])
    with socket.create_server(("", 7091)) as told:
        told.accept()[0].close()
    server.terminate()
    server.wait()
else:
    hosts = groups["data_group"]["hosts"]
    os.environ |= {"HEADRACE_FEED": "tcp://" + ",".join(f"{host}:7090" for host in hosts)}
    os.environ |= {"HEADRACE_FEED_SECRET_FILE": str(secret)}
    runpy.run_path(str(code / "train.py"), run_name="__main__")
    for host in hosts:
        socket.create_connection((host, 7091)).close()
"""


def digits(session: sagemaker.Session) -> dict[str, object]:
    """The digits on two groups: one prepares batches, one trains."""
    (FOLDER / "digits" / "code" / "launcher.py").write_text(LAUNCHER)
    data = InstanceGroup("data_group", "ml.c5.xlarge", 1)
    dnn = InstanceGroup("dnn_group", "ml.g5.xlarge", 1)
    estimator = PyTorch(
        entry_point="launcher.py",
        source_dir=str(FOLDER / "digits" / "code"),
        role=ROLE,
        framework_version="2.5.1",
        py_version="py311",
        instance_groups=[data, dnn],
        distribution={"torch_distributed": {"enabled": True}, "instance_groups": [dnn]},
        hyperparameters={"epochs": 3, "loader": "headrace"},
        metric_definitions=[
            {"Name": "loss", "Regex": "loss ([0-9.]+)"},
            {"Name": "accuracy", "Regex": "accuracy ([0-9.]+)"},
        ],
    )
    uri = session.upload_data(str(FOLDER / "digits" / "data"), key_prefix="digits")
    channel = TrainingInput(uri, instance_groups=["data_group", "dnn_group"])
    estimator.fit({"training": channel}, wait=True, logs="All")
    return came_of(estimator, ["loss", "accuracy"])


def horovod(session: sagemaker.Session) -> dict[str, object]:
    """The Keras MNIST job of the Horovod notebook."""
    estimator = TensorFlow(
        entry_point="mnist_hvd.py",
        source_dir=str(FOLDER / "horovod" / "code"),
        role=ROLE,
        framework_version="2.9.2",
        py_version="py39",
        instance_count=2,
        instance_type="ml.c4.xlarge",
        distribution={"mpi": {"enabled": True, "processes_per_host": 2}},
        hyperparameters={"epochs": 2},
        environment={"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
        metric_definitions=[{"Name": "accuracy", "Regex": "test accuracy ([0-9.]+)"}],
    )
    uris = {
        name: session.upload_data(str(FOLDER / "horovod" / "data" / name), key_prefix=name)
        for name in ("train", "test")
    }
    estimator.fit(uris, wait=True, logs="All")
    return came_of(estimator, ["accuracy"])


def came_of(estimator: sagemaker.estimator.EstimatorBase, metrics: list[str]) -> dict[str, object]:
    """Returns what came of a job."""
    name = estimator.latest_training_job.name
    figures = TrainingJobAnalytics(name, metrics).dataframe()
    last = {row["metric_name"]: float(row["value"]) for _, row in figures.iterrows()}
    return {"name": name, "model": estimator.model_data, "metrics": last}


if __name__ == "__main__":
    hasten()
    print("RESULT", json.dumps({"digits": digits(sagemaker.Session()), "horovod": horovod(sagemaker.Session())}))
