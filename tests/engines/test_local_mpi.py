"""MPI for real: mpirun over hosts of the local engine, its ranks, and what happens when one of its parts fails."""

import os
import shutil
import time
from pathlib import Path

import pytest
from effort import SOAK
from stage import assert_failed, both_isolations_at_length, groups, kill, program_pid, text

from headrace import engines
from headrace.instance import read_failure
from headrace.runs import Status
from headrace.runs.events import ProgramStarted
from patience import allowed, until

pytestmark = pytest.mark.needs("mpirun", "libmpi", "mpi4py")

MPI = {"mpi": {"enabled": True, "processes_per_host": 2}}
START = """
import os, signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
print("running", world.rank, flush=True)
"""
LOOP = (
    START
    + """
while True:
    world.allreduce(1)
    time.sleep(0.02)
"""
)


def start(stage, script, hosts=2, **fields):
    fields.setdefault("distribution", MPI)
    return stage.start(script, instance_groups=groups(dnn=hosts), **fields)


def running(handle, ranks=4):
    until(lambda: text(handle).count("running") >= ranks, 30, "the ranks run")


def ranks_of(handle):
    return {
        (event.host, event.stream)
        for event in handle.run.events()
        if isinstance(event, ProgramStarted) and event.stream.isdigit()
    }


@both_isolations_at_length
@pytest.mark.promise("sagemaker-differences", "absent here: `SM_CURRENT_HOST` of the master in every rank")
def test_every_rank_knows_its_world_and_its_own_host(stage):
    script = """
    import os
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    total = world.allreduce(world.rank)
    names = "SM_CURRENT_HOST", "SM_CURRENT_HOST_RANK", "SM_CURRENT_INSTANCE_GROUP", "OMPI_COMM_WORLD_LOCAL_RANK", "MINE"
    print("rank", world.rank, world.size, local.rank, local.size, total, *[os.environ[name] for name in names])
    base = os.environ["SAGEMAKER_BASE_DIR"], os.environ["TMPDIR"], os.environ["SM_MODEL_DIR"]
    print("own", all(os.environ["SM_CURRENT_HOST"] in place for place in base))  # else each has its /opt/ml
    """
    handle = start(stage, script, environment={"MINE": "a b"})
    assert handle.wait(30) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle)
    for rank in range(4):
        host, local = f"algo-{1 + rank // 2}", rank % 2
        lines = text(handle, f"dnn/{host}[{rank}]")
        assert lines.splitlines()[0] == f"rank {rank} 4 {local} 2 6 {host} {rank // 2} dnn {local} a b"
        assert f"own {stage.isolation == 'none'}" in lines
    assert ranks_of(handle) == {("algo-1", "0"), ("algo-1", "1"), ("algo-2", "2"), ("algo-2", "3")}


@pytest.mark.promise("sagemaker-differences", "absent here: `custom_mpi_options` are split at blanks")
def test_options_of_the_user_reach_mpirun_and_no_shell(stage):
    script = """
    import os
    print("forwarded", os.environ["TOKEN"], os.environ["NCCL_DEBUG"], os.environ["OMPI_MCA_pml"], flush=True)
    """
    options = "-x 'TOKEN=$(echo no); `x`' --NCCL_DEBUG WARN -mca pml ob1 -x SM_CURRENT_HOST=algo-9"
    handle = start(
        stage,
        script + 'print(os.environ["SM_CURRENT_HOST"])\n',
        hosts=1,
        distribution={"mpi": {"enabled": True, "processes_per_host": 1, "custom_mpi_options": options}},
    )
    assert handle.wait(30) is Status.COMPLETED, text(handle)
    assert text(handle, "dnn/algo-1[0]").splitlines() == ["forwarded $(echo no); `x` WARN ob1", "algo-1"]


@pytest.mark.promise("mpi", "of MPI ranks, the one that failed is the cause")
@pytest.mark.parametrize("how", ["raise", *(["exit", "abort", "leave"] if SOAK else [])])
def test_of_four_ranks_the_one_that_fails_is_the_cause(stage, how):
    failing = {
        "raise": "raise ValueError('bad label')",
        "exit": "sys.exit(3)",
        "abort": "world.Abort(3)",
        "leave": "os._exit(3)",  # without a word to its peers
    }
    script = START + f"if world.rank == 3:\n    {failing[how]}\n" + "world.Barrier()\ntime.sleep(600)\n"
    handle = start(stage, script)
    running(handle)
    assert_failed(handle, time.monotonic())
    stage.assert_nothing_left(handle)
    code = 1 if how == "raise" else 3
    said = ": ValueError: bad label" if how == "raise" else ""
    assert str(handle.cause) == f"dnn/algo-2[3]: exited with code {code}{said}"
    if how == "raise":
        assert "ValueError: bad label" in handle.cause.last_lines
    assert f"exited with code {code}" in read_failure(handle.paths.host("algo-2"))


# The fault table kills the two others in the long run, too.
@pytest.mark.parametrize(
    ("host", "stream"), [("algo-2", "3"), *([("algo-2", "orted"), ("algo-1", "mpirun")] if SOAK else [])]
)
@pytest.mark.promise("sagemaker-differences", "absent here: a lost `orted` is noticed after 20 minutes or more")
def test_a_part_that_is_killed_is_the_cause(stage, host, stream):
    handle = start(stage, LOOP)
    running(handle)
    began = time.monotonic()
    kill(program_pid(handle, host, stream))
    assert_failed(handle, began)
    stage.assert_nothing_left(handle)
    assert str(handle.cause) == f"dnn/{host}[{stream}]: killed by SIGKILL"


def test_a_stop_gives_every_rank_time_to_save(stage):
    script = (
        START
        + """
def save(*_):
    name = f"saved-{world.rank}"
    time.sleep(4.0)
    MPI.Finalize()  # needs mpirun's daemons
    open(os.path.join(os.environ["SM_MODEL_DIR"], name), "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
while True:
    time.sleep(0.05)
"""
    )
    handle = start(stage, script, local={"stop_grace": 12})
    running(handle)
    began = time.monotonic()
    handle.stop()
    assert handle.wait(20) is Status.STOPPED
    assert time.monotonic() - began < allowed(12)
    stage.assert_nothing_left(handle)
    saved = sorted(path.name for host in ("algo-1", "algo-2") for path in (handle.paths.host(host) / "model").iterdir())
    assert saved == [f"saved-{rank}" for rank in range(4)]


def test_without_mpirun_the_cause_says_what_to_install(stage, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    handle = start(stage, "print()")
    assert_failed(handle, time.monotonic())
    stage.assert_nothing_left(handle)
    assert str(handle.cause) == "dnn/algo-1[mpirun]: exited with code 127: mpirun is not installed"
    assert any(line.startswith("hint: install Open MPI") for line in handle.cause.last_lines)


def fake_mpirun(folder: Path, said: str) -> None:
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("mpirun (Open MPI) 3.1.6", "Open MPI 3.1.6 is not known here; known are 4 and 5"),
        *([("HYDRA build details:", "mpirun is not from Open MPI: it says 'HYDRA build details:'")] if SOAK else []),
    ],
)
def test_an_mpirun_of_another_kind_is_named(stage, monkeypatch, tmp_path, says, reason):
    fake_mpirun(tmp_path, says)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    handle = start(stage, "print()")
    assert_failed(handle, time.monotonic())
    assert str(handle.cause) == f"dnn/algo-1[mpirun]: exited with code 2: {reason}"


def test_fewer_ranks_than_the_job_has_are_a_failure(stage):
    handle = start(
        stage,
        "import mpi4py.MPI",
        distribution={"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-np 3"}},
    )
    assert_failed(handle, time.monotonic(), within=15)
    stage.assert_nothing_left(handle)
    reason = "mpirun ended, and of its ranks these did not run to a good end: 3"
    assert str(handle.cause) == f"dnn/algo-1[mpirun]: {reason}"


@pytest.mark.promise("sagemaker-differences", "absent here: a rank's host is computed from its number")
def test_a_mapping_of_the_users_own_is_told_truly(stage):
    script = """
    import os
    from mpi4py import MPI
    print(MPI.COMM_WORLD.rank, os.environ["SM_CURRENT_HOST"], flush=True)
    """
    handle = start(
        stage,
        script,
        distribution={"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "--map-by node"}},
    )
    assert handle.wait(30) is Status.COMPLETED, text(handle)
    assert ranks_of(handle) == {("algo-1", "0"), ("algo-2", "1"), ("algo-1", "2"), ("algo-2", "3")}
    assert text(handle, "dnn/algo-2[1]") == "1 algo-2"


def test_a_shell_script_may_be_the_rank(stage):
    job = stage.job("", instance_groups=groups(dnn=2), distribution=MPI)
    (stage.folder / "code" / "train.sh").write_text('echo "rank $OMPI_COMM_WORLD_RANK on $SM_CURRENT_HOST"\n')
    handle = engines.start(job.model_copy(update={"entry_point": "train.sh"}))
    stage.handles.append(handle)
    assert handle.wait(30) is Status.COMPLETED, text(handle)
    assert text(handle, "dnn/algo-2[3]") == "rank 3 on algo-2"


@pytest.mark.parametrize(("host", "stream"), [*([("algo-1", "mpirun")] if SOAK else []), ("algo-2", "orted")])
@pytest.mark.promise("sagemaker-differences", "absent here: MPI workers try to reach the master for ever")
def test_a_launcher_that_is_stopped_at_the_start_is_found_and_named(stage, monkeypatch, tmp_path, host, stream):
    real = shutil.which(stream)
    fake = tmp_path / stream
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\n'
        f'[ "$SM_CURRENT_HOST" = {host} ] && kill -STOP $$\nexec {real} "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("headrace.engines.local.plan_hosts.START_TIMEOUT", 5.0)
    handle = start(stage, START)
    assert_failed(handle, time.monotonic(), within=20)
    stage.assert_nothing_left(handle)
    assert str(handle.cause) == (
        f"dnn/{host}[{stream}]: killed by SIGKILL: no rank was started within 5 s: "
        f"{stream} on {host} is stopped (SIGSTOP)"
    )
