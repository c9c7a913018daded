"""Open MPI 5, as PyPI has it: a smoke test. Needs scripts/openmpi5, and namespaces."""

import os
import subprocess
from pathlib import Path

import pytest

from headrace.runs import Run, RunPaths

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / ".venv-openmpi5" / "bin" / "python"
PREFIX = "127.94.1"

pytestmark = pytest.mark.needs(".venv-openmpi5")


def run(tmp_path, monkeypatch, script, isolation):
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(script)
    (tmp_path / "job.yaml").write_text(
        "job_name: five\nsource_dir: code\nentry_point: train.py\n"
        "instance_groups: [{name: dnn, type: ml.c5.xlarge, count: 2}]\n"
        "distribution: {mpi: {enabled: true, processes_per_host: 2}}\n"
        f"engines: {{local: {{address_prefix: {PREFIX}, stop_grace: 3, isolation: {isolation}}}}}\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, "-m", "headrace.cli.main", "run", tmp_path / "job.yaml"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    (root,) = (tmp_path / "home" / "runs").iterdir()
    return done, Run(RunPaths(root))


@pytest.mark.namespaces
@pytest.mark.needs("namespaces")
def test_four_ranks_on_two_hosts_and_one_that_fails_also_inside_a_job_of_slurm(tmp_path, monkeypatch):
    slurm = {"JOB_ID": "7", "JOBID": "7", "NODELIST": "node9", "JOB_NODELIST": "node9", "TASKS_PER_NODE": "1"}
    for name, value in (slurm | {"NNODES": "1", "JOB_NUM_NODES": "1", "NTASKS": "1"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    script = (
        "import os, sys\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "where = os.environ['SM_CURRENT_HOST'], os.uname().nodename\n"
        "print('rank', world.rank, world.allreduce(1), *where, flush=True)\n"
        "world.Barrier()\nif world.rank == 3: sys.exit(3)\nworld.Barrier()\n"
    )
    done, run_ = run(tmp_path, monkeypatch, script, "namespace")
    assert done.returncode == 1, done.stdout
    lines = {str(line.stream): line.text for line in run_.logs() if line.text.startswith("rank")}
    for rank in range(4):
        host = f"algo-{1 + rank // 2}"
        assert lines[f"dnn/{host}[{rank}]"] == f"rank {rank} 4 {host} {host}"
    assert str(run_.state().cause) == "dnn/algo-2[3]: exited with code 3"
