"""One grid on three engines: this machine, a real Slurm cluster, Kubernetes; and a controller killed on Slurm."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import HEAD, SlurmCluster
from slurm_stage import end_jobs, headrace, needs_slurm, started_cluster

from patience import allowed, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.namespaces, needs_slurm]
HERE = Path(__file__).parent

HELLO = """
import os, pathlib, sys, time
with open(os.environ["SM_HP_LEDGER"], "a") as ledger:
    ledger.write(os.environ["TRAINING_JOB_NAME"] + "\\n")
gate = os.environ.get("SM_HP_GATE")
while gate and not pathlib.Path(gate).exists():
    time.sleep(0.05)
print("hello from", os.environ.get("SLURMD_NODENAME") or os.uname().nodename, flush=True)
print("loss=" + os.environ["SM_HP_LOSS"] + ";", flush=True)
"""
FIELDS = ("engine", "hyperparameters.loss", "engines.slurm.partition", "engines.kubernetes.context")
LINES = (
    ("local", 0.5, "", ""),
    ("slurm", 0.25, "dnn", ""),
    ("kubernetes", 0.125, "", "tests"),
)
# In place of Slurm's own: passes a job on, and kills the controller that waits for the answer. FILE is there once.
KILLING = """#!/bin/sh
if rm {file} 2> /dev/null; then
    {sbatch} "$@" > {file}.answer
    kill -9 $PPID
    exit 1
fi
exec {sbatch} "$@"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with started_cluster() as started:
        yield started


@pytest.fixture(autouse=True)
def no_job_is_left(cluster: SlurmCluster) -> Iterator[None]:
    yield
    end_jobs(cluster)


@pytest.fixture
def kubernetes(cluster: SlurmCluster) -> Iterator[Path]:
    """A Kubernetes cluster that the login node reaches. Gives its kubeconfig."""
    folder = cluster.folder / "kube"
    words = [*cluster.inside(HEAD), sys.executable, str(HERE / "kube_process.py"), str(folder)]
    paths = os.pathsep.join(map(str, (HERE, HERE.parent)))
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**cluster.environment(), "PYTHONPATH": paths},
        cwd=cluster.folder,
    )
    assert process.stdout is not None
    yield Path(process.stdout.readline().strip())
    left, _ = process.communicate("", timeout=allowed(60))
    assert (process.returncode, left.strip()) == (0, "[]"), "nothing is left on the cluster"


def written(cluster: SlurmCluster, name: str, lines: tuple[tuple[object, ...], ...], **fields: object) -> str:
    """Writes a grid on the shared file system, whose lines are a CSV file."""
    folder = cluster.folder / name
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "train.py").write_text(HELLO)
    with (folder / "array.csv").open("w", newline="") as file:
        csv.writer(file).writerows([FIELDS, *lines])
    job = {
        "source_dir": "code",
        "entry_point": "train.py",
        "instance_groups": [{"name": "workers", "type": "ml.c5.xlarge", "count": 1}],
        "hyperparameters": {"ledger": str(folder / "ledger"), **fields},
        "metric_definitions": [{"name": "loss", "regex": "loss=([0-9.]+);"}],
        "engines": {
            "local": {"isolation": "none", "address_prefix": "127.84.1"},
            "slurm": {"stop_grace": 5},
            "kubernetes": {
                "namespace": "train",
                "image": "local/host:1",
                "python": sys.executable,
                "stop_grace": 5,
                "linger": 30,
            },
        },
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    grid = {
        "name": name,
        "job": "job.yaml",
        "lines": {"file": "array.csv"},
        "retry": {"attempts": 0},
        "limits": {"starts_per_second": 100},
    }
    (folder / "array.yaml").write_text(json.dumps(grid))
    return str(folder / "array.yaml")


def ledger(cluster: SlurmCluster, name: str) -> list[str]:
    """Returns the names of the jobs whose programs have begun."""
    path = cluster.folder / name / "ledger"
    return sorted(path.read_text().split()) if path.exists() else []


def submitted(cluster: SlurmCluster, grid: str) -> list[str]:
    """Returns the names of all jobs of a grid that Slurm has had, those that are over too."""
    found = cluster.on(HEAD, "squeue", "-h", "--states=all", "-o", "%j").stdout.split()
    return sorted(name for name in found if name.startswith(f"{grid}-"))


@pytest.mark.promise(
    "grid-reference", "lines of one grid run on this machine, Slurm and Kubernetes, each submitted once"
)
def test_lines_of_one_grid_run_on_this_machine_on_slurm_and_on_kubernetes(
    cluster: SlurmCluster, kubernetes: Path
) -> None:
    file = written(cluster, "mixed", LINES)
    words = [sys.executable, "-m", "headrace", "grid", "run", file, "--output", "json"]
    done = cluster.on(HEAD, "env", f"KUBECONFIG={kubernetes}", *words, check=False, timeout=allowed(120))
    assert done.returncode == 0, done
    lines = json.loads(done.stdout)["lines"]
    ways = [(line["engine"], line["state"], len(line["attempts"]), line["region"]) for line in lines]
    assert ways == [(str(engine), "completed", 1, "") for engine, *_ in LINES]
    names = [line["job_name"] for line in lines]
    assert ledger(cluster, "mixed") == sorted(names), "each program has begun once"
    assert submitted(cluster, "mixed") == [names[1]]
    report: dict[str, Any] = json.loads(headrace(cluster, "grid", "report", "mixed", "--output", "json"))
    shown = [(each["engine"], each["state"], each["metrics"]) for each in report["lines"]]
    assert shown == [(engine, "completed", {"loss": loss}) for engine, loss, *_ in LINES]
    (best,) = json.loads(headrace(cluster, "grid", "best", "mixed", "--min", "loss", "--output", "json"))["best"][:1]
    assert best["engine"] == "kubernetes"
    assert "hello from dnn" in headrace(cluster, "grid", "logs", "mixed", names[1])
    assert "hello from algo-1" in headrace(cluster, "grid", "logs", "mixed", names[2])


@pytest.mark.promise(
    "grid-reference", "lines of one grid run on this machine, Slurm and Kubernetes, each submitted once"
)
def test_a_controller_that_is_killed_when_slurm_has_a_line_submits_it_once(cluster: SlurmCluster) -> None:
    gate, tools = cluster.folder / "killed" / "gate", cluster.folder / "tools"
    lines = (("slurm", 0.5, "data", ""), ("slurm", 0.25, "data", ""))
    file = written(cluster, "killed", lines, gate=str(gate))
    sbatch = shutil.which("sbatch")
    tools.mkdir()
    (tools / "once").touch()
    (tools / "sbatch").write_text(KILLING.format(file=tools / "once", sbatch=sbatch))
    (tools / "sbatch").chmod(0o755)
    path = f"PATH={tools}:{cluster.environment()['PATH']}"
    run = [sys.executable, "-m", "headrace", "grid", "run", file, "--output", "json"]
    done = cluster.on(HEAD, "env", path, *run, check=False, timeout=allowed(60))
    assert done.returncode in (-9, 137), done
    assert (tools / "once.answer").read_text().strip().isdigit(), "Slurm has taken it, and nobody was told"
    assert submitted(cluster, "killed"), "killed after it has submitted"

    pid = cluster.folder / "controller.pid"
    controller = cluster.start(HEAD, "sh", "-c", 'echo $$ > "$0"; exec "$@"', str(pid), *run)
    until(lambda: len(ledger(cluster, "killed")) == 2, 60, "both programs begin")
    cluster.on(HEAD, "kill", "-9", pid.read_text().strip())
    controller.communicate(timeout=allowed(30))
    gate.touch()
    done = cluster.on(HEAD, *run, check=False, timeout=allowed(120))
    assert done.returncode == 0, done
    found = json.loads(done.stdout)["lines"]
    assert [(line["state"], len(line["attempts"])) for line in found] == [("completed", 1)] * 2
    names = sorted(line["job_name"] for line in found)
    assert submitted(cluster, "killed") == names == ledger(cluster, "killed"), "each once"
