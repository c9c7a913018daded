"""A grid over two real clusters of Slurm, which one accounting knows: `engines.slurm.cluster` says which has a line.

The second cluster has a controller and a node of its own on a host that is a node of the first. Needs slurmdbd and
mariadbd besides what `slurm_cluster` needs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import HEAD, NETWORK, NODES, SETTINGS, SlurmCluster, slurm_cluster
from slurm_stage import needs_slurm, started_cluster, submit

from headrace.engines.slurm.handover import SlurmTicket
from headrace.engines.ticket import read_ticket
from headrace.runs import Status
from needs import require
from patience import allowed, until
from proof.effort import SOAK

pytestmark = [pytest.mark.timeout(300), pytest.mark.namespaces, needs_slurm]
OTHER = "data3"  # the host of the second cluster
ACCOUNTING = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": f"{NETWORK}.254",
    "AccountingStoragePass": "/run/munge.sock",  # where munge listens
}
# On the login node, before its controller starts.
DATABASE = """
set -e
folder=$1
mkdir -p /run/mysqld
mariadb-install-db --no-defaults --user=root --datadir="$folder/db" --auth-root-authentication-method=normal > /dev/null
setsid mariadbd --no-defaults --user=root --datadir="$folder/db" --socket=/run/mysqld/mysqld.sock --skip-networking \\
    > "$folder/log/mariadb.log" 2>&1 &
sql="mariadb --no-defaults -uroot -S /run/mysqld/mysqld.sock"
until $sql -e "create database slurm_acct_db" 2> /dev/null; do sleep 0.1; done
slurmdbd
until sacctmgr -i add cluster test > /dev/null 2>&1; do sleep 0.1; done
sacctmgr -i add cluster second > /dev/null
"""
DBD = """AuthType=auth/munge
AuthInfo=socket=/run/munge.sock
DbdHost=head
DbdAddr={network}.254
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
PidFile=/run/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
"""
SECOND = {
    "ClusterName": "second",
    "SlurmctldHost": f"{OTHER}({NETWORK}.{NODES[OTHER]})",
    "SlurmctldPort": "7817",
    "SlurmdPort": "7818",
    "StateSaveLocation": "{folder}/second",
    "SlurmctldPidFile": "/run/second.pid",
    "SlurmctldLogFile": "{folder}/log/second.log",
    "SlurmdSpoolDir": "/run/second.%n",
    "SlurmdPidFile": "/run/second.%n.pid",
    **ACCOUNTING,
}
NODE = f"""NodeName=far NodeHostname={OTHER} NodeAddr={NETWORK}.{NODES[OTHER]} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=far Nodes=far Default=YES MaxTime=INFINITE DefMemPerCPU=500 State=UP
"""
HELLO = """
import os, pathlib, time
print("hello from", os.environ["SLURMD_NODENAME"], flush=True)
gate = os.environ.get("SM_HP_GATE")
while gate and not pathlib.Path(gate).exists():
    time.sleep(0.05)
"""


def test_a_cluster_that_no_accounting_knows_is_refused_in_slurm_s_words() -> None:
    with started_cluster() as cluster:
        file = _job(cluster, "elsewhere")
        done = _headrace(cluster, "run", file, "--engine", "slurm", "--set", "engines.slurm.cluster=elsewhere")
    assert done.returncode == 1, done
    assert "elsewhere" in done.stderr
    assert "cluster" in done.stderr.lower()


def _headrace(cluster: SlurmCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.on(HEAD, sys.executable, "-m", "headrace", *words, check=False, timeout=allowed(120))


def _job(cluster: SlurmCluster, name: str, **fields: object) -> str:
    """Writes a job of one host. Returns its file."""
    folder = cluster.folder / name
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "train.py").write_text(HELLO)
    job = {
        "job_name": name,
        "source_dir": "code",
        "entry_point": "train.py",
        "instance_groups": [{"name": "workers", "type": "ml.c5.xlarge", "count": 1}],
        "engines": {"slurm": {"stop_grace": 5}},
    }
    (folder / "job.yaml").write_text(json.dumps(job | fields))
    return str(folder / "job.yaml")


if SOAK:

    @pytest.fixture
    def clusters() -> Iterator[SlurmCluster]:
        """The first cluster, whose accounting knows a second one."""
        require("slurmdbd", "mariadb")
        place = Path(tempfile.mkdtemp(prefix="hs-"))
        folder = place / "shared"
        etc = folder / "etc"
        try:
            before = {
                "before-head": DATABASE,
                "slurmdbd.conf": DBD.format(network=NETWORK, folder=folder),
                "second/slurm.conf": "".join(
                    f"{name}={value}\n" for name, value in {**SETTINGS, **SECOND}.items()
                ).format(folder=folder)
                + NODE,
                "second/gres.conf": "",
                "second/cgroup.conf": "CgroupPlugin=cgroup/v1\n",
            }
            with slurm_cluster(folder, ACCOUNTING, files=before) as first:
                (folder / "second").mkdir()
                conf = f"SLURM_CONF={etc}/second/slurm.conf"
                first.on(OTHER, "env", conf, "slurmctld", "-c")
                first.on(OTHER, "env", conf, "slurmd", "-N", "far")
                idle = ("sinfo", "--clusters=second", "-h", "-N", "-t", "idle", "-o", "%N")
                until(lambda: "far" in first.on(HEAD, *idle, check=False).stdout, 60, "the second cluster")
                yield first
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def test_lines_of_one_grid_run_on_two_clusters(clusters: SlurmCluster) -> None:
        folder = Path(_job(clusters, "two")).parent
        (folder / "array.csv").write_text("engine,engines.slurm.cluster\nslurm,\nslurm,second\n")
        grid = {"name": "two", "job": "job.yaml", "lines": {"file": "array.csv"}}
        (folder / "array.yaml").write_text(json.dumps(grid))
        done = _headrace(clusters, "grid", "run", str(folder / "array.yaml"), "--output", "json")
        assert done.returncode == 0, done
        found = json.loads(done.stdout)["lines"]
        assert [line["state"] for line in found] == ["completed"] * 2
        said = [_headrace(clusters, "grid", "logs", "two", line["job_name"]).stdout for line in found]
        assert "hello from data" in said[0]
        assert "hello from far" in said[1]

    def test_a_run_of_another_cluster_is_listed_stopped_and_forgotten_there(clusters: SlurmCluster) -> None:
        file = _job(clusters, "far", hyperparameters={"gate": "/nowhere"})
        run = submit(clusters, file, "--set", "engines.slurm.cluster=second")
        run.said("hello from far")
        assert read_ticket(run.run.paths, SlurmTicket).cluster == "second"
        assert _headrace(clusters, "stop", run.id).returncode == 0
        assert run.ended() is Status.STOPPED
        assert f"{run.id} " in _headrace(clusters, "ps", "--all").stdout
        jobs = clusters.on(HEAD, "squeue", "--clusters=second", "-h", "--states=all", "-o", "%j %T").stdout
        assert "far RUNNING" not in jobs
        assert "far " in jobs
