"""The main process of pods, started as a container is: in a file system of its own, as root and as another user."""

from __future__ import annotations

import os
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from effort import SOAK
from kube_jobs import DATA, DNN, FEED, kube_job
from played_pods import Pods, play_pods

from headrace.engines.kubernetes.objects import FAILED, objects
from headrace.engines.kubernetes.pod import REPLACED, await_fetched, name_hosts
from headrace.engines.kubernetes.send_record import ASKED, FETCHED, LAST_WORD, touch
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import Run, RunPaths, Status

pytestmark = [pytest.mark.namespaces, pytest.mark.needs("root")]  # a pod's mounts take root

SCRIPT = """
import getpass, json, os, pathlib, socket, sys
import headrace
hosts = json.loads(os.environ["SM_HOSTS"])
host = os.environ["SM_CURRENT_HOST"]
data = pathlib.Path(os.environ["SM_CHANNEL_TRAINING"])
interface = os.environ["SM_NETWORK_INTERFACE_NAME"]
print("I am", host, "as", os.getuid(), "on", interface, "with", data.joinpath("x").read_text())
print("they are", *map(socket.gethostbyname, hosts))
print("my home can be written:", os.access(pathlib.Path.home(), os.W_OK), "my name:", getpass.getuser())
print("headrace is", pathlib.Path(headrace.__file__).parent.parent.name)
pathlib.Path("/opt/ml/model", host + ".txt").write_text(host)
sys.exit(int(os.environ.get("END_WITH", "0")) if host == "algo-1" else 0)
"""
Play = Callable[..., Pods]
Groups = tuple[dict[str, object], ...]


@pytest.fixture
def tmp_path(public: Path) -> Path:
    return public  # users of pods read and write here


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Starts the pods of a job with two hosts and a volume."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    code, data, pods = tmp_path / "code", tmp_path / "volume" / "train", tmp_path / "pods"
    for each in (code, data, pods):
        each.mkdir(parents=True)
    (code / "train.py").write_text(SCRIPT)
    (data / "x").write_text("data of the volume")
    played: list[Pods] = []

    two = ({**DATA, "count": 1}, DNN)

    def start(
        user: int = 0,
        channel: Path = data,
        hosts: list[str] | None = None,
        groups: Groups = two,
        options: object = None,
        **fields: object,
    ) -> Pods:
        volumes = {"d": {"mount_path": str(tmp_path / "volume"), "claim": "c"}}
        given = {"source_dir": str(code), "inputs": {"training": str(channel)}, **fields}
        job = kube_job({"volumes": volumes, "linger": 60, **(options or {})}, *groups, **given)
        played.append(play_pods(job, pods, user, hosts))
        return played[-1]

    yield start
    for each in played:
        each.close()


def wait_for_word(pods: Pods, host: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not (pods.run_of(host).engine / LAST_WORD).exists():
        log = (pods.folder / host / "log").read_text()
        assert pods.started[host].poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(0.05)


@pytest.mark.promise("engines", "channels, on kubernetes")
@pytest.mark.promise(
    "kubernetes-reference", "on Kubernetes pods run as any user; the leader has the record and the model"
)
@pytest.mark.parametrize("user", [1234, *([0] if SOAK else [])])
def test_two_pods_make_one_run_whose_record_and_model_are_the_leaders(play: Play, user: int, tmp_path: Path) -> None:
    pods = play(user)
    assert pods.planned.plan.leader == "algo-1"
    assert pods.ended("algo-2") == 0
    wait_for_word(pods, "algo-1")
    assert pods.started["algo-1"].poll() is None  # nobody has fetched the record
    run = Run(pods.run_of("algo-1"))
    assert run.status is Status.COMPLETED, run.state().cause
    for host, group in (("algo-1", "data_group"), ("algo-2", "dnn_group")):
        log = (run.paths.root / "logs" / group / host / "0.log").read_text()
        assert f"I am {host} as {user} on lo with data of the volume" in log
        assert "they are 10.96.7.1 10.96.7.2" in log
        assert "headrace is package" in log
        assert f"my home can be written: True my name: {user or 'root'}" in log
        assert pods.word_of(host) == {"status": "Completed"}
        secret = pods.run_of(host).root / "hosts" / host / "input/data/headrace/secret"
        assert secret.stat().st_mode & 0o777 == 0o600
    with tarfile.open(run.paths.output / "model.tar.gz") as model:
        assert set(model.getnames()) >= {"algo-1.txt", "algo-2.txt"}
    (run.paths.engine / FETCHED).touch()
    assert pods.ended("algo-1", 5) == 0


if SOAK:  # the objects of a JobSet and its pods' names are tested without pods, too

    @pytest.mark.promise("engines", "instances, on kubernetes")
    def test_the_pods_of_a_jobset_find_each_other_and_all_but_the_leaders_end_well(play: Play) -> None:
        pods = play(options={"gang": True}, environment={"END_WITH": "7"})
        assert [host.address for host in pods.planned.plan.hosts] == [f"{pods.planned.name}-g{n}-0-0" for n in (1, 2)]
        assert pods.ended("algo-2") == 0
        wait_for_word(pods, "algo-1")
        assert "code 7" in str(pods.word_of("algo-1")["reason"])
        for host, group in (("algo-1", "data_group"), ("algo-2", "dnn_group")):
            log = (pods.run_of("algo-1").root / "logs" / group / host / "0.log").read_text()
            assert f"I am {host} as 0 on lo with data of the volume" in log
            assert "they are 10.96.7.1 10.96.7.2" in log
        (pods.run_of("algo-1").engine / FETCHED).touch()
        assert pods.ended("algo-1", 10) == 1


def test_data_workers_fill_the_cores_of_their_pod(play: Play) -> None:
    pods = play(data_service=FEED, hosts=["algo-1"])
    own = pods.run_of("algo-1").plan
    before, deadline = pods.planned.plan.group("data_group").feed_executors, time.monotonic() + 30
    while not ready(own):
        assert time.monotonic() < deadline, (pods.folder / "algo-1" / "log").read_text()
        time.sleep(0.05)
    plan = msgspec.json.decode(own.read_bytes(), type=LaunchPlan)
    assert (before, plan.group("data_group").feed_executors) == (1, len(os.sched_getaffinity(0)))


def ready(plan: Path, host: str = "algo-1") -> bool:
    """Whether a pod has written the plan as its agent gets it: that is the next-to-last thing before it supervises."""
    tree = plan.parent / f"hosts/{host}/input/config/resourceconfig.json"
    return tree.exists() and '"network_interface_name": "lo"' in tree.read_text()


@pytest.mark.promise(
    "kubernetes-reference", "on Kubernetes pods run as any user; the leader has the record and the model"
)
def test_a_program_that_fails_is_the_last_word_of_the_leaders_pod(play: Play) -> None:
    pods = play(groups=(DNN,), environment={"END_WITH": "7"})
    wait_for_word(pods, "algo-1")
    word = pods.word_of("algo-1")
    assert word["status"] == "Failed"
    assert "code 7" in str(word["reason"])
    (pods.run_of("algo-1").engine / FETCHED).touch()
    assert pods.ended("algo-1", 10) == 1


@pytest.mark.promise("engines", "channels, on kubernetes")
def test_a_folder_that_is_not_on_the_volume_fails_the_run_with_its_name(play: Play, tmp_path: Path) -> None:
    pods = play(channel=tmp_path / "volume" / "nothing", hosts=["algo-1"])
    wait_for_word(pods, "algo-1")
    word = pods.word_of("algo-1")
    assert (word["status"], word["cause"]["kind"]) == ("Failed", "instance_not_started")  # type: ignore[index]
    assert "volume/nothing does not exist in the pod" in str(word["reason"])
    assert Run(pods.run_of("algo-1")).status is Status.FAILED
    os.killpg(pods.started["algo-1"].pid, signal.SIGTERM)  # it waits for nobody any more
    assert pods.ended("algo-1", 5) == 1


@pytest.mark.parametrize("attempts", [1, *([0] if SOAK else [])])
def test_a_pod_that_the_platform_ends_is_replaced_when_another_attempt_may_come(play: Play, attempts: int) -> None:
    pods = play(hosts=["algo-2"], **({"retry": {"attempts": attempts}} if attempts else {}))
    deadline = time.monotonic() + 60
    while not ready(pods.run_of("algo-2").plan, "algo-2"):
        assert time.monotonic() < deadline, (pods.folder / "algo-2" / "log").read_text()
        time.sleep(0.05)
    while pods.started["algo-2"].poll() is None:  # a second one: it does not wait for its leader any more
        os.killpg(pods.started["algo-2"].pid, signal.SIGTERM)
        assert time.monotonic() < deadline, (pods.folder / "algo-2" / "log").read_text()
        time.sleep(1.0)
    said = FAILED if not attempts else REPLACED
    assert pods.ended("algo-2") == said
    assert bool((pods.folder / "algo-2" / "word").read_bytes()) == (not attempts), "a run that goes on has no last word"
    for made in objects(pods.planned):
        if made["kind"] == "Job" and attempts and made["metadata"]["labels"]["headrace/host"] == "algo-2":
            (rule,) = made["spec"]["podFailurePolicy"]["rules"]
            assert REPLACED not in rule["onExitCodes"]["values"]


def test_a_pod_that_cannot_unpack_says_why(play: Play) -> None:
    pods = play(hosts=[])
    pods.payload = type(pods.payload)(pods.payload.package, b"no archive", pods.payload.hosts)
    pods.start("algo-1")
    assert pods.ended("algo-1") == 1
    assert "error: algo-1 cannot begin in its pod" in (pods.folder / "algo-1" / "word").read_text()


def test_a_pod_lingers_while_somebody_fetches_however_slowly(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.engine.mkdir()
    asking = threading.Event()

    def ask() -> None:
        while not asking.wait(0.2):
            touch(paths, ASKED)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=ask)
    thread.start()
    threading.Timer(3.0, asking.set).start()
    began = time.monotonic()
    try:
        await_fetched(paths, 1.0)
    finally:
        asking.set()
        thread.join()
        signal.signal(signal.SIGTERM, before)
    assert 3.0 < time.monotonic() - began < 15.0


def test_the_names_of_hosts_are_written_down_where_dns_has_others(play: Play, tmp_path: Path) -> None:
    plan = play(hosts=[]).planned.plan
    moved = tuple(msgspec.structs.replace(host, address="localhost") for host in plan.hosts)
    file = tmp_path / "etc-hosts"
    file.write_text("127.0.0.1\tlocalhost\n")
    name_hosts(msgspec.structs.replace(plan, hosts=moved), file)
    assert file.read_text().splitlines()[1:] == ["127.0.0.1\talgo-1", "127.0.0.1\talgo-2"]
    late = (*moved[:1], msgspec.structs.replace(moved[1], address="nobody.invalid"))
    file.write_text("")
    began = time.monotonic()
    name_hosts(msgspec.structs.replace(plan, hosts=late, start_timeout=1.0), file)
    assert 1.0 <= time.monotonic() - began < 20.0
    assert file.read_text() == "127.0.0.1\talgo-1\n"
