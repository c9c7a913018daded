"""Instances in namespaces: machines of their own, and nothing of them outlives their processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import cut_links
import pytest
from effort import SOAK
from machine import Machine
from run_places import flag
from stage import agent_pid, assert_failed, groups, kill, said, text

from headrace.hosting.isolation.network_layout import MACHINE_NAME
from headrace.processes.process_table import descendants
from headrace.runs import Status, read_header
from headrace.runs.events import StatusChanged
from needs import require
from patience import until
from stranger import as_stranger

pytestmark = [pytest.mark.namespaces, pytest.mark.parametrize("stage", ["namespace"], indirect=True)]

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
print("running", flush=True)
time.sleep(600)
"""


@pytest.fixture
def machine():
    return Machine()


def processes(handle):
    """The run's processes on this machine: (supervisor, agents, all others)."""
    supervisor = read_header(handle.paths).supervisor_pid
    agents = [agent_pid(handle, host.name) for host in (handle.paths.root / "hosts").iterdir()]
    others = [process.pid for process in descendants(supervisor, without=agents)]
    inside = [process.pid for agent in agents for process in descendants(agent)]
    return supervisor, agents, [*others, *inside]


@pytest.mark.promise("engines", "instances, on local")
@pytest.mark.promise("isolation", "an isolated host is a machine of its own: name, address, processes, /tmp, /dev/shm")
@pytest.mark.promise("sagemaker-differences", "absent here: all variables, secrets too, go into `/etc/environment`")
@pytest.mark.promise("sagemaker-differences", "absent here: an interface that does not exist (`ethwe`)")
def test_a_host_is_a_machine_of_its_own(stage, machine):
    script = """
    import json, os, socket
    print(json.dumps({
        "hostname": socket.gethostname(), "first": open("/proc/1/cmdline").read(),
        "tree": sorted(os.listdir("/opt/ml")),
        "base": os.environ["SAGEMAKER_BASE_DIR"], "interface": os.environ["SM_NETWORK_INTERFACE_NAME"],
        "links": sorted(name for _, name in socket.if_nameindex() if name in ("lo", "eth0", "bridge")),
        "pids": len([name for name in os.listdir("/proc") if name.isdigit()]), "opt": sorted(os.listdir("/opt")),
        "shm": os.listdir("/dev/shm"), "cgroups": os.path.exists("/sys/fs/cgroup"),
        "name": open("/etc/hostname").read(), "channel": open("/opt/ml/input/data/train/x").read(),
    }))
    open("/tmp/mine", "x").close()
    open("/dev/shm/mine", "x").close()
    open("/opt/ml/model/weights", "w").write(socket.gethostname())
    """
    data = stage.folder / "data"
    data.mkdir()
    (data / "x").write_text("42")
    handle = stage.start(script, instance_groups=groups(data=2, dnn=1), inputs={"train": str(data)})
    assert handle.wait(30) is Status.COMPLETED, text(handle)
    stage.assert_nothing_left(handle)
    machine.assert_unchanged()
    for number, group in ((1, "data"), (2, "data"), (3, "dnn")):
        host = f"algo-{number}"
        seen = json.loads(text(handle, f"{group}/{host}[0]"))
        assert (seen["hostname"], seen["name"]) == (host, f"{host}\n")
        assert "headrace.agent" in seen["first"]
        assert seen["tree"] == ["checkpoints", "code", "input", "model", "output"]
        assert (seen["base"], seen["interface"], seen["links"]) == ("/opt/ml", "eth0", ["eth0", "lo"])
        assert seen["pids"] < 10
        assert set(seen["opt"]) == {path.name for path in Path("/opt").iterdir()} | {"ml"}
        assert (seen["shm"], seen["cgroups"], seen["channel"]) == ([], True, "42")
        assert (handle.paths.host(host) / "model" / "weights").read_text() == host
    assert not Path("/tmp/mine").exists()


TALK = """
import os, socket, time
me, peer = os.environ["SM_CURRENT_HOST"], {"algo-1": "algo-2", "algo-2": "algo-1"}[os.environ["SM_CURRENT_HOST"]]
listeners = [socket.create_server(("0.0.0.0", port)) for port in (6000, 16000, 22, 7777)]
for port in (6000, 16000, 22, 7777):
    while True:
        try:
            there = socket.create_connection((peer, port), timeout=10)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    there.sendall(f"{me} to {port}".encode())
    there.close()
for listener in listeners:
    connection, (address, _) = listener.accept()
    print(connection.recv(100).decode(), "from", address == socket.gethostbyname(peer))
if os.path.exists("/opt/ml/input/config/hyperparameters.json"):
    open("/tmp/ready", "x").close()
    while "wait" in open("/opt/ml/input/config/hyperparameters.json").read() and not os.path.exists("enough"):
        time.sleep(0.02)
"""


@pytest.mark.promise("isolation", "an isolated host is a machine of its own: name, address, processes, /tmp, /dev/shm")
@pytest.mark.promise("sagemaker-differences", "absent here: hosts wait for each other's names, up to 15 minutes each")
@pytest.mark.promise("sagemaker-differences", "absent here: two jobs at once collide")
def test_two_hosts_of_one_group_use_the_same_ports_and_find_each_other_by_name_in_two_jobs_at_once(stage, machine):
    first = stage.start(TALK, name="first", instance_groups=groups(dnn=2), hyperparameters={"wait": 1})
    until(said(first, "algo-2 to 7777"))
    second = stage.start(TALK, name="second", instance_groups=groups(dnn=2))
    assert second.wait(30) is Status.COMPLETED, text(second)
    assert not first.run.finished
    flag(first, "enough")
    assert first.wait(30) is Status.COMPLETED, text(first)
    for handle in (first, second):
        assert text(handle, "dnn/algo-1[0]").splitlines() == [
            f"algo-2 to {port} from True" for port in (6000, 16000, 22, 7777)
        ]
        stage.assert_nothing_left(handle)
    machine.assert_unchanged()


@pytest.mark.promise("runs", "no process, socket, shared memory, cgroup or temporary file outlives a job")
@pytest.mark.parametrize("victims", [*(["supervisor", "agents"] if SOAK else []), "supervisor and agents"])
@pytest.mark.promise("sagemaker-differences", "absent here: credentials, containers and root's folders stay behind")
def test_nothing_outlives_what_is_killed(stage, machine, victims):
    handle = stage.start(DAEMON, instance_groups=groups(dnn=2))
    until(lambda: text(handle).count("running") == 2)
    supervisor, agents, others = processes(handle)
    machine.know([*agents, *others])
    sleeping = [pid for pid in others if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()[:10]]
    assert len(sleeping) == 2, "the daemons run, and can be seen from here"
    began = time.monotonic()
    for pid in ([supervisor] if "supervisor" in victims else []) + (agents if "agents" in victims else []):
        os.kill(pid, signal.SIGKILL)
    assert_failed(handle, began)
    stage.assert_nothing_left(handle)
    machine.assert_unchanged()
    # Nobody of the run is left to wait for those that the kernel has killed: process 1 of the machine does.
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (supervisor, *agents, *others)), 3)


@pytest.mark.promise("isolation", "bandwidth holds both ways, for each host")
def test_bandwidth_holds_for_each_host_of_a_group_both_ways(stage):
    script = """
    import os, socket, time
    SIZE = 4 << 20
    hosts = {"algo-1": "algo-2", "algo-2": "algo-1", "algo-3": "algo-4", "algo-4": "algo-3"}
    peer = hosts[os.environ["SM_CURRENT_HOST"]]
    listener = socket.create_server(("0.0.0.0", 6000))
    while True:
        try:
            there = socket.create_connection((peer, 6000), timeout=10)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    here, _ = listener.accept()
    def take():
        left = SIZE
        while left:
            left -= len(here.recv(min(left, 1 << 16)))
    there.settimeout(60)
    here.settimeout(60)
    if os.environ["SM_CURRENT_HOST"] in ("algo-1", "algo-3"):  # sends first, then receives
        began = time.monotonic()
        there.sendall(bytes(SIZE))
        here.recv(1)
        middle = time.monotonic()
        there.sendall(b"1")
        take()
        print(f"{8 * SIZE / (middle - began) / 1e6:.1f} {8 * SIZE / (time.monotonic() - middle) / 1e6:.1f}")
    else:
        take()
        there.sendall(b"1")
        here.recv(1)
        there.sendall(bytes(SIZE))
    """
    handle = stage.start(
        script, instance_groups=groups(slow=1, a=1, fast=2), local={"network": {"slow": {"bandwidth": "40mbit"}}}
    )
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    slow = [float(word) for word in text(handle, "slow/algo-1[0]").split()]
    fast = [float(word) for word in text(handle, "fast/algo-3[0]").split()]
    assert all(25 < rate < 50 for rate in slow), slow
    assert all(rate > 100 for rate in fast), fast


def test_instances_reach_the_machine_and_beyond_by_a_way_that_vanishes(stage, machine):
    require("way out")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.sendall(b"hello from the machine")
                connection.close()

        server = threading.Thread(target=serve)
        server.start()
        script = f"""
        import socket
        print(socket.create_connection(("{MACHINE_NAME}", {port}), timeout=10).recv(100).decode())
        """
        handle = stage.start(script, instance_groups=groups(dnn=2))
        assert handle.wait(30) is Status.COMPLETED, text(handle)
        server.join(10)
    assert text(handle).count("hello from the machine") == 2
    stage.assert_nothing_left(handle)
    machine.assert_unchanged()


def test_another_attempt_has_a_way_out_again(stage, machine):
    require("way out")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = f"""
        import os, socket, time
        try:
            socket.create_connection(("{MACHINE_NAME}", {listener.getsockname()[1]}), timeout=2).close()
            print("reached", flush=True)
            while not os.path.exists("end"):
                time.sleep(0.02)
        except OSError as error:
            print(error, flush=True)
        """
        handle = stage.start(script, retry={"attempts": 1})
        until(said(handle, "reached"))
        supervisor, _, _ = processes(handle)
        commands = {each.pid: Path(f"/proc/{each.pid}/cmdline").read_bytes() for each in descendants(supervisor)}
        kill(next(pid for pid, command in commands.items() if b"pasta\0-q" in command))
        until(lambda: text(handle).count("reached") == 2)
        flag(handle, "end")
        assert handle.wait(20) is Status.COMPLETED
    messages = [each.message for each in handle.run.events() if isinstance(each, StatusChanged)]
    assert "Attempt 2 of 2, after: the way out of the job's network failed: pasta killed by SIGKILL" in messages
    stage.assert_nothing_left(handle)
    machine.assert_unchanged()


def test_what_the_job_names_below_tmp_is_shown_in_its_private_tmp(stage, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)  # it would be remembered
    monkeypatch.setenv("TMPDIR", str(stage.folder.parent))  # the caller's own place for temporary files is not named
    shown, hidden = stage.folder / "shown", stage.folder.parent / f"{stage.folder.name}-hidden"
    for folder in (shown, hidden):
        folder.mkdir()
        (folder / "x").write_text("here")
    script = f"""
    import os
    print(open(os.environ["SHOWN"]).read(), os.path.exists("{hidden}"), os.environ["TMPDIR"])
    open(os.environ["SHOWN"] + ".new", "w").write("stays inside")
    open(os.environ["MADE"], "w").write("seen outside")
    """
    made = stage.folder / "made" / "file"
    made.parent.mkdir()
    handle = stage.start(script, environment={"SHOWN": str(shown / "x"), "MADE": str(made)})
    assert handle.wait(30) is Status.COMPLETED, text(handle)
    assert text(handle, "homogeneousCluster/algo-1[0]") == "here False /tmp/algo-1"
    assert sorted(path.name for path in shown.iterdir()) == ["x"], "a file alone is shown, not its folder"
    assert made.read_text() == "seen outside", "a path that is not there yet is its folder"
    stage.assert_nothing_left(handle)


SPOIL = """
import os, pathlib
me = os.environ["SM_CURRENT_HOST"]
plain = pathlib.Path("/opt/ml/input/data/plain")
for folder in (plain, pathlib.Path("/opt/ml/input/data/dealt")):
    (folder / me).write_text("spoilt")
    (folder / me).unlink()
    (folder / "new").mkdir()
assert os.access("/elsewhere/kept", os.W_OK)
assert sorted(os.listdir(plain)) == sorted({"algo-1", "algo-2", "new"} - {me})
"""
STRANGERS_JOB = """
import os, signal, sys, time
from headrace import engines
from cut_links import cut
from headrace.job import Job
from headrace.runs import read_header
from headrace.runs.events import HostStarted
ending = sys.argv[1]
os.mkdir("data")
for host in ("algo-1", "algo-2"):
    open(f"data/{host}", "w").write("as it was")
groups = [{"instance_group_name": "dnn", "instance_type": "ml.c5.xlarge", "instance_count": 2}]
job = Job("job", source_dir="code", entry_point="train.py", instance_groups=groups,
          engines={"local": {"isolation": "namespace", "stop_grace": 1}}, hyperparameters={"ending": ending},
          checkpoint_local_path="/elsewhere/kept",
          inputs={"plain": "data", "dealt": {"s3_data": "data", "distribution": "ShardedByS3Key"}})
handle = engines.start(job)
print(handle.id, handle.paths.root, read_header(handle.paths).supervisor_pid, flush=True)
if ending != "well":
    while sum("to 7777" in line.text for line in handle.logs()) < 2:
        time.sleep(0.02)
    agents = [event.pid for event in handle.run.events() if isinstance(event, HostStarted)]
    cut(handle.paths, "algo-2")
    for pid in (read_header(handle.paths).supervisor_pid, *agents):
        os.kill(pid, signal.SIGKILL)
print(handle.wait(30).value, handle.cause, handle.run.paths.host("algo-1").stat().st_uid)
print(*[line.text for line in handle.logs() if line.stream.host == "algo-1"], sep="\\n")
"""


@pytest.mark.promise("isolation", "root is not needed")
@pytest.mark.needs("root")  # the other tests here are run by one who is not root already
@pytest.mark.parametrize("ending", ["well", *(["killed"] if SOAK else [])])
def test_root_is_not_needed(stage, machine, tmp_path_factory, ending):
    import tempfile

    with tempfile.TemporaryDirectory(prefix="headrace-test-", dir="/var/tmp") as name:
        home = Path(name)
        home.chmod(0o777)
        (home / "code").mkdir()
        wait = "import time\ntime.sleep(600)" if ending == "killed" else ""
        (home / "code" / "train.py").write_text(f"{SPOIL}{textwrap.dedent(TALK)}\n{wait}")
        (home / "job.py").write_text(STRANGERS_JOB)
        shutil.copy(cut_links.__file__, home)
        package = str(Path(sys.modules["headrace"].__file__).parents[1])
        env = {**os.environ, "HOME": name, "HEADRACE_HOME": f"{name}/home", "PYTHONPATH": package,
               "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
        done = subprocess.run(
            as_stranger("job.py", ending), cwd=name, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        told = done.stdout.splitlines()
        run_id, root, _ = told[0].split()
        if ending == "well":
            assert told[1] == "Completed None 65534"
        else:
            assert told[1].startswith("Failed the engine's supervisor was killed by SIGKILL")
        assert "algo-2 to 7777 from True" in told
        stage.observer.assert_nothing_left(run_id, Path(root))
        machine.assert_unchanged()
        assert [(path.name, path.read_text()) for path in sorted((home / "data").iterdir())] == [
            ("algo-1", "as it was"), ("algo-2", "as it was")
        ]  # fmt: skip
        assert not (Path(root) / "channels").exists()
