"""The same training as a homogeneous and as a heterogeneous job, on this machine.

    python demo.py [--epochs 3]

Runs homogeneous.yaml (one instance on core 0), then heterogeneous.yaml (the same instance, and a data instance on core
1; tf.data service on both), and prints their accuracies and `headrace compare` of the two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import prepare
from headrace.errors import HeadraceError
from headrace.job import load_job
from headrace.runs import Run, RunPaths, Status

HERE = Path(__file__).parent


def run(file: str, overrides: list[str]) -> tuple[str, float]:
    """Runs a job on the local engine. Returns the run's id and the accuracy on held-out images."""
    job = load_job(HERE / file, overrides)
    handle = job.fit(engine="local", logs=True)
    if handle.status is not Status.COMPLETED:
        raise HeadraceError(f"{handle.id} did not complete", hint=f"headrace logs {handle.id}")
    host = RunPaths(Run.open(handle.id).paths.root).host(job.hosts["dnn_group"][0])
    return handle.id, json.loads((host / "output" / "data" / "result.json").read_text())["accuracy"]


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    prepare.main(HERE / "data")
    try:
        runs = [
            run(file, [f"hyperparameters.epochs={options.epochs}"])
            for file in ("homogeneous.yaml", "heterogeneous.yaml")
        ]
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, accuracy in runs:
        print(f"{name}: held-out accuracy {accuracy:.3f}")
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "compare", *(name for name, _ in runs)], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
