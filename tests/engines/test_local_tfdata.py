"""A job with tf.data.service: shared by the trainers, restarted after SIGKILL, ended with the job, and its faults."""

import os
import textwrap
import time

import pytest
from effort import SOAK
from run_places import flag, pid_here
from stage import agent_pid, groups, kill, text

from headrace.engines.local import host_limits
from headrace.errors import EngineRefused
from headrace.insight import report
from headrace.runs import Status
from headrace.runs.events import DataWorkerLost, ProgramExited, ProgramStarted, ServerReady
from headrace.runs.metric_records import ServiceSecond
from patience import until

TENSORFLOW_SECONDS = 180  # importing it takes 4 s on an idle machine and a minute on a very busy one

pytestmark = pytest.mark.timeout(480)

SHARED = """
import os, time
import tensorflow as tf
from headrace import Environment
from headrace.tensorflow import distribute

host = Environment().current_host
print("address", Environment().tf_data_service(), flush=True)
dataset = distribute(tf.data.Dataset.range(10**6).map(lambda row: row))
for row in dataset:
    print("row", host, int(row), flush=True)
    if os.path.exists("enough"):
        break
    time.sleep(0.02)
"""

FAULTS = """
import os
import tensorflow as tf
from headrace import HeadraceError
from headrace.tensorflow import distribute

def attempt(name, dataset, **options):
    try:
        distribute(dataset, name, **options)
    except HeadraceError as error:
        print(f"{name}: {type(error).__name__}: {error}".replace("\\n", " "), flush=True)

small = tf.data.Dataset.range(12)
attempt("python", small.map(lambda row: tf.py_function(lambda x: x, [row], tf.int64)))
attempt("nobody", small, service="grpc://127.0.0.1:1", wait=0.5)
attempt("static", small, processing_mode="data")
for row in distribute(tf.data.Dataset.range(10**6).map(lambda row: row)):
    print("row", int(row), flush=True)
"""


def serving(stage, script, service, dnn=1, **fields):
    return stage.start(
        script,
        instance_groups=groups(data=1, dnn=dnn),
        data_service={"tf_data": {"enabled": True, "open_ports": True}, "instance_groups": service},
        completion={"instance_groups": ["dnn"]},
        environment={"TF_USE_LEGACY_KERAS": "1"},  # these trainers have no model, and are imported without Keras
        **fields,
    )


def events(handle, kind):
    return [event for event in handle.run.events() if isinstance(event, kind)]


def ready(handle, stream, host="algo-1"):
    return [event for event in events(handle, ServerReady) if (event.host, event.stream) == (host, stream)]


def started(handle, stream, host="algo-1"):
    """The server's pid on this machine, each time that it was started."""
    pids = [e.pid for e in events(handle, ProgramStarted) if (e.host, e.stream) == (host, stream)]
    return [pid_here(agent_pid(handle, host), pid) for pid in pids[-1:]]


def rows(handle):
    return [line.split()[1:] for line in text(handle).splitlines() if line.startswith("row ")]


def go_on(handle):
    """Waits until each trainer gets more rows than it has now."""
    before = len(rows(handle))
    until(lambda: len(rows(handle)) > before + 20, TENSORFLOW_SECONDS, "more rows")


@pytest.mark.parametrize("stage", [pytest.param("namespace", marks=pytest.mark.namespaces)], indirect=True)
def test_trainers_share_the_data_and_go_on_when_a_worker_and_the_dispatcher_were_killed(stage):
    killed_servers = [*(["tf-worker-0"] if SOAK else []), "tf-dispatcher"]  # in every run a worker below
    trainers = 1 + SOAK  # in every run two: tests/adapters/test_tensorflow_distribute.py
    handle = serving(stage, SHARED, ["data"], dnn=trainers)
    until(lambda: len({row[0] for row in rows(handle)}) == trainers, TENSORFLOW_SECONDS, "rows of all")
    assert f"address grpc://{stage.address(handle, 'algo-1')}:7072" in text(handle)
    warnings = text(handle).count("UserWarning: 2 ranks share the 1000000 elements")
    assert warnings == 2 * SOAK, "two programs, no distribution"
    for stream in killed_servers:
        until(lambda stream=stream: ready(handle, stream), 5)
        kill(started(handle, stream)[0])
        killed = time.time()
        until(lambda stream=stream: len(ready(handle, stream)) == 2, TENSORFLOW_SECONDS, f"{stream} is ready again")
        again = [e for e in events(handle, ProgramStarted) if e.stream == stream][1]
        assert again.t - killed < 5
        go_on(handle)
    flag(handle, "enough")
    assert handle.wait(60) is Status.COMPLETED
    stage.assert_nothing_left(handle)
    numbers = [row[1] for row in rows(handle)]
    assert len(numbers) == len(set(numbers)), "a row came twice"
    lost = events(handle, DataWorkerLost)
    assert [(each.host, each.reason, each.recovered) for each in lost] == [
        ("algo-1", f"{stream} killed by SIGKILL", True) for stream in killed_servers
    ]
    assert handle.run.degraded
    ends = [event for event in events(handle, ProgramExited) if event.stream.startswith("tf-") and event.stopped]
    assert sorted((end.stream, end.exit_code) for end in ends) == [("tf-dispatcher", 0), ("tf-worker-0", 0)]
    written = [metric for stream in handle.run.metrics().values() for metric in stream]
    used = [metric for metric in written if isinstance(metric, ServiceSecond)]
    worker = [metric for metric in used if metric.stream == "tf-worker-0"]
    assert {metric.restarts for metric in worker} == ({0, 1} if SOAK else {0})
    assert max(metric.cpu for metric in worker) > 0.5
    assert max(metric.rss for metric in worker) > 100 << 20
    assert {metric.workers for metric in used if metric.role == "dispatcher"} >= {1}
    assert {metric.sent for metric in used if metric.role == "dispatcher"} == {None}
    assert max(metric.sent or 0 for metric in worker) > len(numbers)  # at least a byte for each row
    shown = {server.stream: server for server in report(handle.run).servers}
    assert {stream: server.restarts for stream, server in shown.items() if server.restarts} == dict.fromkeys(
        killed_servers, 1
    )
    assert shown["tf-worker-0"].server_cpu.value > 0


def check_loss_of_the_dispatchers_host(stage, handle):
    """Checks that a worker beside a trainer gives way to it, and what the loss of the dispatcher's host does."""
    beside = started(handle, "tf-worker-0", "algo-2")[0]
    assert os.getpriority(os.PRIO_PROCESS, beside) == min(19, 10 + os.getpriority(os.PRIO_PROCESS, 0))
    kill(agent_pid(handle, "algo-1"))
    assert handle.wait(30) is Status.FAILED
    cause = handle.run.cause
    assert (cause.host, cause.stream, cause.infrastructure) == ("algo-1", "tf-dispatcher", True)
    assert cause.reason.startswith("no dispatcher of tf.data.service is left: tf-dispatcher host lost: ")
    stage.assert_nothing_left(handle, 5)


FAKE = """
import os, signal, types
__version__ = os.environ["FAKE_TENSORFLOW"]
if __version__ == "missing":
    raise ImportError("no TensorFlow here")

class Server:
    def __init__(self, config):
        pass

class Eating(Server):
    def _num_tasks(self):
        self.held = b"x" * (1 << 30)

class Dying(Server):
    def _num_tasks(self):
        os.kill(os.getpid(), signal.SIGKILL)

service = types.SimpleNamespace(
    DispatcherConfig=dict, WorkerConfig=lambda *_, **__: None, DispatchServer=Server,
    WorkerServer={"DYING": Dying, "EATING": Eating}.get(os.environ.get("DOES"), Server),
)
data = types.SimpleNamespace(experimental=types.SimpleNamespace(service=service))
"""


def pretending(stage, data, dnn, service=("data", "dnn")):
    """A job whose two groups have a TensorFlow that only says its version; its servers are processes all the same."""
    fake = stage.folder / "fake"
    (fake / "tensorflow").mkdir(parents=True)
    (fake / "tensorflow" / "__init__.py").write_text(textwrap.dedent(FAKE))
    two = groups(data=1, dnn=1)
    for group, environment in zip(two, (data, dnn), strict=True):
        group["environment"] = {"PYTHONPATH": str(fake), **environment}
    return stage.start(
        "import time\nprint('up', flush=True)\ntime.sleep(120)",
        instance_groups=two,
        data_service={"tf_data": {"enabled": True, "open_ports": True}, "instance_groups": list(service)},
        completion={"instance_groups": ["dnn"]},
        local={"ports": {"tf_data": 20000 + os.getpid() % 10000}},
    )


def end_of(stage, handle, within=40):
    assert handle.wait(within) is Status.FAILED
    stage.assert_nothing_left(handle)
    return str(handle.run.cause)


def test_the_loss_of_the_dispatcher_s_host_ends_the_job(stage):
    same = {"FAKE_TENSORFLOW": "2.21.0"}
    handle = pretending(stage, same, same)
    until(lambda: ready(handle, "tf-worker-0", "algo-2") and "up" in text(handle), 30, "a worker beside the trainer")
    check_loss_of_the_dispatchers_host(stage, handle)


def test_servers_with_different_versions_end_the_job_which_names_them(stage):
    handle = pretending(stage, {"FAKE_TENSORFLOW": "2.21.0"}, {"FAKE_TENSORFLOW": "2.15.1"})
    words = end_of(stage, handle)
    assert "the servers of tf.data.service have different versions of TensorFlow" in words
    assert "2.21.0 on data/algo-1" in words
    assert "2.15.1 on dnn/algo-2" in words


def test_workers_that_die_again_and_again_are_given_up_and_the_job_ends_with_their_names(stage):
    same = {"FAKE_TENSORFLOW": "2.21.0", "DOES": "DYING"}
    handle = pretending(stage, same, same)
    assert "no worker of tf.data.service is left, all 2 are down, the last first: " in end_of(stage, handle)
    lost = [event for event in events(handle, DataWorkerLost) if event.stream == "tf-worker-0"]
    assert [event.fatal for event in lost] == [False] * 7 + [True]
    times = [event.t for event in events(handle, ProgramStarted) if event.stream == "tf-worker-0"]
    assert len(times) == 8


def test_a_group_without_tensorflow_ends_the_job_with_what_to_install(stage):
    handle = pretending(stage, {"FAKE_TENSORFLOW": "missing"}, {"FAKE_TENSORFLOW": "2.21.0"}, ["dnn", "data"])
    words = end_of(stage, handle)
    assert words.startswith("data/algo-1[tf-worker-0]: a server of tf.data.service cannot run: ")
    assert "cannot import tensorflow in" in words
    assert "pip install tensorflow" in words
    where = [(event.host, event.stream) for event in events(handle, ProgramStarted)]
    assert where.count(("algo-1", "tf-worker-0")) == 1


@pytest.mark.needs("memory groups")
def test_workers_that_need_more_memory_than_their_host_has_end_the_job_which_says_so(stage, monkeypatch):
    monkeypatch.setattr(host_limits, "LEAST_MEMORY", 64 * host_limits.MIB)
    monkeypatch.setattr(
        host_limits, "available_memory", lambda places: int(400 * host_limits.MIB / (1 - host_limits.SYSTEM_PART)) + 9
    )
    handle = pretending(stage, {"FAKE_TENSORFLOW": "2.21.0", "DOES": "EATING"}, {"FAKE_TENSORFLOW": "2.21.0"})
    words = end_of(stage, handle)
    assert words.startswith(
        "data/algo-1[tf-worker-0]: the kernel has killed servers of tf.data.service for memory twice within an hour, "
        "the last: tf-worker-0 killed by the kernel for memory (OOM): the instance's limit is 200 MiB; the pipeline "
        "needs less"
    )
    lost = events(handle, DataWorkerLost)
    assert [(event.recovered, event.fatal) for event in lost] == [(True, False), (False, True)]
    assert all("(OOM): the instance's limit is 200 MiB" in event.reason for event in lost)


def test_nothing_starts_where_the_python_has_no_tensorflow(stage, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineRefused, match=r"needs TensorFlow, which .* of data does not have"):
        serving(stage, SHARED, ["data"])
