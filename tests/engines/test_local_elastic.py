"""Elastic worlds: real torchrun on every host, ranks that are programs of their hosts."""

from __future__ import annotations

import os

import pytest
from effort import SOAK
from stage import agent_pid, groups, kill, program_pid, text

from headrace.runs import Status
from headrace.runs.events import HostLost, ProgramExited, ProgramStarted
from patience import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

MASTER = 25_000 + os.getpid() % 5_000


def start(stage, script: str, hosts: int = 2, ranks: int = 2, minimum: int = 1, restarts: int = 2, **fields):
    elastic = {"min_hosts": minimum, "max_restarts": restarts}
    return stage.start(
        script,
        instance_groups=groups(dnn=hosts),
        distribution={"torch_distributed": {"enabled": True, "processes_per_host": ranks, "elastic": elastic}},
        local={"isolation": "none", "ports": {"master": MASTER}},
        **fields,
    )


def started(handle, host: str, stream: str) -> list[int]:
    return [
        each.pid
        for each in handle.run.events()
        if isinstance(each, ProgramStarted) and (each.host, each.stream) == (host, stream)
    ]


def test_every_rank_has_a_log_its_hosts_variables_and_torchruns(stage):
    script = """
    import json, os, sys
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_MAX_RESTARTS")
    print(json.dumps({name: os.environ[name] for name in names}), flush=True)
    print("host", os.environ["SM_CURRENT_HOST"], sys.argv[1:], os.environ["OMP_NUM_THREADS"], flush=True)
    assert os.environ["MASTER_ADDR"] and os.environ["MASTER_PORT"]
    assert "HEADRACE_AGENT_SECRET" not in os.environ
    """
    fields = {"hyperparameters": {"note": "a b; $(id)"}, "environment": {"OMP_NUM_THREADS": "3"}}
    handle = start(stage, script, hosts=1 + SOAK, **fields)
    assert handle.wait(120) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle, within=3.0)
    world = 2 + 2 * SOAK
    for host in range(1, 2 + SOAK):
        ranks = [rank for rank in "0123" if started(handle, f"algo-{host}", rank)]
        assert len(ranks) == 2
        for local, rank in enumerate(ranks):
            said = text(handle, f"dnn/algo-{host}[{rank}]")
            assert (
                f'"RANK": "{rank}", "LOCAL_RANK": "{local}", "WORLD_SIZE": "{world}", "LOCAL_WORLD_SIZE": "2"' in said
            )
            assert f"host algo-{host} ['--note', 'a b; $(id)'] 3" in said
    said = text(handle, "dnn/algo-1[torchrun]").splitlines()  # torch tells where no name server answers
    assert [line for line in said if "hostname of the client socket cannot be retrieved" not in line] == []


def test_a_rank_that_always_fails_is_the_first_cause_when_restarts_are_used_up(stage):
    script = """
    import os, sys, time
    if os.environ["RANK"] == "1":
        print("no such file", file=sys.stderr)
        sys.exit(7)
    time.sleep(600)
    """
    handle = start(stage, script, hosts=1, restarts=1)
    assert handle.wait(120) is Status.FAILED
    assert (handle.cause.host, handle.cause.stream, handle.cause.exit_code) == ("algo-1", "1", 7)
    assert "no such file" in handle.cause.last_lines
    exits = [each for each in handle.run.events() if isinstance(each, ProgramExited) and each.stream == "1"]
    assert [each.exit_code for each in exits] == [7, 7]  # once, and once more
    stage.assert_nothing_left(handle, within=3.0)


@pytest.mark.promise("distributed", "an elastic world goes on without a lost host")
@pytest.mark.parametrize("what", ["torchrun", *(["agent"] if SOAK else [])])
@pytest.mark.promise("sagemaker-differences", "absent here: torchrun cannot lose a host")
def test_a_host_whose_torchrun_or_agent_is_killed_is_gone_on_without(stage, what):
    script = """
    import os, pathlib, time
    print("begins", os.environ["WORLD_SIZE"], flush=True)
    time.sleep(600 if os.environ["WORLD_SIZE"] == "2" else 0.1)
    """
    handle = start(stage, script, ranks=1)
    until(lambda: text(handle).count("begins 2") == 2, 90, "two ranks")
    kill(program_pid(handle, "algo-2", "torchrun") if what == "torchrun" else agent_pid(handle, "algo-2"))
    first = started(handle, "algo-1", "0") or started(handle, "algo-1", "1")
    until(lambda: [each for each in handle.run.events() if isinstance(each, HostLost)], 20, "loss of algo-2")
    kill(first[0])  # a rank that lost its peer ends
    assert handle.wait(90) is Status.COMPLETED, f"{handle.cause} {text(handle)}"
    (lost,) = (each for each in handle.run.events() if isinstance(each, HostLost))
    assert lost.host == "algo-2"
    assert what in lost.reason
    stage.assert_nothing_left(handle, within=3.0)
