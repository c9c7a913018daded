"""Many instances on Slurm: every node says hello, and the run's record has all of them."""

from __future__ import annotations

import pytest
from effort import SOAK
from slurm_stage import DATA, DNN, needs_slurm, start, started_cluster
from stage import text

from headrace.runs.events import HostRegistered

pytestmark = [pytest.mark.timeout(900), needs_slurm]
NODES = 64 if SOAK else 8
HELLO = "import os, headrace\nprint('hello from', headrace.Environment().current_host, os.environ['SLURMD_NODENAME'])\n"


def test_many_nodes_of_two_groups_are_one_run() -> None:
    data = NODES * 3 // 4
    groups = [{**DNN, "count": NODES - data}, {**DATA, "count": data}]
    with started_cluster(wide=NODES) as cluster:
        slurm = {"stop_grace": 5, "partition": "wide"}
        run = start(cluster, "wide", HELLO, instance_groups=groups, engines={"slurm": slurm})
        run.completed(600)
        said = [line.split("hello from ")[1].split() for line in text(run).splitlines() if "hello from" in line]
        assert {host for host, _ in said} == {f"algo-{number}" for number in range(1, NODES + 1)}
        assert {node for _, node in said} == {f"wide{number}" for number in range(1, NODES + 1)}
        assert sum(isinstance(event, HostRegistered) for event in run.run.events()) == NODES
