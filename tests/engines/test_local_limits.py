"""Limits of real runs, read from the kernel's own files, and what is said when the kernel kills for memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from effort import SOAK
from run_places import code, flag
from stage import (
    agent_pid,
    assert_failed,
    both_isolations,
    both_isolations_at_length,
    groups,
    kill,
    program_pid,
    said,
    text,
)

from headrace.engines.local import engine, host_limits
from headrace.engines.local.cgroups import MEMORY, RECORD, Places, available_memory, find_places
from headrace.hosting.supervision.cleanup import scratch_dirs
from headrace.instance import read_failure
from headrace.processes.oom import format_bytes
from headrace.runs import Run, RunPaths, Status, runs_dir
from headrace.runs.events import DataWorkerLost, ProgramExited
from observer import control_groups, processes_of
from patience import until

PLACES = find_places()
needs_groups = pytest.mark.needs("cpu groups", "memory groups")
MIB = 1 << 20
SLEEP = """
import os, time
print("running", os.getpid(), flush=True)
time.sleep(600)
"""
HOG = """
import os, signal, sys, time
print("running", flush=True)
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    block = bytearray()
    while True:
        block += b"x" * (8 << 20)
time.sleep(600)
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Every instance of a job with two gets 200 MiB: the machine is said to be that small."""
    monkeypatch.setattr(host_limits, "LEAST_MEMORY", 64 * MIB)
    monkeypatch.setattr(
        host_limits, "available_memory", lambda places: int(400 * MIB / (1 - host_limits.SYSTEM_PART)) + 9
    )
    return 200 * MIB


def group_of(handle, host: str, file: str) -> Path:
    [found] = [path / file for path in control_groups(handle.id) if path.name == host and (path / file).exists()]
    return found


def members(pid: int) -> set[str]:
    """The last part of every control group in which a process is."""
    return {line.rpartition("/")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}


def file_of(v1: str, v2: str) -> str:
    return v1 if PLACES.found[MEMORY].version == 1 else v2


@pytest.mark.promise("engines", "limits, on local")
@pytest.mark.promise("limits", "CPU and memory limits are those of the plan; a kill for memory is named with its limit")
@needs_groups
def test_every_process_of_an_instance_is_in_its_group_and_the_limits_are_what_the_plan_says(stage, small) -> None:
    script = """
    import os, subprocess, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open("daemon.pid", "w").write(str(os.getpid()))
            print("running", flush=True)
            time.sleep(600)
        os._exit(0)
    os.wait()
    time.sleep(600)
    """
    kinds = [("a", "ml.c5.9xlarge"), ("b", "ml.c5.4xlarge")]
    asked = [{"instance_group_name": name, "instance_type": kind, "instance_count": 1} for name, kind in kinds]
    handle = stage.start(script, instance_groups=asked)
    until(lambda: text(handle).count("running") == 2)
    for host in ("algo-1", "algo-2"):
        daemon = int((code(handle, host) / "daemon.pid").read_text())
        for pid in (agent_pid(handle, host), program_pid(handle, host), daemon):
            assert host in members(pid), f"{pid} of {host} is in {members(pid)}"
    memory = [
        int(group_of(handle, host, file_of("memory.limit_in_bytes", "memory.max")).read_text())
        for host in ("algo-1", "algo-2")
    ]
    assert sum(memory) <= 2 * small
    assert memory[0] / memory[1] == pytest.approx(72 / 32, rel=0.02)
    weights = [
        int(group_of(handle, host, file_of("cpu.shares", "cpu.weight")).read_text()) for host in ("algo-1", "algo-2")
    ]
    assert weights[0] / weights[1] == pytest.approx(36 / 16, rel=0.02)
    handle.stop(now=True)
    handle.wait(20)
    stage.assert_nothing_left(handle)


@pytest.mark.promise("limits", "CPU and memory limits are those of the plan; a kill for memory is named with its limit")
@needs_groups
@both_isolations_at_length
def test_a_program_that_the_kernel_kills_for_memory_is_named_as_that_with_the_limit(stage, small) -> None:
    handle = stage.start(HOG, instance_groups=groups(data=1, dnn=1))
    assert_failed(handle, time.monotonic(), within=30)
    words = "killed by the kernel for memory (OOM): the instance's limit is 200 MiB"
    assert str(handle.cause) == f"dnn/algo-2[0]: {words}"
    assert (handle.cause.exit_code, handle.cause.signal) == (None, signal.SIGKILL)
    assert words in read_failure(handle.paths.host("algo-2"))
    [end] = [event for event in handle.run.events() if isinstance(event, ProgramExited) and event.host == "algo-2"]
    assert (end.signal, end.reason) == (signal.SIGKILL, words)
    stage.assert_nothing_left(handle)


@needs_groups
def test_another_sigkill_is_not_taken_for_one_of_the_kernel(stage, small) -> None:
    handle = stage.start(SLEEP, instance_groups=groups(dnn=1))
    until(said(handle, "running"))
    kill(program_pid(handle, "algo-1"))
    assert handle.wait(20) is Status.FAILED
    assert str(handle.cause) == "dnn/algo-1[0]: killed by SIGKILL"
    stage.assert_nothing_left(handle)


@needs_groups
def test_a_rank_that_fails_because_the_kernel_killed_its_child_says_so(stage, small) -> None:
    script = """
    import subprocess, sys
    child = "block = bytearray()\\nwhile True: block += b'x' * (8 << 20)"
    done = subprocess.run([sys.executable, "-c", child])
    sys.exit(7 if done.returncode == -9 else 0)
    """
    handle = stage.start(script, instance_groups=groups(dnn=2))
    assert handle.wait(40) is Status.FAILED
    said = "exited with code 7, after the kernel had killed one of its processes for memory (OOM)"
    assert said in str(handle.cause)
    assert "200 MiB" in str(handle.cause)
    assert handle.cause.exit_code == 7
    stage.assert_nothing_left(handle)


@needs_groups
def test_an_agent_that_the_kernel_kills_for_memory_is_named_as_that(stage, small) -> None:
    script = """
    import os, pathlib, time
    print("running", flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    block = bytearray()
    while os.environ["SM_CURRENT_HOST"] == "algo-2":
        block += b"x" * (8 << 20)
    time.sleep(600)
    """
    handle = stage.start(script, instance_groups=groups(dnn=2))
    until(lambda: text(handle).count("running") == 2)
    Path(f"/proc/{agent_pid(handle, 'algo-2')}/oom_score_adj").write_text("1000")  # the first that the kernel takes
    flag(handle, "go")
    assert_failed(handle, time.monotonic(), within=30)
    words = "agent killed by the kernel for memory (OOM): the instance's limit is 200 MiB"
    assert str(handle.cause) == f"dnn/algo-2[agent]: {words}"
    stage.assert_nothing_left(handle)


if SOAK:  # in every run: programs, ranks and agents that it kills

    @needs_groups
    @pytest.mark.torch
    def test_a_data_worker_that_the_kernel_kills_for_memory_is_named_in_its_event(stage, monkeypatch) -> None:
        monkeypatch.setattr(host_limits, "LEAST_MEMORY", 900 * MIB)
        monkeypatch.setattr(host_limits, "available_memory", lambda places: 1000 * MIB)
        data = """
        import pathlib, os
        import torch
        from headrace import feed

        class Greedy(torch.utils.data.Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                if index == 5 and not pathlib.Path("eaten").exists():
                    pathlib.Path("eaten").touch()
                    block = bytearray()
                    while True:
                        block += b"x" * (16 << 20)
                return torch.tensor(index)

        @feed.pipeline
        def greedy():
            return Greedy()
        """
        script = """
        from data import greedy
        from headrace import feed
        seen = [int(each) for batch in feed.DataLoader(greedy(), batch_size=4) for each in batch]
        print("seen", seen == list(range(64)), flush=True)
        """
        code = Path(stage.folder) / "code"
        code.mkdir(exist_ok=True)
        (code / "data.py").write_text(textwrap.dedent(data))
        handle = stage.start(
            script,
            instance_groups=groups(dnn=1, data=1),
            data_service={"feed": {"enabled": True, "workers_per_host": 1}, "instance_groups": ["data"]},
            completion={"instance_groups": ["dnn"]},
        )
        assert handle.wait(90) is Status.COMPLETED, text(handle)
        assert "seen True" in text(handle)
        lost = [event for event in handle.run.events() if isinstance(event, DataWorkerLost)]
        assert "killed by the kernel for memory (OOM): the instance's limit is 900 MiB" in lost[0].reason
        assert handle.run.degraded
        stage.assert_nothing_left(handle)


@needs_groups
def test_limits_none_makes_no_group(stage) -> None:
    handle = stage.start(SLEEP, instance_groups=groups(dnn=2), local={"limits": "none"})
    until(lambda: text(handle).count("running") == 2)
    assert control_groups(handle.id) == []
    handle.stop(now=True)
    handle.wait(20)


SMI = """#!/bin/sh
case "$*" in
  --list-gpus) for n in 0 1 2; do echo "GPU $n: Fake (UUID: GPU-$n)"; done;;
  --query-gpu=index,uuid*) for n in 0 1 2; do echo "$n, GPU-$n"; done;;
  *) exit 1;;
esac
"""


@pytest.mark.promise("sagemaker-differences", "absent here: no limits; every container has all GPUs")
def test_every_group_sees_the_gpus_that_are_its_own_and_its_figures_agree(stage, monkeypatch, tmp_path) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    script = """
    import os
    from headrace import Environment
    env = os.environ
    print(env["CUDA_VISIBLE_DEVICES"], env["SM_NUM_GPUS"], Environment().num_gpus, env.get("LOCAL_RANK"), flush=True)
    """
    kinds = [("data", "ml.c5.xlarge", 1), ("dnn", "ml.p3.2xlarge", 2)]
    asked = [{"instance_group_name": name, "instance_type": kind, "instance_count": n} for name, kind, n in kinds]
    world = {"torch_distributed": {"enabled": True, "processes_per_host": 2}, "instance_groups": ["dnn"]}
    both = {"instance_groups": ["data", "dnn"]}  # else the one that only helps may be stopped before it speaks
    handle = stage.start(script, instance_groups=asked, distribution=world, completion=both)
    assert handle.wait(30) is Status.COMPLETED, text(handle)
    assert text(handle, "data/algo-1[0]") == " 0 0 None"
    assert [text(handle, f"dnn/algo-{2 + rank // 2}[{rank}]") for rank in range(4)] == [
        "0 1 1 0",
        "0 1 1 1",
        "1 1 1 0",
        "1 1 1 1",
    ]
    handle = stage.start(
        script, name="given", instance_groups=asked, local={"gpus": {"data": "2", "dnn": "0-1"}, "limits": "none"}
    )
    assert handle.wait(30) is Status.COMPLETED, text(handle)
    assert [text(handle, f"{place}[0]") for place in ("data/algo-1", "dnn/algo-2", "dnn/algo-3")] == [
        "2 1 1 None",
        "0 1 1 None",
        "1 1 1 None",
    ]


# --- nothing is left, whatever is killed ---------------------------------------------------------------------------

CALLER = """
import sys, textwrap
from headrace import engines
from headrace.job import Job
job = Job(
    "killed", source_dir=sys.argv[1], entry_point="train.py", instance_type="ml.c5.xlarge", instance_count=2,
    engines={"local": {"address_prefix": sys.argv[2], "stop_grace": 1}},
)
handle = engines.start(job)
print(handle.id, handle.run.header.supervisor_pid, flush=True)
handle.wait()
"""


@pytest.fixture
def called(stage):
    """A run whose caller is a process of its own. Returns (caller, run id, supervisor)."""
    code = stage.folder / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(textwrap.dedent(SLEEP))
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(code), stage.prefix], stdout=subprocess.PIPE, text=True
    )
    run_id, supervisor = caller.stdout.readline().split()
    yield caller, run_id, int(supervisor)
    caller.kill()
    caller.wait()
    caller.stdout.close()


def run_of(run_id: str):
    return Run(RunPaths(runs_dir() / run_id))


def both_run(run_id: str) -> bool:
    return sum(line.text.startswith("running") for line in run_of(run_id).logs()) == 2


def pids_of(run_id: str) -> list[int]:
    return [pid for pid, _ in processes_of(run_id, run_of(run_id).paths.root)]


@pytest.mark.promise("runs", "no process, socket, shared memory, cgroup or temporary file outlives a job")
@needs_groups
@both_isolations
def test_when_the_supervisor_is_killed_the_caller_removes_the_groups(stage) -> None:
    handle = stage.start(SLEEP, instance_groups=groups(dnn=2))
    until(lambda: text(handle).count("running") == 2)
    assert control_groups(handle.id)
    kill(handle.run.header.supervisor_pid)
    assert handle.wait(30) is Status.FAILED
    assert control_groups(handle.id) == []


@needs_groups
def test_when_the_caller_is_killed_the_supervisor_removes_the_groups(stage, called) -> None:
    caller, run_id, _ = called
    until(lambda: both_run(run_id))
    assert control_groups(run_id)
    caller.kill()
    until(lambda: not pids_of(run_id))
    assert control_groups(run_id) == []


@pytest.mark.promise("isolation", "what must stay when all are killed at once is removed by the next start")
@needs_groups
@pytest.mark.parametrize(
    ("agents_too", "elsewhere"), [(True, True), *([(False, False), (True, False), (False, True)] if SOAK else [])]
)
def test_when_all_are_killed_at_once_the_next_start_removes_groups_and_temporary_files(
    stage, called, monkeypatch, agents_too: bool, elsewhere: bool
) -> None:
    caller, run_id, supervisor = called
    until(lambda: both_run(run_id))
    victims = pids_of(run_id) if agents_too else [supervisor]
    caller.kill()
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):  # the kernel was first: its parent is dead
            kill(pid)
    caller.wait()
    until(lambda: not pids_of(run_id))
    left = control_groups(run_id)
    scratch_left = scratch_dirs(run_id)
    # The next start may be in another session, whose groups lie elsewhere: then the run's own list leads there.
    monkeypatch.setattr(engine, "find_places", lambda: Places({}, {}) if elsewhere else find_places())
    handle = stage.start("print('hello')", name="next")
    assert control_groups(run_id) == []
    assert handle.wait(20) is Status.COMPLETED
    assert left
    assert scratch_left or not agents_too  # an agent that lives a moment longer removes it
    assert not scratch_dirs(run_id)
    assert not (run_of(run_id).paths.root / RECORD).exists()


@needs_groups
def test_a_start_leaves_the_groups_of_a_run_that_lives(stage) -> None:
    first = stage.start(SLEEP, instance_groups=groups(dnn=2))
    until(lambda: text(first).count("running") == 2)
    before = control_groups(first.id)
    second = stage.start("print('hello')", name="second", local={"address_prefix": f"127.60.{os.getpid() % 200}"})
    assert second.wait(20) is Status.COMPLETED
    assert control_groups(first.id) == before
    first.stop(now=True)
    first.wait(20)
    assert control_groups(first.id) == []


def test_memory_of_the_machine_is_not_more_than_it_has() -> None:
    assert 0 < available_memory(PLACES) <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_sizes_are_written_as_people_read_them() -> None:
    assert [format_bytes(size) for size in (1 << 30, 3 << 29, 200 * MIB)] == ["1 GiB", "1.5 GiB", "200 MiB"]
