"""Jobs that go well, with real processes."""

import json
import os
import time
from pathlib import Path

import pytest
from run_places import code
from stage import both_isolations, both_isolations_at_length, groups, isolated_at_length, text

from headrace.runs import Status
from headrace.runs.events import ProgramExited, RunFinished
from patience import allowed

HELLO = """
import os, sys
print("hello from", os.environ["SM_CURRENT_HOST"], os.environ["SM_CURRENT_INSTANCE_GROUP"], sys.argv[1:])
print("and on stderr", file=sys.stderr)
assert os.getcwd().endswith("/code")
assert os.read(0, 1) == b""
"""


@isolated_at_length
def test_three_hosts_run_the_entry_point_and_leave_nothing(stage):
    began = time.monotonic()
    handle = stage.start(HELLO, instance_groups=groups(data=2, dnn=1), hyperparameters={"epochs": 3, "note": "a b; c"})
    assert handle.wait(30) is Status.COMPLETED
    took = time.monotonic() - began
    stage.assert_nothing_left(handle)
    assert handle.exit_code == 0
    assert handle.cause is None
    arguments = ["--epochs", "3", "--note", "a b; c"]
    assert text(handle, "data/algo-1[0]") == f"hello from algo-1 data {arguments}\nand on stderr"
    assert text(handle, "dnn/algo-3[0]") == f"hello from algo-3 dnn {arguments}\nand on stderr"
    events = handle.run.events()
    assert isinstance(events[-1], RunFinished)
    assert len([event for event in events if isinstance(event, ProgramExited)]) == 3
    assert took < allowed(10)  # on an idle machine under 3 s, see bench


def test_the_run_holds_job_plan_code_and_host_metrics(stage):
    handle = stage.start("import time\nx = sum(range(10**7))\ntime.sleep(1.2)")
    assert handle.wait(30) is Status.COMPLETED
    root = handle.paths.root
    assert json.loads((root / "plan.json").read_text())["run_id"] == handle.id
    assert (root / "job.yaml").exists()
    assert (root / "code" / "train.py").exists()
    [(stream, seconds)] = handle.run.host_seconds().items()
    assert (stream.group, stream.host, stream.name) == ("homogeneousCluster", "algo-1", "host")
    assert len(seconds) >= 2
    assert seconds[-1].cpu > 0.1  # the script's, though it has ended
    assert seconds[-1].cpu >= seconds[0].cpu


@pytest.mark.promise("runs", "a job succeeds when all programs of its completion groups exit with 0")
@both_isolations_at_length
@pytest.mark.promise("sagemaker-differences", "absent here: who connects to port 16000 ends the data service")
def test_the_rest_is_stopped_when_the_completion_group_is_done(stage):
    script = """
    import os, signal, sys, time
    if os.environ["SM_CURRENT_INSTANCE_GROUP"] == "side":
        signal.signal(signal.SIGTERM, lambda *_: (print("asked to end", flush=True), sys.exit(5)))
        print("ready", flush=True)
        time.sleep(60)
    time.sleep(0.7)
    """
    handle = stage.start(script, instance_groups=groups(dnn=1, side=1), completion={"instance_groups": ["dnn"]})
    assert handle.wait(30) is Status.COMPLETED
    assert "asked to end" in text(handle, "side/algo-2[0]")
    stage.assert_nothing_left(handle)


def test_a_daemon_of_a_program_is_ended_with_the_host(stage):
    script = """
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            open("daemon.pid", "w").write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not os.path.exists("daemon.pid"):
        time.sleep(0.01)
    """
    handle = stage.start(script)
    assert handle.wait(30) is Status.COMPLETED
    daemon = int((code(handle) / "daemon.pid").read_text())
    assert not Path(f"/proc/{daemon}").exists()
    stage.assert_nothing_left(handle)


def test_a_helper_that_cleans_up_after_its_killed_program_gets_the_time_to_do_it(stage):
    script = """
    import multiprocessing.shared_memory as shm, os, signal
    segment = shm.SharedMemory(create=True, size=4096)
    print("segment", segment.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    handle = stage.start(script)
    assert handle.wait(30) is Status.FAILED
    assert "segment" in text(handle)
    stage.assert_nothing_left(handle)


@both_isolations
def test_temporary_files_of_programs_go_with_the_run(stage):
    script = """
    import os, signal, tempfile
    print(tempfile.mkdtemp(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    handle = stage.start(script)
    assert handle.wait(30) is Status.FAILED
    assert not Path(text(handle, "homogeneousCluster/algo-1[0]").splitlines()[0]).exists()
    stage.assert_nothing_left(handle)


@pytest.mark.promise("security", "a command line shows no secret and no token")
def test_the_users_variables_and_headraces_reach_the_program(stage):
    script = """
    import json, os, sys
    json.dump({**os.environ, "ARGUMENTS": sys.argv[1:]}, open("seen.json", "w"))
    """
    handle = stage.start(
        script, environment={"COLOUR": "blue"}, hyperparameters={"epochs": 3}, hyperparameters_as="file"
    )
    assert handle.wait(30) is Status.COMPLETED
    seen = json.loads((code(handle) / "seen.json").read_text())
    assert seen["COLOUR"] == "blue"
    assert seen.pop("ARGUMENTS") == []
    assert json.loads(seen["SM_HPS"]) == {"epochs": 3}
    assert seen["HEADRACE_RUN_ID"] == handle.id
    assert seen["HEADRACE_METRICS"].endswith("/homogeneousCluster/algo-1/0.jsonl")
    assert seen["SAGEMAKER_BASE_DIR"] == str(handle.paths.host("algo-1"))
    assert "HEADRACE_FEED" not in seen
    secret = (handle.paths.host("algo-1") / "input/data/headrace/secret").read_text()
    assert len(secret) == 64
    assert secret not in "".join(seen.values())


def test_cpu_sets_hold_for_programs(stage):
    cpu = max(os.sched_getaffinity(0))
    script = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['SM_NUM_CPUS'])"
    handle = stage.start(script, local={"cpu_sets": {"homogeneousCluster": str(cpu)}})
    assert handle.wait(30) is Status.COMPLETED
    assert text(handle, "homogeneousCluster/algo-1[0]") == f"[{cpu}] 1"


@pytest.mark.promise("runs", "no line of output is lost at the end, or mixed, and a full pipe blocks no program")
def test_output_is_kept_whole_and_never_blocks_a_program(stage):
    script = """
    import os, sys
    block = (b"x" * 99 + b"\\n") * 10_000
    for _ in range(20):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    sys.stdout.buffer.write(b"L" * (3 << 20) + b"\\n")
    sys.stdout.buffer.flush()
    for step in range(1000):
        sys.stderr.write(f"\\r{step}/1000")
    sys.stderr.write("\\n")
    sys.stdout.write("no newline at the end")
    """
    handle = stage.start(script)
    assert handle.wait(60) is Status.COMPLETED
    lines = list(handle.logs())
    assert {str(line.stream) for line in lines} == {"homogeneousCluster/algo-1[0]"}, "the agents' notes are left out"
    assert {line.stream.name for line in handle.logs("homogeneousCluster/algo-1")} == {"0"}
    assert {line.stream.name for line in handle.logs("homogeneousCluster/algo-1/agent")} == {"agent"}
    out = [line.text for line in lines if line.kind == "o"]
    assert len(out) == 200_000 + 2
    assert out[-2] == "L" * (3 << 20)
    assert out[-1] == "no newline at the end"
    assert [line.text for line in lines if line.kind == "e"] == ["999/1000"]
