"""The ranks of the torch.distributed world."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from effort import SOAK
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.instance import global_ranks, torch_distributed_variables
from headrace.instance.frameworks import world_size
from headrace.instance.launch_plan import TORCH_DISTRIBUTED, DistributionPlan, GroupPlan, HostPlan, LaunchPlan


def test_the_variables_of_one_rank(make_plan) -> None:
    assert torch_distributed_variables(make_plan(), "algo-4", 1, cores=8) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.1.3",
        "MASTER_PORT": "7799",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "the-job-20240607T000000Z-abcd",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "4",
    }


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (3, "1"), (4, "2"), (16, "8")])
def test_ranks_share_the_cores(make_plan, cores: int, threads: str) -> None:
    assert torch_distributed_variables(make_plan(), "algo-3", 0, cores=cores)["OMP_NUM_THREADS"] == threads


def test_the_users_threads_are_kept(make_plan) -> None:
    plan = make_plan(environment={"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
    variables = torch_distributed_variables(plan, "algo-3", 0, cores=8)
    assert (variables["OMP_NUM_THREADS"], variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("3", "0")
    assert torch_distributed_variables(plan, "algo-3", 0, cores=8, environment={})["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(("host", "local_rank"), [("algo-1", 0), ("algo-3", 2), ("algo-3", -1)])
def test_a_rank_that_does_not_exist_is_an_error(make_plan, host: str, local_rank: int) -> None:
    with pytest.raises(ValueError, match=f"no rank {local_rank} on {host}"):
        torch_distributed_variables(make_plan(), host, local_rank, cores=1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4), st.randoms())
def test_ranks_are_numbered_host_by_host_without_gaps(shape: list[tuple[int, int]], shuffle) -> None:
    groups, number = [], 0
    for index, (count, processes) in enumerate(shape):
        hosts = tuple(f"algo-{number + offset + 1}" for offset in range(count))
        number += count
        groups.append(GroupPlan(f"g{index}", "ml.c5.xlarge", hosts, processes_per_host=processes))
    distribution = [group.name for group in groups]
    shuffle.shuffle(distribution)
    plan = LaunchPlan(
        "job",
        "run",
        "train.py",
        tuple(groups),
        tuple(HostPlan(host, group.name, host, "/", "/") for group in groups for host in group.hosts),
        "algo-1",
        (world := DistributionPlan(TORCH_DISTRIBUTED, tuple(distribution[: shuffle.randint(1, len(distribution))])),),
    )
    peers = plan.hosts_of(world)
    seen = [rank for host in peers for rank in global_ranks(plan, host)]
    assert seen == list(range(world_size(plan, peers[0])))
    for host in plan.hosts:
        for local_rank, rank in enumerate(global_ranks(plan, host.name)):
            variables = torch_distributed_variables(plan, host.name, local_rank, cores=4)
            assert variables["RANK"] == str(rank)
            assert variables["WORLD_SIZE"] == str(world_size(plan, host.name))
            assert peers[int(variables["GROUP_RANK"])] == host.name


PRINT_ENVIRONMENT = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump(dict(os.environ), file)
"""


if SOAK:  # in every run: what torchrun gives a rank, engines/test_local_elastic.py

    @pytest.mark.oracle
    @pytest.mark.torch
    def test_torchrun_sets_the_same_variables(tmp_path, make_plan, unused_tcp_port: int) -> None:
        """Two torchrun agents with two ranks each; all that they set is ours too, and has the same value."""
        (tmp_path / "out").mkdir()
        (tmp_path / "script.py").write_text(PRINT_ENVIRONMENT)
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        inherited["LANG"] = "C.UTF-8"
        agents = [
            subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-m",
                        "torch.distributed.run",
                        "--nnodes=2",
                        f"--node-rank={node}",
                        "--nproc-per-node=2",
                    ),
                    *("--master-addr=127.0.0.1", f"--master-port={unused_tcp_port}"),
                    *(str(tmp_path / "script.py"), str(tmp_path / "out")),
                ],
                env=inherited,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for node in range(2)
        ]
        try:
            for agent in agents:
                _, errors = agent.communicate(timeout=90)
                assert agent.returncode == 0, errors.decode()
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()
                agent.stderr.close()
        plan = make_plan()
        # Master and run id are the plan's. The agents' own store, torchrun's error files and its own signals (not in
        # every version) have no meaning without torchrun.
        other_values = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
        theirs_alone = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
        for rank in range(4):
            theirs = json.loads((tmp_path / "out" / str(rank)).read_text())
            host, local_rank = ("algo-3", "algo-4")[rank // 2], rank % 2
            ours = torch_distributed_variables(plan, host, local_rank, cores=2)
            added = {name: value for name, value in theirs.items() if inherited.get(name) != value}
            assert added.keys() - ours.keys() <= theirs_alone
            assert not ours.keys() - added.keys()
            assert {name for name in ours if ours[name] != added[name]} == other_values


@pytest.fixture
def unused_tcp_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
